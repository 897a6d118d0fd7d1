"""Measure the runtime's CPU time per step, with recall and with a trivial environment and policy.

All texts are embedded beforehand. Mode `fused` runs the stages of a step in one LangGraph node, `stages` in one node
per stage, and `learning` is `fused` with recording. A policy that reads `values` uses an estimate for every action;
one that reads `text` uses items and similar steps.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from benchmarks.fixtures import Rooms, build
from benchmarks.harness.timing import time_cpu_s
from hardwon.memory import ExperienceLibrary, State
from hardwon.runtime.agent import Agent
from hardwon.runtime.interfaces.types import Context, Decision, Info

Reads = Literal["values", "text"]

EPISODE = 50
"""Steps per episode."""
WARM = 2
"""Untimed episodes before the measurement."""
MODES: tuple[tuple[str, Reads], ...] = (
    ("fused", "values"),
    ("stages", "values"),
    ("learning", "values"),
    ("fused", "text"),
    ("stages", "text"),
)


class Corridor:
    """An environment of a hundred observations in a fixed order, which no action changes."""

    name = "corridor"

    def __init__(self, states: list[State], actions: list[str]) -> None:
        self._states, self._actions, self._at = states, actions, 0

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Start at the observation with the index `seed`."""
        self._at = seed
        return self._state()

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Advance to the next observation."""
        self._at += 1
        return replace(self._state(), feedback=f"You {action}."), 0.0, False, Info()

    def admissible(self, state: State) -> list[str]:
        """Return the same actions in every state."""
        return self._actions

    def clone(self) -> "Corridor":
        """Return a new environment with the same observations and actions."""
        return Corridor(self._states, self._actions)

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""

    def _state(self) -> State:
        return self._states[self._at % len(self._states)]


class Turns:
    """A policy that takes the admissible actions in turn."""

    name = "turns"

    def __init__(self, reads: Reads) -> None:
        self.reads: Reads = reads

    def decide(self, context: Context) -> Decision:
        """Return the next action in turn."""
        return Decision(context.actions[len(context.history) % len(context.actions)])

    async def adecide(self, context: Context) -> Decision:
        """Return the same decision as `decide`."""
        return self.decide(context)


def measure(steps: int, episodes: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure every mode on one library.

    Args:
        steps: size of the library in steps.
        episodes: number of timed episodes per mode.
        tell: function that receives lines of progress.

    Returns:
        One row per mode, with CPU milliseconds per step.
    """
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        tell(f"building a library of {steps} steps ...")
        library, rooms, _ = build(Path(folder) / "library.db", steps)
        with library:
            corridor = _build_corridor(rooms)
            rows = []
            for mode, reads in MODES:
                tell(f"running {mode}, {reads} ...")
                cpu_ms = _measure_mode(library, corridor, mode, reads, episodes)
                rows.append({"n": steps, "mode": mode, "reads": reads, "cpu_ms_per_step": cpu_ms})
            return rows


def _build_corridor(rooms: Rooms) -> Corridor:
    """Build an environment with situations of the library."""
    states = [rooms.draw_state() for _ in range(100)]
    return Corridor(states, sorted({rooms.draw_action(state) for state in states[:12]}))


def _measure_mode(library: ExperienceLibrary, corridor: Corridor, mode: str, reads: Reads, episodes: int) -> float:
    """Return the CPU milliseconds per step of an agent in one mode."""
    agent = Agent(Turns(reads), library, corridor.clone(), learn=mode == "learning", max_steps=EPISODE)
    _run_episodes(agent, mode, WARM)
    cpu_s = time_cpu_s(_run_episodes, agent, mode, episodes)
    agent.close()
    return round(1000 * cpu_s / (episodes * EPISODE), 3)


def _run_episodes(agent: Agent, mode: str, count: int) -> None:
    """Run episodes; mode `stages` streams the updates of every stage."""
    for seed in range(count):
        if mode == "stages":
            for _ in agent.stream(seed=seed):
                pass
        else:
            agent.run(seed=seed)
