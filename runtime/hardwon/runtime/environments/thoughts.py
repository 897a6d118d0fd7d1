"""A graph of thoughts as an environment: the actions split a problem, solve its parts, and put answers together.

    environment = ThoughtEnvironment(worker, ("sort 8 3 5 1", "sort 9 2"))
    Agent("episodic", library, environment).run(seed=0)

The worker does the thinking, for example with a model. Which thought comes next is an action like any other, so
policies, guardrails and the library work on it, and a good schedule is learned from experience.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hardwon.memory import State
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.methods import METHODS
from hardwon.runtime.interfaces.types import Info

MOST = 16
"""Number of thoughts in a graph; none is split beyond it."""
_ROOT = 1


class Thinker(Protocol):
    """Does what the actions say; each method may ask a model."""

    def split(self, problem: str) -> Sequence[str]:
        """Return the parts of a problem; fewer than two if it cannot be split."""
        ...

    def solve(self, problem: str) -> str:
        """Return an answer to a problem."""
        ...

    def refine(self, problem: str, answer: str) -> str:
        """Return a better answer, or the same one."""
        ...

    def join(self, problem: str, answers: Sequence[str]) -> str:
        """Return an answer to a problem from the answers to its parts."""
        ...

    def score(self, problem: str, answer: str) -> float:
        """Return how good an answer is, in [0, 1]."""
        ...


@dataclass(frozen=True, slots=True)
class Thought:
    """One problem of the graph, with its answer if there is one."""

    problem: str
    parent: int = 0
    parts: tuple[int, ...] = ()
    answer: str | None = None
    refined: bool = False


@METHODS.add(
    "ARIES (thought graphs)",
    "arXiv:2502.21208",
    evidence="A P",
    reach="`Agent(policy, library, ThoughtEnvironment(worker, problems))`",
    reading="the schedule is a policy in an environment; it is learned from experience instead of voted by a model",
)
class ThoughtEnvironment:
    """An episode is one problem; it ends when the answer to it scores 1."""

    name = "thoughts"

    def __init__(self, worker: Thinker, problems: Sequence[str]) -> None:
        """Create an environment."""
        if not problems:
            raise ConfigError("problems is empty; give at least one problem.")
        self._worker, self._problems = worker, tuple(problems)
        self._thoughts: dict[int, Thought] = {}
        self._best = 0.0

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin with one problem: the task, or else the one that the seed chooses."""
        self._thoughts = {_ROOT: Thought(task or self._problems[seed % len(self._problems)])}
        self._best = 0.0
        return self._describe("")

    def admissible(self, state: State) -> list[str]:
        """Return what can be done with each thought, sorted."""
        return sorted(action for number in self._thoughts for action in self._list_actions(number))

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Carry out one thought; the reward is by how much the best answer to the whole problem became better."""
        verb, _, rest = action.partition(" thought ")
        if action not in self.admissible(self._describe("")):
            message = "No such thought is possible now."
            return self._describe(message), 0.0, False, Info(invalid=message, score=self._best)
        number = int(rest)
        message = self._get_operation(verb)(number)
        root = self._thoughts[_ROOT]
        score = 0.0 if root.answer is None else self._worker.score(root.problem, root.answer)
        reward, self._best = max(0.0, score - self._best), max(self._best, score)
        done = score >= 1.0
        return self._describe(message), reward, done, Info(success=done, score=self._best)

    def clone(self) -> "ThoughtEnvironment":
        """Return another environment with the same worker and problems."""
        return ThoughtEnvironment(self._worker, self._problems)

    def close(self) -> None:
        """Do nothing; there is nothing to release."""

    def _list_actions(self, number: int) -> list[str]:
        thought = self._thoughts[number]
        verbs = []
        if thought.answer is None:
            verbs.append("solve")
            if not thought.parts and len(self._thoughts) < MOST:
                verbs.append("decompose")
        elif not thought.refined:
            verbs.append("refine")
        if thought.parts and all(self._thoughts[part].answer is not None for part in thought.parts):
            verbs.append("aggregate")
        if thought.parts:
            verbs.append("reduce")
        return [f"{verb} thought {number}" for verb in verbs]

    def _get_operation(self, verb: str) -> Callable[[int], str]:
        operations: dict[str, Callable[[int], str]] = {
            "solve": self._solve,
            "decompose": self._decompose,
            "refine": self._refine,
            "aggregate": self._aggregate,
            "reduce": self._reduce,
        }
        return operations[verb]

    def _solve(self, number: int) -> str:
        thought = self._thoughts[number]
        self._thoughts[number] = replace(thought, answer=self._worker.solve(thought.problem), refined=False)
        return "It is solved."

    def _decompose(self, number: int) -> str:
        thought = self._thoughts[number]
        parts = tuple(self._worker.split(thought.problem))
        if len(parts) < 2 or len(self._thoughts) + len(parts) > MOST:
            return "It cannot be split."
        first = max(self._thoughts) + 1
        numbers = tuple(range(first, first + len(parts)))
        self._thoughts[number] = replace(thought, parts=numbers)
        for at, part in zip(numbers, parts, strict=True):
            self._thoughts[at] = Thought(part, number)
        return f"It has {len(parts)} parts."

    def _refine(self, number: int) -> str:
        thought = self._thoughts[number]
        answer = self._worker.refine(thought.problem, thought.answer or "")
        self._thoughts[number] = replace(thought, answer=answer, refined=True)
        return "It is better." if answer != thought.answer else "It stays as it is."

    def _aggregate(self, number: int) -> str:
        thought = self._thoughts[number]
        answers = [self._thoughts[part].answer or "" for part in thought.parts]
        joined = self._worker.join(thought.problem, answers)
        self._drop(number)
        self._thoughts[number] = replace(thought, parts=(), answer=joined, refined=False)
        return "Its parts are put together."

    def _reduce(self, number: int) -> str:
        self._drop(number)
        self._thoughts[number] = replace(self._thoughts[number], parts=())
        return "Its parts are dropped."

    def _drop(self, number: int) -> None:
        """Remove everything below a thought."""
        for part in self._thoughts[number].parts:
            self._drop(part)
            del self._thoughts[part]

    def _describe(self, feedback: str) -> State:
        lines = []
        for number, thought in self._thoughts.items():
            status = "open" if thought.answer is None else "solved"
            about = f", part of thought {thought.parent}" if thought.parent else ""
            lines.append(f"Thought {number}{about}, {status}: {thought.problem} -> {thought.answer or '?'}")
        return State("\n".join(lines), task=f"Answer: {self._thoughts[_ROOT].problem}", feedback=feedback)
