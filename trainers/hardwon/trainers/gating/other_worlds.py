"""Recall that shows nothing of the task instance being played.

    library = OtherWorlds(library)

A run plays an instance several times, in several arms and iterations, and its library has the earlier episodes. Shown
those, a policy learns to copy, and the difference between the arms says nothing about new worlds. So recall leaves out
the steps of episodes with the same task, split and seed, and the items that rest on such steps alone. What else answers
questions about a state does the same, and nothing else is passed through that could show an instance.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from hardwon.memory import ExperienceLibrary, Item, Recollection, State, Step, Verdict
from hardwon.memory.retrieval.recall import within_budget
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.upkeep.queries import has_episode, select_steps
from hardwon.memory.values.demonstration_index import DemonstrationIndex
from hardwon.memory.values.lookahead import Lookahead, look_around
from hardwon.memory.values.lookahead_table import fit_nothing
from hardwon.trainers.rollouts.rollout import current_candidate, current_instance

from .tuning import TUNING

Instance = tuple[str, int]
"""A task instance: the split that the environment is reset with, and the seed."""


class PassedPart:
    """A library or a part of one, of which only names that show nothing of one task instance are passed through."""

    def __init__(self, part: Any, passed: Collection[str] = ()) -> None:
        """Wrap a part."""
        self._part, self._passed = part, passed

    def __getattr__(self, name: str) -> Any:
        if name in self._passed:
            return getattr(self._part, name)
        raise AttributeError(
            f"{name!r} is not passed through, because it may show the task instance being played; define it in "
            f"{type(self).__name__}, or pass it through if it shows nothing of one instance."
        )


class OtherEpisodes(PassedPart):
    """The episodes of other task instances."""

    def __init__(self, library: ExperienceLibrary, find_instance: Callable[[], Instance | None]) -> None:
        """Wrap the episodes of a library; ids only come from what is shown, and counts are of the whole library."""
        super().__init__(library.episodes, ("get", "count", "context", "keys"))
        self._find_instance = find_instance

    def index_demonstrations(self, environment: str | None = None, actions: Iterable[str] = ()) -> DemonstrationIndex:
        """Return the demonstrations of other task instances; by split and seed, because no task is given."""
        instance, index = self._find_instance(), self._part.index_demonstrations(environment, actions)
        return cast(DemonstrationIndex, index if instance is None else index.leave_out(*instance))


class OtherWorlds(PassedPart):
    """A library that leaves out what it knows of the task instance that the current rollout plays.

    Outside of a rollout, nothing is left out.
    """

    def __init__(self, library: ExperienceLibrary, *, instance: Instance | None = None) -> None:
        """Wrap a library."""
        super().__init__(library)
        self._library, self._instance = library, instance
        self.items = PassedPart(library.items, ("get", "settle_trial"))
        self.episodes = OtherEpisodes(library, self._find_instance)

    def _find_instance(self) -> Instance | None:
        return current_instance() if self._instance is None else self._instance

    def recall(
        self, state_or_text: State | str, *, k: int = 5, budget_tokens: int | None = None, **how: Any
    ) -> Recollection:
        """Return what the library recalls from other task instances.

        Summaries and estimates are left out if the library has episodes of the instance, because their counts would
        include them. An item that the episode tries is ranked among those of the library; see `rollouts.candidate`.
        """
        instance = self._find_instance()
        if instance is None:
            return self._library.recall(state_or_text, k=k, budget_tokens=budget_tokens, **how)
        if (candidate := current_candidate()) is not None:
            how["beside"] = candidate
        task = state_or_text.task if isinstance(state_or_text, State) else how.get("task") or ""
        wanted = k
        while True:
            recalled = self._library.recall(state_or_text, k=wanted, **how)
            kept = self._without(recalled, task, instance)
            exhausted = len(recalled.items) < wanted and len(recalled.steps) < wanted
            enough = len(kept.items) >= k and len(kept.steps) >= k
            # a wider recall ranks in another order: where nothing is left out, the answer is that of serving
            is_whole = (len(kept.items), len(kept.steps)) == (len(recalled.items), len(recalled.steps))
            if enough or is_whole or exhausted or wanted >= TUNING.recalled_steps or not k:
                break
            # only as wide as needed: most task instances have few recorded episodes
            wanted = min(TUNING.recalled_steps, wanted * 4)
        return _shorten(kept, k, budget_tokens)

    def check(self, state: State, action: str | Sequence[str], *, again: bool = False) -> Verdict:
        """Return whether a guardrail from other task instances forbids an action, or an action of a plan."""
        if isinstance(action, str):
            return self._lift(self._library.check(state, action, again=again), state.task)
        # one by one: the verdict on a plan names only the first guardrail, which may be lifted
        verdicts = (self._lift(self._library.check(state, [step]), state.task) for step in action)
        return next((verdict for verdict in verdicts if not verdict.allowed), Verdict(True))

    def enforce(self, state: State, action: str, **how: Any) -> Verdict:
        """Enforce the guardrails that other task instances support."""
        if self.check(state, action, again=bool(how.get("again"))).allowed:
            return Verdict(True)
        return self._lift(self._library.enforce(state, action, **how), state.task)

    def offered(self, state: State, **how: Any) -> Sequence[Item]:
        """Return the fitting items that other task instances support."""
        instance, offered = self._find_instance(), self._library.offered(state, **how)
        return offered if instance is None else self._of_others(offered, state.task, instance)

    def look_ahead(self, state: State, actions: Sequence[str], episode: EpisodeMap | None = None) -> Lookahead:
        """Return the lookahead values; those of an unknown world if the library has episodes of the instance."""
        instance = self._find_instance()
        if instance is not None and self._is_recorded(state.task, instance):
            return look_around(fit_nothing(), state, actions, episode or EpisodeMap())
        return self._library.look_ahead(state, actions, episode)

    def _without(self, recalled: Recollection, task: str, instance: Instance) -> Recollection:
        """Return a recollection without the steps of a task instance and the items that rest on it alone."""
        items = [hit.what for hit in recalled.items if isinstance(hit.what, Item)]
        masked = self._get_all(recalled.masked)
        allowed = {item.id for item in self._of_others([*items, *recalled.guardrails, *masked], task, instance)}
        steps = [hit.what.id for hit in recalled.steps if isinstance(hit.what, Step) and hit.what.id is not None]
        split, seed = instance
        own = self._library.admin.query(select_steps, steps, task=task, seed=seed, split=split)
        is_recorded = self._is_recorded(task, instance)
        return replace(
            recalled,
            items=tuple(hit for hit in recalled.items if hit.what.id in allowed),
            # a step without an id, as of an untrusted writer, cannot be assigned to an episode
            steps=tuple(hit for hit in recalled.steps if hit.what.id is not None and hit.what.id not in own),
            guardrails=tuple(item for item in recalled.guardrails if item.id in allowed),
            masked=tuple(ref for ref in recalled.masked if ref in allowed),
            summaries=() if is_recorded else recalled.summaries,
            estimates={} if is_recorded else recalled.estimates,
            outcomes={} if is_recorded else recalled.outcomes,
        )

    def _is_recorded(self, task: str, instance: Instance) -> bool:
        split, seed = instance
        return self._library.admin.query(has_episode, task=task, seed=seed, split=split)

    def _of_others(self, items: Sequence[Item], task: str, instance: Instance) -> list[Item]:
        """Return the items with evidence of another task instance, and those without any evidence."""
        evidence = {ref for item in items for ref in item.provenance}
        split, seed = instance
        own = (
            self._library.admin.query(select_steps, evidence, task=task, seed=seed, split=split)
            if evidence
            else frozenset()
        )
        return [item for item in items if not item.provenance or not own.issuperset(item.provenance)]

    def _lift(self, verdict: Verdict, task: str) -> Verdict:
        """Return the verdict without the guardrails that rest on the instance being played alone."""
        instance = self._find_instance()
        if instance is None or not verdict.items:
            return verdict
        kept = self._of_others(self._get_all(verdict.items), task, instance)
        if not kept:
            return Verdict(True)
        cause = kept[0].body or kept[0].title  # the words of a guardrail that is lifted are not shown either
        return replace(verdict, items=tuple(item.id for item in kept), item_id=kept[0].id, cause=cause)

    def _get_all(self, ids: Iterable[str]) -> list[Item]:
        return [self._library.items.get(ref) for ref in ids]


def _shorten(recalled: Recollection, k: int, budget_tokens: int | None) -> Recollection:
    """Return the first hits of each kind, within the budget."""
    items, steps, tokens = within_budget(recalled.items[:k], recalled.steps[:k], budget_tokens)
    return replace(recalled, items=items, steps=steps, tokens=tokens, filled=min(recalled.filled, len(steps)))
