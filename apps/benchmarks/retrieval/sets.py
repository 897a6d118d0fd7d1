"""`hardwon bench retrieval --sets`: several data sets, each asked about its held-out half, by part and by query.

The tasks of a set are split in two by their order: the library holds the first half, the questions come
from the second. So a row compares the ways of retrieving on the same steps and the same library:

    known     steps whose situation (the signature of what is seen) the library has
    new       steps whose situation it has not
    task      the instruction alone is the query; the steps of the nearest episodes are returned
    question  words of one recorded step, inflected, as a question; is that step's situation found?

`known`, `new` and `task` are next-action agreement@5 (see `benchmarks.retrieval.trajectories`), `question` is the
share found among the first five. BM25 is SQLite's own, with Porter's stems, over all words of the raw texts.
"""

import random
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self
from unittest import mock

import numpy as np

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.retrieval import ranking, recall, text_index
from hardwon.memory.retrieval.embedders import Embedder, Vectors
from hardwon.memory.retrieval.search import Search

from .trajectories import Asked, K, Row, interval, open_embedders, read

Part = Literal["known", "new", "task", "question"]
QUESTIONS = 200
"""Questions of a set at most."""
QUESTION_WORDS = 4
"""Words of a recorded step that a question repeats at most."""
_WORD = re.compile(r"\w+")
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_FRAMES = ("what about the {}?", "where did we see {}?", "how was it with {}?", "which step dealt with {}?")
Answers = Callable[[int], Sequence[int]]
"""From the number of a query to the numbers of at most K recorded steps, best first."""


@dataclass(frozen=True, slots=True)
class Split:
    """The recorded half of a set, and the half that is asked about."""

    name: str
    recorded: tuple[Asked, ...]
    queries: tuple[Asked, ...]
    known: tuple[bool, ...]
    """For each query: whether the library has its situation."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one recorded step."""

    text: str
    observation: str


def measure(
    folder: Path, tell: Callable[[str], None], *, tuning: bool = False, ablate: bool = False, only: str = ""
) -> list[Row]:
    """Return a row for every set, part and way of retrieving.

    Args:
        folder: one set, or a folder of sets.
        tell: receives a line of progress at a time.
        tuning: split the tuning half once more, and leave the held-out half alone.
        ablate: add rows of ours with one ingredient off.
        only: the embedder to use; all that are installed if empty.
    """
    rows: list[Row] = []
    for path in _sets(folder):
        split = _split(path.name, read(path), tuning)
        tell(f"{split.name}: {len(split.recorded)} steps recorded, {len(split.queries)} asked about")
        questions = _questions(split)
        texts = [one.observation for one in (*split.recorded, *split.queries)]
        texts += [one.goal for one in (*split.recorded, *split.queries)] + [one.text for one in questions]
        rows += _by_words(split, questions)
        for name, embedder in open_embedders(texts, tell, only).items():
            rows += _by_meaning(split, questions, name, embedder)
            with Ours(split, embedder) as ours:
                rows += ours.rows(f"ours, {name}", questions)
                if ablate:
                    rows += ours.ablations(name, questions)
    return rows


def _sets(folder: Path) -> list[Path]:
    """Return the folder itself or, where it holds no lines, those below that do."""
    if any(folder.glob("*.jsonl")):
        return [folder]
    found = sorted({path.parent for path in folder.glob("*/*.jsonl")})
    if not found:
        raise ConfigError(f"there is no *.jsonl in {folder} nor in a folder below it; name a folder of sets.")
    return found


def _split(name: str, asked: Sequence[Asked], tuning: bool) -> Split:
    tasks = sorted({one.task for one in asked})
    if tuning:
        tasks = tasks[: len(tasks) // 2]
    first, second = set(tasks[: len(tasks) // 2]), set(tasks[len(tasks) // 2 :])
    recorded = tuple(one for one in asked if one.task in first)
    queries = tuple(one for one in asked if one.task in second)
    signatures = {State(one.observation).signature for one in recorded}
    return Split(name, recorded, queries, tuple(State(one.observation).signature in signatures for one in queries))


def _questions(split: Split) -> list[Question]:
    """Write questions with words of recorded steps: some words of each, inflected, in a frame of a question."""
    rng = random.Random(0)
    long = [one for one in split.recorded if len(set(_LONG_WORD.findall(one.observation))) >= QUESTION_WORDS]
    chosen = rng.sample(long, min(QUESTIONS, len(long)))
    questions = []
    for number, one in enumerate(chosen):
        words = rng.sample(sorted(set(_LONG_WORD.findall(one.observation.lower()))), QUESTION_WORDS)
        inflected = " ".join(_inflected(word) for word in words)
        questions.append(Question(_FRAMES[number % len(_FRAMES)].format(inflected), one.observation))
    return questions


def _inflected(word: str) -> str:
    """Return the word in the plural, or a plural in the singular."""
    if word.endswith("s"):
        return word if word.endswith(("ss", "us", "is")) else word[:-1]
    return f"{word}s"


# -- the plain parts ------------------------------------------------------------------------------


class Bm25:
    """SQLite's BM25 over raw texts, all words of the query, with Porter's stems."""

    def __init__(self, texts: Sequence[str], *, stems: bool = True) -> None:
        self._connection = sqlite3.connect(":memory:")
        tokenizer = "porter unicode61" if stems else "unicode61"
        self._connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='{tokenizer}')")
        self._connection.executemany("INSERT INTO texts(rowid, text) VALUES (?, ?)", enumerate(texts))

    def best(self, text: str) -> list[int]:
        """Return the numbers of the K best texts."""
        terms = " OR ".join(f'"{word}"' for word in sorted(set(_WORD.findall(text.lower()))))
        if not terms:
            return []
        query = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank, rowid LIMIT ?"
        return [row[0] for row in self._connection.execute(query, (terms, K))]


def _told(one: Asked) -> str:
    return f"{one.goal}\n{one.observation}"


def _by_words(split: Split, questions: Sequence[Question]) -> Iterator[Row]:
    seen, told = Bm25([one.observation for one in split.recorded]), Bm25([_told(one) for one in split.recorded])
    tasks = Bm25([one.instruction for one in split.recorded])
    yield from _step_rows(split, "BM25", lambda query: seen.best(split.queries[query].observation))
    yield from _step_rows(split, "BM25, task and observation", lambda query: told.best(_told(split.queries[query])))
    yield _task_row(split, "BM25", lambda query: tasks.best(split.queries[query].instruction))
    for method, stems in (("BM25", True), ("BM25, without stems", False)):
        index = Bm25([one.observation for one in split.recorded], stems=stems)
        yield _question_row(split, method, questions, partial(_best_seen, split, index, questions))


def _best_seen(split: Split, index: Bm25, questions: Sequence[Question], number: int) -> list[str]:
    return _seen(split, index.best(questions[number].text))


def _by_meaning(split: Split, questions: Sequence[Question], name: str, embedder: Embedder) -> Iterator[Row]:
    def best(vectors: Vectors, texts: Sequence[str]) -> Answers:
        cosines = embedder.embed(texts) @ vectors.T
        return lambda query: np.argsort(-cosines[query], kind="stable")[:K].tolist()

    seen = embedder.embed([one.observation for one in split.recorded])
    told = embedder.embed([_told(one) for one in split.recorded])
    tasks = embedder.embed([one.instruction for one in split.recorded])
    yield from _step_rows(split, f"dense, {name}", best(seen, [one.observation for one in split.queries]))
    both = f"dense, {name}, task and observation"
    yield from _step_rows(split, both, best(told, [_told(one) for one in split.queries]))
    yield _task_row(split, f"dense, {name}", best(tasks, [one.instruction for one in split.queries]))
    asked = best(seen, [one.text for one in questions])
    yield _question_row(split, f"dense, {name}", questions, lambda number: _seen(split, asked(number)))


def _seen(split: Split, numbers: Sequence[int]) -> list[str]:
    return [split.recorded[number].observation for number in numbers]


# -- ours -----------------------------------------------------------------------------------------


class Ours:
    """A library of the recorded half, asked by its public calls."""

    def __init__(self, split: Split, embedder: Embedder) -> None:
        self._split = split
        self._library = ExperienceLibrary.open(":memory:", embedder=embedder)
        episodes: defaultdict[str, list[Asked]] = defaultdict(list)
        for one in split.recorded:
            episodes[one.episode].append(one)
        self._labels: dict[tuple[str, int], str] = {(one.episode, one.t): one.action for one in split.recorded}
        self._observations = {(one.episode, one.t): one.observation for one in split.recorded}
        for name, steps in episodes.items():
            self._library.record(_trajectory(name, steps))
        self._library.index()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.close()

    def rows(self, method: str, questions: Sequence[Question]) -> Iterator[Row]:
        """Return the row of every part."""
        yield from _step_rows(self._split, method, self.by_step)
        yield _task_row(self._split, method, self.by_task)
        yield _task_row(self._split, f"{method}, without the action before", partial(self.by_task, after=False))
        asked = {"recall": self.by_recall, "search": self.by_search}
        for call, ask in asked.items():
            yield _question_row(self._split, f"{method}, {call}", questions, partial(self._answer, ask, questions))

    def ablations(self, name: str, questions: Sequence[Question]) -> Iterator[Row]:
        """Return the rows of ours with one ingredient off."""
        method = f"ours, {name}"
        yield from _step_rows(self._split, f"{method}, without the task", partial(self.by_step, task=False))
        yield from _step_rows(self._split, f"{method}, without the action before", partial(self.by_step, after=False))
        for what, off in _OFF.items():
            with mock.patch.multiple(off[0], **off[1]):
                self._library.forget_findings()
                yield from self.rows(f"{method}, without {what}", questions)
        self._library.forget_findings()

    def by_step(self, query: int, *, task: bool = True, after: bool = True) -> list[str]:
        """Return what was done in the steps recalled for a query."""
        one = self._split.queries[query]
        state = State(one.observation, task=one.goal if task else "")
        return self._done(self._library.recall(state, k=K, after=one.before if after else None).steps)

    def by_task(self, query: int, *, after: bool = True) -> list[str]:
        """Return what was done in the steps recalled for the instruction of a query."""
        one = self._split.queries[query]
        state = State("", task=one.instruction)
        return self._done(self._library.recall(state, k=K, level="task", after=one.before if after else None).steps)

    def by_recall(self, text: str) -> list[Any]:
        """Return the steps that `recall` finds for a text."""
        return [hit.what for hit in self._library.recall(text, k=K).steps]

    def by_search(self, text: str) -> list[Any]:
        """Return the steps that `search` finds for a text."""
        return [hit.what for hit in self._library.search(text, K)]

    def _answer(self, ask: Callable[[str], list[Any]], questions: Sequence[Question], number: int) -> list[str]:
        steps = [step for step in ask(questions[number].text) if isinstance(step, Step)]
        return [self._observations[step.why["trajectory"], step.t] for step in steps]  # the library's are redacted

    def _done(self, hits: Sequence[Any]) -> list[str]:
        return [self._labels[hit.what.why["trajectory"], hit.what.t] for hit in hits]


def _trajectory(name: str, steps: Sequence[Asked]) -> Trajectory:
    states = [State(one.observation, task=one.goal) for one in steps]
    done = [
        Step(pre, one.call, post, Diagnosis(success=True), reward=float(one is steps[-1]), t=one.t)
        for one, pre, post in zip(steps, states, [*states[1:], states[-1]], strict=True)
    ]
    return Trajectory(steps[0].instruction, tuple(done), success=True, score=1.0, id=name)


def _own_steps_alone(query: Any) -> list[Any]:
    """Find nothing beside the steps of a known situation."""
    return [] if query.voters else _near(query)


_near = recall._Query._find_neighbors
_OFF: Mapping[str, tuple[object, Mapping[str, Any]]] = {
    "the vote": (ranking, {"_support": lambda kinds, weights: {}}),
    "filling": (recall._Query, {"_find_neighbors": _own_steps_alone}),
    "words": (Search, {"by_words": lambda *_: []}),
    "more than four words": (recall, {"MORE_TERMS": text_index.QUERY_TERMS}),
}
"""What is switched off, and what stands in for it."""


# -- figures --------------------------------------------------------------------------------------


def _step_rows(split: Split, method: str, answers: Callable[[int], Sequence[Any]]) -> Iterator[Row]:
    parts: Mapping[bool, Part] = {True: "known", False: "new"}
    for known, part in parts.items():
        chosen = [number for number, one in enumerate(split.known) if one is known]
        yield _row(split, part, method, chosen, [_agreement(split, number, answers(number)) for number in chosen])


def _task_row(split: Split, method: str, answers: Callable[[int], Sequence[Any]]) -> Row:
    chosen = range(len(split.queries))
    return _row(split, "task", method, chosen, [_agreement(split, number, answers(number)) for number in chosen])


def _agreement(split: Split, query: int, answers: Sequence[Any]) -> tuple[float, int]:
    """Return the share of the answers that did what was done, and how many there are."""
    names = [one if isinstance(one, str) else split.recorded[one].action for one in answers]
    wanted = split.queries[query].action
    return (sum(name == wanted for name in names) / len(names) if names else 0.0), len(names)


def _question_row(split: Split, method: str, questions: Sequence[Question], seen: Callable[[int], list[str]]) -> Row:
    found = []
    for number, question in enumerate(questions):
        answers = seen(number)
        found.append((float(question.observation in answers), len(answers)))
    return _row(split, "question", method, None, found)


def _row(split: Split, part: Part, method: str, chosen: Any, figures: Sequence[tuple[float, int]]) -> Row:
    values = np.array([value for value, _ in figures])
    groups = (
        np.array([split.queries[number].task for number in chosen]) if chosen is not None else np.arange(len(values))
    )
    return {
        "set": split.name,
        "part": part,
        "method": method,
        "figure": round(float(values.mean()), 3) if len(values) else None,
        "ci95": interval(values, groups),
        "filled": round(float(np.mean([count for _, count in figures])) / K, 3) if figures else None,
        "n": len(values),
    }


def format_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the interval as words."""
    return [
        {
            **{name: row[name] for name in ("set", "part", "method")},
            "figure": "-" if row["figure"] is None else "{:.3f} ({:.2f} to {:.2f})".format(row["figure"], *row["ci95"]),
            **{name: row[name] for name in ("filled", "n")},
        }
        for row in rows
    ]
