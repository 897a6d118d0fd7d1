# mypy: disable-error-code="union-attr,arg-type,call-overload"
"""What is forgotten is gone: from rows, indices, summaries, items, history, bytes, and from other processes."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, UnknownName

FINE = Diagnosis(True)
SHUT = Diagnosis(False, Failure.PRECONDITION, evidence="It is shut.")
PLACES = ("attic", "barn", "cellar")


def visit(ref, person="nobody", reward=1.0, keys=None, **changes):
    """An episode in which somebody is spoken of in every field."""
    place = PLACES[hash_of(ref) % 3]
    see = State(
        f"You are in the {place}. The desk of {person} is here.",
        {"inventory": [f"letter to {person}"]},
        place,
        f"call {person}",
        notes=(f"{person} is away",),
    )
    done = replace(see, feedback=f"{person} answered.")
    steps = (
        Step(see, f"open desk {person}", see, SHUT, keys=keys or ("*", f"open {person}", "! open {1} @ around desk")),
        Step(see, "open desk", done, FINE, reward, keys=keys or ("*", "open desk"), why={"said": f"for {person}"}),
    )
    return Trajectory(f"call {person}", steps, reward > 0, id=ref, meta={"customer": person}, **changes)


def hash_of(ref):
    """A number of an id, the same in every process."""
    return sum(map(ord, ref))


def bytes_of(path):
    """Everything in the files of a library, in lower case."""
    folder = Path(f"{path}.index")
    files = [Path(f"{path}{end}") for end in ("", "-wal", "-shm", "-journal")]
    files += sorted(folder.glob("**/*")) if folder.is_dir() else []
    return b"".join(file.read_bytes() for file in files if file.is_file()).lower()


def tables_hold(library, text):
    """The tables in which a text stands."""
    names = [row[0] for row in library._file.store.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name
        for name in names
        for row in library._file.store.rows(f"SELECT * FROM {name}")
        if text.lower() in " ".join(str(value) for value in row).lower()
    }


@pytest.fixture
def filled(library):
    """Sixteen episodes, five of which speak of Zanzibar Quux; items of every kind of evidence."""
    for number in range(16):
        library.record(visit(f"e{number}", "Zanzibar Quux" if number < 5 else f"person{number}"))
    library.evolve()
    steps = {ref: [step.id for step in library.episodes.get(ref).steps] for ref in ("e0", "e1", "e9", "e10")}
    told: Any = {"source": "model", "writer": "chat:m/1"}
    library.items.add_many(
        [
            Item("insight", "the caller Zanzibar Quux likes tea at noon", provenance=tuple(steps["e0"]), **told),
            Item(
                "insight",
                "a caller named Quux keeps a desk of oak",
                provenance=(steps["e1"][0], steps["e9"][0]),
                **told,
            ),
            Item("insight", "every desk opens at the second try", provenance=(steps["e1"][1], steps["e9"][1]), **told),
            Item("insight", "a desk is opened before calling", provenance=tuple(steps["e10"]), **told),
            Item("strategy", "a person wrote this about the barn"),
        ]
    )
    library.record(visit("e16", "person16"))
    library.admin.index()
    return library


def test_a_text_is_gone_from_every_table_and_every_byte(filled, path):
    """Rows, text indices, values, words, keys, items, history, usages: and the files, and what is exported."""
    before = filled.admin.stats()
    assert tables_hold(filled, "quux") >= {"states", "steps", "trajectories", "keys", "words", "items", "changes"}
    with filled.admin.bank("call Zanzibar Quux") as bank:
        bank.put("red", "who", "Zanzibar Quux")
        receipt = filled.admin.forget(text="zanzibar QUUX")
    assert receipt.erased
    assert receipt.counts["episodes"] == 5
    assert set(receipt.episodes) == {f"e{number}" for number in range(5)}
    assert receipt.counts["steps"] == 10
    assert receipt.counts["bank_entries"] == 1
    assert b"quux" not in bytes_of(path)
    assert b"zanzibar" not in bytes_of(path)
    assert tables_hold(filled, "quux") == set()
    titles = {item.title for item in filled.items.find(status=None) if item.writer != "rules"}
    assert titles == {
        "every desk opens at the second try",
        "a desk is opened before calling",
        "a person wrote this about the barn",
    }
    assert filled.admin.verify() == []
    assert filled.admin.stats()["episodes"] == before["episodes"] - 5
    filled.admin.export_jsonl(path.with_suffix(".jsonl"))
    assert "quux" not in path.with_suffix(".jsonl").read_text().lower()
    assert b"quux" not in bytes_of(path)
    assert filled.search("Zanzibar Quux", how="text") == []
    for found in filled.recall("Zanzibar Quux at the desk").steps:
        assert "Quux" not in found.what.action


def test_entries_of_a_team_whose_name_was_redacted_are_forgotten(library):
    """The file has the name without its secret; the person who asks has it with the secret."""
    team = "password=hunter2hunter2"
    with library.admin.bank("call the office") as bank:
        bank.put(team, "who", "the first floor")
        assert library.admin.forget(writer=team).counts["bank_entries"] == 1


def test_an_item_keeps_the_evidence_that_is_left(filled):
    """Its ids of forgotten steps go, and its history begins anew; one of the rules has the counts that are left."""
    (kept,) = (item for item in filled.items.find() if item.title == "every desk opens at the second try")
    gone, stays = kept.provenance
    filled.admin.forget(episode="e1")
    assert filled.items.get(kept.id).provenance == (stays,)
    assert [change["op"] for change in filled.items.history(kept.id)] == ["recomputed"]
    assert str(gone) not in json.dumps(filled.items.history(kept.id)[0]["detail"]["provenance"])
    assert filled.admin.verify() == []


def estimates(library):
    """All values, and what recall and the tiers say, without numbers of rows."""
    cells = library._file.caught_up().statistics.values.cells
    values = {
        key: (cell.n, round(cell.mean, 9), round(cell.variance, 9), cell.bad, cell.lost) for key, cell in cells.items()
    }
    words = dict(
        library._file.store.rows("SELECT word, episodes FROM words WHERE namespace = ?", (library._file.number,))
    )
    attempts = sorted(
        (one.signature, one.pattern, one.n, tuple(one.failures.items()), round(one.mean_return, 9), one.live)
        for one in library.episodes.summaries()
    )
    rules = {
        item.id: (item.title, item.body, item.score, item.confidence, len(item.provenance))
        for item in library.items.find(status=None)
    }
    return values, words, attempts, rules


def test_values_are_those_of_a_library_that_never_saw_it(tmp_path):
    """Estimates, words, summaries and the items of the rules."""
    seen, never = (ExperienceLibrary.open(tmp_path / f"{name}.db") for name in ("seen", "never"))
    with seen, never:
        for number in range(40):
            one = visit(f"e{number}", "Zanzibar Quux" if number % 4 == 0 else "Ann", reward=float(number % 3 > 0))
            seen.record(one)
            if number % 4:
                never.record(one)
        for library in (seen, never):
            for _ in range(3):
                library.evolve()
        assert estimates(seen) != estimates(never)
        assert seen.admin.forget(text="Zanzibar").counts["episodes"] == 10
        assert estimates(seen) == estimates(never)
        assert seen.admin.verify() == []


def test_another_process_serves_it_no_more(filled, path):
    """It has read everything and has caches of its own; its saved files hold nothing of it either."""
    with ExperienceLibrary.open(path) as other:
        state = filled.episodes.get("e0").steps[0].pre
        other.admin.index()
        other.evolve()
        assert any("Quux" in hit.what.pre.observation for hit in other.recall(state).steps)
        filled.admin.forget(text="Quux")
        recalled = other.recall(state, actions={"open desk": ""})
        assert not any("Quux" in hit.what.pre.observation for hit in recalled.steps)
        assert not any("Quux" in hit.what.text for hit in recalled.items)
        assert other.episodes.count() == filled.episodes.count() == 12
        other.record(visit("late", "person9"))
        filled.record(visit("later", "person10"))
        assert estimates(other) == estimates(filled)
        assert other.admin.verify() == filled.admin.verify() == []
    assert b"quux" not in bytes_of(path)


def test_a_process_that_had_read_it_saves_nothing_of_it(path, monkeypatch):
    """What it derived before is not written to the files beside the library when it closes."""
    monkeypatch.setattr("hardwon.memory.values.saved_tables.SAVE_AFTER", 1)
    monkeypatch.setattr("hardwon.memory.storage.cache_files.SAVE_AFTER", 1)
    monkeypatch.setattr("hardwon.memory.parts.file.SAVE_AFTER", 1)
    with ExperienceLibrary.open(path) as library, ExperienceLibrary.open(path) as other:
        for number in range(6):
            other.record(visit(f"e{number}", "Quux" if number % 2 else "Ann"))
        other.recall("desk", actions={"open desk": ""})
        other.admin.index()
        library.admin.forget(text="quux")
    assert b"quux" not in bytes_of(path)
    with ExperienceLibrary.open(path) as library:
        assert library.admin.verify() == []


def test_what_is_asked_for_is_counted_first(filled, path):
    """A dry run changes nothing; one of the four ways to select is asked for."""
    counted = filled.admin.forget(text="Quux", dry_run=True)
    assert counted.dry_run
    assert not counted.erased
    assert tables_hold(filled, "quux")
    done = filled.admin.forget(text="Quux")
    assert done.counts == counted.counts
    again = filled.admin.forget(text="Quux")
    assert again.counts == {}
    wrong: Any
    for wrong in ({}, {"text": " "}, {"text": "a", "episode": "b"}, {"text": 5}, {"episode": ""}):
        with pytest.raises(ConfigError):
            filled.admin.forget(**wrong)
    for wrong in ({"episode": "nonsense"}, {"namespace": "nonsense"}):
        with pytest.raises(UnknownName):
            filled.admin.forget(**wrong)


def test_a_receipt_stays_and_holds_nothing(filled):
    """When, by what, how many; no word of what it was."""
    receipt = filled.admin.forget(text="Quux")
    ((what, counts, digest, erased),) = filled._file.store.rows("SELECT what, counts, digest, erased FROM receipts")
    assert (what, json.loads(counts), digest, erased) == ("text", receipt.counts, receipt.digest, 1)


def test_a_namespace_is_gone_whole(filled, path):
    """Its rows, its tables and its name; another namespace is as it was, and its keys stay."""
    with ExperienceLibrary.open(path, namespace="Acme Corp") as acme:
        for number in range(3):
            acme.record(visit(f"a{number}", "Wendell" if number else "person9"))
        acme.add(Item("insight", "Wendell has a desk in the barn"))
        acme.admin.index()
        before = estimates(filled)
        receipt = filled.admin.forget(namespace="Acme Corp")
        assert receipt.counts["episodes"] == 3
        assert b"acme corp" not in bytes_of(path)
        assert b"wendell" not in bytes_of(path)
        assert estimates(filled) == before
        assert filled.admin.verify() == []
        acme.record(visit("again", "Ann"))
        assert acme.episodes.count() == 1
        assert acme.admin.verify() == []


@pytest.mark.parametrize("used", [False, True])
def test_a_library_that_forgets_its_own_namespace_does_not_keep_the_name(filled, path, used):
    """As the command line does it. If the same library goes on to write, the namespace begins anew."""
    with ExperienceLibrary.open(path, namespace="Acme Corp") as acme:
        acme.record(visit("a1", "Wendell"))
        assert acme.admin.forget(namespace="Acme Corp").erased
        if used:
            acme.record(visit("again", "Ann"))
            assert acme.episodes.count() == 1
    assert (b"acme corp" in bytes_of(path)) is used
    assert b"wendell" not in bytes_of(path)
    assert filled.admin.verify() == []


def test_what_waits_in_the_inbox_is_forgotten(library, path):
    """Recorded a moment ago by another process, or broken and never filed."""
    with ExperienceLibrary.open(path) as other:
        other.record(visit("fresh", "Quux"))
    library.record(visit("mine", "Quux"))
    library._file.store.connection.execute("UPDATE inbox SET failed = 'torn', episode = '[\"Quux' WHERE ref = 'mine'")
    assert library.admin.forget(text="quux").counts["inbox"] == 1
    assert b"quux" not in bytes_of(path)
    assert library.episodes.find() == []


def test_what_a_writer_recorded(filled, path):
    """Its episodes and its name, and nothing of others."""
    for number in range(3):
        filled.record(visit(f"w{number}", "Ann", writer="token:mallory", trust="untrusted"))
    filled.record(visit("w3", "Ann", writer="token:alice", trust="untrusted"))
    assert set(filled.admin.forget(writer="token:mallory").episodes) == {"w0", "w1", "w2"}
    assert b"mallory" not in bytes_of(path)
    assert filled.episodes.get("w3").writer == "token:alice"
    assert filled.admin.verify() == []


def test_the_feedback_of_a_writer_is_forgotten(filled, path):
    """Also where it recorded nothing; the scores are those of a library that never had the feedback."""
    first, second, *_ = [item.id for item in filled.items.find(sort="old")]
    before = {ref: filled.items.get(ref).score for ref in (first, second)}
    filled.feedback(first, True, writer="token:mallory", episode="e1")
    filled.feedback(first, True, writer="token:alice", episode="e2")
    filled.feedback(second, False, writer="token:mallory", episode="e1")
    assert filled.items.get(second).score < before[second]
    receipt = filled.admin.forget(writer="token:mallory")
    assert receipt.counts["opinions"] == 2
    assert b"mallory" not in bytes_of(path)
    assert filled.items.get(second).score == pytest.approx(before[second], abs=1e-3)
    assert filled.items.get(first).score > before[first]  # the feedback of others still counts
    filled.admin.forget(writer="token:alice")
    assert filled.items.get(first).score == pytest.approx(before[first], abs=2e-3)
    assert filled.admin.verify() == []


def test_the_feedback_on_an_episode_is_forgotten_with_it(filled, path):
    (ref, *_) = [item.id for item in filled.items.find(sort="old") if item.writer == "user"]
    before = filled.items.get(ref).score
    filled.feedback(ref, True, writer="token:alice", episode="e9")
    assert filled.items.get(ref).score > before
    filled.admin.forget(episode="e9")
    assert filled.items.get(ref).score == before
    filled.feedback(ref, True, writer="token:alice", episode="quux-1")
    filled.admin.forget(text="quux")
    assert b"quux" not in bytes_of(path)


def test_an_item_by_its_writer(filled):
    """Who wrote items takes them along."""
    assert filled.admin.forget(writer="chat:m/1").counts["items removed"] == 4
    assert {item.writer for item in filled.items.find(status=None)} <= {"rules", "user"}


_VICTIM = """
import sys
from hardwon.memory import ExperienceLibrary
with ExperienceLibrary.open(sys.argv[1]) as library:
    print("ready", flush=True)
    library.admin.forget(text="quux")
    print("done", flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.004, 0.01, 0.02, 0.04, 0.08])
def test_a_kill_leaves_all_or_nothing(filled, path, delay):
    """Killed while it forgets: not begun, or finished by who opens the library next."""
    filled.close()
    draw = random.Random(delay)
    with warm.Popen([sys.executable, "-c", _VICTIM, str(path)], stdout=subprocess.PIPE) as victim:
        assert victim.stdout.readline() == b"ready\n"
        time.sleep(delay + draw.random() * 0.004)
        os.kill(victim.pid, signal.SIGKILL)
    with ExperienceLibrary.open(path) as library:
        left = library.episodes.count()
        assert left in (12, 17)
        assert library.admin.verify() == []
        assert (b"quux" in bytes_of(path)) is (left == 17)
        assert library._file.store.rows("SELECT 1 FROM receipts WHERE NOT erased") == []


DAMAGE = {
    "steps": ("why", "diagnosis", "keys", "action"), "trajectories": ("meta", "task"),
    "states": ("facts", "observation", "notes"), "items": ("record",), "worlds": ("record",), "attempts": ("failures",),
}  # fmt: skip


@pytest.mark.parametrize("how", ["'{broken'", "CAST(x'ff61' AS TEXT)"], ids=["json", "utf8"])
@pytest.mark.parametrize(("table", "column"), [(table, one) for table, some in DAMAGE.items() for one in some])
def test_an_episode_in_damaged_rows_is_forgotten(library, path, table, column, how):
    """Whatever of it cannot be read any more: `verify` says it is damaged, and it can be given up, with all it held."""
    library.record_many([visit(f"e{number}", f"person{number}") for number in range(2)])
    step = library.episodes.get("e0").steps[0].id
    library.add(Item("insight", "every desk opens at the second try", provenance=(step,)))
    library.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {how}")
    with ExperienceLibrary.open(path) as library:
        if column not in ("record", "failures") or table == "items":
            assert any(one.where.endswith(table) for one in library.admin.verify())
        else:
            library.admin.verify()
        for (ref,) in library._file.store.rows("SELECT id FROM trajectories"):
            library.admin.forget(episode=ref)
        library.admin.repair()
        assert library.episodes.count() == 0
        assert not library._file.store.rows("SELECT 1 FROM steps UNION SELECT 1 FROM states")
