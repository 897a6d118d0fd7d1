import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.memory.older import downgrade

from hardwon.memory import ExperienceLibrary, Failure, Item, State
from hardwon.memory.storage.cache_files import CacheFile
from hardwon.memory.storage.worlds import KEPT, YOUNG, World, Worlds, are_kin, rebuild
from hardwon.memory.values.cells import StoredCells

MOVES = ["move north", "take coin", "read map"]
FETCH = "Your task is to take the coin that is located in the {}, and put it into the box found in the {}."
FIND = "Your task is to search the environment and find the coin. Once you find the coin, take it."
COOK = "You are hungry! Let's cook a delicious meal. Check the cookbook in the kitchen for the recipe."
ROOMS = ["kitchen", "living room", "attic", "side yard", "pantry", "garage", "salon", "bedroom"]
REQUESTS = [
    "cancel my order 123, please",
    "where is the parcel that was sent on Monday?",
    "I was charged twice for the same blue jacket",
    "change the delivery address to 5 Elm Street",
    "can somebody call me back about the broken lamp",
    "what does express shipping cost to Norway",
    "add a gift note to the package for grandmother",
    "the discount code SPRING does not work",
    "send the invoice again as a PDF",
    "how long is the warranty of these headphones",
    "replace the missing screws of my desk",
    "unsubscribe this address from all newsletters",
]
TOOLS = ['get_order(id="1")', 'refund(id="1", amount="3")', 'send_mail(to="x")']


def fetch(number):
    """A task of one kind with names of its own."""
    return FETCH.format(ROOMS[number % len(ROOMS)], ROOMS[(3 * number + 1) % len(ROOMS)])


def placed(*episodes):
    """The worlds of these (label, task, actions), and where each was placed."""
    worlds = Worlds()
    numbers = [worlds.place(*one)[0] for one in episodes]
    return worlds, [worlds.standing_for(number) for number in numbers]


def test_tasks_that_differ_in_names_alone_are_one_world():
    """And a task of other words, with some of the same actions, is another."""
    worlds, numbers = placed(*[("", fetch(n), MOVES) for n in range(8)], ("", FIND, ["move north", "take coin"]))
    assert len(set(numbers[:8])) == 1
    assert numbers[8] != numbers[0]
    assert worlds.find(fetch(99), ["move west", "take coin"]) == numbers[0]
    assert worlds.find(FIND, ["move west"]) == numbers[8]
    assert worlds.find(COOK, ["move west", "take coin"]) is None


def test_short_tasks_of_mostly_names_are_united_when_several_are_known():
    """`go to the red ball` and `go to the grey key` share one word: three of them show that it is what matters."""
    names = [f"{color} {thing}" for color in ("red", "green", "blue", "grey") for thing in ("ball", "box", "key")]
    steps = ["left", "right", "forward", "pickup"]
    random.Random(0).shuffle(names)
    worlds, numbers = placed(
        *[("", f"go to the {name}", steps) for name in names], *[("", f"pick up the {name}", steps) for name in names]
    )
    assert len(set(numbers[2:12])) == len(set(numbers[14:])) == 1
    assert worlds.find("go to a purple door", steps) == numbers[5]
    assert worlds.find("pick up the purple door", steps) == numbers[20]


def test_requests_in_free_text_are_one_world_by_their_tools():
    """No two customers use the same words; what is done for them is alike."""
    worlds, numbers = placed(*[("", request, TOOLS) for request in REQUESTS])
    assert len(set(numbers)) == 1
    assert worlds.find("something never said before", TOOLS) == numbers[0]
    assert worlds.find("something never said before", ["open door to north"]) is None


def test_a_label_keeps_apart_what_looks_alike():
    """The same words and actions under two names are two environments; asked without a name, the larger answers."""
    worlds, numbers = placed(*[("one", FIND, MOVES)] * 3, *[("two", FIND, MOVES)] * 5)
    assert numbers == [numbers[0]] * 3 + [numbers[3]] * 5
    assert numbers[0] != numbers[3]
    assert worlds.find(FIND, MOVES) == numbers[3]


def test_without_tasks_the_actions_tell():
    """A client that records no task still has worlds."""
    worlds, numbers = placed(*[("", "", MOVES)] * 3)
    assert set(numbers) == {1}
    assert worlds.find("", ["move east"]) == 1
    assert worlds.find("", ["cook {1}", "slice {1}"]) is None


def test_what_is_counted_is_bounded():
    """Free text brings new words for ever."""
    world = World(1)
    for number in range(5 * KEPT):
        world.add({f"word{number}", "always"}, {"move {1}"})
    assert len(world.words) <= KEPT
    assert world.words["always"] == 5 * KEPT


def grow(library, episode, kind, count=20):
    """Record episodes of a kind in which going pays half the time."""
    task, first, second = {
        "fetch": (fetch, "go north", "read map"),
        "cook": (lambda n: COOK, "go north", "eat apple"),
    }[kind]
    for number in range(count):
        paid = float(random.Random(number).random() < 0.5) if kind == "fetch" else 0.0  # whatever the task is
        library.record(
            episode(first, second, task=task(number), reward=paid, success=bool(paid), library=library, seed=number)
        )


def asked(library, task, *actions):
    """The estimates of these actions in a state with this task."""
    state = State("You see a wooden drawer. It is closed.", task=task)
    return library.recall(state, k=0, actions=dict.fromkeys(actions, "")).estimates


def test_the_returns_of_one_world_do_not_reach_another(library, episode):
    """The failure: what was never tried in this game was worth the mean over all games."""
    grow(library, episode, "cook", 40)
    unknown = asked(library, fetch(3), "go north", "read map", "put coin in box")
    assert {(estimate.value, estimate.n) for estimate in unknown.values()} == {(0.0, 0)}
    grow(library, episode, "fetch", 20)
    both = asked(library, fetch(3), "go north", "read map")
    with ExperienceLibrary.open(":memory:") as alone:
        grow(alone, episode, "fetch", 20)
        only = asked(alone, fetch(3), "go north", "read map")
    # words of the text become structural at another episode, so the newest of its steps are under the last key
    assert {action: estimate.key for action, estimate in both.items()} == {a: e.key for a, e in only.items()}
    assert all(estimate.value == pytest.approx(only[action].value, abs=0.1) for action, estimate in both.items())
    assert asked(library, COOK, "go north")["go north"].value == 0.0
    assert both["go north"].value > 0.3


def practiced(library, task):
    """The practice in a state with this task."""
    return library.episodes.count(State("You see a wooden drawer.", task=task), ["go north", "read map"])


@pytest.mark.parametrize(("other", "count"), [("yard", 5), ("house", 35)])
def test_practice_counts_the_episodes_of_the_environment(library, episode, other, count):
    """With all its kinds of task, but not those of another one."""

    def record(task, environment, number):
        meta = {"environment": environment}
        library.record(episode("go north", "read map", task=task, library=library, meta=meta, seed=number))

    assert practiced(library, fetch(0)) == 0
    for number in range(30):
        record(COOK, other, number)
    for number in range(5):
        record(fetch(number), "house", number)
    assert practiced(library, fetch(9)) == count


def test_practice_survives_that_worlds_are_united(library, episode):
    """The episodes of young worlds that turn out to be one world count together."""
    for number in range(8):
        library.record(episode("go north", "read map", task=fetch(number), library=library, seed=number))
    assert practiced(library, fetch(3)) == 8


def test_worlds_are_the_same_in_every_process(library, path, episode):
    """What was filed one by one equals what is read at once, and what is rebuilt."""
    for kind in ("cook", "fetch", "cook"):
        grow(library, episode, kind)
    grown = asked(library, fetch(5), "go north", "read map")
    library.admin.index()
    with ExperienceLibrary.open(path) as again:
        assert {a: e.value for a, e in asked(again, fetch(5), "go north", "read map").items()} == {
            a: e.value for a, e in grown.items()
        }
        worlds = again._file.store.rows("SELECT id, record FROM worlds ORDER BY id")
        with again._file.store.transaction() as connection:
            rebuild(connection, 1)
        assert again._file.store.rows("SELECT id, record FROM worlds ORDER BY id") == worlds


def test_an_older_library_is_placed_when_it_is_opened(path, library, episode):
    """A file of the schema before worlds."""
    grow(library, episode, "fetch")
    grow(library, episode, "cook")
    expected = asked(library, fetch(5), "go north")["go north"].value
    library.close()
    downgrade(path, 5)
    with ExperienceLibrary.open(path) as again:
        assert asked(again, fetch(5), "go north")["go north"].value == expected
        assert again.admin.verify() == []


def test_in_an_unknown_world_a_library_is_as_good_as_an_empty_one(library, episode):
    """The words that structure one world say nothing of another: contexts there are those of an empty library."""
    grow(library, episode, "cook", 40)
    state = State("You see a wooden drawer. It is closed.", task=fetch(1))
    with ExperienceLibrary.open(":memory:") as empty:
        assert library.episodes.context(state, "open drawer") == empty.episodes.context(state, "open drawer")
        assert library.episodes.keys(state, "open drawer") == empty.episodes.keys(state, "open drawer")
    cook = State("You see a wooden drawer. It is closed.", task=COOK)
    assert "wooden" in library.episodes.context(cook, "open drawer")


def test_a_united_world_files_its_steps_anew(library, episode):
    """Values filed before it was known that the tasks are of one kind are not lost."""
    for number, name in enumerate(["red ball", "grey key", "blue box", "green ball", "purple key"]):
        library.record(episode("forward", task=f"go to the {name}", library=library, seed=number))
        library.record(episode("left", task=COOK, reward=0.0, success=False, library=library, seed=number))
        asked(library, "go to the red ball", "forward")
    assert asked(library, "go to the yellow door", "forward")["forward"].n == 5


def test_a_guardrail_of_one_world_is_silent_in_another(library, episode):
    """`go north` failed in the kitchen game; the fetching game has a north of its own."""
    for number in range(12):
        library.record(
            episode(
                "go north", task=COOK, reward=-1.0, success=False, failure=Failure.PENALTY, library=library, seed=number
            )
        )
        grow(library, episode, "fetch", 1)
    library.add(replace(_guardrail(library), source="person", forbids="eat apple", title="do not eat", provenance=()))
    library.add(_guardrail(library))
    kitchen = State("You see a wooden drawer. It is closed.", task=COOK)
    other = replace(kitchen, task=fetch(4))
    assert not library.check(kitchen, "go north").allowed
    assert library.check(other, "go north").allowed
    assert [item.forbids for item in library.recall(kitchen, k=0, actions={"go north": ""}).guardrails] == ["go north"]
    assert library.recall(other, k=0, actions={"go north": ""}).guardrails == ()
    assert not library.check(other, "eat apple").allowed


def _guardrail(library):
    steps = tuple(
        row[0] for row in library._file.filed().rows("SELECT id FROM steps WHERE action = 'go north' AND reward < 0")
    )
    state = State("You see a wooden drawer. It is closed.", task=COOK)
    return Item(
        "guardrail",
        "do not go north",
        condition={"around": library.episodes.context(state, "go north")},
        forbids="go north",
        provenance=steps,
        source="experience",
        writer="rules",
        confidence=0.95,
    )


def test_verify_finds_an_episode_without_a_world(library, episode):
    """And repair places it."""
    grow(library, episode, "fetch")
    with library._file.store.transaction() as connection:
        library._file.filed()
        connection.execute("DELETE FROM episode_worlds WHERE trajectory_id = (SELECT min(id) FROM trajectories)")
    assert [problem.where for problem in library.admin.verify()] == ["worlds"]
    library.admin.repair()
    assert library.admin.verify() == []


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_kinds_gives_the_same_worlds(seed):
    """Games played in turn, without labels, are told apart whatever their order."""
    kinds = [("", fetch(n), MOVES) for n in range(10)]
    kinds += [("", COOK, ["move north", "cook x", "eat meal", "take knife"])] * 10
    kinds += [("", FIND, ["move north", "take coin", "open door to east"])] * 10
    random.Random(seed).shuffle(kinds)
    _, numbers = placed(*kinds)
    grouped = Counter((number, task.split()[3]) for number, (_, task, _) in zip(numbers, kinds, strict=True))
    assert sorted(grouped.values()) == [10, 10, 10]


def test_verify_reads_the_file_of_values_per_world(path, episode):
    """Other values than the steps have are found and repaired, and so is a torn file."""
    with ExperienceLibrary.open(path) as library:
        for kind in ("cook", "fetch"):
            grow(library, episode, kind)
        library.admin.index()
        expected = asked(library, fetch(5), "go north")["go north"]
        table = library._file.derived.statistics.per_world
        assert table is not None
        cells = table.read().cells

        def save():
            """Write the values per world to their file."""
            arrays = StoredCells.arrays(cells)
            assert table._cache_file.save(table._name, table._file_identity, table._last_step, table._filed, arrays)

        save()
        assert library.admin.verify() == []
        next(iter(cells.values())).n += 1
        save()
        (problem,) = library.admin.verify()
        assert (problem.where, problem.what) == ("saved values per world", "1 keys with other values than their steps")
    with ExperienceLibrary.open(path) as library:
        library.admin.repair()
        assert library.admin.verify() == []
        assert asked(library, fetch(5), "go north")["go north"] == expected
        file = CacheFile(library._file.store, 1).path("world-values")
        assert file is not None
        file.write_bytes(b"torn")
        assert [problem.what for problem in library.admin.verify()] == ["it is not an index file"]
        library.admin.repair()
        assert not file.exists()


# ---- recall in a library of several worlds

DRAWER = "You see a wooden drawer. It is closed."
KITCHEN, FETCHING = State(DRAWER, task=COOK), State(DRAWER, task=fetch(4))


def two_games(library, episode, *, labels=("", ""), here=12, abroad=12):
    """Record two games with the same words and drawers, in which other actions are taken."""
    plays = [
        (lambda _: COOK, ("open drawer", "cook potato", "slice carrot"), labels[0], here),
        (fetch, ("pull drawer", "read map", "put coin in box"), labels[1], abroad),
    ]
    for task, actions, label, count in plays:
        for number in range(count):
            see = f"{DRAWER} There is a potato, a coin and a {ROOMS[number % len(ROOMS)]}."
            for seen in (see, DRAWER):
                made = episode(*actions, see=seen, task=task(number), library=library, seed=number)
                library.record(replace(made, meta={"environment": label} if label else {}))


def done(recollection):
    """The verbs of the actions recalled."""
    return {hit.what.action.split()[0] for hit in recollection.steps}


@pytest.mark.parametrize("labels", [("", ""), ("game/cook", "game/fetch"), ("game/cook", "")])
def test_steps_of_another_world_are_not_recalled(library, episode, labels):
    """In a known situation, a new one, and by task; the other game was played far more often, and last."""
    two_games(library, episode, labels=labels, here=8, abroad=60)
    for see in (DRAWER, f"{DRAWER} There is a potato, a coin and a cellar.", "A drawer and a coin."):
        for level in ("step", "task"):
            kitchen = library.recall(State(see, task=COOK), k=5, level=level)
            fetching = library.recall(State(see, task=fetch(4)), k=5, level=level)
            assert len(kitchen.steps) == len(fetching.steps) == 5
            assert done(kitchen) <= {"open", "cook", "slice"}
            assert done(fetching) <= {"pull", "read", "put"}
            assert {one.pattern.split()[0] for one in kitchen.summaries} <= {"open", "cook", "slice"}
        assert done(library.recall(see, task=COOK)) <= {"open", "cook", "slice"}


def test_where_the_world_is_not_told_all_steps_count(library, episode):
    """A state without a task, or with a task of no known kind, may be of any."""
    two_games(library, episode)
    for state in (State(DRAWER), State(DRAWER, task="repair the bicycle")):
        assert {"open", "pull"} <= done(library.recall(state, k=24))


def test_in_a_world_where_none_of_the_actions_is_known_nothing_is_recalled(library, episode):
    """Admissible actions of other forms tell that the environment is another one."""
    two_games(library, episode)
    state = State(DRAWER, task="repair the bicycle")
    assert library.recall(state, actions={"pump tire": "", "oil chain": ""}).steps == ()
    found = library.recall(state, k=24, actions={"pump tire": "", "cook potato": ""})
    assert found.steps
    assert done(found) <= {"open", "cook", "slice"}


def test_kinds_of_task_of_one_environment_share_their_steps(library, episode):
    """What was seen while cooking helps to fetch in the same house."""
    two_games(library, episode, labels=("house", "house"))
    tried = {one.pattern.split()[0] for one in library.recall(KITCHEN, k=24).summaries}
    assert {"open", "pull"} <= tried  # what a few other tasks did fills no place among the steps, but is counted


def test_worlds_of_few_episodes_share_their_steps(library, episode):
    """Two requests in a support library: too little to tell environments apart, if any tool is common."""
    library.record(episode("find_order(id=1)", "refund(id=1)", task="please pay back what the lamp cost"))
    library.record(episode("find_order(id=2)", "send(id=2)", task="ship the blue jacket sooner"))
    assert len(library._file.caught_up().worlds.standing) == 2
    state = State("You see a wooden drawer. It is closed.", task="please pay back what the lamp cost")
    assert {one.pattern.partition("(")[0] for one in library.recall(state).summaries} == {
        "find_order",
        "refund",
        "send",
    }


def test_items_of_another_world_are_not_recalled(library, episode):
    """Neither by the situation they are filed under nor by their words; those of no evidence are for all worlds."""
    two_games(library, episode, abroad=40)
    rows = library._file.filed().rows("SELECT id, action FROM steps ORDER BY id")
    for name, verb in (("cooks", "cook"), ("fetches", "read")):
        steps = tuple(ref for ref, action in rows if action.startswith(verb))[:5]
        signatures = (State(DRAWER).signature,)
        made = Item("insight", f"who {name} opens the wooden drawer", source="model", provenance=steps)
        library.add(replace(made, signatures=signatures))
        skill = Item("skill", f"{name} at a drawer", steps=("open drawer", f"{verb} it"), provenance=steps)
        assert library.add(skill).status == "added"
    library.add(Item("insight", "a wooden drawer may be closed"))

    def titles(state):
        return {hit.what.title for hit in library.recall(state, kinds=("insight",)).items}

    assert titles(KITCHEN) == {"who cooks opens the wooden drawer", "a wooden drawer may be closed"}
    assert titles(FETCHING) == {"who fetches opens the wooden drawer", "a wooden drawer may be closed"}
    assert len(titles(State(DRAWER))) == 3
    assert [item.title for item in library.offered(KITCHEN)] == ["cooks at a drawer"]
    assert {item.title for item in library.offered(State(DRAWER))} == {"cooks at a drawer", "fetches at a drawer"}


def test_a_library_of_one_world_recalls_what_it_did(library, episode):
    """Nothing is left out where there is nothing to mix."""
    grow(library, episode, "fetch", 12)
    assert library._file.caught_up().worlds.locate(FETCHING.task)[1] is None
    assert library.recall(FETCHING).steps
    assert library.recall(KITCHEN).steps


def test_kin_by_labels_and_by_what_was_done():
    """Labels decide where both worlds have one; then the tools of calls, and the forms of other actions."""

    def world(label, *actions, episodes=9):
        made = World(1, label)
        for _ in range(episodes):
            made.add({"task"}, set(actions))
        return made

    assert are_kin(world("a", "x"), world("a", "y"))
    assert not are_kin(world("a", "x"), world("b", "x"))
    assert are_kin(world("a", "x"), world("", "x"))
    assert not are_kin(world("", "x"), world("", "y"))
    assert are_kin(world("", "sh(command=ls)"), world("", "sh(command=rm {1})"))
    assert are_kin(world("", "x", "y", episodes=YOUNG), world("", "x"))
    assert not are_kin(world("", "x", "y", episodes=YOUNG + 1), world("", "x"))
    assert not are_kin(world("", "x", episodes=1), world("", "y"))
