"""Measure retrieval from public memory data sets, without a model or a judge.

Two kinds of data sets:

    evidence  LoCoMo, LongMemEval and BFCL's memory questions: which turns of past conversations answer a question?
    action    tau-bench, BFCL's multi-turn tasks or your own trajectories: which action followed in similar situations?

Figures of evidence are means over the questions: `recall@k`, the share of a question's evidence turns among the first
k notes; `ndcg@10` of these turns; and `sessions@5`, the share of the evidence sessions among the first five sessions
in the order of their best note. The figure of an action is next-action agreement@5, see
`benchmarks.retrieval.trajectories`; the first half of the tasks is stored, and the second half asks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.memory.retrieval.embedders import Embedder

from ..harness.intervals import bootstrap_groups
from ..harness.tables import Row
from ..peers.processes import ScriptDied
from ..retrieval import sets
from ..retrieval.sets import Ours, Split
from ..retrieval.trajectories import EMBEDDERS, RecordedStep, open_embedders, read
from . import bfcl_notes, conversations
from .arms import OWN, PEERS, Arm, Rankings, describe_failure, list_peers
from .collection import Collection, Note, Query

RECALL = "hardwon, recall"
"""The row of `ExperienceLibrary.recall` in action data sets: what an agent is given at a step."""
SYSTEMS = (*OWN, RECALL, *PEERS)
_K = 5
_HIDDEN = ("set", "kind", "results")
"""Columns that only `--json` shows."""
Tell = Callable[[str], None]


def parse_systems(only: str) -> list[str]:
    """Return the systems to run; an empty text selects all.

    Args:
        only: Names separated by semicolons, because some names have a comma.

    Raises:
        UnknownName: If a system does not exist.
    """
    wanted = [name.strip() for name in only.split(";") if name.strip()] or list(SYSTEMS)
    for name in wanted:
        if name not in SYSTEMS:
            raise UnknownName.of("system", name, SYSTEMS)
    return wanted


def measure(
    folder: Path | None, systems: Sequence[str], cache: Path, tell: Tell, *, embedder: str = "", first: int = 0
) -> list[Row]:
    """Measure every data set that is there with every system that is installed.

    Args:
        folder: Folder of the downloaded files and of folders of trajectories. None measures only BFCL.
        systems: Names of the systems.
        cache: Folder of the peers' virtual environments.
        tell: Receives lines of progress, and one line for everything that is skipped.
        embedder: The embedder of all systems: hashing or MiniLM; both if empty.
        first: Number of queries to take from each data set; 0 takes all.

    Returns:
        One row per data set, system, embedder and kind of question.

    Raises:
        ConfigError: If the folder does not exist or a file is malformed, or if there is no data set at all.
        UnknownName: If the embedder does not exist.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; --data names the folder of the downloaded files.")
    if embedder not in ("", *EMBEDDERS):
        raise UnknownName.of("embedder", embedder, EMBEDDERS)
    arms = {name: arm for name, arm in OWN.items() if name in systems} | list_peers(systems, cache, tell)
    rows: list[Row] = []
    for collection in _read_collections(folder, tell):
        rows += _measure_evidence(collection.take_first(first), arms, tell, embedder)
    for split in _read_splits(folder, tell):
        rows += _measure_actions(_shorten(split, first), arms, RECALL in systems, tell, embedder)
    if not rows:
        raise ConfigError(f"nothing to measure. {describe_files()}")
    return rows


def describe_files() -> str:
    """Return one sentence that says which files are read and where they come from."""
    files = "; ".join(f"{name} from {address}" for name, address, _ in conversations.FILES.values())
    return (
        f"--data is a folder with any of: {files}; folders of trajectories as docs/retrieval.md describes. "
        "For BFCL, run: pip install --no-deps bfcl-eval mpmath"
    )


# -- the data -------------------------------------------------------------------------------------


def _read_collections(folder: Path | None, tell: Tell) -> Iterator[Collection]:
    """Yield the evidence data sets that are there."""
    for name, reader in conversations.READERS.items():
        path = conversations.find_file(folder, name) if folder else None
        if path is None:
            file, address, _ = conversations.FILES[name]
            tell(f"{name}: skipped, no {file} in {folder or 'a --data folder'}. Download it from {address}")
            continue
        if not conversations.has_known_digest(path, name):
            tell(f"{name}: {path.name} differs from the published version, so figures cannot be compared with others'")
        yield _announce(reader(path), tell)
    try:
        yield _announce(bfcl_notes.read_questions(), tell)
    except MissingExtra as error:
        tell(f"BFCL memory: skipped, {error}")


def _announce(collection: Collection, tell: Tell) -> Collection:
    tell(
        f"{collection.name}: {len(collection.notes)} notes, {len(collection.queries)} questions, "
        f"{collection.omitted} omitted because they have no evidence"
    )
    return collection


def _read_splits(folder: Path | None, tell: Tell) -> Iterator[Split]:
    """Yield the action data sets that are there."""
    files = folder.glob("*/*.jsonl") if folder else ()
    for path in sorted(
        {file.parent for file in files} | ({folder} if folder and any(folder.glob("*.jsonl")) else set())
    ):
        yield _split(path.name, read(path), tell)
    try:
        yield _split("BFCL multi-turn", bfcl_notes.read_solutions(), tell)
    except MissingExtra as error:
        tell(f"BFCL multi-turn: skipped, {error}")


def _split(name: str, steps: Sequence[RecordedStep], tell: Tell) -> Split:
    split = sets.split_set(name, steps)
    tell(f"{name}: {len(split.recorded)} recorded steps, {len(split.queries)} queries")
    return split


def _shorten(split: Split, first: int) -> Split:
    """Return a split with its first queries; all if `first` is 0."""
    count = first or len(split.queries)
    return Split(split.name, split.recorded, split.queries[:count], split.known[:count])


# -- evidence -------------------------------------------------------------------------------------


def _measure_evidence(collection: Collection, arms: Mapping[str, Arm], tell: Tell, only: str) -> Iterator[Row]:
    """Yield the rows of one evidence data set."""
    for embedder_name, embedder in open_embedders(collection.list_texts(), tell, only).items():
        for name, rankings in _run_arms(collection, arms, embedder, tell):
            base = {"set": collection.name, "system": name, "embedder": _name_vectors(name, embedder_name)}
            if isinstance(rankings, str):
                yield {**base, "kind": "all", "n": len(collection.queries), "error": rankings}
                continue
            figures = [
                _rate(collection, query, ranking) for query, ranking in zip(collection.queries, rankings, strict=True)
            ]
            kinds = list(dict.fromkeys(query.kind for query in collection.queries))
            for kind in ("all", *kinds):
                chosen = [at for at, query in enumerate(collection.queries) if kind in ("all", query.kind)]
                yield {**base, "kind": kind, **_summarize(collection, figures, chosen)}


def _run_arms(
    collection: Collection, arms: Mapping[str, Arm], embedder: Embedder, tell: Tell
) -> Iterator[tuple[str, Rankings | str]]:
    """Yield the rankings of every system, or why a system has none."""
    for name, arm in arms.items():
        tell(f"{collection.name}: {name} ...")
        try:
            yield name, arm(collection, embedder)
        except ScriptDied as error:
            yield name, describe_failure(error)


def _name_vectors(system: str, embedder: str) -> str:
    return "-" if system == "BM25" else embedder


def _rate(collection: Collection, query: Query, ranking: Sequence[int]) -> tuple[float, ...]:
    """Return recall@5, recall@10, ndcg@10, the recall of sessions@5, and the number of results up to 10."""
    hits = [number in query.evidence for number in ranking[:10]]
    ideal = sum(1 / math.log2(rank + 2) for rank in range(min(10, len(query.evidence))))
    gained = sum(hit / math.log2(rank + 2) for rank, hit in enumerate(hits))
    wanted = {collection.notes[number].session for number in query.evidence}
    found = list(dict.fromkeys(collection.notes[number].session for number in ranking))[:_K]
    return (
        sum(hits[:_K]) / len(query.evidence),
        sum(hits) / len(query.evidence),
        gained / ideal,
        len(wanted & set(found)) / len(wanted),
        float(len(hits)),
    )


def _summarize(collection: Collection, figures: Sequence[tuple[float, ...]], chosen: Sequence[int]) -> Row:
    """Return the means of the chosen questions, and the 95 % interval of recall@10."""
    values = np.array([figures[at] for at in chosen])
    groups = np.array([collection.queries[at].group for at in chosen])
    recall_5, recall_10, ndcg, sessions, results = (round(float(mean), 3) for mean in values.mean(axis=0))
    return {
        "n": len(chosen),
        "recall@5": recall_5,
        "recall@10": recall_10,
        "ci95": bootstrap_groups(values[:, 1], groups),
        "ndcg@10": ndcg,
        "sessions@5": sessions,
        "results": results,
    }


# -- actions --------------------------------------------------------------------------------------


def _measure_actions(split: Split, arms: Mapping[str, Arm], recall: bool, tell: Tell, only: str) -> Iterator[Row]:
    """Yield the rows of one action data set."""
    forms = {"situation": _collect(split, lambda step: step.observation), "task and situation": _collect(split, _join)}
    texts = [text for collection in forms.values() for text in collection.list_texts()]
    texts += [step.goal for step in (*split.recorded, *split.queries)]
    for embedder_name, embedder in open_embedders(texts, tell, only).items():
        for form, collection in forms.items():
            for name, rankings in _run_arms(collection, arms, embedder, tell):
                base = {"set": split.name, "system": name, "embedder": _name_vectors(name, embedder_name), "text": form}
                if isinstance(rankings, str):
                    yield {**base, "n": len(split.queries), "error": rankings}
                    continue
                answers = [[collection.notes[at].action for at in ranking[:_K]] for ranking in rankings]
                yield {**base, **_compare_actions(split, answers)}
        if recall:
            tell(f"{split.name}: {RECALL} ...")
            with Ours(split, embedder) as ours:
                answers = [ours.recall_by_step(query) for query in range(len(split.queries))]
            base = {"set": split.name, "system": RECALL, "embedder": embedder_name, "text": "state"}
            yield {**base, **_compare_actions(split, answers)}


def _join(step: RecordedStep) -> str:
    return f"{step.goal}\n{step.observation}"


def _collect(split: Split, form: Callable[[RecordedStep], str]) -> Collection:
    """Return a split as a collection of one tenant, in which each note is a situation."""
    notes = [Note(split.name, step.episode, form(step).strip() or "-", step.action) for step in split.recorded]
    queries = [
        Query(split.name, form(step).strip() or "-", "step", action=step.action, group=str(step.task))
        for step in split.queries
    ]
    return Collection(split.name, tuple(notes), tuple(queries))


def _compare_actions(split: Split, answers: Sequence[Sequence[str]]) -> Row:
    """Return the next-action agreement@5 of the answers, with its interval; a query without an answer counts 0."""
    values = np.array(
        [
            sum(name == step.action for name in names) / len(names) if names else 0.0
            for step, names in zip(split.queries, answers, strict=True)
        ]
    )
    return {
        "n": len(values),
        "agreement@5": round(float(values.mean()), 3),
        "ci95": bootstrap_groups(values, np.array([step.task for step in split.queries])),
        "results": round(float(np.mean([len(names) for names in answers])), 3),
    }


# -- tables ---------------------------------------------------------------------------------------


def format_tables(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows as one titled table per data set, without the rows of single kinds of questions."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("kind", "all") == "all":
            shown = {name: _format_value(value) for name, value in row.items() if name not in _HIDDEN}
            tables.setdefault(row["set"], []).append(shown)
    return [(name, _align(lines)) for name, lines in tables.items()]


def _format_value(value: Any) -> Any:
    return "{:.2f}-{:.2f}".format(*value) if isinstance(value, list) else value


def _align(lines: list[Row]) -> list[Row]:
    """Return the rows with equal columns, in which a failed system has its reason."""
    columns = list(dict.fromkeys(name for line in lines for name in line))
    return [{name: line.get(name) for name in columns} for line in lines]
