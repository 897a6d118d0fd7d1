"""`hardwon bench bfcl`: do guardrails learnt in some tasks cut the failing calls in others?

The assistant is scripted, so that nothing but the library differs between the arms: it knows which
calls solve a request, but neither their order nor what they need first, and it repeats a call that
failed. It cannot read hints; what helps it is being kept from calls that are known to fail. Learns on
the train fold of BFCL's multi-turn `base`; is tested on the test fold of all four categories.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any, Literal

from hardwon.memory import ExperienceLibrary, Failure, Step
from hardwon.runtime import Agent, Decision
from hardwon.runtime.agent import Result
from hardwon.runtime.environments.bfcl import ANSWER, CATEGORIES, FOLDS, Bfcl, tasks
from hardwon.runtime.interfaces.types import Context

MAX_STEPS = 60
"""Steps of an episode, ends of turns included."""
PATIENCE = 3
"""How often a call is tried for one request."""
TRAIN, TEST = 100, 50
"""Tasks in the folds of a category."""
_ARMS: dict[str, bool | Literal["warn"]] = {"empty": True, "guarded": True, "warned": "warn", "unguarded": False}
"""Each arm with its mode of guardrails: refuse, warn as the middleware does by default, or off."""
_FAILED = (Failure.TOOL_ERROR, Failure.BLOCKED)


class Hasty:
    """Makes the calls of a request in an order of its own; what fails is repeated once, then put off."""

    name = "hasty"
    reads: Literal["values", "text"] = "text"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._solutions = {
            request: calls
            for category in CATEGORIES
            for fold in FOLDS
            for task in tasks(category, fold)
            for request, calls in zip(task.requests, task.solution, strict=True)
        }

    def decide(self, context: Context) -> Decision:
        """The next call that has not worked yet, or the end of the turn."""
        request = context.state.task
        calls = self._solutions[request]
        left = random.Random(f"{self._seed}/{request}").sample(calls, len(calls))
        turn = _this_turn(context.history, request)
        failures = Counter(step.action for step in turn if step.diagnosis.failure in _FAILED)
        for step in turn:
            if step.diagnosis.failure not in _FAILED and step.action in left:
                left.remove(step.action)
        wanted = [call for call in left if failures[call] < PATIENCE]
        last = turn[-1].action if turn and turn[-1].diagnosis.failure in _FAILED else None
        if last in wanted:
            wanted.remove(last)
            wanted.insert(0 if failures[last] == 1 else len(wanted), last)
        allowed = [call for call in wanted if call not in context.forbidden]
        return Decision((allowed or wanted or [f"{ANSWER}()"])[0])

    async def adecide(self, context: Context) -> Decision:
        """The same."""
        return self.decide(context)


def _this_turn(history: Sequence[Step], request: str) -> list[Step]:
    turn: list[Step] = []
    for step in reversed(history):
        if step.pre.task != request or step.action == f"{ANSWER}()":
            break
        turn.insert(0, step)
    return turn


def measure(seeds: int, passes: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every arm: means over the agent seeds, and the spread between them."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        with ExperienceLibrary.open(":memory:") as library:
            for arm, guardrails in _ARMS.items():
                if arm == "guarded":
                    tell(f"seed {seed}: learning from {passes * TRAIN} episodes ...")
                    _learn(library, passes, seed)
                tell(f"seed {seed}: testing {arm} ...")
                found.setdefault(arm, []).append(_tested(library, seed, guardrails))
    return [
        {"arm": arm, "tasks": TEST * len(CATEGORIES), "seeds": seeds, **_means(rows)} for arm, rows in found.items()
    ]


def _learn(library: ExperienceLibrary, passes: int, seed: int) -> None:
    agent = Agent(Hasty(seed), library, Bfcl("base"), max_steps=MAX_STEPS, seed=seed)
    for number in range(passes):
        for task in random.Random(f"{seed}/{number}").sample(range(TRAIN), TRAIN):
            agent.run("train", task)
    agent.close()


def _tested(library: ExperienceLibrary, seed: int, guardrails: bool | Literal["warn"]) -> dict[str, float]:
    results: list[Result] = []
    for category in CATEGORIES:
        agent = Agent(
            Hasty(seed), library, Bfcl(category), learn=False, guardrails=guardrails, max_steps=MAX_STEPS, seed=seed
        )
        results += [agent.run("test", task) for task in range(TEST)]
        agent.close()
    failing = [_failing(result) for result in results]
    return {
        "failing_calls": fmean(map(len, failing)),
        "repeated": fmean(len(calls) - len(set(calls)) for calls in failing),
        "blocked": fmean(result.blocked for result in results),
        "success": fmean(bool(result.success) for result in results),
        "steps": fmean(len(result.trajectory.steps) for result in results),
    }


def _failing(result: Result) -> list[str]:
    return [step.action for step in result.trajectory.steps if step.diagnosis.failure is Failure.TOOL_ERROR]


def _means(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    means: dict[str, Any] = {name: round(fmean(row[name] for row in rows), 3) for name in rows[0]}
    for name in ("failing_calls", "repeated", "success"):
        means[f"{name}_sd"] = round(stdev(row[name] for row in rows), 3) if len(rows) > 1 else None
    return means
