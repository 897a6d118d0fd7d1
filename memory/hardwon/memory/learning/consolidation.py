"""Consolidation: turn what was recorded since the last run into items, within the rate limits.

`learning.rule_mining` proposes items from counts and `learning.skill_mining` from episodes. The `curator` decides which
ones are admitted. This module remembers what was already read and proposed. Of this, only the proposals of the rules
are durable; see `learning.proposals`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from sqlite3 import Connection
from typing import NamedTuple

from hardwon.memory.errors import LibraryDamaged, UnknownName
from hardwon.memory.guardrails.thinning import IdleWatch
from hardwon.memory.records import Admission, Item, Trajectory
from hardwon.memory.retrieval.cache import NamespaceCache
from hardwon.memory.situations.keys import vocabulary, words
from hardwon.memory.situations.phrases import FUNCTION_WORDS
from hardwon.memory.storage.counted import ALONE, COUNTED_STATES, find_counted_writers
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.trust.support import Support
from hardwon.memory.values.value_table import ValueTable

from .contrast import ReadSteps, SeenStep
from .curator import Curator
from .proposals import load_proposals, save_proposals
from .rule_mining import RATE_LIMITS, RuleMiner
from .skill_mining import SkillMiner
from .tuning import TUNING
from .untrusted_writers import UNSUPPORTED, Proposal, UntrustedWriters, find_unsupported, generalize_item

logger = logging.getLogger("hardwon.memory")

_RECORDED = (
    "SELECT seq, ref FROM changes JOIN trajectories AS one ON one.namespace = changes.namespace AND one.id = ref "
    "WHERE seq > ? AND changes.namespace = ? AND what = 'trajectory' AND (trust = 'trusted') = ? "
    "ORDER BY seq DESC LIMIT ?"
)

_SEEN = (
    "SELECT action, observation, return_to_go, failure FROM steps JOIN states ON states.id = pre "
    "WHERE steps.id IN (SELECT value FROM json_each(?)) ORDER BY steps.id"
)


class Review(NamedTuple):
    """Items to take out of use or to weaken, each with the reason."""

    released: list[tuple[Item, str]]
    weakened: list[tuple[Item, str]]


class Consolidator:
    """The proposals of one process for one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._just_recorded: dict[str, Trajectory] = {}
        self.start_over()

    def start_over(self) -> None:
        """Forget the proposals of this process, so that they are made again; used if they were not written."""
        self._evolution, self._induction, self._read_up_to = RuleMiner(), SkillMiner(), 0
        self._has_resumed = False
        self._idle = IdleWatch(self._store, self._namespace)
        self._voices = UntrustedWriters(self._store, self._namespace)
        self._vocabularies: dict[int, frozenset[str]] = {}
        """By id, the words of the newest states."""
        self._uncounted: dict[str, Item] = {}
        """By id, the rule-made items without counts of their own, which only untrusted steps support."""
        self._heard = ""
        self._has_joined = True
        """Whether items that only untrusted writers justify may still be in use."""

    def keep(self, episodes: Sequence[Trajectory]) -> None:
        """Keep episodes that this process just recorded, so that they need not be read again."""
        for stored in episodes[-TUNING.episodes_read :]:
            if len(self._just_recorded) < TUNING.episodes_read:
                self._just_recorded[stored.id] = stored

    def forget(self) -> None:
        """Drop the kept episodes."""
        self._just_recorded.clear()

    def load(self, trajectory: Callable[[str], Trajectory]) -> None:
        """Keep the episodes that `read` will need: loading takes most of its time, and needs no lock."""
        for _, ref in self._find_new():
            if ref not in self._just_recorded:
                with suppress(LibraryDamaged, UnknownName):
                    self._just_recorded[ref] = trajectory(ref)

    def _find_new(self) -> list[tuple[int, str]]:
        """Return the numbers and ids of the episodes recorded since the last call of `read`, oldest first."""
        return sorted(
            row
            # a limit for each, because strangers may record more episodes than everybody else
            for trusted in (1, 0)
            for row in self._store.rows(_RECORDED, (self._read_up_to, self._namespace, trusted, TUNING.episodes_read))
        )

    def read(self, trajectory: Callable[[str], Trajectory]) -> None:
        """Read the episodes recorded since the last call, by any process, for skills and remedies."""
        writers = find_counted_writers(self._store.rows, self._namespace)
        if writers != self._heard:  # a second writer joined an untrusted one: the counts change
            self.start_over()
            self._heard, self._has_joined = writers, True
        for seq, ref in self._find_new():
            kept = self._just_recorded.get(ref)
            self._read_up_to = seq  # before loading: a damaged episode must not be read again on every call
            try:
                episode = trajectory(ref) if kept is None else kept
            except (LibraryDamaged, UnknownName) as error:
                logger.warning("episode %s is damaged or was just forgotten, and is skipped: %s", ref, error)
                continue
            # Untrusted episodes are mined per writer, unless their writer is the only one.
            if episode.trust == "untrusted" and self._heard != ALONE:
                self._voices.read(episode)
            else:
                self._induction.read(episode)
        self._just_recorded.clear()

    def resume(self, derived: NamespaceCache) -> None:
        """Continue after the proposals of earlier processes, if this process has not proposed anything yet."""
        if self._has_resumed:
            return
        self._has_resumed = True
        earlier = load_proposals(self._store, self._namespace, self._heard)
        if earlier is not None:
            self._evolution.resume(earlier.proposed)
            derived.statistics.values.touch_only(
                {*derived.statistics.filed.keys_since(earlier.last_step), *earlier.waiting}
            )

    def save(self, connection: Connection, derived: NamespaceCache) -> None:
        """Save what was proposed, within the transaction that submitted it."""
        changed = self._evolution.take_changes()
        save_proposals(connection, self._namespace, self._heard, changed, derived.statistics.filed.last_step)

    def proposals(self, values: ValueTable, support: Support, structural: Collection[str]) -> list[Proposal]:
        """Return all candidates. Their titles have structural words alone."""
        if self._heard == ALONE:
            return self._collect(values, self._generalize, structural)

        def limit_words(item: Item, pattern: str) -> Item | None:
            if support.has_doubtful_names(*filter(None, [item.forbids]), *item.steps):
                return None
            return item if support.vouches_for(item) else replace(item, episodes=0)

        return [*self._collect(values, limit_words, structural), *self._voices.proposals()]

    def _collect(
        self, values: ValueTable, worded: Callable[[Item, str], Item | None], structural: Collection[str]
    ) -> list[Proposal]:
        """Return the candidates of both miners; see `collect_proposals`."""
        # read at most once per call, and only if there is a strategy
        list_common = cache(partial(read_common_words, self._store, self._namespace, self._vocabularies))
        read_steps = partial(self._read_steps, structural)
        return collect_proposals(self._evolution, self._induction, values, worded, list_common, read_steps)

    def _read_steps(self, structural: Collection[str], step_ids: Sequence[int]) -> list[SeenStep]:
        """Return steps with the structural words of the texts before them."""
        telling = frozenset(structural) - FUNCTION_WORDS
        rows = self._store.rows(_SEEN, (dumps(list(step_ids)),))
        return [
            SeenStep(action, tuple(word for word in words(text) if word in telling), value, failure != "none")
            for action, text, value, failure in rows
        ]

    @staticmethod
    def _generalize(item: Item, pattern: str) -> Item | None:
        """Return an item of a single untrusted writer in general words, or None.

        Items that offer steps or refuse calls become untrusted, so they wait in quarantine.
        """
        general = generalize_item(item, pattern)
        if general is None or not (general.steps or general.kind == "guardrail"):
            return general
        return replace(general, trust="untrusted")

    def review(self, values: ValueTable, items: Iterable[Item]) -> Review:
        """Return the items that the counts no longer support, and those whose call worked the last time.

        Only items that changed, or whose counts did, are looked at. Call it after `proposals`.
        """
        all_items = list(items)
        due = self._evolution.watch.find_due(all_items)
        released = [*self._evolution.released(values, due), *self._induction.find_padded(all_items)]
        if self._heard != ALONE:
            released += self._find_outweighed(values, all_items, due, {item.id for item, _ in released})
        # a released item leaves use: do not also weaken it
        released_ids = {item.id for item, _ in released}
        weakened = [pair for pair in self._evolution.weakened(values, due) if pair[0].id not in released_ids]
        return Review(released, weakened)

    def _find_outweighed(
        self, values: ValueTable, items: Sequence[Item], due: Sequence[Item], released: Collection[str]
    ) -> list[tuple[Item, str]]:
        """Return the items that only untrusted steps support, if others write or if the call works for others."""
        pairs: list[tuple[Item, str]] = []
        if self._has_joined:
            self._has_joined = False
            unsupported = find_unsupported(self._store, self._namespace, items)
            pairs += [(item, UNSUPPORTED) for item in unsupported if item.id not in released]
        left = {*released, *(item.id for item, _ in pairs)}
        for item in due:
            if self._evolution.cell(item, values) is None:
                self._uncounted[item.id] = item
            else:
                self._uncounted.pop(item.id, None)
        if self._uncounted:  # the counts of untrusted writers change without those of the others
            active = {item.id: item for item in items}
            self._uncounted = {ref: item for ref, item in self._uncounted.items() if active.get(ref) is item}
        reason = "it works for other writers"
        pairs += [
            (item, reason)
            for ref, item in self._uncounted.items()
            if ref not in left and self._voices.is_outweighed(item, values)
        ]
        return pairs

    def idle(self, derived: NamespaceCache, items: Iterable[Item]) -> list[tuple[Item, str]]:
        """Return the guardrails that decided nothing for long or are outdated, each with the reason."""
        listed, loses = list(items), partial(self._evolution.loses, derived.statistics.values)
        outdated = list(self._evolution.outdated(derived.statistics.values, listed))
        current = [item for item in listed if all(item is not old for old, _ in outdated)]
        return outdated + self._idle.idle(
            current, derived.words.clock.time, derived.worlds, derived.items.homes_of, loses
        )

    def reopen(self, items: Iterable[Item]) -> None:
        """Allow guardrails that are retired until needed to be proposed again at their next failure.

        Call it before `save`. If the retirement is rolled back, `start_over` restores the proposals.
        """
        for item in items:
            self._evolution.reopen(item)


def read_common_words(
    store: Store, namespace: int, vocabularies: dict[int, frozenset[str]] | None = None
) -> frozenset[str]:
    """Return the words that almost every one of the newest states shows; they tell nothing about a situation."""
    counted = COUNTED_STATES[find_counted_writers(store.rows, namespace)]
    rows = store.rows(
        # the unary plus keeps SQLite off the index of the namespace, which would need a sort by id
        f"SELECT id, observation FROM states WHERE +namespace = ? {counted}ORDER BY id DESC LIMIT ?",
        (namespace, TUNING.common_states),
    )
    if len(rows) < TUNING.common_states // 4:  # in a handful of states, almost every word is common
        return frozenset()
    before = {} if vocabularies is None else vocabularies
    now = {ref: before[ref] if ref in before else vocabulary(observation) for ref, observation in rows}
    before.clear()
    before.update(now)
    counts = Counter(chain.from_iterable(now.values()))
    return frozenset(word for word, count in counts.items() if count >= TUNING.common_share * len(rows))


def collect_proposals(
    evolution: RuleMiner,
    induction: SkillMiner,
    values: ValueTable,
    worded: Callable[[Item, str], Item | None],
    list_common: Callable[[], Collection[str]] = tuple,
    read_steps: ReadSteps = lambda _: (),
) -> list[Proposal]:
    """Return the candidates of both miners."""
    skills = list(induction.candidates())  # first, because they tell what calls need
    proposals: list[Proposal] = []
    for key, item in evolution.candidates(values, list_common, read_steps):
        if induction.explains(item):
            evolution.postpone(key, values)
        elif (reworded := worded(item, item.forbids or key.partition(" | ")[0])) is not None:
            proposals.append((reworded, partial(evolution.settle, key), partial(evolution.postpone, key, values)))
    for candidate, item in skills:
        if (reworded := worded(item, "")) is not None:
            proposals.append((reworded, partial(induction.mark_submitted, candidate), _nothing))
    return proposals


def admit_within_limits(curator: Curator, proposals: Iterable[Proposal]) -> list[Admission]:
    """Submit the proposals to the curator; proposals beyond the rate limit of their kind wait."""
    left = dict(RATE_LIMITS)
    admissions = []
    for item, settle, postpone in proposals:
        if not left.get(item.kind, 0):
            postpone()
            continue
        admission = curator.admit(item)
        settle(admission)
        # Merged and rejected candidates add no item, so they leave room for others.
        left[item.kind] -= admission.status in ("added", "replaced")
        admissions.append(admission)
    return admissions


def _nothing() -> None:
    """Do nothing."""
