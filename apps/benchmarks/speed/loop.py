"""What the runtime itself costs a step: CPU time with a trivial environment and policy, recall on.

The library holds so many steps; texts are embedded beforehand. `fused` runs the steps of an episode in
one LangGraph node, `stages` one node each, `learning` fused and recorded. A policy reads `values`
(an estimate for every action) or `text` (items and similar steps).
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from benchmarks.fixtures import Rooms, build
from hardwon.memory import ExperienceLibrary, State
from hardwon.runtime.agent import Agent
from hardwon.runtime.interfaces.types import Context, Decision, Info

Reads = Literal["values", "text"]

EPISODE = 50
"""Steps of an episode."""
WARM = 2
"""Episodes run before the clock starts."""
MODES: tuple[tuple[str, Reads], ...] = (
    ("fused", "values"),
    ("stages", "values"),
    ("learning", "values"),
    ("fused", "text"),
    ("stages", "text"),
)


class Corridor:
    """A hundred observations, one after the other, whatever is done."""

    name = "corridor"

    def __init__(self, states: list[State], actions: list[str]) -> None:
        self._states, self._actions, self._at = states, actions, 0

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin at a place that the seed says."""
        self._at = seed
        return self._here()

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """One further."""
        self._at += 1
        return replace(self._here(), feedback=f"You {action}."), 0.0, False, Info()

    def admissible(self, state: State) -> list[str]:
        """Always the same."""
        return self._actions

    def clone(self) -> "Corridor":
        """Another one."""
        return Corridor(self._states, self._actions)

    def close(self) -> None:
        """Nothing is held."""

    def _here(self) -> State:
        return self._states[self._at % len(self._states)]


class Turns:
    """Takes the actions in turn."""

    name = "turns"

    def __init__(self, reads: Reads) -> None:
        self.reads: Reads = reads

    def decide(self, context: Context) -> Decision:
        """The next action."""
        return Decision(context.actions[len(context.history) % len(context.actions)])

    async def adecide(self, context: Context) -> Decision:
        """The same."""
        return self.decide(context)


def measure(steps: int, episodes: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every mode: CPU milliseconds a step."""
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        tell(f"building a library of {steps} steps ...")
        library, rooms, _ = build(Path(folder) / "library.db", steps)
        with library:
            corridor = _corridor(rooms)
            rows = []
            for mode, reads in MODES:
                tell(f"running {mode}, {reads} ...")
                rows.append(
                    {
                        "n": steps,
                        "mode": mode,
                        "reads": reads,
                        "cpu_ms_per_step": _cost(library, corridor, mode, reads, episodes),
                    }
                )
            return rows


def _corridor(rooms: Rooms) -> Corridor:
    states = [rooms.state() for _ in range(100)]
    return Corridor(states, sorted({rooms.action(state) for state in states[:12]}))


def _cost(library: ExperienceLibrary, corridor: Corridor, mode: str, reads: Reads, episodes: int) -> float:
    agent = Agent(Turns(reads), library, corridor.clone(), learn=mode == "learning", max_steps=EPISODE)
    for seed in range(WARM):
        _episode(agent, mode, seed)
    began = time.process_time()
    for seed in range(episodes):
        _episode(agent, mode, seed)
    spent = time.process_time() - began
    agent.close()
    return round(1000 * spent / (episodes * EPISODE), 3)


def _episode(agent: Agent, mode: str, seed: int) -> None:
    if mode == "stages":
        for _ in agent.stream(seed=seed):
            pass
    else:
        agent.run(seed=seed)
