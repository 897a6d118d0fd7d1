"""Search and recall for readers who may use experience in general words but may not read the log.

A search by the words of recorded steps would tell such a reader who has which words, by the rank of what it returns.
Here the documents are the general texts that the reader may see anyway: abstracted items, and the forms of actions with
their counts. Words of hidden texts match nothing, and they change no rank.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from weakref import WeakKeyDictionary

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Hit, Item, Recollection, State, Step
from hardwon.memory.errors import UnknownName
from hardwon.memory.retrieval.recall import RECALL_FLOOR, within_budget
from hardwon.memory.retrieval.text_index import StemIndex
from hardwon.memory.trust.instructions import instruction_in
from hardwon.memory.trust.support import drop_doubtful
from hardwon.memory.upkeep.figures import newest_change
from hardwon.runtime.guidance.abstraction import abstract_item, abstract_summary
from hardwon.runtime.guidance.rendering import Visible

_NOBODY = State("", signature="-")
_NOTHING = Visible(None)


def search_general(
    library: ExperienceLibrary, text: str, k: int, *, among: str = "all", kinds: Sequence[str] | None = None
) -> list[Hit]:
    """Return items and forms of actions that match a text, ranked only by words that everybody with access may see."""
    hits = _index_of(library).search(library, text)
    return list(islice((hit for hit in hits if _is_wanted(hit, among, kinds)), k))


def _is_wanted(hit: Hit, among: str, kinds: Sequence[str] | None) -> bool:
    """Return whether a hit is of the kinds that were asked for; a step has none of the kinds of items."""
    if isinstance(hit.what, Item):
        return among != "steps" and (not kinds or hit.what.kind in kinds)
    return among != "items" and not kinds


def recall_general(
    library: ExperienceLibrary,
    text: str,
    recollection: Recollection,
    *,
    k: int,
    kinds: Sequence[str] | None,
    budget_tokens: int | None,
) -> Recollection:
    """Return the recollection of a text with items and steps that `search_general` ranks."""
    items: list[Hit] = []
    forms: list[Hit] = []
    for hit in _index_of(library).search(library, text):
        if isinstance(hit.what, Step):
            forms.append(hit)
        elif (kinds is None or hit.what.kind in kinds) and (hit.what.pinned or hit.what.score >= RECALL_FLOOR):
            items.append(hit)
        if len(items) >= k and len(forms) >= k:
            break
    untrusted = [hit for hit in recollection.steps if isinstance(hit.what, Step) and hit.what.why.untrusted]
    chosen, steps, tokens = within_budget(items[:k], [*forms, *untrusted][:k], budget_tokens)
    return replace(
        recollection, items=chosen, steps=steps, tokens=tokens, summaries=(), filled=0, masked=(),
        path="hybrid" if chosen or steps else "empty",
    )  # fmt: skip


class _GeneralIndex:
    """The general texts of one namespace in an index of words, with stems; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version: tuple[int, int] | None = None
        self._items: list[str] = []
        self._forms: list[Step] = []
        self._texts = StemIndex(())

    def search(self, library: ExperienceLibrary, text: str) -> Iterator[Hit]:
        """Yield a hit for each general text that shares a word with the text, best first."""
        with self._lock:
            self._catch_up(library)
            refs = self._texts.rank(text)
            forms, items = self._forms, self._items
        for ref, share in refs:
            if ref < len(forms):
                yield Hit(forms[ref], share, "words")
                continue
            # read again, because an item may have been forgotten or edited since
            with suppress(UnknownName):
                item = library.items.get(items[ref - len(forms)])
                if item.status == "active":
                    yield Hit(abstract_item(item, _NOTHING), share, "words")

    def _catch_up(self, library: ExperienceLibrary) -> None:
        """Index the library again if anything was recorded or changed."""
        version = library.admin.query(newest_change), library.episodes.count()
        if version == self._version:
            return
        items = library.items.find()
        self._forms, self._items = _list_forms(library), [item.id for item in items]
        texts = [f"{step.action} {step.diagnosis.failure.value}" for step in self._forms]
        texts += [abstract_item(item, _NOTHING).text for item in items]
        self._texts = StemIndex(texts)
        self._version = version


_INDICES: WeakKeyDictionary[ExperienceLibrary, _GeneralIndex] = WeakKeyDictionary()


def _index_of(library: ExperienceLibrary) -> _GeneralIndex:
    """Return the index of a library, which lives as long as the library."""
    return _INDICES.setdefault(library, _GeneralIndex())


def _list_forms(library: ExperienceLibrary) -> list[Step]:
    """Return one step for each form of action and each kind of failure, without states."""
    counts: dict[tuple[str, str], int] = {}
    returns: dict[str, tuple[float, int]] = {}
    for summary in library.admin.query(drop_doubtful, library.episodes.summaries(limit=5000)):
        pattern = abstract_summary(summary, _NOTHING).pattern
        if instruction_in(pattern):
            continue
        total, n = returns.get(pattern, (0.0, 0))
        returns[pattern] = total + summary.mean_return * summary.n, n + summary.n
        _count_outcomes(counts, pattern, summary.n, summary.failures)
    return [
        Step(
            _NOBODY,
            pattern,
            _NOBODY,
            Diagnosis(failure == Failure.NONE.value, Failure(failure)),
            return_to_go=returns[pattern][0] / returns[pattern][1],
        )
        for (pattern, failure), times in counts.items()
        if times
    ]


def _count_outcomes(counts: dict[tuple[str, str], int], pattern: str, n: int, failures: Mapping[str, int]) -> None:
    """Add the outcomes of a summary to the counts by pattern and failure."""
    worked = n - sum(failures.values())
    for failure, times in [*failures.items(), (Failure.NONE.value, worked)]:
        counts[pattern, failure] = counts.get((pattern, failure), 0) + times
