"""`hardwon bench bfcl`: measure whether guardrails learned on some tasks reduce failing calls on other tasks.

The assistant is scripted, so that the arms differ only in the library. It knows which calls solve a request, but not
their order or prerequisites, and it repeats a failed call. It cannot read hints; it benefits only when a guardrail
blocks a call that is known to fail. Learning uses the train fold of the multi-turn category `base` of BFCL; tests use
the test fold of all four categories.
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
"""Maximum steps of an episode, including the ends of turns."""
PATIENCE = 3
"""Maximum attempts of one call per request."""
TRAIN, TEST = 100, 50
"""Number of tasks in the train and test folds of a category."""
_ARMS: dict[str, bool | Literal["warn"]] = {"empty": True, "guarded": True, "warned": "warn", "unguarded": False}
"""The guardrail mode of each arm: refuse, warn (the default of the middleware), or off."""
_FAILED = (Failure.TOOL_ERROR, Failure.BLOCKED)


class Hasty:
    """Policy that makes the calls of a request in random order; it retries a failed call once, then defers it."""

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
        """Return the next call that has not succeeded yet, or the end of the turn."""
        request = context.state.task
        calls = self._solutions[request]
        remaining = random.Random(f"{self._seed}/{request}").sample(calls, len(calls))
        turn = _select_current_turn(context.history, request)
        failures = Counter(step.action for step in turn if step.diagnosis.failure in _FAILED)
        for step in turn:
            if step.diagnosis.failure not in _FAILED and step.action in remaining:
                remaining.remove(step.action)
        wanted = [call for call in remaining if failures[call] < PATIENCE]
        last = turn[-1].action if turn and turn[-1].diagnosis.failure in _FAILED else None
        # Repeat a failed call once at once; after that, try it last.
        if last in wanted:
            wanted.remove(last)
            wanted.insert(0 if failures[last] == 1 else len(wanted), last)
        allowed = [call for call in wanted if call not in context.forbidden]
        return Decision((allowed or wanted or [f"{ANSWER}()"])[0])

    async def adecide(self, context: Context) -> Decision:
        """Return the same decision as `decide`."""
        return self.decide(context)


def _select_current_turn(history: Sequence[Step], request: str) -> list[Step]:
    """Return the trailing steps that belong to the current request."""
    turn: list[Step] = []
    # The answer call ends a turn; an earlier turn can repeat the same request.
    for step in reversed(history):
        if step.pre.task != request or step.action == f"{ANSWER}()":
            break
        turn.insert(0, step)
    return turn


def measure(seeds: int, passes: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for every arm, with means and standard deviations over the agent seeds.

    Args:
        seeds: Number of agent seeds.
        passes: Passes over the training tasks.
        tell: Receives progress messages.
    """
    rows_by_arm: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        with ExperienceLibrary.open(":memory:") as library:
            for arm, guardrails in _ARMS.items():
                # Arms run in this order: `empty` must be tested before the library learns.
                if arm == "guarded":
                    tell(f"seed {seed}: learning from {passes * TRAIN} episodes ...")
                    _learn(library, passes, seed)
                tell(f"seed {seed}: testing {arm} ...")
                rows_by_arm.setdefault(arm, []).append(_run_tests(library, seed, guardrails))
    return [
        {"arm": arm, "tasks": TEST * len(CATEGORIES), "seeds": seeds, **_summarize_seeds(rows)}
        for arm, rows in rows_by_arm.items()
    ]


def _learn(library: ExperienceLibrary, passes: int, seed: int) -> None:
    agent = Agent(Hasty(seed), library, Bfcl("base"), max_steps=MAX_STEPS, seed=seed)
    for number in range(passes):
        for task in random.Random(f"{seed}/{number}").sample(range(TRAIN), TRAIN):
            agent.run("train", task)
    agent.close()


def _run_tests(library: ExperienceLibrary, seed: int, guardrails: bool | Literal["warn"]) -> dict[str, float]:
    """Play all test tasks with one guardrail mode and return the means per episode."""
    results: list[Result] = []
    for category in CATEGORIES:
        agent = Agent(
            Hasty(seed), library, Bfcl(category), learn=False, guardrails=guardrails, max_steps=MAX_STEPS, seed=seed
        )
        results += [agent.run("test", task) for task in range(TEST)]
        agent.close()
    failing = [_list_failing_calls(result) for result in results]
    return {
        "failing_calls": fmean(map(len, failing)),
        "repeated": fmean(len(calls) - len(set(calls)) for calls in failing),
        "blocked": fmean(result.blocked for result in results),
        "success": fmean(bool(result.success) for result in results),
        "steps": fmean(len(result.trajectory.steps) for result in results),
    }


def _list_failing_calls(result: Result) -> list[str]:
    return [step.action for step in result.trajectory.steps if step.diagnosis.failure is Failure.TOOL_ERROR]


def _summarize_seeds(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    means: dict[str, Any] = {name: round(fmean(row[name] for row in rows), 3) for name in rows[0]}
    for name in ("failing_calls", "repeated", "success"):
        means[f"{name}_sd"] = round(stdev(row[name] for row in rows), 3) if len(rows) > 1 else None
    return means
