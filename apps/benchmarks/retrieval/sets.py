"""Measure retrieval on several data sets, with and without known situations, and with keyword questions.

The tasks of a set are split in two by their order: the library records the first half, and the queries come from the
second half. All retrieval methods therefore use the same recorded steps.

    part      query
    known     a step whose situation (the signature of its observation) is in the library
    new       a step whose situation is not in the library
    task      the instruction alone; the results are steps of the most similar episodes
    question  a question with inflected words of one recorded step; the target is that step's observation

The figure of `known`, `new` and `task` is next-action agreement@5, see `benchmarks.retrieval.trajectories`. The figure
of `question` is recall@5. BM25 is SQLite's FTS5 with Porter stemming, over all words of the raw texts.
"""

import random
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self
from unittest import mock

import numpy as np

from benchmarks.harness.intervals import bootstrap_groups
from benchmarks.harness.tables import Row
from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.library import forget_findings
from hardwon.memory.retrieval import candidates, ranking, recall, text_index
from hardwon.memory.retrieval.candidates import Candidates
from hardwon.memory.retrieval.embedders import Embedder, Vectors
from hardwon.memory.retrieval.tuning import TUNING as RETRIEVAL

from .trajectories import K, RecordedStep, open_embedders, read

Part = Literal["known", "new", "task", "question"]
QUESTIONS = 200
"""Largest number of questions per set."""
QUESTION_WORDS = 4
"""Number of words that a question repeats from a recorded step."""
_WORD = re.compile(r"\w+")
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_FRAMES = ("what about the {}?", "where did we see {}?", "how was it with {}?", "which step dealt with {}?")
Answers = Callable[[int], Sequence[int]]
"""Maps the number of a query to the numbers of at most K recorded steps, best first."""


@dataclass(frozen=True, slots=True)
class Split:
    """The recorded half and the query half of a set."""

    name: str
    recorded: tuple[RecordedStep, ...]
    queries: tuple[RecordedStep, ...]
    known: tuple[bool, ...]
    """For each query, whether its situation is in the library."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one recorded step, and the observation that answers it."""

    text: str
    observation: str


def measure(
    folder: Path, tell: Callable[[str], None], *, tuning: bool = False, ablate: bool = False, only: str = ""
) -> list[Row]:
    """Measure every set, part and retrieval method.

    Args:
        folder: one set, or a folder of sets.
        tell: function that receives lines of progress.
        tuning: whether to split the tuning half again and to leave the held-out half unused.
        ablate: whether to add rows of ours with one ingredient switched off.
        only: the embedder to use; all installed embedders if empty.

    Returns:
        One row per set, part and method.

    Raises:
        ConfigError: the folder has no data, or a line is malformed.
        UnknownName: `only` is not the name of an embedder.
    """
    rows: list[Row] = []
    for path in _find_sets(folder):
        split = split_set(path.name, read(path), tuning=tuning)
        tell(f"{split.name}: {len(split.recorded)} recorded steps, {len(split.queries)} queries")
        questions = _write_questions(split)
        texts = [step.observation for step in (*split.recorded, *split.queries)]
        texts += [step.goal for step in (*split.recorded, *split.queries)] + [question.text for question in questions]
        rows += _measure_bm25(split, questions)
        for name, embedder in open_embedders(texts, tell, only).items():
            rows += _measure_dense(split, questions, name, embedder)
            with Ours(split, embedder) as ours:
                rows += ours.measure(f"ours, {name}", questions)
                if ablate:
                    rows += ours.measure_ablations(name, questions)
    return rows


def _find_sets(folder: Path) -> list[Path]:
    """Return the folder itself if it has JSON Lines files, or else its subfolders that have some."""
    if any(folder.glob("*.jsonl")):
        return [folder]
    folders = sorted({path.parent for path in folder.glob("*/*.jsonl")})
    if not folders:
        raise ConfigError(
            f"no *.jsonl file in {folder} or in its subfolders; name a folder of sets by --data or HARDWON_DATA."
        )
    return folders


def split_set(name: str, steps: Sequence[RecordedStep], *, tuning: bool = False) -> Split:
    """Split the tasks of a set into a recorded half and a query half.

    Args:
        name: name of the set.
        steps: steps of all tasks.
        tuning: whether to split only the first half of the tasks.
    """
    tasks = sorted({step.task for step in steps})
    if tuning:
        tasks = tasks[: len(tasks) // 2]
    first, second = set(tasks[: len(tasks) // 2]), set(tasks[len(tasks) // 2 :])
    recorded = tuple(step for step in steps if step.task in first)
    queries = tuple(step for step in steps if step.task in second)
    signatures = {State(step.observation).signature for step in recorded}
    return Split(name, recorded, queries, tuple(State(step.observation).signature in signatures for step in queries))


def _write_questions(split: Split) -> list[Question]:
    """Return questions that repeat some inflected words of a recorded observation."""
    rng = random.Random(0)
    long = [step for step in split.recorded if len(set(_LONG_WORD.findall(step.observation))) >= QUESTION_WORDS]
    chosen = rng.sample(long, min(QUESTIONS, len(long)))
    questions = []
    for number, step in enumerate(chosen):
        words = rng.sample(sorted(set(_LONG_WORD.findall(step.observation.lower()))), QUESTION_WORDS)
        inflected = " ".join(_inflect(word) for word in words)
        questions.append(Question(_FRAMES[number % len(_FRAMES)].format(inflected), step.observation))
    return questions


def _inflect(word: str) -> str:
    """Return a singular word in the plural, and a plural word in the singular."""
    if word.endswith("s"):
        return word if word.endswith(("ss", "us", "is")) else word[:-1]
    return f"{word}s"


# -- the plain parts ------------------------------------------------------------------------------


class Bm25:
    """A BM25 index of raw texts in SQLite, which searches for all words of the query."""

    def __init__(self, texts: Sequence[str], *, stems: bool = True) -> None:
        self._connection = sqlite3.connect(":memory:")
        tokenizer = "porter unicode61" if stems else "unicode61"
        self._connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='{tokenizer}')")
        self._connection.executemany("INSERT INTO texts(rowid, text) VALUES (?, ?)", enumerate(texts))

    def search(self, text: str, k: int = K) -> list[int]:
        """Return the numbers of the k best texts, best first."""
        terms = " OR ".join(f'"{word}"' for word in sorted(set(_WORD.findall(text.lower()))))
        if not terms:
            return []
        query = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank, rowid LIMIT ?"
        return [row[0] for row in self._connection.execute(query, (terms, k))]


def _format_query(step: RecordedStep) -> str:
    """Return the task and the observation of a step as one text."""
    return f"{step.goal}\n{step.observation}"


def _measure_bm25(split: Split, questions: Sequence[Question]) -> Iterator[Row]:
    """Yield the rows of BM25 for every part."""
    observations, queries = (
        Bm25([step.observation for step in split.recorded]),
        Bm25([_format_query(step) for step in split.recorded]),
    )
    tasks = Bm25([step.instruction for step in split.recorded])
    yield from _build_step_rows(split, "BM25", lambda query: observations.search(split.queries[query].observation))
    yield from _build_step_rows(
        split, "BM25, task and observation", lambda query: queries.search(_format_query(split.queries[query]))
    )
    yield _build_task_row(split, "BM25", lambda query: tasks.search(split.queries[query].instruction))
    for method, stems in (("BM25", True), ("BM25, without stems", False)):
        index = Bm25([step.observation for step in split.recorded], stems=stems)
        yield _build_question_row(split, method, questions, partial(_search_observations, split, index, questions))


def _search_observations(split: Split, index: Bm25, questions: Sequence[Question], number: int) -> list[str]:
    """Return the observations that BM25 finds for a question."""
    return _list_observations(split, index.search(questions[number].text))


def _measure_dense(split: Split, questions: Sequence[Question], name: str, embedder: Embedder) -> Iterator[Row]:
    """Yield the rows of vector search with one embedder for every part."""

    def rank(vectors: Vectors, texts: Sequence[str]) -> Answers:
        cosines = embedder.embed(texts) @ vectors.T
        return lambda query: np.argsort(-cosines[query], kind="stable")[:K].tolist()

    observations = embedder.embed([step.observation for step in split.recorded])
    both = embedder.embed([_format_query(step) for step in split.recorded])
    tasks = embedder.embed([step.instruction for step in split.recorded])
    yield from _build_step_rows(
        split, f"dense, {name}", rank(observations, [step.observation for step in split.queries])
    )
    method = f"dense, {name}, task and observation"
    yield from _build_step_rows(split, method, rank(both, [_format_query(step) for step in split.queries]))
    yield _build_task_row(split, f"dense, {name}", rank(tasks, [step.instruction for step in split.queries]))
    answers = rank(observations, [question.text for question in questions])
    yield _build_question_row(
        split, f"dense, {name}", questions, lambda number: _list_observations(split, answers(number))
    )


def _list_observations(split: Split, numbers: Sequence[int]) -> list[str]:
    """Return the observations of recorded steps by number."""
    return [split.recorded[number].observation for number in numbers]


# -- ours -----------------------------------------------------------------------------------------


class Ours:
    """A library of the recorded half, queried through the public API."""

    def __init__(self, split: Split, embedder: Embedder) -> None:
        """Record the first half of a set in a library in memory, and embed it."""
        self._split = split
        self._library = ExperienceLibrary.open(":memory:", embedder=embedder)
        episodes: defaultdict[str, list[RecordedStep]] = defaultdict(list)
        for step in split.recorded:
            episodes[step.episode].append(step)
        self._labels: dict[tuple[str, int], str] = {(step.episode, step.t): step.action for step in split.recorded}
        self._observations = {(step.episode, step.t): step.observation for step in split.recorded}
        for name, steps in episodes.items():
            self._library.record(_build_trajectory(name, steps))
        self._library.admin.index()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.close()

    def measure(self, method: str, questions: Sequence[Question]) -> Iterator[Row]:
        """Yield the rows of every part."""
        yield from _build_step_rows(self._split, method, self.recall_by_step)
        yield _build_task_row(self._split, method, self.recall_by_task)
        yield _build_task_row(
            self._split, f"{method}, without the action before", partial(self.recall_by_task, after=False)
        )
        calls = {"recall": self.recall_text, "search": self.search_text}
        for call, query in calls.items():
            yield _build_question_row(
                self._split, f"{method}, {call}", questions, partial(self._find_observations, query, questions)
            )

    def measure_ablations(self, name: str, questions: Sequence[Question]) -> Iterator[Row]:
        """Yield the rows with one ingredient switched off at a time."""
        method = f"ours, {name}"
        yield from _build_step_rows(
            self._split, f"{method}, without the task", partial(self.recall_by_step, task=False)
        )
        yield from _build_step_rows(
            self._split, f"{method}, without the action before", partial(self.recall_by_step, after=False)
        )
        for what, off in _OFF.items():
            with mock.patch.multiple(off[0], **off[1]):
                # Cached results were computed with the ingredient.
                forget_findings(self._library)
                yield from self.measure(f"{method}, without {what}", questions)
        forget_findings(self._library)

    def recall_by_step(self, query: int, *, task: bool = True, after: bool = True) -> list[str]:
        """Return the actions of the steps that are recalled for a query's observation."""
        step = self._split.queries[query]
        state = State(step.observation, task=step.goal if task else "")
        return self._list_actions(self._library.recall(state, k=K, after=step.before if after else None).steps)

    def recall_by_task(self, query: int, *, after: bool = True) -> list[str]:
        """Return the actions of the steps that are recalled for a query's instruction."""
        step = self._split.queries[query]
        state = State("", task=step.instruction)
        return self._list_actions(
            self._library.recall(state, k=K, level="task", after=step.before if after else None).steps
        )

    def recall_text(self, text: str) -> list[Any]:
        """Return the steps that `recall` returns for a text."""
        return [hit.what for hit in self._library.recall(text, k=K).steps]

    def search_text(self, text: str) -> list[Any]:
        """Return the steps and items that `search` returns for a text."""
        return [hit.what for hit in self._library.search(text, K)]

    def _find_observations(
        self, query: Callable[[str], list[Any]], questions: Sequence[Question], number: int
    ) -> list[str]:
        """Return the recorded observations of the steps that are retrieved for a question."""
        steps = [step for step in query(questions[number].text) if isinstance(step, Step)]
        # The library redacts observations, so the raw ones are the ones to compare.
        return [self._observations[str(step.why.trajectory), step.t] for step in steps]

    def _list_actions(self, hits: Sequence[Any]) -> list[str]:
        """Return the recorded actions of hits."""
        return [self._labels[str(hit.what.why.trajectory), hit.what.t] for hit in hits]


def _build_trajectory(name: str, steps: Sequence[RecordedStep]) -> Trajectory:
    """Return an episode of the set as a successful trajectory."""
    states = [State(step.observation, task=step.goal) for step in steps]
    done = [
        Step(pre, step.call, post, Diagnosis(success=True), reward=float(step is steps[-1]), t=step.t)
        for step, pre, post in zip(steps, states, [*states[1:], states[-1]], strict=True)
    ]
    return Trajectory(steps[0].instruction, tuple(done), success=True, score=1.0, id=name)


def _skip_neighbors(query: Any) -> list[Any]:
    """Return no neighbors in a known situation, so that only its own steps remain."""
    return [] if query.voters else _find_neighbors(query)


def _order_by_weight(
    done: Sequence[Any], similarities: Sequence[float], after: str | None, task: str, **options: Any
) -> list[int]:
    """Return the indices of steps by their own weights."""
    weights = ranking.weigh(done, similarities, after, task, ranking.TASK_BANDWIDTH)
    return sorted(range(len(done)), key=lambda at: (-weights[at], -done[at].value))


_find_neighbors = Candidates.neighbors
_OFF: Mapping[str, tuple[object, Mapping[str, Any]]] = {
    "the vote": (recall, {"order_by_votes": _order_by_weight}),
    "filling": (Candidates, {"neighbors": _skip_neighbors}),
    "words": (text_index.TextIndex, {"search": lambda *_: []}),
    "more than four words": (candidates, {"TUNING": replace(RETRIEVAL, more_terms=RETRIEVAL.query_terms)}),
}
"""Ingredients to switch off: the object to patch, and the replacements of its attributes."""


# -- figures --------------------------------------------------------------------------------------


def _build_step_rows(split: Split, method: str, answers: Callable[[int], Sequence[Any]]) -> Iterator[Row]:
    """Yield the rows of the parts `known` and `new`."""
    parts: Mapping[bool, Part] = {True: "known", False: "new"}
    for was_seen, part in parts.items():
        chosen = [number for number, is_known in enumerate(split.known) if is_known is was_seen]
        yield _build_row(
            split, part, method, chosen, [_compute_agreement(split, number, answers(number)) for number in chosen]
        )


def _build_task_row(split: Split, method: str, answers: Callable[[int], Sequence[Any]]) -> Row:
    """Return the row of the part `task`."""
    chosen = range(len(split.queries))
    return _build_row(
        split, "task", method, chosen, [_compute_agreement(split, number, answers(number)) for number in chosen]
    )


def _compute_agreement(split: Split, query: int, answers: Sequence[Any]) -> tuple[float, int]:
    """Return the share of the retrieved steps with the query's action, and the number of retrieved steps."""
    names = [answer if isinstance(answer, str) else split.recorded[answer].action for answer in answers]
    expected = split.queries[query].action
    return (sum(name == expected for name in names) / len(names) if names else 0.0), len(names)


def _build_question_row(
    split: Split, method: str, questions: Sequence[Question], list_observations: Callable[[int], list[str]]
) -> Row:
    """Return the row of the part `question`."""
    figures = []
    for number, question in enumerate(questions):
        answers = list_observations(number)
        figures.append((float(question.observation in answers), len(answers)))
    return _build_row(split, "question", method, None, figures)


def _build_row(split: Split, part: Part, method: str, chosen: Any, figures: Sequence[tuple[float, int]]) -> Row:
    """Return a row with the mean, its interval and the share of filled places."""
    values = np.array([value for value, _ in figures])
    # Steps of one task are alike, so intervals resample tasks. Questions are independent.
    groups = (
        np.array([split.queries[number].task for number in chosen]) if chosen is not None else np.arange(len(values))
    )
    return {
        "set": split.name,
        "part": part,
        "method": method,
        "figure": round(float(values.mean()), 3) if len(values) else None,
        "ci95": bootstrap_groups(values, groups),
        "filled": round(float(np.mean([count for _, count in figures])) / K, 3) if figures else None,
        "n": len(values),
    }


def format_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the figure and its interval as one text."""
    return [
        {
            **{name: row[name] for name in ("set", "part", "method")},
            "figure": "-" if row["figure"] is None else "{:.3f} ({:.2f} to {:.2f})".format(row["figure"], *row["ci95"]),
            **{name: row[name] for name in ("filled", "n")},
        }
        for row in rows
    ]
