from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import WrongType
from hardwon.memory.items import record_of
from hardwon.memory.library import forget_findings
from hardwon.memory.records import Hit, Kind
from hardwon.memory.retrieval.recall import RECALL_FLOOR, estimate_tokens, within_budget
from hardwon.memory.retrieval.request import LONGEST_QUERY
from hardwon.memory.retrieval.tuning import TUNING
from hardwon.memory.situations.phrases import content_words
from hardwon.memory.storage.episodes import log_change
from hardwon.memory.storage.rollups import WINDOW
from hardwon.memory.storage.worlds import Worlds

DRAWER = State("You see a wooden drawer. It is closed.", task="find the spoon")


def items(recollection):
    """The titles of the items recalled."""
    return [hit.what.title for hit in recollection.items]


def actions(recollection):
    """The actions of the steps recalled."""
    return [hit.what.action for hit in recollection.steps]


def used(episode, ref, *, success):
    """An episode that was shown an item."""
    made = episode("open drawer", success=success)
    return replace(made, steps=tuple(replace(step, why={"recalled": [ref]}) for step in made.steps))


def test_a_library_that_has_recalled_answers_as_one_that_is_opened_now(tmp_path):
    """Whatever recall keeps is dropped when a write may change it: episodes, those of untrusted writers, and items."""
    path = tmp_path / "library.db"
    library = ExperienceLibrary.open(path)

    def move(n, before, action, after):
        places = [State(f"The {name}, door {n}.", task="find it", location=name) for name in (before, after)]
        step = Step(places[0], action, places[1], Diagnosis(True), reward=1.0)
        return Trajectory("find it", (step,), True, id=f"e{n}")

    def ask(asked):
        here = State("The kitchen, door 9.", task="find it", location="kitchen")
        other = State("A door of a kitchen.", task="find it all", location="hall")
        answers = [asked.recall(state, level=level) for state in (here, other) for level in ("step", "task")]
        answers.append(asked.recall("what does one unlock or search?"))
        return [(items(answer), actions(answer), [hit.why for hit in answer.items]) for answer in answers]

    writes = [
        lambda: library.record(move(1, "kitchen", "go north", "hall")),
        lambda: library.add(Item("insight", "zzz yard", locations=("yard",))),
        lambda: library.record(move(2, "kitchen", "go south", "yard")),
        lambda: library.record(move(3, "kitchen", "open door", "hall")),
        *(
            lambda n=n, action=action: library.episodes.receive(
                [move(n, "kitchen", action, "cellar")], writer=f"w{n}", trust="untrusted"
            )
            for n, action in enumerate(["search(box)", "unlock(cellar)", "unlock(cellar)", "unlock(cellar)"], 4)
        ),
        lambda: library.items.retire(next(iter(library.items.find())).id, "old"),
    ]
    for number, write in enumerate(writes):
        ask(library)
        write()
        with ExperienceLibrary.open(path) as fresh:
            assert ask(library) == ask(fresh), number
    library.close()


def test_an_empty_library_recalls_nothing(library):
    """Empty is a valid answer, and says so."""
    recollection = library.recall(DRAWER)
    assert not recollection
    assert (recollection.path, recollection.tokens) == ("empty", 0)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_step_stands_for_the_others_that_did_the_same(library, is_known):
    """In this situation and in similar ones: which they are, how many tasks were lost, and how often it was tried."""
    for n in range(8):
        here = State("A closed drawer." if is_known else f"A closed drawer of cabinet {'abcdefgh'[n]}.", task="find it")
        diagnosis = Diagnosis(n > 1, Failure.NONE if n > 1 else Failure.TOOL_ERROR)
        step = Step(here, "open drawer", here, diagnosis, reward=float(n > 3))
        library.record(Trajectory("find it", (step,), n > 3, id=f"e{n}"))
    now = State("A closed drawer." if is_known else "A closed drawer of the cabinet.", task="find it")
    hits = library.recall(now, k=1 if is_known else 3).steps
    worked = [hit.what for hit in hits if hit.what.diagnosis.success]
    assert sum(1 + len(step.why.similar or ()) for step in worked) == 6
    assert sum((step.why.failed or 0) + (step.return_to_go == 0) for step in worked) == 2
    assert not is_known or worked[0].why.value == pytest.approx(4 / 6)


def test_an_unrelated_query_recalls_nothing(library, episode):
    """What is not near enough is not shown."""
    library.record(episode())
    library.add(Item("insight", "drawers hide spoons"))
    assert not library.recall(State("Quarterly revenue rose sharply.", task="summarise"))


def test_what_is_near_is_recalled(library, episode):
    """Items and steps, with how near they are and why."""
    library.record(episode("open drawer"))
    library.add(Item("insight", "a wooden drawer may be closed"))
    recollection = library.recall(State("You see a wooden drawer. It is stuck.", task="find the spoon"))
    assert (items(recollection), actions(recollection)) == (["a wooden drawer may be closed"], ["open drawer"])
    assert all(hit.similarity >= TUNING.min_cosine and hit.why for hit in (*recollection.items, *recollection.steps))
    assert recollection.path == "hybrid"


def test_the_best_steps_of_a_situation_come_first(library, episode):
    """By what came of them."""
    for action, reward in (("kick drawer", 0.1), ("open drawer", 1.0), ("wait", 0.8)):
        library.record(episode(action, reward=reward))
    assert actions(library.recall(DRAWER, k=2)) == ["open drawer", "wait"]


def test_a_known_situation_needs_no_scan(library, episode):
    """systems.md §1: cluster-first, library fallback, fallback binds: a second visit performs 0 library scans."""
    library.record(episode())
    library.add(Item("insight", "a wooden drawer may be closed"))
    library.recall(DRAWER)
    scans = library._file.search.scans
    recollection = library.recall(DRAWER)
    assert library._file.search.scans == scans > 0
    assert recollection.path == "cluster"
    assert items(recollection) == ["a wooden drawer may be closed"]


def test_a_score_that_moved_asks_for_no_new_search(library, episode):
    """What was found for a situation stays found; it is ranked, and dropped, by its score of now."""
    one, two = (
        str(library.add(Item("insight", f"a wooden drawer closed {name}", score=score)).item_id)
        for name, score in (("one", 0.9), ("two", 0.8))
    )
    library.record(episode(*"abcde"))  # as many actions as are recalled: nothing is filled in
    assert items(library.recall(DRAWER)) == ["a wooden drawer closed one", "a wooden drawer closed two"]
    scans = library._file.search.scans
    for _ in range(4):
        library.record(used(episode, one, success=False))
        library.record(used(episode, two, success=True))
    recollection = library.recall(DRAWER)
    assert items(recollection)[0] == "a wooden drawer closed two"
    assert [hit.what.score for hit in recollection.items] == [
        library.items.get(hit.what.id).score for hit in recollection.items
    ]
    assert recollection.path == "cluster"
    assert library._file.search.scans == scans


def test_findings_that_were_forgotten_are_searched_anew(library, episode):
    """Then what is recalled does not depend on what was recalled before."""
    library.add(Item("insight", "a wooden drawer closed"))
    library.record(episode())
    library.recall(DRAWER)
    scans = library._file.search.scans
    forget_findings(library)
    assert items(library.recall(DRAWER)) == ["a wooden drawer closed"]
    assert library._file.search.scans > scans


def test_every_step_recalls_for_its_own_observation(library, episode):
    """systems.md §1: retrieval happens each step on o_t: other clusters, other items; as many recalls as steps."""
    walk = [State(f"You are in the {room}. It is quiet.", task="leave") for room in ("hall", "yard", "barn")]
    for number, state in enumerate(walk):
        library.add(Item("insight", f"zzz {'abc'[number]}", signatures=(state.signature,)))
    recalled = [items(library.recall(state)) for state in walk]
    assert recalled == [["zzz a"], ["zzz b"], ["zzz c"]]
    assert library._file.search.scans == 2 * len(walk)  # items and states, once for each new situation
    assert [items(library.recall(state)) for state in walk] == recalled


def test_a_lookup_compares_with_few_of_many_items(library, episode):
    """systems.md §1: lookup is sublinear: 10k items, 200 clusters: ten times fewer comparisons than a full scan."""
    signatures = [State(f"room {'x' * n}").signature for n in range(200)]
    with library._file.transaction() as connection:
        for number in range(10_000):
            item = Item("insight", f"advice {number}", signatures=(signatures[number % 200],), id=f"in-{number}")
            connection.execute(
                "INSERT INTO items(id, namespace, number, kind, status, score, pinned, created_at, updated_at, record) "
                "VALUES (?, 1, ?, 'insight', 'active', 0.5, 0, '', '', ?)",
                (item.id, number + 1, record_of(item)),
            )
            connection.execute(
                "INSERT INTO item_places VALUES (1, 'signature', ?, ?)", (item.signatures[0], number + 1)
            )
        log_change(connection, 1, "item", "in-0", "restored")
    library.record(episode(see="room xxx"))
    state = State("room xxx", task="find the spoon")
    first = library.recall(state)
    assert {hit.why for hit in first.items} == {"its own situation"}
    counted = [0]

    def count():
        counted[0] += 1

    def comparisons(call):
        counted[0] = 0
        library._file.store.connection.set_progress_handler(count, 1)
        call()
        library._file.store.connection.set_progress_handler(None, 1)
        return counted[0]

    lookup = comparisons(lambda: library.recall(state))
    indexed = comparisons(lambda: library.items.find(signature=state.signature))
    scan = comparisons(lambda: library.items.find(signature=state.signature, status=None))
    assert scan >= 10_000
    assert 10 * lookup <= scan
    assert 10 * indexed <= scan
    (bound,) = library._file.derived.findings.bound.values()
    assert len(bound) <= TUNING.bound_items


def test_folded_steps_are_recalled_in_sum_but_for_the_best(library, episode):
    """systems.md §3: only the newest steps of an attempt, and its best, are recalled one by one."""
    library.record(episode("open drawer 0", reward=0.9))
    for number in range(1, WINDOW + 1):
        library.record(episode(f"open drawer {number}", reward=0.5 if number < 17 else 0.1))
    recollection = library.recall(DRAWER, k=20)
    assert actions(recollection)[0] == "open drawer 0"
    assert set(actions(recollection)[1:]) <= {f"open drawer {number}" for number in range(16, WINDOW + 1)}
    (summary,) = recollection.summaries
    assert (summary.n, summary.live) == (WINDOW + 1, 17)


def test_a_recollection_sums_up_the_situation(library, episode):
    """What was tried most, with its failures; nothing of other situations, nor for a text."""
    for verb, times in zip("abcdefghij", range(10, 0, -1), strict=True):
        library.record(episode(*[f"{verb} drawer"] * times, failure=Failure.NO_EFFECT))
    library.record(episode("wait", see="elsewhere"))
    summaries = library.recall(DRAWER).summaries
    assert [(one.pattern, one.n, one.failures) for one in summaries] == [
        (f"{verb} {{1}}", 10 - at, {"no_effect": 10 - at}) for at, verb in enumerate("abcdefgh")
    ]
    assert library.recall(State("You see a wooden drawer. It is stuck.", task="find the spoon")).summaries == ()
    assert library.recall(DRAWER.observation).summaries == ()


def test_what_has_few_votes_fills_no_place(library, episode):
    """Not even in its own situation: an empty place misleads nobody, and the summaries tell of all attempts."""
    for _ in range(10):
        library.record(episode("open drawer", reward=1.0))
    library.record(episode("kick drawer", reward=1.0))
    found = library.recall(DRAWER, k=3)
    assert actions(found) == ["open drawer"]
    assert {one.pattern for one in found.summaries} == {"open {1}", "kick {1}"}


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("xyz"), st.sampled_from([0.0, 0.1, 0.5, 1.0]))))
def test_all_steps_of_a_kind_are_recalled_where_there_is_room(tried):
    """All live and best steps of the situation whose kind has enough votes, no action twice."""
    with ExperienceLibrary.open(":memory:") as library:
        judged = Diagnosis(True)
        for verb, thing, reward in tried:
            library.record(Trajectory("t", (Step(DRAWER, f"{verb} {thing}", DRAWER, judged, reward),), True))
        rows = library._file.store.rows(
            "SELECT action FROM steps WHERE folded = 0 OR id IN (SELECT best FROM attempts) "
            "ORDER BY return_to_go DESC, id DESC"
        )
        best = list(dict.fromkeys(row[0] for row in rows))
        recalled = actions(library.recall(DRAWER, k=30))
        assert len(recalled) == len(set(recalled))
        kinds = {action.split()[0] for action in recalled}
        assert set(recalled) == {action for action in best if action.split()[0] in kinds}
        assert bool(recalled) == bool(best)


def test_items_of_a_place_are_recalled_there_and_next_door(library, episode):
    """systems.md §3: the location is the cell; its neighbours are where recorded steps led."""
    kitchen, yard = (State(f"{name}.", location=name) for name in ("kitchen", "yard"))
    judged = Diagnosis(True)
    library.record(Trajectory("t", (Step(kitchen, "go out", yard, judged),), True))
    for place in ("kitchen", "yard", "attic"):
        library.add(Item("insight", f"zzz {place} zzz", locations=(place,)))

    def found(location):
        state = State("qqq", task="rrr", location=location, signature=f"s {location}")
        return [(hit.what.locations[0], hit.why) for hit in library.recall(state).items]

    assert found("kitchen") == [("kitchen", "its own place"), ("yard", "a place that is near")]
    assert found("yard") == [("yard", "its own place")]
    assert found("cellar") == []


@pytest.mark.parametrize(("place", "filed"), [("", ("kitchen",)), ("hall", ())])
def test_where_there_is_no_place_none_is_asked(library, place, filed):
    """An environment without locations pays nothing for them, nor does a library whose items have none."""
    library.add(Item("insight", "zzz", locations=filed))
    queries: list[str] = []
    library._file.store.connection.set_trace_callback(queries.append)
    assert library.recall(replace(DRAWER, location=place)).items == ()
    assert queries
    assert not any("after.location" in query for query in queries)


def test_items_are_recalled_by_what_they_are_tagged_with(library):
    """systems.md §3: semantic tags: two that the state shows; one is not enough."""
    library.add(Item("insight", "zzz", tags=("wooden", "drawer")))
    library.add(Item("insight", "yyy", tags=("drawer", "velvet")))
    assert [(hit.what.title, hit.why) for hit in library.recall(DRAWER).items] == [("zzz", "its tags")]


def test_a_discredited_item_is_not_recalled(library):
    """systems.md §7.8: below the floor it falls out, however near; a pin keeps it."""
    for title, score in (("closed drawer one", 0.39), ("closed drawer two", RECALL_FLOOR)):
        library.add(Item("insight", title, score=score, signatures=(DRAWER.signature,)))
    assert items(library.recall(DRAWER)) == ["closed drawer two"]
    library.items.update(library.items.find(text="one")[0].id, pinned=True)
    assert set(items(library.recall(DRAWER))) == {"closed drawer two", "closed drawer one"}


def test_a_quarantined_item_is_neither_recalled_nor_enforced(library):
    """systems.md §7.2: until a person or evidence releases it."""
    here: dict[str, Any] = {"signatures": (DRAWER.signature,), "trust": "untrusted", "source": "environment"}
    hint = library.add(Item("insight", "a wooden drawer may be closed", **here))
    stop = library.add(
        Item("guardrail", "no", condition={"text": "closed"}, forbids="take {1}", confidence=0.9, **here)
    )
    assert not library.recall(DRAWER, actions={"take spoon": ""}, k=5).items
    assert library.check(DRAWER, "take spoon").allowed
    for admission in (hint, stop):
        library.items.release(admission.item_id, "looked at")
    assert library.recall(DRAWER).items
    assert not library.check(DRAWER, "take spoon").allowed


def test_the_same_words_are_not_recalled_twice(library):
    """Two kinds of item that say the same take one place; the better one speaks."""
    scores: dict[Kind, float] = {"insight": 0.6, "strategy": 0.8}
    for kind, score in scores.items():
        library.add(Item(kind, "a closed drawer sticks", score=score, signatures=(DRAWER.signature,)))
    library.add(Item("insight", "spoons are long", signatures=(DRAWER.signature,)))
    kinds = [(hit.what.kind, hit.what.title) for hit in library.recall(DRAWER, k=2).items]
    assert kinds == [("strategy", "a closed drawer sticks"), ("insight", "spoons are long")]


def test_only_the_kinds_asked_for(library):
    """Others do not take their places."""
    library.items.add_many([Item("insight", "a drawer closed"), Item("strategy", "a drawer closed")])
    recollection = library.recall(State("a drawer closed"), kinds=["strategy"])
    assert [hit.what.kind for hit in recollection.items] == ["strategy"]


def test_k_bounds_items_and_steps(library, episode):
    """At most k of each."""
    for number in range(4):
        library.record(episode(f"try {number}"))
        library.add(Item("insight", f"a wooden drawer may be closed {number}"))
    recollection = library.recall(DRAWER, k=2)
    assert (len(recollection.items), len(recollection.steps)) == (2, 2)


@pytest.mark.parametrize("budget", [0, 5, 8, 9, 16, 30, 100])
def test_a_token_budget_is_respected(library, episode, budget):
    """Exactly: the tokens reported are those of what is shown, and within the budget."""
    library.record(episode())
    library.items.add_many(Item("insight", f"a wooden drawer may be closed {'x' * n}") for n in (0, 9, 30))
    recollection = library.recall(DRAWER, budget_tokens=budget)
    shown = [estimate_tokens(hit.what.text) for hit in recollection.items]
    shown += [estimate_tokens(f"{hit.what.pre.observation} {hit.what.action}") for hit in recollection.steps]
    assert recollection.tokens == sum(shown) <= budget


def test_a_thing_too_long_makes_way_for_a_shorter_one():
    """The budget is filled, not cut off at the first that does not fit."""
    long, short = Hit(Item("insight", "x" * 400), 1.0, ""), Hit(Item("insight", "y" * 40), 0.5, "")
    assert within_budget([long, short], [], 50) == ((short,), (), 11)


def test_utility_ranks_equals(library):
    """Of two items equally near, the one that helped is first."""
    for title, score in (("drawer closed a", 0.45), ("drawer closed b", 0.9), ("drawer closed c", 0.5)):
        library.add(Item("insight", title, score=score, signatures=(DRAWER.signature,)))
    assert items(library.recall(DRAWER)) == ["drawer closed b", "drawer closed c", "drawer closed a"]


def test_a_retired_item_is_never_recalled(library):
    """Neither by search nor where it was bound."""
    ref = library.add(Item("insight", "a wooden drawer may be closed", signatures=(DRAWER.signature,))).item_id
    assert library.recall(DRAWER).items
    library.items.retire(ref, "wrong")
    assert not library.recall(DRAWER)
    assert not library.search("a wooden drawer may be closed")


def test_a_guardrail_is_active_where_its_condition_holds(library):
    """And where an action there is of its pattern."""
    library.add(Item("guardrail", "no", condition={"text": "closed"}, forbids="take {1}", confidence=0.9))
    assert library.recall(DRAWER, k=0, actions={"take spoon": "", "wait": ""}).guardrails
    assert not library.recall(DRAWER, k=0, actions={"wait": ""}).guardrails
    assert not library.recall(State("It is open."), k=0, actions={"take spoon": ""}).guardrails


@pytest.mark.parametrize(
    ("see", "offered"), [("The drawer to open is closed.", True), ("The drawer to open is shut.", False)]
)
def test_a_skill_is_offered_where_its_precondition_holds(library, see, offered):
    """However near its words are."""
    library.add(Item("skill", "open the drawer", "grip, then pull", condition={"text": "closed"}))
    assert bool(library.recall(State(see, task="open the drawer")).items) is offered


def test_a_warning_is_offered_where_it_speaks_of_an_action(library):
    """Its pattern and its condition are asked of the admissible actions, where those are known."""
    library.add(Item("warning", "take the spoon", condition={"text": "closed"}, forbids="take {1}"))
    here = State("take the spoon: closed")
    assert library.recall(here).items
    assert library.recall(here, actions={"take spoon": ""}).items
    assert not library.recall(here, actions={"wait": ""}).items
    assert not library.recall(State("take the spoon: open"), actions={"take spoon": ""}).items


def test_estimates_are_given_for_the_actions(library, episode):
    """And for those only; without other things when k is 0."""
    library.record(episode("open drawer", reward=0.8, library=library))
    recollection = library.recall(DRAWER, k=0, actions={"open drawer": "", "wait": ""})
    assert recollection.estimates["open drawer"].value == pytest.approx(0.8)
    assert set(recollection.estimates) == {"open drawer", "wait"}
    assert recollection.items == recollection.steps == ()


def test_steps_of_an_excluded_episode_are_not_recalled(library, episode):
    """What the environment broke says nothing of the actions."""
    library.record(episode("open drawer", success=None))
    assert actions(library.recall(DRAWER)) == actions(library.recall("wooden drawer closed")) == []


def test_steps_without_an_action_are_not_recalled(library):
    """The policy failed there: nothing was done."""
    judged = Diagnosis(False, Failure.POLICY_ERROR)
    library.record(Trajectory("find the spoon", (Step(DRAWER, "", DRAWER, judged),), False))
    assert not library.recall(DRAWER).steps


def test_by_task_whole_episodes_are_recalled(library, episode):
    """The most similar task's steps, in their order, and estimates from these alone."""
    library.record(episode("open drawer", "take spoon", library=library))
    recollection = library.recall(DRAWER, level="task", actions={"open drawer": ""})
    assert actions(recollection) == ["open drawer", "take spoon"]
    assert recollection.path == "task"
    assert recollection.estimates["open drawer"].n == 1


def test_by_task_the_library_is_asked_once(library, episode, monkeypatch):
    """What was chosen for the task is kept until something new is written."""
    library.record(episode())
    first = library.recall(DRAWER, level="task")
    monkeypatch.setattr("hardwon.memory.retrieval.task_recall._similar_episodes", None)
    assert library.recall(replace(DRAWER, observation="elsewhere"), level="task").steps == first.steps


def seen(*pairs, task, name, reward=1.0):
    """An episode of (observation, action) pairs in a task."""
    states = [State(see, task=task) for see, _ in pairs]
    steps = [
        Step(state, action, state, Diagnosis(True), reward * (t == len(pairs) - 1), t)
        for t, (state, (_, action)) in enumerate(zip(states, pairs, strict=True))
    ]
    return Trajectory(task, tuple(steps), reward > 0, id=name)


def test_of_a_known_situation_the_nearest_task_comes_first(library):
    """The same sight, and another thing to do: the words of the task decide, also against a majority."""
    for number in range(3):
        library.record(seen((DRAWER.observation, "close it"), task="hide the red fork", name=f"f{number}"))
    library.record(seen((DRAWER.observation, "open it"), task="find the silver spoon", name="s"))
    assert actions(library.recall(replace(DRAWER, task="find a spoon"), k=1)) == ["open it"]
    assert actions(library.recall(replace(DRAWER, task="hide a fork"), k=1)) == ["close it"]


def test_of_a_known_situation_what_came_before_counts(library):
    """Two ways lead to the same sight; a policy that says where it comes from gets what followed there."""
    here = DRAWER.observation
    library.record(seen(("A hall.", "enter"), (here, "open it"), task="t", name="a"))
    library.record(seen(("A barn.", "climb"), (here, "close it"), task="t", name="b"))
    assert actions(library.recall(DRAWER, k=1, after="enter")) == ["open it"]
    assert actions(library.recall(DRAWER, k=1, after="climb")) == ["close it"]


def test_many_poor_steps_do_not_outvote_a_good_one(library, episode):
    """Of one situation the returns can be compared."""
    for _ in range(20):
        library.record(episode("kick drawer", reward=0.1))
    library.record(episode("open drawer", reward=1.0))
    assert actions(library.recall(DRAWER, k=1)) == ["open drawer"]


def test_of_a_new_situation_the_task_counts(library):
    """Two sights equally near, in two tasks."""
    library.record(seen(("A wooden drawer, a red lamp.", "light the lamp"), task="read the old book", name="a"))
    library.record(seen(("A wooden drawer, a red sofa.", "sleep well"), task="rest after dinner", name="b"))
    here = State("A wooden drawer, a red vase.", task="read a book")
    assert actions(library.recall(here, k=1)) == ["light the lamp"]
    assert actions(library.recall(replace(here, task="rest a while"), k=1)) == ["sleep well"]


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_task_without_a_sight_is_searched_for_as_the_same_words_in_a_sight_are(library, blank):
    for number, thing in enumerate(("lamp", "drawer", "teapot")):
        library.record(
            seen((f"A room with a {thing}.", f"polish {thing}"), task=f"clean the {thing}", name=f"n{number}")
        )
    for words in ("where is the teapot?", "clean the teapot"):
        by_task = actions(library.recall(State(blank, task=words), k=3))
        assert by_task[0] == "polish teapot"
        assert by_task == actions(library.recall(State(words), k=3))
    assert actions(library.recall(State(blank, task="sail to Iceland"), k=3)) == []


def test_search_fills_the_places_that_a_known_situation_leaves_empty(library):
    """Up to k, with the same kind of action in situations that are near; the recollection says how many."""
    library.record(seen((DRAWER.observation, "open drawer"), task="t", name="a"))
    for number, word in enumerate(("oak", "iron", "green")):
        see = f"You see a {word} drawer. It is closed."
        library.record(seen((see, f"open {word} drawer"), task="t", name=f"n{number}"))
    recollection = library.recall(DRAWER, k=3)
    assert (len(recollection.steps), recollection.filled) == (3, 2)
    assert [hit.similarity == 1.0 for hit in recollection.steps] == [True, False, False]
    assert library.recall(DRAWER, k=1).filled == 0


def test_a_place_stays_empty_rather_than_be_filled_with_what_little_supports(library):
    """One near step of another kind against many of the known situation."""
    for number in range(8):
        library.record(seen((DRAWER.observation, "open drawer"), task="t", name=f"a{number}"))
    library.record(seen(("You see a wooden drawer. It is burning.", "flee"), task="t", name="b"))
    assert actions(library.recall(DRAWER, k=3)) == ["open drawer"]


def test_a_question_finds_what_its_words_name(library, episode):
    """As `search` does, in another number of the word; its cosine to the text is too small to find it."""
    library.add(Item("insight", "Spoons lie in drawers"))
    library.record(episode("open drawer", see="A long hall with doors, lamps and two potatoes on a shelf."))
    assert items(library.recall("where is a spoon?")) == ["Spoons lie in drawers"]
    assert actions(library.recall("who saw a potato?")) == ["open drawer"]
    assert not library.recall("who wrote the quarterly report?")


@pytest.mark.parametrize(
    ("title", "question"),
    [("Löffel liegen in Schubladen", "wo liegen Löffel?"), ("ложки лежат в ящике", "где ложки?")],
)
def test_a_question_in_another_language_finds_its_words(library, title, question):
    """Stems are English; other words are found as they are written."""
    library.add(Item("insight", title))
    assert items(library.recall(question)) == [title]


def test_by_task_the_nearest_task_is_found_by_stems_and_rare_words(library):
    """Not by the share of common words: BM25 with stems, and the meaning."""
    for number in range(6):
        library.record(
            seen(("x", f"a{number}"), task=f"please put the thing in the room number {number}", name=f"c{number}")
        )
    library.record(seen(("x", "boil"), task="potatoes must be boiled", name="p"))
    found = library.recall(State("", task="please put a boiled potato in the room"), level="task", k=1)
    assert actions(found) == ["boil"]


def test_by_task_what_followed_the_same_action_comes_first(library):
    """Of whole episodes a policy needs the part where it stands."""
    library.record(seen(("x", "wake"), ("y", "eat soup"), ("z", "leave"), task="dine", name="a"))
    state = State("", task="dine")
    assert actions(library.recall(state, level="task", k=1)) == ["wake"]
    assert actions(library.recall(state, level="task", k=1, after="eat bread")) == ["leave"]
    assert actions(library.recall(state, level="task", k=1, after="")) == ["wake"]


def test_by_task_more_tasks_are_read_where_those_of_another_world_are_nearer(library, episode, monkeypatch):
    """The nearest tasks may all be of the other world, whose episodes are left out."""
    for number in range(2 * TUNING.task_episodes):
        library.record(seen(("x", f"boil {number}"), task=f"boil the red potato {number}", name=f"c{number}"))
    library.record(replace(episode("sweep", task="sweep the hall"), meta={"environment": "house"}, id="h"))
    ((house,),) = library._file.filed().rows("SELECT world FROM episode_worlds WHERE trajectory_id = 'h'")
    monkeypatch.setattr(Worlds, "locate", lambda *_: (None, frozenset({house})))
    assert actions(library.recall(State("", task="boil a red potato"), level="task")) == ["sweep"]


def test_by_task_the_better_of_equal_episodes_come_first(library, episode):
    """And excluded ones not at all."""
    for action, reward in (("a", 0.1), ("b", 0.9), ("c", 0.5)):
        library.record(episode(action, reward=reward))
    library.record(episode("d", reward=9.0, success=None))
    assert actions(library.recall(DRAWER, level="task")) == ["b", "c", "a"]


def test_what_untrusted_writers_did_as_well_is_said_once(library, episode):
    """The trusted step tells it already; the form of another action fills a free place."""
    library.record(episode("open drawer", library=library))
    for number in range(6):
        for action in ("open drawer", "shake drawer"):
            library.record(episode(action, library=library, trust="untrusted", writer=f"writer {number}"))
    assert actions(library.recall(episode().steps[0].pre, k=5)) == ["open drawer", "shake"]


def test_what_was_seen_twice_answers_a_question_once(library, episode):
    """As long as there is anything else; then it fills the places that are left."""
    for number in range(6):
        library.record(episode(see="The old drawer is open.", task=f"task {number}"))
    library.record(episode(see="The old drawer in the very long and narrow hall is closed."))
    for hits in (library.recall("old drawers?", k=3).steps, library.search("old drawers?", 3)):
        seen = [hit.what.pre.observation for hit in hits]
        assert len(seen) == 3
        assert len(set(seen)) == 2


@pytest.mark.parametrize("actions", [["open door"], ("open door",), "open door", {"open door"}])
def test_actions_that_are_no_dict_are_named_with_the_form(actions):
    with ExperienceLibrary.open(":memory:") as library, pytest.raises(WrongType, match=r"actions is .*'open door': ''"):
        library.recall(State("A door."), actions=actions)


@pytest.mark.parametrize("place", ["text", "observation", "task", "feedback", "notes"])
def test_the_end_of_a_huge_query_costs_nothing(library, monkeypatch, place):
    """One caller must not hold up the others."""
    library.add(Item("insight", "a wooden drawer may be closed"))
    huge, seen = "a wooden drawer " + "抽屉" * 100_000, []

    def read(text):
        seen.append(len(text))
        return content_words(text)

    for module in ("candidates", "text_index", "ranking"):
        monkeypatch.setattr(f"hardwon.memory.retrieval.{module}.content_words", read)
    fields: dict[str, Any] = {place: (huge, "b") if place == "notes" else huge}
    recollection = library.recall(huge if place == "text" else replace(State("a wooden drawer"), **fields))
    assert items(recollection) == ["a wooden drawer may be closed"]
    assert seen
    assert max(seen) < 4 * LONGEST_QUERY


def test_a_known_situation_is_found_however_long_it_is(library, episode):
    long = State("You see a wooden drawer. " * 2000 + "It is closed.", task="find the spoon")
    made = episode("open drawer")
    library.record(replace(made, steps=tuple(replace(step, pre=long) for step in made.steps)))
    assert library.recall(long, k=1).path == "cluster"
    other = State("You see a wooden drawer. " * 2000 + "It is open.", task="find the spoon")
    assert library.recall(other, k=1).path == "hybrid"
