"""Kills, many processes, torn and foreign files, full disks: what was acknowledged is there, and right.

The writers are processes of `writers.py`, which make every row of its id, so that a wrong one is
told from a right one. By default each fault is tried a little; `-m slow` tries it as often as
docs/faults.md says and prints the figures.
"""

import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import warm

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.errors import EmbedderMismatch, LibraryUnwritable
from hardwon.memory.records import Item
from hardwon.memory.storage.episodes import read_states, state_text

SCRIPT = Path(__file__).with_name("writers.py")
_spec: Any = importlib.util.spec_from_file_location("writers", SCRIPT)
writers: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(writers)


def started(what, path, who, last):
    """A process of `writers.py` that has imported what it needs and is about to open the library."""
    command = [sys.executable, str(SCRIPT), what, str(path), who, str(last)]
    process: Any = warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert process.stdout.readline() == b"ready\n", process.communicate()[1].decode()
    return process


@pytest.fixture
def figures(record_property, capsys):
    """Keeps what was counted with the test's report; a slow test prints it as well."""

    def keep(title, *, shown=False, **counted):
        for name, value in counted.items():
            record_property(name, str(value))
        if shown:
            with capsys.disabled():
                print(f"\n{title}: " + ", ".join(f"{name} {value}" for name, value in counted.items()))

    return keep


@pytest.fixture
def small(monkeypatch):
    """Trained indices and their files for tens of vectors, as in the writers."""
    from hardwon.memory.retrieval import vector_index
    from hardwon.memory.storage import cache_files

    monkeypatch.setattr(vector_index.VectorIndex, "LIMIT", 64)
    monkeypatch.setattr(cache_files, "SAVE_AFTER", 16)


# -- kill -9 --------------------------------------------------------------------------------------


class Told:
    """What the writers of one library told: what must be there, and what may be."""

    def __init__(self):
        self.episodes: set[str] = set()
        self.items: dict[str, tuple[int, str]] = {}
        self.learnt: set[str] = set()
        self.embedder = writers.EMBEDDERS[0].name
        self.acknowledged = 0

    def hear(self, lines):
        """Take in a writer's lines; returns the write it was killed in, or nothing."""
        begun = []
        for line in lines:
            when, *words = line.split()
            if when == "will":
                begun = words
            else:
                self.did(*words)
                begun = []
        return begun

    def did(self, what, *words):
        """One acknowledged write."""
        self.acknowledged += what not in ("reopen", "index")
        if what == "record":
            self.episodes.update(words)
        elif what == "add":
            self.items.update(dict.fromkeys(words, (0, "active")))
        elif what == "update":
            self.items[words[0]] = (int(words[1]), "active")
        elif what == "retire":
            self.items[words[0]] = (self.items[words[0]][0], "retired")
        elif what == "evolve":
            self.learnt.update(words)
        elif what == "reembed":
            self.embedder = words[0]


def killed(path, who, seed, draw):
    """The lines of a writer that was killed at a random moment: after some of its lines, and some milliseconds.

    It may say that a saved index is rebuilt; any other word on its standard error is a fault.
    """
    process = started("mixed", path, who, seed)
    heard = [process.stdout.readline() for _ in range(draw.choice((0, draw.randrange(100), draw.randrange(100))))]
    time.sleep(draw.random() * 0.03)
    process.kill()
    rest, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert all("rebuilding it" in line for line in errors.decode().splitlines()), errors.decode()
    return (b"".join(heard) + rest).decode().splitlines()


def survived(path, told, begun):
    """Open what a killed writer left and hold every row against what was told; what was found, counted.

    A write that the kill interrupted is there whole or not at all.
    """
    halves = list(Path(f"{path}.index").glob(".new-*"))
    with writers.opened(path) as library:
        problems = library.admin.verify()
        if problems:
            library.admin.repair()
            assert library.admin.verify() == []
        done = check_episodes(library, told, begun) + check_items(library, told, begun)
        if begun and begun[0] == "reembed" and library.admin.embedder.name == begun[1]:
            told.embedder, done = begun[1], done + 1
        assert library.admin.embedder.name == told.embedder
        rows = check_vectors(library)
        library.admin.index()
        rows += check_nearest(library)
        assert library.admin.verify() == []
    for half in halves:  # so that it is counted once; the library itself waits an hour
        half.unlink()
    where = f"in {begun[0] if begun else 'between writes'}"
    found = {"repaired": bool(problems), "finished": done, "half-written indices": len(halves), "rows": rows}
    return Counter({**found, where: 1, **Counter(f"repaired {problem.where}: {problem.what}" for problem in problems)})


def check_episodes(library, told, begun):
    """All that were acknowledged, whole, and none from nowhere; whether the interrupted one is there."""
    there = {row["id"] for row in library.episodes.find()}
    late = there - told.episodes
    assert told.episodes <= there, f"lost: {told.episodes - there}"
    assert late <= set(begun[1:]), f"from nowhere: {late}"
    assert all(writers.says(ref, library.episodes.get(ref)) for ref in there)
    assert library.episodes.count() == len(there)
    numbers = [row[0] for row in library._file.store.rows("SELECT id FROM steps ORDER BY id")]
    steps = library.episodes.steps(numbers)
    assert [step.id for step in steps] == numbers
    for step in steps:
        wanted = writers.episode_of(step.why.trajectory).steps[step.t]
        assert (step.pre, step.action, step.post) == (wanted.pre, wanted.action, wanted.post)
    cell = library._file.caught_up().statistics.values.cells.get("*")
    assert (cell.n if cell else 0) == len(numbers)
    told.episodes = there
    return len(late)


def check_items(library, told, begun):
    """All that were acknowledged, at the revision that was, and none from nowhere; an addition is whole."""
    there = {item.id: item for item in library.items.find(status=None)}
    made = {ref for ref, item in there.items() if item.writer == "rules"}
    assert told.learnt <= made, f"lost: {told.learnt - made}"
    late = there.keys() - made - told.items.keys()
    assert late <= set(begun[1:]), f"from nowhere: {late}"
    assert not late or len(late) == len(begun) - 1, f"half of an addition: {late} of {begun}"
    done = int(bool(late))
    told.items.update(dict.fromkeys(late, (0, "active")))
    for ref, (revision, status) in told.items.items():
        found = (there[ref].body, there[ref].status)
        if begun[:2] in (["update", ref], ["retire", ref]) and found != (
            writers.item_of(ref, revision).body,
            status,
        ):
            revision, status, done = (revision + 1, status, 1) if begun[0] == "update" else (revision, "retired", 1)
            told.items[ref] = (revision, status)
        wanted = writers.item_of(ref, revision)
        assert found == (wanted.body, status)
        assert (there[ref].title, there[ref].tags) == (wanted.title, wanted.tags)
    return done


def texts(library):
    """By kind and number, the text of which a vector must be."""
    numbers = [row[0] for row in library._file.store.rows("SELECT id FROM states")]
    found = {("states", ref): state_text(state) for ref, state in read_states(library._file.store, numbers).items()}
    for number, record in library._file.store.rows("SELECT number, record FROM items WHERE status = 'active'"):
        found["items", number] = Item(**json.loads(record)).text
    return found


def check_vectors(library):
    """Every vector is that of its row's text, by the embedder that the library has; how many."""
    wanted = texts(library)
    rows = library._file.store.rows("SELECT kind, ref, vector FROM vectors")
    vectors = library.admin.embedder.embed([wanted[kind, ref] for kind, ref, _ in rows])
    for (kind, ref, blob), vector in zip(rows, vectors, strict=True):
        assert np.allclose(np.frombuffer(blob, np.float32), vector, atol=1e-6), (kind, ref)
    return len(rows)


def check_nearest(library, most=20):
    """What is nearest to a row's own text is that row; how many were asked."""
    wanted = sorted(texts(library).items())
    asked = random.Random(0).sample(wanted, min(most, len(wanted)))
    for (kind, ref), text in asked:
        ((found, cosine),) = library._file.search.index(kind).search(library._file.search.embed([text])[0], 1)
        assert (found, round(cosine, 4)) == (ref, 1.0), (kind, ref, found, cosine)
    return len(asked)


def kill_often(folder, kills, lives, seed=0):
    """Kill writers of a few libraries at random moments; each library lives through some of them."""
    draw = random.Random(seed)
    counted: Counter[str] = Counter()
    for number in range(kills):
        if number % lives == 0:
            path, told = folder / f"{number}.db", Told()
        begun = told.hear(killed(path, f"w{number}", seed + number, draw))
        if path.exists() and not path.stat().st_size and not told.acknowledged:
            path.unlink()  # killed between the creation of the file and its first page; the message says to delete it
        counted += survived(path, told, begun) if path.exists() else Counter({"in opening": 1})
        if number % lives == lives - 1 or number == kills - 1:
            counted["acknowledged"] += told.acknowledged
    return {"kills": kills, "lost": 0, "wrong": 0, "repaired": counted["repaired"], **counted}


def test_a_killed_writer_loses_nothing(tmp_path, small, figures):
    """kill -9 at random moments of mixed writes: nothing acknowledged is lost, no row is wrong."""
    figures("kill -9", **kill_often(tmp_path, 2, 2))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1000])
def test_writers_killed_a_hundred_times_lose_nothing(tmp_path, small, figures, seed):
    """The same at 100 moments, ten libraries through ten kills each."""
    figures("kill -9", shown=True, **kill_often(tmp_path, 100, 10, seed))


def test_a_log_torn_anywhere_ends_with_a_whole_write(tmp_path, small, figures):
    """What a power cut leaves of the write-ahead log is a beginning of it: whole writes, in their order."""
    path, whole = tmp_path / "whole.db", 0
    with ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[0]) as library:
        library._file.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        refs = []
        for number in range(6):
            refs.append(library.record(writers.episode_of(f"e{number}")))
            assert library.episodes.count() > number or number % 2  # every other one waits in the inbox for the next
        refs += [
            str(one.item_id) for one in library.items.add_many([writers.item_of(f"i{number}") for number in range(3)])
        ]
        library.evolve()
        log = Path(f"{path}-wal").read_bytes()
        shutil.copy(path, tmp_path / "base.db")
    draw, lengths = random.Random(0), []
    for length in sorted(draw.sample(range(len(log)), 24)):
        torn = tmp_path / f"{length}.db"
        shutil.copy(tmp_path / "base.db", torn)
        Path(f"{torn}-wal").write_bytes(log[:length])
        with ExperienceLibrary.open(torn, embedder=writers.EMBEDDERS[0]) as library:
            there = [row["id"] for row in library.episodes.find()][::-1]
            there += [item.id for item in library.items.find(sort="old") if item.writer != "rules"]
            assert there == refs[: len(there)]
            assert len(there) not in (7, 8), "half of an addition"
            assert all(writers.says(ref, library.episodes.get(ref)) for ref in there[:6])
            assert library.admin.verify() == []
        lengths.append(len(there))
        whole += 1
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5
    figures("torn log", cuts=whole)


# -- many processes -------------------------------------------------------------------------------


def crowd(path, writing, most, reading):
    """So many processes write so often while others read; what was told and found, counted."""
    writers.opened(path).close()
    stop = path.with_suffix(".stop")
    began = time.monotonic()
    busy = [started("write", path, f"w{number}", most) for number in range(writing)]
    readers = [started("read", path, f"r{number}", stop) for number in range(reading)]
    outputs = [process.communicate() for process in busy]
    took = time.monotonic() - began
    stop.touch()
    outputs += [process.communicate() for process in readers]
    assert [errors.decode() for _, errors in outputs] == [""] * (writing + reading)
    told = [line.split() for lines, _ in outputs[:writing] for line in lines.decode().splitlines()]
    looks, seen, whole = zip(*(map(int, lines.decode().split()[1:]) for lines, _ in outputs[writing:]), strict=True)
    with writers.opened(path) as library:
        episodes = {words[2] for words in told if words[1] == "record"}
        items = {words[2] for words in told if words[1] == "add"}
        assert {row["id"] for row in library.episodes.find()} == episodes
        assert all(writers.says(ref, library.episodes.get(ref)) for ref in episodes)
        assert {item.id for item in library.items.find()} == items
        assert all(library.items.get(ref).title == writers.item_of(ref).title for ref in items)
        assert library.admin.verify() == []
        assert set(seen) == {len(episodes)}, "every reader ended with all there is"
        held = len(episodes) + len(items)
    return {
        "writers": writing,
        "readers": reading,
        "acknowledged": len(told),
        "held": held,
        "of": writing * most,
        "looks": sum(looks),
        "rows read": sum(whole),
        "seconds": round(took, 1),
    }


def test_processes_write_while_others_recall(path, small, figures):
    """All writes are there, nobody is turned away, readers see them come, and never a torn episode."""
    counted = crowd(path, writing=3, most=25, reading=1)
    assert counted["held"] == counted["acknowledged"] == counted["of"] == 75
    figures("crowd", **counted)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_processes_write_four_thousand_while_four_recall(path, small, figures):
    """Eight processes writing 500 each while four recall: 4,000 of 4,000, no locked database shown."""
    counted = crowd(path, writing=8, most=500, reading=4)
    assert counted["held"] == counted["acknowledged"] == counted["of"] == 4000
    figures("crowd", shown=True, **counted)


def test_the_change_log_only_grows(path):
    """Two writers, one sequence without a step back."""
    with ExperienceLibrary.open(path) as one, ExperienceLibrary.open(path) as other:
        for number in range(5):
            one.add(Item("insight", f"one {number}"))
            other.add(Item("insight", f"other {number}"))
        numbers = [seq for (seq,) in one._file.store.rows("SELECT seq FROM changes ORDER BY rowid")]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 10


# -- the files beside a library -------------------------------------------------------------------


def fill(path, episodes=60, items=80, namespace="default", who="x"):
    """A library with enough in it for every kind of file to be written."""
    with ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[0], namespace=namespace) as library:
        with library._file.transaction():
            for number in range(episodes):
                library.record(writers.episode_of(f"{who}{number}"))
        library.items.add_many([writers.item_of(f"{who}-i{number}") for number in range(items)])
        answers(library)
    return sorted(file.name for file in Path(f"{path}.index").glob("*"))


def answers(library):
    """What the library says to some questions: ids, cosines and estimates."""
    library.admin.index()
    said: list[list[Any]] = []
    for place in ("attic", "barn", "cellar", "den", "hall"):
        state = State(f"Somebody stands in the {place}. There is a lamp.", task="eat the pear")
        found = library.recall(state, k=5, actions={"take lamp": "", "eat pear": "", "eat lamp": ""})
        said.append([(hit.what.id, round(hit.similarity, 5)) for hit in (*found.items, *found.steps)])
        said.append([(action, estimate.n, estimate.value) for action, estimate in found.estimates.items()])
        said.append([(hit.what.id, round(hit.similarity, 5)) for hit in library.search(f"{place} lamp", how="dense")])
    return said


def answers_of(path, **how):
    """The same of the library at a path, opened anew."""
    with ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[0], **how) as library:
        said = answers(library)
        assert library.admin.verify() == []
        return said


def flipped(content, at):
    """The content with one bit of one byte turned."""
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


def harms(content, draw, often=0):
    """(name, damaged content) of every kind of damage, and `often` more flipped bits and cuts."""
    regions = {"magic": (0, 8), "checksum": (8, 40), "header length": (40, 48), "header": (48, 300)}
    regions |= {"payload": (300, len(content)), "last byte": (len(content) - 1, len(content))}
    yield "emptied", b""
    yield "grown", content + b"more"
    for name, (start, end) in regions.items():
        yield f"flipped in {name}", flipped(content, draw.randrange(start, end))
        if often or name in ("header", "payload"):
            yield f"cut in {name}", content[: draw.randrange(start, end)]
    for _ in range(often):
        yield "flipped anywhere", flipped(content, draw.randrange(len(content)))
        yield "cut anywhere", content[: draw.randrange(len(content))]


def damage_all(path, caplog, often=0):
    """Damage every file in every way; how many damages were told and mended."""
    names = fill(path)
    counted: Counter[str] = Counter()
    folder = Path(f"{path}.index")
    assert [name.split("-")[1] for name in names] == ["items", "states", "values"]
    before = answers_of(path)
    contents = {name: (folder / name).read_bytes() for name in names}
    for name, content in contents.items():
        for kind, harmed in harms(content, random.Random(name), often):
            (folder / name).write_bytes(harmed)
            caplog.clear()
            with writers.opened(path) as library:
                assert answers(library) == before, (name, kind)
            assert "was skipped" in caplog.text, (name, kind)
            counted[kind.split()[0]] += 1
        caplog.clear()
        assert answers_of(path) == before
        assert caplog.text == "", "the file was not made anew"
    return counted


def test_a_damaged_file_is_told_and_made_anew(path, small, caplog, figures):
    """Truncated, bit-flipped in any region, emptied, grown: noticed, rebuilt, the same answers."""
    counted = damage_all(path, caplog)
    figures("damaged files", damaged=counted.total(), unnoticed=0, **counted)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hundreds_of_damages_are_told(path, small, caplog, figures):
    """The same with 300 flipped bits and 300 cuts at random places."""
    counted = damage_all(path, caplog, often=100)
    figures("damaged files", shown=True, damaged=counted.total(), unnoticed=0, **counted)


def test_missing_files_are_made_anew(path, small, caplog):
    """One of them, or the folder: no warning, the same answers."""
    names, before = fill(path), answers_of(path)
    for gone in (*names, ""):
        left = Path(f"{path}.index") / gone
        shutil.rmtree(left) if left.is_dir() else left.unlink()
        assert answers_of(path) == before
        assert caplog.text == ""
    assert sorted(file.name for file in Path(f"{path}.index").iterdir()) == names


@pytest.mark.parametrize("swapped", ["library", "namespace", "kind"])
def test_a_file_of_something_else_is_told(tmp_path, path, small, caplog, swapped):
    """Whole, and of another library, another namespace or another index: noticed, the same answers."""
    names, other = fill(path), tmp_path / "other.db"
    before = answers_of(path)
    if swapped == "library":
        fill(other, who="y")
        sources = {name: Path(f"{other}.index") / name for name in names}
    elif swapped == "namespace":
        fill(path, namespace="second", who="y")
        sources = {name: Path(f"{path}.index") / name.replace("1-", "2-") for name in names}
    else:
        sources = {"1-items": Path(f"{path}.index/1-states")}
    for name, source in sources.items():
        shutil.copy(source, Path(f"{path}.index") / name)
    caplog.clear()
    assert answers_of(path) == before
    assert caplog.text.count("rebuil") == len(sources)


def test_files_of_another_embedder_are_told(path, small, caplog):
    """After the library was embedded anew, vectors of the old one answer nothing."""
    fill(path)
    writers.reembed(path, writers.EMBEDDERS[1])
    with ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[1]) as library:
        said = answers(library)
        check_vectors(library)
        check_nearest(library)
    shutil.rmtree(f"{path}.index")
    with ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[1]) as library:
        assert answers(library) == said


def test_files_newer_than_the_library_are_told(tmp_path, path, small, caplog):
    """A copy of the library from before is put back, its files are not: they know rows that it never had."""
    fill(path, episodes=40)
    for file in tmp_path.glob("experience.db*"):
        if file.is_file():
            shutil.copy(file, tmp_path / f"old-{file.name}")
    before = answers_of(path)
    with ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[0]) as library:
        for number in range(100, 140):
            library.record(writers.episode_of(f"x{number}"))
        answers(library)
    for file in tmp_path.glob("old-experience.db*"):
        shutil.copy(file, tmp_path / file.name.removeprefix("old-"))
    caplog.clear()
    assert answers_of(path) == before
    assert "the library's history differs" in caplog.text


def test_a_changed_item_is_found_whatever_became_of_the_file(path, small, monkeypatch):
    """The process ends after the new vector is there and before the file is written anew."""
    fill(path, items=400)
    with monkeypatch.context() as killed, writers.opened(path) as library:
        killed.setattr("hardwon.memory.storage.cache_files.CacheFile.save", lambda *_: False)
        library.items.update("x-i3", title="quite another matter, zebras and violins", body="xylophone")
        library.admin.index()
    with writers.opened(path) as library:
        (hit, *_) = library.search("quite another matter, zebras and violins\nxylophone", k=1, how="dense")
        assert (hit.what.id, round(hit.similarity, 4)) == ("x-i3", 1.0)


def test_an_index_behind_a_retired_item_is_no_problem(path, small):
    """It is made anew when it is opened: nothing is wrong that a person should repair."""
    fill(path)
    with writers.opened(path) as library:
        library.items.retire("x-i3", "no")
        assert library.admin.verify() == []


def test_a_torn_vector_of_nothing_does_not_hold_up_a_search(path):
    """No text is there to make it again: it is left out."""
    fill(path)
    with writers.opened(path) as library:
        library.items.retire("x-i3", "no")
        before = answers(library)
        ((number,),) = library._file.store.rows("SELECT number FROM items WHERE id = 'x-i3'")
        library._file.store.connection.execute("INSERT INTO vectors VALUES ('items', ?, 1, x'00')", (number,))
    with writers.opened(path) as library:
        assert answers(library) == before
        assert [problem.where for problem in library.admin.verify()] == ["items vectors"]


def test_a_library_embedded_anew_by_another_process_is_not_misread(path, small):
    """Who has it open is refused or answers by one embedder alone, never by a mixture of two."""
    fill(path)
    with writers.opened(path) as library:
        before = answers(library)
        writers.reembed(path, writers.EMBEDDERS[1])
        with writers.opened(path) as other:
            assert other.admin.embedder.name == "letters-b"
            other.admin.index()
        with suppress(EmbedderMismatch):
            assert answers(library) == before


# -- full disks and permissions -------------------------------------------------------------------


def full(path, limited):
    """Record under a limit until it is refused, then without: nothing is torn, and life goes on."""
    held = []
    with writers.opened(path) as library:
        limit, relieve = limited
        held.append(library.record(writers.episode_of("first")))
        limit(library)
        with pytest.raises(LibraryUnwritable, match=r"disk|may not grow") as refused:
            held.extend(library.record(padded(f"f{number}")) for number in range(500))
        late = f"f{len(held) - 1}"
        with pytest.raises(LibraryUnwritable):
            library.items.add_many(
                [replace(writers.item_of(f"i{number}"), body="dust" * 15_000) for number in range(4)]
            )
        answers(library)
        relieve(library)
        check_whole(library, held)
        held.append(library.record(writers.episode_of(late)))
        library.add(writers.item_of("i0"))
    with writers.opened(path) as library:
        check_whole(library, held)
        assert [item.id for item in library.items.find()] == ["i0"]
    return str(refused.value)


def padded(ref):
    """The episode of an id, with 50 kB of meta."""
    return replace(writers.episode_of(ref), meta={"dust": "dust " * 10_000})


def check_whole(library, held):
    """These episodes and no other, each whole."""
    assert {row["id"] for row in library.episodes.find()} == set(held)
    assert all(writers.says(ref, library.episodes.get(ref)) for ref in held)
    assert library.admin.verify() == []


def test_an_evolution_that_could_not_be_written_is_proposed_again(path):
    """What was found is not forgotten because the disk was full."""
    with writers.opened(path) as library:
        locked, yard = State("A locked door.", task="get out"), State("A yard.", task="get out")
        judged = Diagnosis(False, Failure.PRECONDITION)
        failed = tuple(Step(locked, f"{verb} door", locked, judged) for verb in ("push", "kick", "ring", "lift"))
        worked = Step(locked, "unlock door with key", yard, Diagnosis(True), 1.0)
        for number in range(40):
            library.record(Trajectory("get out", (*failed, worked), True, id=f"e{number}"))
        library.admin.index()
        connection = library._file.store.connection
        connection.execute("VACUUM")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LibraryUnwritable, match=r"a full disk, but|is full"):
            library.evolve()
        assert library.items.find() == []
        connection.execute("PRAGMA max_page_count = 1000000")
        late = library.evolve()
    shutil.copy(path, path.with_suffix(".copy"))
    with writers.opened(path.with_suffix(".copy")) as copy:
        for item in copy.items.find():
            copy.items.retire(item.id, "to compare")
        copy._file.store.connection.execute("DELETE FROM proposals")
        wanted = copy.evolve()
    assert late.candidates == wanted.candidates >= 2
    assert late.count("added") == late.candidates


@pytest.fixture
def file_limit():
    """Limits the size of files this process writes; lifted when the test ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(library):
        resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{library.path}-wal").stat().st_size + 300_000, hard))

    def relieve(library):
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    yield limit, relieve
    relieve(None)


def test_a_file_that_may_not_grow_is_named_and_survived(path, small, file_limit):
    """The write that does not fit is refused whole, with the file's name; reading goes on."""
    said = full(path, file_limit)
    assert str(path) in said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_named_and_survived(tmp_path, small):
    """A real one of 3 MB: clear words, nothing torn, and with space again the library goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if subprocess.run(size, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount")
    try:
        larger = ["mount", "-o", "remount,size=64m", str(disk)]
        said = full(disk / "experience.db", (lambda _: None, lambda _: subprocess.run(larger, check=True)))
        assert "is full. Free some space, then try again." in said
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_for_files_that_may_not_be_written_is_done_without(path, small):
    """A file stands where the folder should be: nothing is saved, nothing is refused, the same answers."""
    fill(path)
    before = answers_of(path)
    shutil.rmtree(f"{path}.index")
    Path(f"{path}.index").touch()
    assert answers_of(path) == answers_of(path, read_only=True) == before
