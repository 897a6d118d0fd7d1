from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary, Failure, Item
from hardwon.memory.errors import ConfigError, NotALibrary
from hardwon.memory.storage.episodes import first_row
from hardwon.memory.upkeep.figures import read_clusters


@pytest.fixture
def taught(library, episode):
    """A library with everything derived in place."""
    library.record(episode(see="You see a kettle."))
    library.record(episode(see="You see a mirror."))
    library.add(Item("insight", "kettles boil water", signatures=("s1",), locations=("kitchen",), tags=("water",)))
    library.admin.index()
    return library


def harm(library, *statements):
    """Change the file behind the library's back."""
    for statement in statements:
        library._file.filed().connection.execute(statement)


ROW = first_row(1) + 1
OTHER_COUNTS = "1 with wrong counts"
GHOST = "INSERT INTO attempts VALUES (9, 1, 'ghost', 'haunt', 1, 1, 0.0, '{}', 1, 0.0, 1, 1)"


@pytest.mark.parametrize(
    ("statement", "where", "what"),
    [
        (f"DELETE FROM items_text WHERE rowid = {ROW}", "items text index", "1 missing, 0 too many"),
        (
            f"INSERT INTO items_text(rowid, text) VALUES ({ROW + 8}, 'ghost')",
            "items text index",
            "0 missing, 1 too many",
        ),
        (
            f"INSERT INTO states_text(rowid, text) VALUES ({ROW + 98}, 'ghost')",
            "states text index",
            "0 missing, 1 too many",
        ),
        (f"DELETE FROM states_text_docsize WHERE id = {ROW}", "states text index", "1 missing, 0 too many"),
        ("INSERT INTO vectors VALUES ('states', 99, 1, x'00')", "states vectors", "1 without a row"),
        ("INSERT INTO vectors VALUES ('items', 99, 1, x'00')", "items vectors", "1 without a row"),
        ("UPDATE words SET episodes = 7 WHERE word = 'kettle'", "words", "counts differ from the episodes"),
        ("DELETE FROM words WHERE word = 'kettle'", "words", "counts differ from the episodes"),
        ("INSERT INTO words VALUES (1, 'ghost', 1)", "words", "counts differ from the episodes"),
        ("UPDATE items_text SET text = 'ghost'", "items text index", "1 with the wrong text"),
        ("UPDATE attempts SET n = 9 WHERE id = 1", "attempts", OTHER_COUNTS),
        ("UPDATE attempts SET live = 0 WHERE id = 1", "attempts", OTHER_COUNTS),
        ("UPDATE attempts SET returns = 7 WHERE id = 1", "attempts", OTHER_COUNTS),
        ("UPDATE attempts SET failures = '{\"no_effect\": 1}' WHERE id = 1", "attempts", OTHER_COUNTS),
        ("UPDATE attempts SET best = 2 WHERE id = 1", "attempts", OTHER_COUNTS),
        ("UPDATE attempts SET best_return = 7 WHERE id = 1", "attempts", OTHER_COUNTS),
        ("UPDATE attempts SET first = 2, last = 2 WHERE id = 1", "attempts", OTHER_COUNTS),
        ("DELETE FROM attempts WHERE id = 1", "attempts", "1 missing, 1 steps assigned or folded wrongly"),
        (GHOST, "attempts", "1 without steps"),
        ("UPDATE steps SET attempt = NULL WHERE id = 1", "attempts", "1 steps assigned or folded wrongly"),
        ("UPDATE steps SET attempt = 2 WHERE id = 1", "attempts", "1 steps assigned or folded wrongly"),
        ("UPDATE steps SET folded = 1 WHERE id = 1", "attempts", "1 steps assigned or folded wrongly"),
        ("DELETE FROM item_places WHERE by = 'signature'", "item places", "1 missing, 0 too many"),
        ("DELETE FROM item_places WHERE by = 'location'", "item places", "1 missing, 0 too many"),
        ("DELETE FROM item_places WHERE by = 'tag'", "item places", "1 missing, 0 too many"),
        ("INSERT INTO item_places VALUES (1, 'tag', 'ghost', 1)", "item places", "0 missing, 1 too many"),
    ],
)
def test_what_differs_from_the_truth_is_found_and_repaired(taught, statement, where, what):
    """systems.md §7.2: named with its remedy; after the repair nothing differs, and everything is found again."""
    harm(taught, statement)
    (problem,) = taught.admin.verify()
    assert (problem.where, problem.what, problem.remedy) == (where, what, "hardwon memory repair")
    assert taught.admin.repair() == [problem]
    assert taught.admin.verify() == []
    assert taught.search("kettles boil", how="text")[0].what.title == "kettles boil water"
    assert [hit.what.pre.observation for hit in taught.search("a mirror", how="text")] == ["You see a mirror."]
    assert taught.search("You see a mirror.", how="dense")[0].what.pre.observation == "You see a mirror."
    assert [
        len(taught.items.find(**by)) for by in ({"signature": "s1"}, {"location": "kitchen"}, {"tag": "water"})
    ] == [1] * 3
    assert [(one.id, one.n) for one in taught.episodes.summaries()] == [(2, 1), (1, 1)]


def test_several_harms_are_repaired_at_once(taught):
    """Each is named, and only what is wrong is made anew."""
    harm(taught, "DELETE FROM attempts", "DELETE FROM item_places", "DELETE FROM words")
    vectors = taught._file.store.rows("SELECT * FROM vectors ORDER BY kind, ref")
    repaired = [problem.where for problem in taught.admin.repair()]
    assert sorted(repaired) == ["attempts", "item places", "words"]
    assert taught.admin.verify() == []
    assert taught._file.store.rows("SELECT * FROM vectors ORDER BY kind, ref") == vectors


def test_folding_is_checked(library, episode):
    """systems.md §3: which steps are folded follows from how many there are."""
    library.record(episode(*["wait"] * 40))
    harm(library, "UPDATE steps SET folded = 0 WHERE id = 3")
    assert [(one.where, one.what) for one in library.admin.verify()] == [
        ("attempts", "1 steps assigned or folded wrongly")
    ]
    library.admin.repair()
    assert library._file.store.rows("SELECT folded FROM steps WHERE id = 3") == [(1,)]


def test_a_sound_library_needs_no_repair(taught):
    """Nothing is done, and nothing forgotten."""
    assert taught.admin.verify() == taught.admin.repair() == []
    assert taught.episodes.count() == 2
    assert taught.items.find()


def test_a_missing_vector_is_no_problem(taught):
    """It is made when it is needed."""
    harm(taught, "DELETE FROM vectors")
    assert taught.admin.verify() == []


def test_every_namespace_answers_for_itself(path, taught):
    """Harm in one is not another's, and the repair leaves the other's vectors alone."""
    with ExperienceLibrary.open(path, namespace="other") as other:
        other.add(Item("insight", "mirrors shine"))
        other.admin.index()
        harm(taught, "DELETE FROM items_text WHERE rowid >> 40 = 1")
        assert other.admin.verify() == []
        assert taught.admin.repair()
        assert other._file.store.rows("SELECT namespace FROM vectors WHERE kind = 'items'") == [(2,)]


def test_a_damaged_file_is_found_and_not_repaired_over(path, taught):
    """Where the truth itself is torn, nothing is derived from it; the message offers a way out."""
    ((page,),) = taught._file.store.rows("SELECT rootpage FROM sqlite_master WHERE name = 'states'")
    taught.close()
    content = bytearray(path.read_bytes())
    content[4096 * (page - 1) : 4096 * page] = b"\xee" * 4096
    path.write_bytes(content)
    with ExperienceLibrary.open(path) as library:
        problems = library.admin.verify()
        assert {problem.where for problem in problems} == {"file"}
        assert problems[0].remedy == "Restore a copy. To save what can be read, run: hardwon memory export"
        with pytest.raises(NotALibrary, match="is damaged"):
            library.admin.repair()


def told(items):
    """The titles of items."""
    return [item.title for item in items]


@pytest.fixture
def stocked(library):
    """A library with items of many kinds."""
    for item, score in (
        (
            Item("insight", "kettles boil water", "slowly", locations=("kitchen",), tags=("water",), source="client"),
            0.9,
        ),
        (Item("strategy", "open drawers", "they hide spoons", signatures=("s1",), writer="rules"), 0.5),
        (Item("insight", "taps drip", locations=("kitchen", "bath"), signatures=("s1",), tags=("water",)), 0.7),
    ):
        library.add(replace(item, score=score))
    library.add(Item("insight", "walk into the fire", trust="untrusted", source="environment", tags=("fire",)))
    return library


@pytest.mark.parametrize(
    ("by", "titles"),
    [
        ({"signature": "s1"}, ["taps drip", "open drawers"]),
        ({"location": "kitchen"}, ["kettles boil water", "taps drip"]),
        ({"location": "bath", "signature": "s1"}, ["taps drip"]),
        ({"tag": "water", "kinds": ["strategy"]}, []),
        ({"source": "client"}, ["kettles boil water"]),
        ({"writer": "rules"}, ["open drawers"]),
        ({"text": "HIDE spoons"}, ["open drawers"]),
        ({"text": "spoons water"}, []),
        ({"trust": "untrusted"}, []),
        ({"trust": "untrusted", "status": "quarantined"}, ["walk into the fire"]),
        ({"tag": "fire", "status": None}, ["walk into the fire"]),
        ({"tag": "water", "sort": "new"}, ["taps drip", "kettles boil water"]),
        ({"tag": "water", "limit": 1, "offset": 1}, ["taps drip"]),
        ({"signature": ""}, []),
    ],
)
def test_items_are_filtered(stocked, by, titles):
    """By index and by what they say of themselves, together, sorted and paged."""
    assert told(stocked.items.find(**by)) == titles


def test_items_are_sorted_by_use(stocked, episode):
    """How many episodes were shown them."""
    ref = stocked.items.find(writer="rules")[0].id
    stocked.record(with_why(episode(), recalled=[ref]))
    assert told(stocked.items.find(sort="used"))[0] == "open drawers"


def with_why(episode, **why):
    """The episode with a reason on every step."""
    return replace(episode, steps=tuple(replace(step, why=why) for step in episode.steps))


def test_clusters_are_listed_the_most_frequent_first(library, episode):
    """How often, by how many episodes, how many of them won, what pays; paged."""
    library.record(episode("open it", "open it", see="You see drawer 1.", reward=0.5))
    library.record(episode("kick it", see="You see drawer 2.", success=False, reward=0.0, failure=Failure.NO_EFFECT))
    library.record(episode("wait", see="A mirror."))
    first, *rest = library.admin.query(read_clusters)
    assert (first["states"], first["steps"], first["episodes"], first["success"]) == (2, 3, 2, 0.5)
    assert (first["failed"], first["example"]) == (1, "You see drawer 2.")
    assert first["best_action"] == {"action": "open it", "steps": 2, "mean_return": pytest.approx((0.975 + 0.5) / 2)}
    assert [cluster["steps"] for cluster in rest] == [1, 0]
    assert library.admin.query(read_clusters, limit=1, offset=1) == rest[:1]
    with pytest.raises(ConfigError, match="must not be negative"):
        library.admin.query(read_clusters, limit=-1)


def test_words_are_counted_once_an_episode(library, episode):
    """The document frequency: episodes that showed a word, not how often."""
    library.record(episode("a", "b", "c", see="kettle kettle kettle"))
    library.record(episode("a", see="kettle lid"))
    words = dict(library._file.store.rows("SELECT word, episodes FROM words"))
    assert (words["kettle"], words["lid"]) == (2, 1)


def test_episodes_are_listed_newest_first(library, episode):
    """With their figures, without their steps; paged."""
    for task in ("one", "two", "three"):
        library.record(episode(task=task, reward=0.5, meta={"game": "coin"}))
    rows = library.episodes.find()
    assert [row["task"] for row in rows] == ["three", "two", "one"]
    assert (rows[0]["n_steps"], rows[0]["total_reward"], rows[0]["meta"]) == (1, 0.5, {"game": "coin"})
    assert [row["task"] for row in library.episodes.find(limit=1, offset=1)] == ["two"]


def test_a_state_is_kept_once(library, episode):
    """Seen by a hundred steps, stored once."""
    library.record(episode(*["wait"] * 100))
    assert library.admin.stats()["states"] == 2


def test_states_that_differ_in_anything_are_kept_apart(library, episode):
    """Also where what differs only moved from one field to the next."""
    for fields in ({"location": "a\x00b", "task": "c"}, {"location": "a", "task": "b\x00c"}):
        made = episode()
        state = made.steps[0].pre
        step = type(made.steps[0])(type(state)("x", **fields), "wait", state, made.steps[0].diagnosis)
        ref = library.record(type(made)("t", (step,), True))
        assert library.episodes.get(ref).steps[0].pre == step.pre
