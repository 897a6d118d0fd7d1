import pytest

from tacit.memory import ExperienceLibrary, Item
from tacit.memory.errors import NotALibrary


@pytest.fixture
def taught(library, episode):
    """A library with everything derived in place."""
    library.record(episode(see="You see a kettle."))
    library.record(episode(see="You see a mirror."))
    library.add(Item("insight", "kettles boil water"))
    library.index()
    return library


def harm(library, *statements):
    """Change the file behind the library's back."""
    for statement in statements:
        library._store.connection.execute(statement)


@pytest.mark.parametrize(
    ("statement", "where", "what"),
    [
        ("DELETE FROM items_text_1 WHERE rowid = 1", "items text index", "1 missing, 0 too many"),
        ("INSERT INTO items_text_1(rowid, text) VALUES (9, 'ghost')", "items text index", "0 missing, 1 too many"),
        ("INSERT INTO states_text_1(rowid, text) VALUES (99, 'ghost')", "states text index", "0 missing, 1 too many"),
        ("DELETE FROM states_text_1_docsize WHERE id = 1", "states text index", "1 missing, 0 too many"),
        ("INSERT INTO vectors VALUES ('states', 99, 1, x'00')", "states vectors", "1 of nothing that exists"),
        ("INSERT INTO vectors VALUES ('items', 99, 1, x'00')", "items vectors", "1 of nothing that exists"),
        ("UPDATE words SET episodes = 7 WHERE word = 'kettle'", "words", "counts differ from the episodes"),
        ("DELETE FROM words WHERE word = 'kettle'", "words", "counts differ from the episodes"),
        ("INSERT INTO words VALUES (1, 'ghost', 1)", "words", "counts differ from the episodes"),
    ],
)
def test_what_differs_from_the_truth_is_found_and_repaired(taught, statement, where, what):
    """Named with its remedy; after the repair nothing differs, and everything is found again."""
    harm(taught, statement)
    (problem,) = taught.verify()
    assert (problem.where, problem.what, problem.remedy) == (where, what, "tacit memory repair")
    assert taught.repair() == [problem]
    assert taught.verify() == []
    assert taught.search("kettles boil", how="text")[0].what.title == "kettles boil water"
    assert [hit.what.pre.observation for hit in taught.search("a mirror", how="text")] == ["You see a mirror."]
    assert taught.search("You see a mirror.", how="dense")[0].what.pre.observation == "You see a mirror."


def test_a_sound_library_needs_no_repair(taught):
    """Nothing is done, and nothing forgotten."""
    assert taught.verify() == taught.repair() == []
    assert taught.episodes == 2
    assert taught.items()


def test_a_missing_vector_is_no_problem(taught):
    """It is made when it is needed."""
    harm(taught, "DELETE FROM vectors")
    assert taught.verify() == []


def test_every_namespace_answers_for_itself(path, taught):
    """Harm in one is not another's, and the repair leaves the other's vectors alone."""
    with ExperienceLibrary.open(path, namespace="other") as other:
        other.add(Item("insight", "mirrors shine"))
        other.index()
        harm(taught, "DELETE FROM items_text_1")
        assert other.verify() == []
        assert taught.repair()
        assert other._store.rows("SELECT namespace FROM vectors WHERE kind = 'items'") == [(2,)]


def test_a_damaged_file_is_found_and_not_repaired_over(path, taught):
    """Where the truth itself is torn, nothing is derived from it; the message offers a way out."""
    ((page,),) = taught._store.rows("SELECT rootpage FROM sqlite_master WHERE name = 'states'")
    taught.close()
    content = bytearray(path.read_bytes())
    content[4096 * (page - 1) : 4096 * page] = b"\xee" * 4096
    path.write_bytes(content)
    with ExperienceLibrary.open(path) as library:
        problems = library.verify()
        assert {problem.where for problem in problems} == {"file"}
        assert problems[0].remedy == "Restore a copy; what can be read: tacit memory export"
        with pytest.raises(NotALibrary, match="is damaged"):
            library.repair()


def test_words_are_counted_once_an_episode(library, episode):
    """The document frequency: episodes that showed a word, not how often."""
    library.record(episode("a", "b", "c", see="kettle kettle kettle"))
    library.record(episode("a", see="kettle lid"))
    words = dict(library._store.rows("SELECT word, episodes FROM words"))
    assert (words["kettle"], words["lid"]) == (2, 1)


def test_episodes_are_listed_newest_first(library, episode):
    """With their figures, without their steps; paged."""
    for task in ("one", "two", "three"):
        library.record(episode(task=task, reward=0.5, meta={"game": "coin"}))
    rows = library.trajectories()
    assert [row["task"] for row in rows] == ["three", "two", "one"]
    assert (rows[0]["n_steps"], rows[0]["total_reward"], rows[0]["meta"]) == (1, 0.5, {"game": "coin"})
    assert [row["task"] for row in library.trajectories(limit=1, offset=1)] == ["two"]


def test_a_state_is_kept_once(library, episode):
    """Seen by a hundred steps, stored once."""
    library.record(episode(*["wait"] * 100))
    assert library.stats()["states"] == 2


def test_states_that_differ_in_anything_are_kept_apart(library, episode):
    """Also where what differs only moved from one field to the next."""
    for fields in ({"location": "a\x00b", "task": "c"}, {"location": "a", "task": "b\x00c"}):
        made = episode()
        state = made.steps[0].pre
        step = type(made.steps[0])(type(state)("x", **fields), "wait", state, made.steps[0].diagnosis)
        ref = library.record(type(made)("t", (step,), True))
        assert library.trajectory(ref).steps[0].pre == step.pre
