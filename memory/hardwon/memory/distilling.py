"""Distilling: what was recorded since the last time becomes items, within the rate limits.

What is proposed is for `evolution` (from counts) and `induction` (from episodes) to say; what comes in, for the
`curator`. Here is remembered what was read and proposed already; nothing here is durable.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from .curator import Curator
from .evolution import RATE_LIMITS, Evolution
from .induction import Induction
from .records import Admission, Item, Trajectory
from .store import Store
from .values import ValueTable

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
        new = self._store.rows(
            "SELECT seq, ref FROM changes WHERE seq > ? AND namespace = ? AND what = 'trajectory' "
            "ORDER BY seq DESC LIMIT ?",
            (self._read_up_to, self._namespace, EPISODES_READ),
        )
        for seq, ref in reversed(new):
            known = self._just_recorded.get(ref)
            self._induction.read(trajectory(ref) if known is None else known)
            self._read_up_to = seq
        self._just_recorded.clear()

    def proposals(self, values: ValueTable) -> list[Proposal]:
        """Every candidate."""
        counted = self._evolution.candidates(values)
        read = self._induction.candidates()
        return [
            *((item, _nothing, partial(self._evolution.postpone, key, values)) for key, item in counted),
            *((item, partial(self._induction.taken, candidate), _nothing) for candidate, item in read),
        ]

    def released(self, values: ValueTable, items: Iterable[Item]) -> list[tuple[Item, str]]:
        """Guardrails that the counts do not support any more, and why."""
        return list(self._evolution.released(values, iter(items)))

    def weakened(self, values: ValueTable, items: Iterable[Item]) -> list[tuple[Item, str]]:
        """Guardrails whose call worked the last time, and why that is known."""
        return list(self._evolution.weakened(values, iter(items)))


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
