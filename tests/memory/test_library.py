from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np
import pytest

from hardwon.memory import ExperienceLibrary, HardwonError, Item, State
from hardwon.memory.errors import ConfigError, EmbedderMismatch, KeyTaken, LibraryReadOnly, UnknownName
from hardwon.memory.library import reembed
from hardwon.memory.retrieval.embedders import HashingEmbedder
from hardwon.memory.situations.refinements import BEST
from hardwon.memory.upkeep.write_buffer import file_all


class Lengths:
    """Embeds a text by its length: an embedder of ten lines."""

    name, dim, fingerprint = "lengths", 16, "lengths-1"

    def embed(self, texts):
        vectors = np.zeros((len(texts), 16), np.float32)
        for row, text in enumerate(texts):
            vectors[row, len(text) % 16] = 1.0
        return vectors


def test_an_empty_library_has_nothing(library):
    """Nothing is a valid answer everywhere."""
    assert library.episodes.count() == 0
    assert library.items.find() == library.episodes.find() == library.search("anything") == []
    assert not library.recall("anything")
    assert library.check(State("x"), "open door").allowed
    assert library.evolve().candidates == 0
    assert library.admin.verify() == []


def test_an_episode_is_there_when_record_returns(path, library, episode):
    """Another connection reads it at once."""
    ref = library.record(episode("open drawer", "take spoon"))
    with ExperienceLibrary.open(path, read_only=True) as other:
        assert [step.action for step in other.episodes.get(ref).steps] == ["open drawer", "take spoon"]


def test_recording_twice_keeps_one(library, episode):
    """Who does not know whether it was written may repeat the call."""
    once = replace(episode(), id="abc")
    assert [library.record(once), library.record(once)] == ["abc", "abc"]
    assert library.episodes.count() == 1


def test_an_id_is_of_one_episode(library, episode):
    """Another episode under the same id is refused, not dropped in silence."""
    library.record(replace(episode("open drawer"), id="abc"))
    with pytest.raises(ConfigError, match=r"another episode has the id 'abc'\. Use a different id") as error:
        library.record(replace(episode("open drawer", "wait"), id="abc"))
    assert episode().task not in str(error.value)  # the caller may not be allowed to read that episode


def test_a_failing_record_leaves_nothing(library, episode):
    """A reward that is no number is refused; no part of the episode stays, and the library goes on."""
    broken = episode("open drawer", "new words", reward=float("nan"))
    with suppress(HardwonError):
        library.record(broken)
    assert library.episodes.find() == []
    assert library._file.store.rows("SELECT count(*) FROM states") == [(0,)]
    library.record(episode("new words"))
    assert library.episodes.get(library.episodes.find()[0]["id"]).steps[0].keys == ("*", "new words")
    assert library.admin.verify() == []


def test_a_failing_import_leaves_no_numbers_behind(tmp_path, library, episode):
    """Keys numbered in a transaction that was rolled back are numbered anew."""
    library.record(episode("first words"))
    file = tmp_path / "e.jsonl"
    library.admin.export_jsonl(file)
    file.write_text(file.read_text() + "no json\n")
    with ExperienceLibrary.open(tmp_path / "other.db") as other:
        with suppress(ConfigError):
            other.admin.import_jsonl(file)
        other.record(episode("second words", "first words"))
        steps = other.episodes.get(other.episodes.find()[0]["id"]).steps
        assert [step.keys for step in steps] == [("*", "second words"), ("*", "first words")]


def test_the_words_of_an_excluded_episode_do_not_count(library, episode):
    """What the environment broke is kept for audit; it files no keys, counts no words, is no episode."""
    ref = library.record(episode("open drawer", success=None))
    assert library.episodes.count() == 0
    assert library._file.store.rows("SELECT * FROM words") == []
    assert library._file.caught_up().statistics.values.cells == {}
    assert [step.keys for step in library.episodes.get(ref).steps] == [()]
    assert library.admin.stats()["excluded"] == 1
    assert library.admin.verify() == []


def test_another_process_s_episodes_are_seen(path, library, episode):
    """The next call catches up, whatever it is."""
    state = episode().steps[0].pre
    assert library.recall(state, actions={"open drawer": ""}).estimates["open drawer"].n == 0
    with ExperienceLibrary.open(path) as other:
        other.record(episode("open drawer", reward=0.7, library=other))
    assert library.episodes.count() == 1
    assert library.recall(state, actions={"open drawer": ""}).estimates["open drawer"].value == pytest.approx(0.7)


def test_another_process_s_items_are_seen(path, library):
    """Also when they are changed or retired, and after they were searched for."""
    with ExperienceLibrary.open(path) as other:
        ref = str(other.add(Item("insight", "drawers hide spoons")).item_id)
        assert [hit.what.id for hit in library.search("drawers hide spoons")] == [ref]
        other.items.update(ref, title="fridges hold milk")
        assert library.search("fridges hold milk")[0].similarity > 0.9
        other.items.retire(ref, "wrong")
        assert library.search("fridges hold milk") == []


def test_a_reader_does_not_write(path, library, episode):
    """Every change is refused; searching works without keeping its vectors."""
    library.record(episode())
    ref = library.add(Item("insight", "drawers hide spoons")).item_id
    with ExperienceLibrary.open(path, read_only=True) as reader:
        for change in (
            lambda: reader.record(episode()),
            lambda: reader.add(Item("insight", "x")),
            lambda: reader.items.retire(ref, "no"),
            lambda: reader.items.update(ref, pinned=True),
            lambda: reader.admin.bank("x").put("a", "b", "c"),
        ):
            with pytest.raises(LibraryReadOnly):
                change()
        assert reader.recall(State("drawers hide spoons")).items
        assert reader._file.store.rows("SELECT * FROM vectors") == []
        assert reader.admin.read_only


def test_a_reader_names_the_namespaces_there_are(path, library):
    """A reader cannot make one."""
    with pytest.raises(UnknownName, match=r"unknown namespace 'defualt'. Did you mean 'default'\?"):
        ExperienceLibrary.open(path, namespace="defualt", read_only=True)


@pytest.fixture
def neighbours(path, episode):
    """Two namespaces of one file; the second one has seen and learnt something."""
    with ExperienceLibrary.open(path, namespace="a") as a, ExperienceLibrary.open(path, namespace="b") as b:
        b.record(replace(episode("open drawer", library=b), id="theirs"))
        b.add(Item("insight", "drawers hide spoons", id="in-1"))
        b.add(Item("guardrail", "no", condition={"text": "drawer"}, forbids="open {1}", confidence=0.9))
        yield a, b


def test_a_namespace_keeps_its_items(neighbours, episode):
    """Nothing of the other one is listed, found, recalled or enforced."""
    a, _ = neighbours
    state = episode().steps[0].pre
    assert a.items.find() == a.search("drawers hide spoons") == a.search("drawers", how="text") == []
    assert not a.recall(state)
    assert a.check(state, "open drawer").allowed
    with pytest.raises(UnknownName):
        a.items.get("in-1")


def test_a_namespace_keeps_its_episodes(neighbours, episode):
    """Neither rows, steps, estimates nor the choice by task cross over."""
    a, b = neighbours
    state = episode().steps[0].pre
    (step,) = b.episodes.get("theirs").steps
    assert a.episodes.find() == a.episodes.steps([step.id]) == []
    assert a.recall(state, actions={"open drawer": ""}).estimates["open drawer"].n == 0
    assert not a.recall(state, level="task")
    with pytest.raises(UnknownName):
        a.episodes.get("theirs")


def test_ids_are_of_a_namespace(neighbours, episode):
    """The same id in another namespace is another thing."""
    a, b = neighbours
    a.record(replace(episode("shut drawer"), id="theirs"))
    a.add(Item("insight", "spoons shine", id="in-1"))
    assert a.episodes.get("theirs").steps[0].action == "shut drawer"
    assert (a.items.get("in-1").title, b.items.get("in-1").title) == ("spoons shine", "drawers hide spoons")
    a.items.retire("in-1", "no")
    assert b.items.get("in-1").status == "active"
    assert [change["op"] for change in a.items.history("in-1")] == ["added", "retired"]
    assert a.admin.verify() == b.admin.verify() == []


def test_a_namespace_may_be_copied_into_another(tmp_path, neighbours):
    """Exported from one and imported into the other of the same file: both are whole."""
    a, b = neighbours
    assert b.admin.export_jsonl(tmp_path / "b.jsonl") == a.admin.import_jsonl(tmp_path / "b.jsonl")
    assert [item.id for item in a.items.find()] == [item.id for item in b.items.find()]
    assert a.episodes.get("theirs").steps[0].action == "open drawer"
    assert a.admin.verify() == b.admin.verify() == []


def test_the_embedder_is_the_library_s(path):
    """It is opened again with its own, whatever the default is."""
    ExperienceLibrary.open(path, embedder="hashing:64").close()
    with ExperienceLibrary.open(path) as library:
        assert library.admin.embedder.dim == 64


def test_another_embedder_is_refused(path, library):
    """Vectors of two embedders must not be compared; the message has the command."""
    with pytest.raises(EmbedderMismatch, match=r"holds vectors of hashing .* hardwon memory reembed .* lengths"):
        ExperienceLibrary.open(path, embedder=Lengths())


def test_reembedding_makes_another_embedder_the_library_s(path, library, episode):
    """Old vectors are dropped, new ones made when they are needed."""
    library.record(episode())
    assert library.search("wooden drawer")
    library.close()
    assert reembed(path, Lengths()).name == "lengths"
    with ExperienceLibrary.open(path, embedder=Lengths()) as again:
        assert again.search("wooden drawer")
        assert {len(vector) for (vector,) in again._file.store.rows("SELECT vector FROM vectors")} == {64}
    with pytest.raises(EmbedderMismatch):
        ExperienceLibrary.open(path, embedder=HashingEmbedder())


def test_a_process_that_opens_first_decides_the_embedder(path, monkeypatch):
    """The second one, which did not know, is refused like any other."""
    with ExperienceLibrary.open(path, embedder="hashing:64"), pytest.raises(EmbedderMismatch):
        ExperienceLibrary.open(path, embedder="hashing:128")


def test_steps_come_in_the_order_asked(library, episode):
    """Those that do not exist are left out; a very long list is no matter."""
    ref = library.record(episode("open drawer", "take spoon"))
    first, second = (step.id for step in library.episodes.get(ref).steps)
    assert [step.action for step in library.episodes.steps([second, 999, first])] == ["take spoon", "open drawer"]
    assert len(library.episodes.steps(range(300_000))) == 2
    assert library.episodes.steps([]) == []


def test_an_episode_of_very_many_steps_comes_back(library, episode):
    """More steps than SQLite takes parameters."""
    steps = tuple(replace(episode().steps[0], t=t) for t in range(2_000))
    steps = tuple(replace(step, pre=State(f"room {step.t}"), keys=()) for step in steps)
    library._file.store.connection.setlimit(9, 999)  # SQLITE_LIMIT_VARIABLE_NUMBER
    assert len(library.episodes.get(library.record(replace(episode(), steps=steps))).steps) == 2_000


def test_a_beginning_of_an_id_is_enough(library, episode):
    """If it begins only one."""
    library.record(replace(episode(), id="abcd"))
    library.record(replace(episode(), id="abxy"))
    assert library.episodes.get("abc").id == "abcd"
    with pytest.raises(UnknownName, match="matches more than one id"):
        library.episodes.get("ab")
    with pytest.raises(UnknownName, match="unknown episode ''"):
        library.episodes.get("")


def test_stats_count_what_there_is(library, episode):
    """Episodes, outcomes, clusters, items and failures."""
    library.record(episode("open drawer", "wait"))
    library.record(episode("open drawer", success=False))
    library.add(Item("insight", "x"))
    stats = library.admin.stats()
    told = {name: stats[name] for name in ("episodes", "successes", "steps", "states", "clusters", "items", "failures")}
    assert told == {
        "episodes": 2,
        "successes": 1,
        "steps": 3,
        "states": 2,
        "clusters": 2,
        "items": {"insight": 1},
        "failures": {},
    }
    assert stats["size_bytes"] > 0


def test_the_first_episode_of_a_reopened_library_has_the_keys_of_the_others(path, episode):
    """Keys depend on the structural words, which a new process has to read first."""

    def without_keys(ref, lamp="s"):
        see = f"You see a wooden drawer. It is closed. Next to it is a lamp{lamp}."
        return _without_keys(episode("open drawer", see=see), ref)

    with ExperienceLibrary.open(path) as library:
        library.record_many(without_keys(f"e{number}", "sxq"[number % 3]) for number in range(20))
        library.recall(State("anything"))
        library.record(without_keys("same"))
        expected = library.episodes.get("same").steps[0].keys
    assert any("wooden" in key for key in expected)
    with ExperienceLibrary.open(path) as library:
        library.record(without_keys("reopened"))
        assert library.episodes.get("reopened").steps[0].keys == expected


def _without_keys(made, ref=""):
    return replace(made, id=ref, steps=tuple(replace(step, keys=()) for step in made.steps))


def _count_waiting(library):
    return library._file.store.connection.execute("SELECT count(*) FROM inbox").fetchone()[0]


def test_episodes_without_keys_wait_in_the_write_buffer_like_others(library, episode):
    assert library.episodes.count() == 0
    for number in range(200):
        library.record(_without_keys(episode("wait", see=f"day {number}"), f"e{number}"))
    library.episodes.receive([episode("wait", see="day 200")], writer="token:ci", trust="trusted")
    assert _count_waiting(library) == 201
    assert all(library.episodes.get(f"e{number}").steps[0].keys for number in range(0, 200, 40))


def _record_new_world(library, episode):
    library.record_many(episode("wait", see="You see a lamp in the hall.") for _ in range(40))
    assert library.episodes.count() == 40
    for number in range(12):
        library.record(
            _without_keys(episode("open chest", see="You see a chest.", task="escape from Mars"), f"e{number}")
        )


def test_a_new_world_in_a_large_library_soon_has_keys_with_words(library, episode, monkeypatch):
    """Its first 4 episodes make it known; after that, few episodes among many change no words."""
    monkeypatch.setattr("hardwon.memory.upkeep.write_buffer.FIRST", 4)
    _record_new_world(library, episode)
    keys = [library.episodes.get(f"e{number}").steps[0].keys for number in range(12)]
    assert ["! open {1} @ around 1: see" in keys_here for keys_here in keys] == [False] * 4 + [True] * 8


def test_words_that_were_read_in_a_transaction_are_forgotten_with_it(library, episode):
    library.record_many(episode("wait", see="You see a lamp in the hall.") for _ in range(40))
    assert library.episodes.count() == 40
    with suppress(ZeroDivisionError), library._file.transaction():
        for _ in range(2):
            library.record(_without_keys(episode("bake cake", see="You see an oven.", task="escape from Mars")))
        raise ZeroDivisionError
    library.record(episode("wait", see="You see a lamp in the hall."))
    assert library.episodes.count(State("You see an oven.", task="escape from Mars")) == 0


@pytest.mark.parametrize("read_only", [False, True])
def test_episodes_of_a_killed_process_get_their_keys_from_the_next_reader(path, episode, read_only):
    with ExperienceLibrary.open(path) as library:
        library.record_many(episode("wait", see="You see a lamp in the hall.") for _ in range(40))
    killed = ExperienceLibrary.open(path)
    killed.record(_without_keys(episode("wait", see="You see a lamp in the hall."), "last"))
    with ExperienceLibrary.open(path, read_only=read_only) as library:
        steps = library.episodes.get("last").steps
        keys = library.episodes.keys(steps[0].pre, "wait", "tried 0 to unknown")
        assert steps[0].keys == tuple(key for key in keys if not key.startswith(BEST))  # no agent chose the step
    killed.close()


def test_a_new_embedder_files_episodes_without_keys(path, episode):
    killed = ExperienceLibrary.open(path, embedder="hashing")
    killed.record(_without_keys(episode("wait"), "last"))
    file_all(killed._file.store)
    assert killed.episodes.get("last").steps[0].keys
    killed.close()


@pytest.mark.parametrize("request_hash", ["1", "2"])
def test_a_write_that_is_repeated_while_it_is_carried_out_has_one_answer(path, request_hash):
    """A client asks again before the first answer is there, perhaps another process."""
    with ExperienceLibrary.open(path) as one, ExperienceLibrary.open(path) as two:

        def write():
            assert two.admin.once("abc", request_hash, lambda: "first", change="idempotent") == "first"
            return "second"

        with nullcontext() if request_hash == "1" else pytest.raises(KeyTaken):
            assert one.admin.once("abc", "1", write, change="idempotent") == "first"
        assert two.admin.once("abc", request_hash, lambda: "third", change="idempotent") == "first"
