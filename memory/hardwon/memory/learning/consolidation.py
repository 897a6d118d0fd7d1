"""Distilling: what was recorded since the last time becomes items, within the rate limits.

What is proposed is for `learning.rule_mining` (from counts) and `learning.skill_mining` (from episodes) to say; what
comes in, for the `curator`. Here is remembered what was read and proposed already; nothing here is durable.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.guardrails.conditions import guard_key
from hardwon.memory.guardrails.thinning import IdleWatch
from hardwon.memory.records import Admission, Item, Trajectory
from hardwon.memory.retrieval.cache import Derived
from hardwon.memory.storage.database import Store
from hardwon.memory.values.saved_tables import ALONE, heard_in
from hardwon.memory.values.value_table import ValueTable

from .curator import Curator
from .rule_mining import RATE_LIMITS, Evolution
from .skill_mining import Induction
from .untrusted_writers import Voices, in_general

logger = logging.getLogger("hardwon.memory")

EPISODES_READ = 500
"""Newest episodes that the first `evolve` of a process reads for skills and remedies."""

Proposal = tuple[Item, Callable[[], None], Callable[[], None]]
"""A candidate, with what to call when it was put before the curator, and when it has to wait."""


class Distiller:
    """What one process proposes for one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store = store
        self._namespace = namespace
        self._just_recorded: dict[str, Trajectory] = {}
        self.start_over()

    def start_over(self) -> None:
        """Propose everything again: what was proposed was not written."""
        self._evolution, self._induction, self._read_up_to = Evolution(), Induction(), 0
        self._idle = IdleWatch(self._store, self._namespace)
        self._voices = Voices(self._store, self._namespace)
        self._heard = ""

    def keep(self, episodes: Sequence[Trajectory]) -> None:
        """Keep episodes that this process just filed, so that they need not be read again."""
        for stored in episodes[-EPISODES_READ:]:
            if len(self._just_recorded) < EPISODES_READ:
                self._just_recorded[stored.id] = stored

    def forget(self) -> None:
        """Drop what was kept."""
        self._just_recorded.clear()

    def read(self, trajectory: Callable[[str], Trajectory]) -> None:
        """Read what was recorded since the last time, by this process or another, for skills and remedies."""
        heard = heard_in(self._store, self._namespace)
        if heard != self._heard:  # the only writer was not trusted, and now there is another one
            self.start_over()
            self._heard = heard
        new = self._store.rows(
            "SELECT seq, ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'trajectory' "
            "ORDER BY seq DESC LIMIT ?",
            (self._read_up_to, self._namespace, EPISODES_READ),
        )
        for seq, ref in reversed(new):
            known = self._just_recorded.get(ref)
            self._read_up_to = seq
            try:
                episode = trajectory(ref) if known is None else known
            except LibraryDamaged as error:
                logger.warning("episode %s is not learned from: %s", ref, error)
                continue
            if episode.trust == "untrusted" and self._heard != ALONE:
                self._voices.read(episode)
            else:
                self._induction.read(episode)
        self._just_recorded.clear()

    def proposals(self, values: ValueTable) -> list[Proposal]:
        """Every candidate."""
        if self._heard == ALONE:
            return proposals_of(self._evolution, self._induction, values, self._of_the_only_writer)
        return [*proposals_of(self._evolution, self._induction, values, _as_it_is), *self._voices.proposals(values)]

    @staticmethod
    def _of_the_only_writer(item: Item, pattern: str) -> Item | None:
        """Return an item of the only writer, who is not trusted: in general words; what acts waits in quarantine."""
        told = in_general(item, pattern)
        return replace(told, trust="untrusted") if told is not None and told.steps else told

    def released(self, values: ValueTable, items: Iterable[Item]) -> list[tuple[Item, str]]:
        """Guardrails that the counts do not support any more, and why."""
        known = list(items)
        found = list(self._evolution.released(values, iter(known)))
        if self._heard == ALONE:
            return found
        over = {item.id for item, _ in found}
        of_others = (
            item for item in known if item.writer == "rules" and item.forbids and values.cell(guard_key(item)) is None
        )
        why = "it works for other writers"
        return [
            *found,
            *((one, why) for one in of_others if one.id not in over and self._voices.is_outweighed(one, values)),
        ]

    def idle(self, derived: Derived, items: Iterable[Item]) -> list[tuple[Item, str]]:
        """Guardrails that decided nothing for long, and why they go; looked for once in a while."""
        loses = partial(self._evolution.loses, derived.values)
        return self._idle.idle(items, derived.episodes, derived.worlds, derived.homes_of, loses)

    def reopen(self, items: Iterable[Item]) -> None:
        """Propose guardrails again that were retired until they are needed, at their next failure."""
        for item in items:
            self._evolution.reopen(item)

    def weakened(self, values: ValueTable, items: Iterable[Item]) -> list[tuple[Item, str]]:
        """Guardrails whose call worked the last time, and why that is known."""
        return list(self._evolution.weakened(values, iter(items)))


def proposals_of(
    evolution: Evolution, induction: Induction, values: ValueTable, worded: Callable[[Item, str], Item | None]
) -> list[Proposal]:
    """Return every candidate, worded by a function of the item and the pattern of its key."""
    proposals: list[Proposal] = []
    for key, item in evolution.candidates(values):
        if (told := worded(item, item.forbids or key.partition(" | ")[0])) is not None:
            proposals.append((told, _nothing, partial(evolution.postpone, key, values)))
    for candidate, item in induction.candidates():
        if (told := worded(item, "")) is not None:
            proposals.append((told, partial(induction.taken, candidate), _nothing))
    return proposals


def _as_it_is(item: Item, pattern: str) -> Item:
    return item


def admit_within_limits(curator: Curator, proposals: Iterable[Proposal]) -> list[Admission]:
    """Put the proposals before the curator; those of a kind whose limit is reached wait."""
    left = dict(RATE_LIMITS)
    admissions = []
    for item, taken, wait in proposals:
        if not left.get(item.kind, 0):
            wait()
            continue
        admission = curator.admit(item)
        taken()
        left[item.kind] -= admission.status in ("added", "replaced")
        admissions.append(admission)
    return admissions


def _nothing() -> None:
    """What is done where nothing is to be done."""
