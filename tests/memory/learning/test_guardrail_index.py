"""What follows the library's changes, so that learning costs the same however many guardrails there are."""

import random
from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.guardrails import thinning
from hardwon.memory.guardrails.conditions import Guard, covers, guard_key
from hardwon.memory.guardrails.context_ranges import ContextRanges
from hardwon.memory.items import item_of
from hardwon.memory.learning.guardrail_index import GuardrailIndex
from hardwon.memory.parts.items import make_curator
from hardwon.memory.situations.keys import Attempt, Situation

INDEX, MINING = "hardwon.memory.learning.guardrail_index", "hardwon.memory.learning.rule_mining"
CONDITIONS = [
    {"text": "table"},
    {"text": "shelf"},
    {"around": "1: closed"},
    {"fact": {"door": 1}},
    {"any": [{"text": "table"}, {"text": "shelf"}]},
    {"all": [{"text": "table"}, {"around": "1: closed"}]},
    {},
]
PATTERNS = ["put {1} in {2}", "put cup in {2}", "put {1} in table", "put cup in table", "open {1}", "open door"]


def rule(forbids, condition, **fields):
    """Return a guardrail that rules made."""
    given = {"confidence": 0.9, "source": "experience", "writer": "rules", **fields}
    return Item("guardrail", f"no {forbids}", condition=condition, forbids=forbids, **given)


@pytest.fixture
def count_calls(monkeypatch):
    """Return a function that starts to count the calls of a module's function, and returns their first arguments."""

    def start(module, name, real):
        calls = []

        def call(*given):
            calls.append(given[0])
            return real(*given)

        monkeypatch.setattr(f"{module}.{name}", call)
        return calls

    return start


def test_index_finds_every_related_guardrail(library):
    """Everything that covers an item or is covered by it is among the items that the index yields for it."""
    items = [
        rule(pattern, condition, id=f"gu-{at}-{number}", pinned=True)
        for at, pattern in enumerate(PATTERNS)
        for number, condition in enumerate(CONDITIONS)
    ]
    with library._file.transaction() as connection:
        for item in items:
            make_curator(library._file, library.items, connection)._write(item, "added")
    index = GuardrailIndex()
    index.catch_up(library._file.store.connection, library._file.number)
    for item in items:
        near = {other.id for other in index.iter_near(item)}
        assert near >= {other.id for other in items if covers(other, item) or covers(item, other)}
        assert len(near) < len(items)


def test_index_follows_what_is_added_and_retired(library):
    """Neither is an item of the same place lost with the one that is retired."""
    index = GuardrailIndex()

    def read():
        index.catch_up(library._file.store.connection, library._file.number)
        near = {item.id for item in index.iter_near(rule("put cup in table", {"text": "table"}))}
        return near, {item.id for item in index.iter_same("guardrail", "put cup in table", {"text": "table"})}

    assert read() == (set(), set())
    refs = {library.add(rule(f"put {{1}} in {name}", {"text": "table"})).item_id for name in ("table", "shelf")}
    refs |= {library.add(rule(f"put {thing} in table", {"text": "table"}, pinned=True)).item_id for thing in ("x", "y")}
    near, same = read()
    assert same == refs
    (shelf,) = refs - near  # it shares no name with the item that is asked for
    for ref in sorted(near):
        library.items.retire(ref, "wrong")
        near.discard(ref)
        assert read() == (near, near | {shelf})


def add_many(library, count):
    """Add guardrails about other things under another condition."""
    library.items.add_many(
        rule(f"put thing{one}x in box", {"around": f"1: word{one}"}, id=f"gu-{one}") for one in range(count)
    )


def test_admission_compares_a_candidate_with_few_guardrails(library, count_calls):
    """Ten times as many guardrails of the same verb neither cost comparisons nor are they read again."""
    compared, read = count_calls(thinning.__name__, "covers", covers), count_calls(INDEX, "item_of", item_of)
    costs = []
    for size in (30, 300):
        add_many(library, size)
        library.add(rule("open door", {"text": "locked"}))  # reads what is there
        compared.clear()
        read.clear()
        assert library.add(rule(f"put cup{size}x in table", {"text": f"table {size}"})).status == "added"
        costs.append((len(compared), len(read)))
    assert costs[0] == costs[1]
    assert max(costs[1]) <= 1


def test_index_follows_other_processes_and_rollbacks(library, path):
    """A guardrail that is gone, or that was never committed, covers nothing."""
    wide = library.add(rule("put {1} in {2}", {"text": "table"})).item_id
    with ExperienceLibrary.open(path) as other:
        other.items.retire(wide, "wrong")
    assert library.add(rule("put cup in table", {"text": "table"})).status == "added"

    def fail():
        with library._file.transaction() as connection:
            assert (
                make_curator(library._file, library.items, connection).admit(rule("open {1}", {"text": "table"})).status
                == "added"
            )
            raise InterruptedError

    assert (
        library.episodes.count() == 0
    )  # nothing is read in the transaction, so nothing but the index has to be taken back
    with pytest.raises(InterruptedError):
        fail()
    assert library.add(rule("open door", {"text": "table"})).status == "added"


def test_only_changed_items_are_read_and_filed(library, path, count_calls):
    """After one more item, the guard is the same object with one more guardrail, and equals one made anew."""
    add_many(library, 50)
    here = State("You see a table.", task="clean up")
    assert library.check(here, "put cup in table").allowed
    guard, read = library._file.derived.items.guard, count_calls("hardwon.memory.items", "kept_item_of", item_of)
    refused = library.add(rule("put {1} in table", {"text": "table"})).item_id
    assert library.check(here, "put cup in table").item_id == refused
    assert library._file.derived.items.guard is guard
    assert len(read) == 1
    library.items.retire(refused, "wrong")
    assert library.check(here, "put cup in table").allowed
    with ExperienceLibrary.open(path) as other:
        assert list(other._file.caught_up().items.by_id.values()) == list(
            library._file.caught_up().items.by_id.values()
        )
        assert other._file.caught_up().items.numbers == library._file.caught_up().items.numbers


def test_a_revived_item_has_its_old_place(library, path):
    """Items are in the order of their numbers, whether they were read together or one by one."""
    refs = [library.add(rule(f"put thing{one}x in box", {"text": f"word{one}"})).item_id for one in range(4)]
    library._file.caught_up()
    library.items.retire(refs[1], "wrong")
    library._file.caught_up()
    library.items.undo(refs[1])
    with ExperienceLibrary.open(path) as other:
        assert [*other._file.caught_up().items.by_id] == [*library._file.caught_up().items.by_id] == refs


STRUCTURAL = [frozenset(words) for words in ((), ("table",), ("table", "closed"), ("closed", "lamp"), ("lamp",))]


def test_a_guard_that_follows_equals_one_made_anew(library):
    """Whatever is exchanged and whatever words become structural, the same guardrails forbid the same actions."""
    texts = ["You see a closed table.", "You see a lamp on the table.", "A box. The table is closed. A lamp."]
    actions = ["put cup in table", "put lamp in box", "put cup in box"]
    for number in range(12):
        pre = State(texts[number % 3], task="clean up")
        action = actions[number % len(actions)]
        library.record(Trajectory("clean up", (Step(pre, action, pre, Diagnosis(True)),), True, seed=number))
    assert library.admin.stats()["steps"] == 12
    rng, words = random.Random(0), [STRUCTURAL[0]]
    items: dict[str, Item] = {}

    def context_ranges():
        return ContextRanges(library._file.store, lambda: words[0])

    guard = Guard((), context_ranges=context_ranges())
    for _ in range(60):
        number = rng.randrange(8)
        ref, old = f"gu-{number}", items.get(f"gu-{number}")
        steps = tuple(sorted(rng.sample(range(1, 13), 3)))
        pattern = rng.choice([*actions, "put {1} in {2}", "put {1} in table"])
        new = rule(pattern, {"around": "1: "}, id=ref, provenance=steps) if rng.random() < 0.7 else None
        if new is not None and rng.random() < 0.2:
            new = replace(new, granularity="task")
        guard.exchange(old, new)
        items = {**{name: item for name, item in items.items() if name != ref}, **({ref: new} if new else {})}
        words[0] = rng.choice(STRUCTURAL)
        guard.follow(words[0])
        fresh = Guard(items.values(), context_ranges=context_ranges())
        for text in texts:
            here = Situation(State(text, task="clean up"), words[0])
            for action in actions:
                attempt = Attempt(here, action)
                assert guard.forbidding(attempt) == fresh.forbidding(attempt)
        assert guard._of_plans == fresh._of_plans


def test_the_key_of_a_guardrail_is_built_once(library, count_calls):
    """An evolution looks at all guardrails, but builds the keys of the changed ones alone."""
    add_many(library, 40)
    library.evolve()
    built = count_calls(MINING, "guard_key", guard_key)
    library.evolve()
    assert built == []


def test_worlds_of_episodes_are_read_once(library):
    """An episode recorded later is looked up by itself; episodes that were placed again are all read again."""
    here = State("a room", task="clean the room")

    def play(number, task):
        state = replace(here, task=task)
        return library.record(Trajectory(task, (Step(state, "wait", state, Diagnosis(True)),), True, seed=number))

    refs = [play(number, "clean the room") for number in range(4)]
    worlds = library._file.caught_up().worlds
    first = worlds.of(refs[0])
    known = worlds._episodes
    refs.append(play(5, "clean the room"))
    assert library._file.caught_up().worlds.of(refs[-1]) == first
    assert worlds._episodes is known
    with library._file.transaction() as connection:
        connection.execute("UPDATE worlds SET record = replace(record, '\"episodes\":5', '\"episodes\":2')")
        library.record(Trajectory("clean the room", (Step(here, "wait", here, Diagnosis(True)),), True, seed=9))
    library._file.caught_up()
    assert worlds._episodes is None
