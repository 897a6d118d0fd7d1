"""Search for readers who may use experience in general words but may not read the log.

A search by the words of recorded steps would tell such a reader who has which words, by the rank of what it returns.
Here the documents are the general texts that the reader may see anyway: abstracted items, and the forms of actions with
their counts. Words of hidden texts match nothing, and they change no rank.
"""

from collections.abc import Sequence
from typing import TypeVar

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Hit, Item, State, Step
from hardwon.runtime.guidance.abstraction import abstract_item, abstract_summary
from hardwon.runtime.guidance.rendering import Visible

MOST_SUMMARIES = 5000
"""Number of summaries that are read for the forms of actions, the most frequent ones."""
_NOBODY = State("", signature="-")
Entry = TypeVar("Entry", Item, Step)


def search_general(
    library: ExperienceLibrary, text: str, k: int, *, among: str = "all", kinds: Sequence[str] | None = None
) -> list[Hit]:
    """Return items and forms of actions that match a text, ranked only by words that everybody with access may see.

    Args:
        library: The library.
        text: The text to search for.
        k: Largest number of hits.
        among: "items", "steps" or "all".
        kinds: Only items of these kinds.
    """
    nothing = Visible(None)
    hits: list[Hit] = []
    if among != "steps":
        items = [abstract_item(item, nothing) for item in library.items() if not kinds or item.kind in kinds]
        hits += _rank(text, items, [item.text for item in items])
    if among != "items" and not kinds:
        steps = _list_forms(library, nothing)
        hits += _rank(text, steps, [f"{step.action} {step.diagnosis.failure.value}" for step in steps])
    return sorted(hits, key=lambda hit: -hit.similarity)[:k]


def _list_forms(library: ExperienceLibrary, nothing: Visible) -> list[Step]:
    """Return one step for each form of action and each kind of failure, without states."""
    counts: dict[tuple[str, str], int] = {}
    returns: dict[str, tuple[float, int]] = {}
    for summary in library.summaries(limit=MOST_SUMMARIES):
        pattern = abstract_summary(summary, nothing).pattern
        total, n = returns.get(pattern, (0.0, 0))
        returns[pattern] = total + summary.mean_return * summary.n, n + summary.n
        worked = summary.n - sum(summary.failures.values())
        for failure, times in [*summary.failures.items(), (Failure.NONE.value, worked)]:
            counts[pattern, failure] = counts.get((pattern, failure), 0) + times
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


def _rank(text: str, entries: Sequence[Entry], documents: Sequence[str]) -> list[Hit]:
    """Return a hit for each document that shares a word with the text, with their cosine by TF-IDF."""
    # imported late, because it takes half a second
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics.pairwise import cosine_similarity

    try:
        vectorizer = TfidfVectorizer(sublinear_tf=True)
        vectors = vectorizer.fit_transform(documents)
    except ValueError:  # no document has a word
        return []
    cosines = cosine_similarity(vectors, vectorizer.transform([text])).ravel()
    return [
        Hit(what, min(1.0, float(cosine)), "words") for what, cosine in zip(entries, cosines, strict=True) if cosine > 0
    ]
