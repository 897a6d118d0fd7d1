"""A planner that looks ahead in a model of the world: a tree search guided by the library's estimates.

    Agent("episodic", library, environment, planner="search")

The path that the search returns is followed, checked and repaired as any plan, and the guard is asked before every
action. Nothing is run in the environment of the episode while the planner looks ahead.
"""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace

from hardwon.memory import ExperienceLibrary, Item, Step
from hardwon.runtime.interfaces.diagnosis import diagnose
from hardwon.runtime.interfaces.extension import Imagined, Model
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory, place

from .proposals import EstimatedActions, RecalledValue
from .search import PathEnd, Searcher, SearchNode, is_undecided, select_path
from .tuning import TUNING


class SearchPlanner:
    """Plans the best path of a tree search; where the search decides nothing, there is no plan."""

    waits = True

    def __init__(self, library: ExperienceLibrary, model: Model) -> None:
        """Create a planner."""
        self._library, self._model = library, model
        self._searcher = Searcher(simulations=TUNING.simulations)
        self._proposer, self._value = EstimatedActions(), RecalledValue()
        self._lock = threading.Lock()  # episodes that run at the same time share the model

    def plan(self, context: Context, skills: Sequence[Item]) -> Plan | None:
        """Return the best path from here as a plan, or None if the search found no difference."""
        suffix = self._find_path(context, 1)
        return Plan(context.state.task, suffix) if suffix else None

    def repair(self, plan: Plan, reason: str, context: Context, items: Sequence[Item]) -> Plan:
        """Return the completed steps, continued by the best path from here."""
        return plan.continued(self._find_path(context, plan.following))

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def _find_path(self, context: Context, first: int) -> tuple[PlannedStep, ...]:
        if not context.actions:
            return ()
        with self._lock:
            root = self.search(context)
        if is_undecided(root):
            return ()
        path = select_path(root)
        if not self._library.check(context.state, path).allowed:
            return ()
        return tuple(PlannedStep(first + n, action) for n, action in enumerate(path))

    def search(self, context: Context) -> SearchNode:
        """Return the root of the tree that was searched from here."""
        world = _ImaginedWorld(self, context)
        return self._searcher.search(world)


class _ImaginedWorld:
    """The states of one search, each with what the library recalls in it."""

    def __init__(self, planner: SearchPlanner, context: Context) -> None:
        self._planner = planner
        self._contexts: dict[tuple[str, ...], Context] = {(): self._recall(context)}
        self._rewards: dict[tuple[str, ...], float] = {(): 0.0}
        self._seen = {_identify(context, 0.0)}

    def look(self, path: Sequence[str]) -> PathEnd | None:
        """Return what is at the end of a path."""
        path = tuple(path)
        if not path:
            return PathEnd(proposals=self._propose(self._contexts[()]))
        before, action = self._contexts[path[:-1]], path[-1]
        imagined = self._planner._model.imagine(self._contexts[()], path)
        if imagined is None:
            return None
        if imagined.done:
            solved = bool(imagined.info.get("success"))
            worth = imagined.certainty if solved else -imagined.certainty
            return PathEnd(imagined.reward, worth, True, solved, imagined.certainty)
        context = self._contexts[path] = self._recall(_continue(before, action, imagined))
        value = imagined.certainty * max(-1.0, min(1.0, self._planner._value.judge(context).value))
        # A state that this search has seen before, perhaps the one before the action, is not continued again.
        self._rewards[path] = self._rewards[path[:-1]] + imagined.reward
        identity = _identify(context, self._rewards[path])
        proposals = () if identity in self._seen else self._propose(context)
        self._seen.add(identity)
        return PathEnd(imagined.reward, value, certainty=imagined.certainty, proposals=proposals)

    def _propose(self, context: Context) -> tuple[tuple[str, float], ...]:
        proposals = self._planner._proposer.propose(context, TUNING.candidates)
        return tuple((decision.action, float(decision.why.extra.get("prior", 1.0))) for decision in proposals)

    def _recall(self, context: Context) -> Context:
        counts = {action: context.working.counts(context.state, action) for action in context.actions}
        recollection = self._planner._library.recall(context.state, k=0, actions=counts)
        return replace(context, recollection=recollection, rng=random.Random(repr(sorted(context.actions))))


def _identify(context: Context, rewards: float) -> tuple[object, ...]:
    """Return what tells states apart: what is seen, what is possible, and what was earned. Messages do not count."""
    return place(context.state), context.state.location, context.actions, round(rewards, 6)


def _continue(context: Context, action: str, imagined: Imagined) -> Context:
    """Return the context after an imagined action, with the working memory that the episode would have."""
    history = context.history
    first = history[0].pre if history else context.state
    working = WorkingMemory.of(first, history)
    diagnosis = diagnose(
        context.state, action, imagined.state, imagined.reward, imagined.info, list(history), working
    )  # fmt: skip
    step = Step(context.state, action, imagined.state, diagnosis, imagined.reward, len(history))
    working.add(step)
    state = working.annotate(imagined.state)
    return replace(
        context, state=state, actions=imagined.actions, history=(*history, replace(step, post=state)),
        working=working, forbidden={}, plan=None,
    )  # fmt: skip
