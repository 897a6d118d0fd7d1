"""Processes that write to a library until they are killed, and what each of their writes must hold.

Run as a script by the tests of faults. What is written under an id is made of the id alone, so that
whoever reads it can tell a wrong row from a right one. Every finished write is told on standard
output; what is told was acknowledged. Nothing here knows pytest.

    python writers.py mixed PATH WHO SEED     every kind of write, for ever
    python writers.py write PATH WHO MOST     so many writes
    python writers.py read PATH WHO STOP      reads and checks until the file STOP is there
"""

import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory, items
from hardwon.memory.errors import EmbedderMismatch
from hardwon.memory.library import reembed
from hardwon.memory.retrieval import vector_index as index
from hardwon.memory.storage import cache_files

_PLACES = ("attic", "barn", "cellar", "den", "hall", "loft", "porch")
_THINGS = ("apple", "bread", "carrot", "lamp", "mirror", "onion", "pear", "radish")


class Letters:
    """Embeds a text by hashing its words; two salts make vectors of one width that must not be mixed."""

    dim = 64

    def __init__(self, salt: str) -> None:
        self.name = self.fingerprint = f"letters-{salt}"
        self._salt = salt

    def embed(self, texts: Sequence[str]) -> "np.typing.NDArray[np.float32]":
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for word in text.lower().split():
                for number in hashlib.blake2b(f"{self._salt} {word}".encode(), digest_size=6).digest():
                    vector[number % self.dim] += 1.0 if number & 128 else -1.0
            vector /= np.linalg.norm(vector) or 1.0
        return vectors


EMBEDDERS = (Letters("a"), Letters("b"))


def restore(library: ExperienceLibrary, item: Item) -> None:
    """Write an item exactly as given, without admission, as an import does."""
    with library._file.transaction() as connection:
        items.restore(connection, library._file.number, item)


def small_indices() -> None:
    """Trained indices and files beside the library at once, not from ten thousands of vectors on.

    A file takes its time to reach the disk, so that many a kill comes before it is there.
    """
    index.VectorIndex.LIMIT = 64
    cache_files.SAVE_AFTER = 16
    to_disk = os.fsync

    def slowly(fd: Any) -> None:
        time.sleep(0.02)
        to_disk(fd)

    os.fsync = slowly


def opened(path: str | Path) -> ExperienceLibrary:
    """The library with the embedder that it has now."""
    try:
        return ExperienceLibrary.open(path, embedder=EMBEDDERS[0])
    except EmbedderMismatch:
        return ExperienceLibrary.open(path, embedder=EMBEDDERS[1])


def episode_of(ref: str) -> Trajectory:
    """The episode that belongs under an id."""
    draw = random.Random(ref)
    failed = draw.random() < 0.4
    place, thing = draw.choice(_PLACES), draw.choice(_THINGS)
    see = State(f"{ref} stands in the {place}. There is a {thing}.", task=f"eat the {thing}")
    then = State(f"{ref} holds the {thing}.", location=place, task=see.task, feedback="Taken.")
    taken = Step(see, f"take {thing}", then, Diagnosis(True), 0.25, 0, ("*", "take {1}", f"take {thing}"))
    judged = Diagnosis(not failed, Failure.TASK_LOST if failed else Failure.NONE)
    keys = ("*", "eat {1}", f"eat {thing}", f"! eat {thing} @ around 1: raw")
    eaten = Step(then, f"eat {thing}", see, judged, -1.0 if failed else 1.0, 1, keys)
    return Trajectory(see.task, (taken, eaten, taken)[: draw.randint(2, 3)], not failed, id=ref)


def item_of(ref: str, revision: int = 0) -> Item:
    """The item that belongs under an id, when it was changed so many times."""
    draw = random.Random(ref)
    title = f"{ref} tells of the {draw.choice(_PLACES)} and the {draw.choice(_THINGS)}"
    return Item("insight", title, f"revision {revision} of {ref}", tags=(draw.choice(_THINGS),), id=ref)


def says(ref: str, found: Trajectory) -> bool:
    """Whether an episode is, whole and in every word, the one that belongs under the id."""
    wanted = episode_of(ref)
    return (found.id, found.task, found.success) == (ref, wanted.task, wanted.success) and [
        (step.pre, step.action, step.post, step.reward, step.diagnosis, step.keys) for step in found.steps
    ] == [(step.pre, step.action, step.post, step.reward, step.diagnosis, step.keys) for step in wanted.steps]


def tell(*words: object) -> None:
    """One line to who started this, at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Mixed:
    """Writes of every kind, drawn by chance; `will` is told before each and `did` after."""

    def __init__(self, path: str, who: str, seed: int) -> None:
        self.path, self.who, self.draw = path, who, random.Random(seed)
        self.library = opened(path)
        self.count = 0
        self.items: dict[str, int] = {}

    def run(self) -> None:
        """Write until the process is killed."""
        writes: list[tuple[Callable[[], None], int]] = [
            (self.record, 12),
            (self.add, 6),
            (self.evolve, 3),
            (self.update, 4),
            (self.retire, 2),
            (self.index, 3),
            (self.reembed, 1),
            (self.reopen, 1),
        ]
        while True:
            self.draw.choices([write for write, _ in writes], [often for _, often in writes])[0]()

    def fresh(self) -> str:
        self.count += 1
        return f"{self.who}-{self.count}"

    def record(self) -> None:
        ref = self.fresh()
        tell("will", "record", ref)
        tell("did", "record", self.library.record(episode_of(ref)))

    def add(self) -> None:
        refs = [self.fresh() for _ in range(self.draw.randint(1, 5))]
        tell("will", "add", *refs)
        admitted = self.library.items.add_many([item_of(ref) for ref in refs])
        assert {one.status for one in admitted} == {"added"}, admitted
        self.items.update(dict.fromkeys(refs, 0))
        tell("did", "add", *(one.item_id for one in admitted))

    def update(self) -> None:
        if self.items:
            ref = self.draw.choice(sorted(self.items))
            revision = self.items[ref] + 1
            tell("will", "update", ref, revision)
            self.library.items.update(ref, body=item_of(ref, revision).body)
            self.items[ref] = revision
            tell("did", "update", ref, revision)

    def retire(self) -> None:
        if self.items:
            ref = self.draw.choice(sorted(self.items))
            tell("will", "retire", ref)
            self.library.items.retire(ref, "by chance")
            del self.items[ref]
            tell("did", "retire", ref)

    def evolve(self) -> None:
        tell("will", "evolve")
        report = self.library.evolve()
        tell("did", "evolve", *(one.item_id for one in report.admissions if one.status == "added"))

    def index(self) -> None:
        tell("will", "index")
        self.library.admin.index()
        tell("did", "index")

    def reembed(self) -> None:
        other = next(one for one in EMBEDDERS if one.name != self.library.admin.embedder.name)
        self.library.close()
        tell("will", "reembed", other.name)
        reembed(self.path, other)
        tell("did", "reembed", other.name)
        self.library = ExperienceLibrary.open(self.path, embedder=other)

    def reopen(self) -> None:
        tell("will", "reopen")
        self.library.close()
        self.library = opened(self.path)
        tell("did", "reopen")


def write(path: str, who: str, most: int) -> None:
    """So many writes, four episodes to an item."""
    with opened(path) as library:
        for number in range(most):
            ref = f"{who}-{number}"
            if number % 5 == 4:
                tell("did", "add", library.add(item_of(ref)).item_id)
            else:
                tell("did", "record", library.record(episode_of(ref)))


def read(path: str, who: str, stop: str) -> None:
    """Look until told to stop: what is there only grows, and every row that is looked at is whole and right."""
    draw = random.Random(who)
    looks = seen = whole = 0
    stopped = False
    with opened(path) as library:
        while not stopped:
            stopped = Path(stop).exists()
            count = library.episodes.count()
            assert count >= seen, f"{seen} episodes, then {count}"
            seen, looks = count, looks + bool(count)
            for row in library.episodes.find(limit=3):
                assert says(row["id"], library.episodes.get(row["id"])), row
                whole += 1
            whole += check_hits(library, draw.choice(_PLACES), draw.choice(_THINGS))
    tell("read", looks, seen, whole)


def check_hits(library: ExperienceLibrary, place: str, thing: str) -> int:
    """Recall by words; how many hits, each of which was what its id says."""
    found = library.recall(f"who stands in the {place} beside the {thing}?", k=5)
    for hit in found.steps:
        step: Any = hit.what
        ref = step.why.trajectory
        wanted = episode_of(ref).steps[step.t]
        assert (step.pre, step.action, step.post) == (wanted.pre, wanted.action, wanted.post), ref
    for hit in found.items:
        item: Any = hit.what
        assert item.status == "active"
        assert item.writer == "rules" or item.title == item_of(item.id).title, item
    return len(found.steps) + len(found.items)


if __name__ == "__main__":
    what, where, name, last = sys.argv[1:]
    if what == "mixed" or name == "r0":
        small_indices()
    tell("ready")
    if what == "mixed":
        Mixed(where, name, int(last)).run()
    elif what == "write":
        write(where, name, int(last))
    else:
        read(where, name, last)
