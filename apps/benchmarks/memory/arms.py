"""The systems that are compared: each ranks the notes of a tenant for a query. All use the vectors of one embedder."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.retrieval.embedders import Embedder

from ..peers import environments
from ..peers.processes import Phase, ScriptDied
from ..retrieval.sets import Bm25
from .collection import Collection, match_texts

DEPTH = 50
"""Number of notes that each system is asked for."""
LIMIT_S = 3600.0
"""Seconds after which a peer is stopped."""
Rankings = list[list[int]]
"""For each query of a collection, the numbers of notes, best first."""
Arm = Callable[[Collection, Embedder], Rankings]
Tell = Callable[[str], None]


def rank_by_words(collection: Collection, embedder: Embedder) -> Rankings:
    """Rank by SQLite's BM25 with Porter stems over all words of the query."""
    rankings: Rankings = [[] for _ in collection.queries]
    notes = collection.group_notes()
    for tenant, queries in collection.group_queries().items():
        index = Bm25([collection.notes[number].text for number in notes[tenant]])
        for query in queries:
            rankings[query] = [notes[tenant][at] for at in index.search(collection.queries[query].text, DEPTH)]
    return rankings


def rank_by_meaning(collection: Collection, embedder: Embedder) -> Rankings:
    """Rank by exact cosine similarity."""
    rankings: Rankings = [[] for _ in collection.queries]
    notes = collection.group_notes()
    for tenant, queries in collection.group_queries().items():
        vectors = embedder.embed([collection.notes[number].text for number in notes[tenant]])
        asked = embedder.embed([collection.queries[query].text for query in queries])
        for query, cosines in zip(queries, asked @ vectors.T, strict=True):
            rankings[query] = [notes[tenant][at] for at in np.argsort(-cosines, kind="stable")[:DEPTH]]
    return rankings


def rank_by_hardwon(collection: Collection, embedder: Embedder) -> Rankings:
    """Rank by `ExperienceLibrary.search`: a session is an episode, a note the observation of a step."""
    rankings: Rankings = [[] for _ in collection.queries]
    notes = collection.group_notes()
    for tenant, queries in collection.group_queries().items():
        with ExperienceLibrary.open(":memory:", embedder=embedder) as library:
            places = _record_notes(library, collection, notes[tenant])
            for query in queries:
                hits = [hit.what for hit in library.search(collection.queries[query].text, DEPTH)]
                # The library redacts observations, so notes are identified by their place.
                rankings[query] = [
                    places[str(hit.why.trajectory), hit.t] for hit in hits if isinstance(hit, Step) and hit.why
                ]
    return rankings


def _record_notes(
    library: ExperienceLibrary, collection: Collection, numbers: Sequence[int]
) -> dict[tuple[str, int], int]:
    """Record every session as an episode; return the note of each (episode, step)."""
    sessions: defaultdict[str, list[int]] = defaultdict(list)
    for number in numbers:
        sessions[collection.notes[number].session].append(number)
    episodes = [
        _build_episode(f"s{place}", [collection.notes[number].text for number in session])
        for place, session in enumerate(sessions.values())
    ]
    library.record_many(episodes)
    library.admin.index()
    return {
        (f"s{place}", t): number for place, session in enumerate(sessions.values()) for t, number in enumerate(session)
    }


def _build_episode(name: str, texts: Sequence[str]) -> Trajectory:
    """Return a conversation as an episode, in which every turn is a step."""
    states = [State(text) for text in texts]
    steps = [
        Step(state, "read", after, Diagnosis(True), t=t)
        for t, (state, after) in enumerate(zip(states, [*states[1:], states[-1]], strict=True))
    ]
    return Trajectory("", tuple(steps), True, id=name, ending="success")


OWN: dict[str, Arm] = {"BM25": rank_by_words, "dense": rank_by_meaning, "hardwon": rank_by_hardwon}
"""The systems that run in this process."""


@dataclass(frozen=True)
class Peer:
    """Another memory: its script in `peers`, the script's variant, and its virtual environment."""

    script: str
    variant: str
    environment: str


PEERS: dict[str, Peer] = {
    "mem0": Peer("mem0_local", "qdrant", "mem0-hybrid"),
    "mem0, with keywords": Peer("mem0_local", "qdrant-keywords", "mem0-hybrid"),
    "LangMem": Peer("langmem_local", "", "langmem"),
}


def list_peers(only: Sequence[str], cache: Path, tell: Tell) -> dict[str, Arm]:
    """Return the peers that are installed; say how to install the others.

    Args:
        only: Names of the systems to run.
        cache: Folder of the virtual environments.
        tell: Receives one line per environment that is missing.
    """
    arms: dict[str, Arm] = {}
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for name, peer in PEERS.items():
        if name not in only:
            continue
        python = environments.find_python(peer.environment, cache)
        if python is None:
            missing[peer.environment].append(name)
        else:
            arms[name] = _open_arm(peer, python)
    for environment, names in missing.items():
        tell(f"{', '.join(names)}: skipped, not installed. Run: {environments.format_install(environment, cache)}")
    return arms


def _open_arm(peer: Peer, python: Path) -> Arm:
    """Return the arm of a peer, which runs in a process of its own."""

    def rank(collection: Collection, embedder: Embedder) -> Rankings:
        with TemporaryDirectory(prefix="hardwon-memory-") as folder:
            texts = collection.list_texts()
            plan = _write_data(Path(folder), collection, texts, embedder)
            rankings: Rankings = [[] for _ in collection.queries]
            notes, queries = collection.group_notes(), list(collection.group_queries().items())
            with Phase(
                python,
                (peer.script, peer.variant),
                "rank",
                Path(folder) / "store",
                Path(folder),
                [str(plan), DEPTH],
                LIMIT_S,
            ) as phase:
                found = [event["found"] for event in phase.events() if "found" in event]
            if len(found) != len(queries):
                raise ScriptDied(f"rank: {len(found)} of {len(queries)} tenants were reported")
            for (tenant, numbers), rows in zip(queries, found, strict=True):
                for number, ranked in zip(numbers, rows, strict=True):
                    rankings[number] = match_texts(
                        collection, notes[tenant], [texts[row] for row in ranked if row >= 0]
                    )
            return rankings

    return rank


def _write_data(folder: Path, collection: Collection, texts: Sequence[str], embedder: Embedder) -> Path:
    """Write the texts, their vectors and the plan for a peer; return the path of the plan."""
    rows = {text: row for row, text in enumerate(texts)}
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    np.save(folder / "vectors.npy", embedder.embed(texts))
    notes = collection.group_notes()
    plan: list[Any] = [
        [
            f"tenant{place}",  # mem0 refuses names with spaces
            [rows[collection.notes[number].text] for number in notes[tenant]],
            [rows[collection.queries[number].text] for number in queries],
        ]
        for place, (tenant, queries) in enumerate(collection.group_queries().items())
    ]
    path = folder / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


def describe_failure(error: ScriptDied) -> str:
    """Return the reason why a peer has no figures."""
    return f"failed: {error}"
