from collections import defaultdict
from dataclasses import replace
from unittest.mock import Mock

import pytest

from hardwon.memory import Diagnosis, Item, Reasons, State, Step, Trajectory
from hardwon.memory.retrieval.candidates import Candidates
from hardwon.memory.retrieval.ranking import (
    BestSteps,
    TakenStep,
    find_best_steps,
    kind_of,
    order_by_votes,
    weigh_subject,
)

WALL = "A brick wall with a painted %s on it, and moss."
HERE = State(WALL % "boat")


def did(*pairs, reward=1.0, name=""):
    """An episode of (word in the state, action) pairs; the reward comes at the end."""
    states = [State(WALL % word) for word, _ in pairs]
    steps = [
        Step(state, action, state, Diagnosis(True), reward * (t == len(pairs) - 1), t)
        for t, (state, (_, action)) in enumerate(zip(states, pairs, strict=True))
    ]
    return Trajectory("walls", tuple(steps), reward > 0, id=name)


def actions(library, **options):
    """What was done in the states recalled."""
    return [hit.what.action for hit in library.recall(HERE, **options).steps]


@pytest.fixture
def found():
    """Three states as search gives them, all equally near."""
    return [(ref, 0.5, "words") for ref in (1, 2, 3)]


@pytest.fixture
def store(library):
    """States 1 to 3: one climbed, two dug at, the second of them without reward."""
    library.record(did(("ship", "climb up")))
    library.record(did(("house", "dig here")))
    library.record(did(("tree", "dig there"), reward=0.0))
    return library._file.store


def order_by_support(store, hits, where, after, known=None):
    """The states in which a step was taken, as recall orders those that search found."""
    done = find_best_steps(store, [ref for ref, _, _ in hits], where, after is not None, {} if known is None else known)
    candidates = sorted(state for state in hits if state[0] in done)
    order = order_by_votes([done[ref] for ref, _, _ in candidates], [state[1] for state in candidates], after, "")
    return [candidates[at] for at in order]


def refs(store, found, after=None):
    """The states in their new order."""
    return [ref for ref, _, _ in order_by_support(store, found, "1", after)]


THINGS = ("toothpaste", "shampoo", "comb", "razor", "soap", "perfume", "lotion", "sponge", "lipstick", "bathrobe")


def test_the_kind_of_action_that_most_took_comes_first(library):
    """Two that are near outvote one that is a little nearer, but not one that is much nearer."""
    for word, action in (("ship", "climb up"), ("house", "dig left"), ("tree", "dig right")):
        library.record(did((word, action)))
    near = [(1, 0.55, ""), (2, 0.5, ""), (3, 0.5, "")]
    assert refs(library._file.store, near) == [2, 3, 1]
    assert refs(library._file.store, [(1, 0.6, ""), *near[1:]]) == [1, 2, 3]


def test_the_nearest_of_a_kind_comes_first(store):
    found = [(1, 0.2, ""), (2, 0.5, ""), (3, 0.9, "")]
    assert refs(store, found) == [3, 2, 1]


def test_what_brought_nothing_counts_for_less(store, found):
    """A dig with and one without reward weigh more than a climb; without the first, the climb wins."""
    assert refs(store, found) == [2, 3, 1]
    assert refs(store, [one for one in found if one[0] != 2]) == [1, 3]


def test_states_after_the_same_kind_of_action_count_for_more(library):
    library.record(did(("cat", "knock once"), ("hall", "enter")))
    library.record(did(("dog", "wait"), ("ball", "leave")))
    assert actions(library, after="knock twice")[0] == "enter"
    assert actions(library, after="wait")[0] == "leave"


def test_a_beginning_is_told_from_not_knowing(library):
    """Only "" says that the episode begins."""
    library.record(did(("cat", "knock"), ("dog", "enter"), ("cow", "leave")))
    assert actions(library, after="")[0] == "knock"


def test_a_state_in_which_nothing_counts_is_left_out(store, found):
    assert [ref for ref, _, _ in order_by_support(store, [*found, (99, 0.9, "")], "action != 'climb up'", None)] == [
        2,
        3,
    ]


def test_what_was_done_is_read_once_while_nothing_is_written(store, found):
    known: BestSteps = {}
    first = order_by_support(store, found, "1", None, known)
    assert order_by_support(store, found, "0", None, known) == first


def test_whether_what_came_before_counts_is_remembered_apart(store, found):
    known: BestSteps = {}
    order_by_support(store, found, "1", None, known)
    assert order_by_support(store, found, "0", "dig", known) == []


def test_what_is_done_later_counts_at_once(library):
    """What is remembered of a state goes with the next write."""
    library.record(did(("ship", "climb up"), reward=0.5))
    assert actions(library) == ["climb up"]
    library.record(did(("ship", "dig here")))
    assert actions(library) == ["dig here"]


def test_the_best_step_of_a_state_takes_one_lookup(library):
    """A state such as the first of every run has thousands of steps; of equally good ones, the oldest is the best."""

    def measure(count):
        rewards = (0.5, 1.0, 1.0, *[0.25] * count)
        library.record_many([did(("ship", f"dig {at}"), reward=reward) for at, reward in enumerate(rewards)])
        store, ticks = library._file.filed(), []
        store.connection.set_progress_handler(lambda: ticks.append(1), 10)  # every ten instructions of SQLite
        best = find_best_steps(store, [1], "1", True, {})
        store.connection.set_progress_handler(None, 0)
        return best[1].action, len(ticks)

    (action, few), (same, many) = measure(3), measure(300)
    assert action == same == "dig 1"
    assert many < 2 * few


def test_states_remembered_are_bounded(store, found, monkeypatch):
    monkeypatch.setattr("hardwon.memory.retrieval.ranking.KNOWN", 2)
    known: BestSteps = {}
    for after in (None, "dig", None):
        assert [ref for ref, _, _ in order_by_support(store, found, "1", after, known)] == refs(store, found, after)
        assert len(known) == len(found)


def test_ties_go_by_id(library):
    for word, action in (("cat", "climb"), ("dog", "dig"), ("cow", "eat")):
        library.record(did((word, action)))
    found = [(ref, 0.5, "") for ref in (3, 1, 2)]
    assert refs(library._file.store, found) == [1, 2, 3]


@pytest.mark.parametrize(
    ("action", "kind"),
    [('search(city="Rome")', "search"), ("open drawer 3", "open"), ("look", "look"), ("", "")],
)
def test_the_kind_of_an_action(action, kind):
    """The tool of a call, the verb of a sentence."""
    assert kind_of(action) == kind


def request(task, tool, number):
    """An episode whose only state says nothing about the task."""
    before, after = State("The next request.", task=task), State("done", task=task)
    return Trajectory(
        task, (Step(before, f"{tool}(n={number})", after, Diagnosis(True), 1.0),), True, meta={"environment": "desk"}
    )


def test_in_a_vague_situation_the_tasks_decide(library):
    """Twenty tools were called here; the one of a similar task comes first, though it was called once and long ago."""
    library.record(request("print the budget report on paper", "printer", 0))
    verbs = ("open", "close", "rename", "copy", "send", "print")
    library.record_many(
        request(f"{verb} the letter {n} on paper", f"tool_{chr(97 + tool)}", n)
        for n, verb in enumerate(verbs)
        for tool in range(20)
    )
    asked = State("The next request.", task="print the travel report on paper")
    assert library.recall(asked, k=5).steps[0].what.action == "printer(n=0)"


def order(*actions):
    """The actions of one kind, taken in states of falling similarity, in the order in which they are recalled."""
    done = [TakenStep("go", "", 1.0, action=action) for action in actions]
    return [actions[at] for at in order_by_votes(done, [0.5 - at / 1000 for at in range(len(done))], None, "")]


def test_among_actions_of_one_kind_the_places_are_shared_by_support():
    """What three similar states did says more than what the single nearest one did."""
    assert order("go to bed", "go to shelf", "go to shelf", "go to shelf")[:2] == ["go to shelf", "go to shelf"]
    # one state more earns the first place, not all of them
    many = order("go to bed", "go to desk", "go to shelf", "go to shelf", "go to shelf", "go to shelf")
    assert many[:3] == ["go to shelf", "go to shelf", "go to shelf"]
    assert order("go to bed", "go to shelf", "go to shelf")[:2] == ["go to shelf", "go to bed"]
    assert order("go to bed", "go to desk", "go to shelf") == ["go to bed", "go to desk", "go to shelf"]


WEIGHTS = {"toothpaste": 2.0, "shampoo": 2.0, "cabinet": 0.5, "room": 0.0, "rewarded": 0.0}


def rate(statement, *in_view):
    return weigh_subject(statement, defaultdict(lambda: 1.0, WEIGHTS)).rate(frozenset(in_view))


def test_a_statement_fits_where_its_rare_words_are_shown():
    """Worked example: 2.5 of 2.5 + 1, and 0.5 of 2.5 + 1."""
    view = ("toothpaste", "cabinet", "room")
    assert rate("toothpaste in cabinet: rewarded", *view) == pytest.approx(2.5 / 3.5)
    assert rate("shampoo in cabinet: rewarded", *view) == pytest.approx(0.5 / 3.5)
    assert rate("the cabinet", *view) == pytest.approx(0.5 / 1.5)
    assert rate("a room", *view) == 0.0


def test_a_statement_without_words_fits_nowhere():
    assert rate("", "door") == 0.0
    assert rate("of the", "door") == 0.0
    assert rate("toothpaste") == 0.0


def test_the_order_of_words_changes_no_fit():
    """Sets of words have another order in each process: ten times 0.1 is 1 only if the sum is exact."""
    subject = weigh_subject(" ".join(THINGS), defaultdict(lambda: 0.1))
    assert subject.total == 1.0
    assert subject.rate(frozenset(THINGS)) == 0.5


def test_one_shared_word_is_not_the_subject(library, episode):
    """A lesson about things that were never met does not fit because of one common request."""
    for request in ("book a flight to Rome", "cancel my booking", "change my seat", "ask for the manager"):
        library.record(episode("answer", see=request))
    lessons = (
        "refunds above 100 euros need the approval of a manager", "a passport is needed for flights to Chile",
        "invoices go to the address in the contract", "upgrades are free for gold members",
    )  # fmt: skip
    library.items.add_many(Item("insight", lesson) for lesson in lessons)
    first, *_ = library.recall(State("Need a manager's approval of refunds")).items
    assert first.what.title.startswith("refunds")
    assert first.similarity > 0.4
    others = library.recall(State("Is the manager of the hotel in?")).items
    assert all(hit.similarity < 0.55 for hit in others)


@pytest.mark.parametrize("location", ["bathroom", ""])
@pytest.mark.parametrize("facts", [{}, {"door": "closed"}])
def test_of_many_items_those_about_the_things_in_view_come_first(library, episode, location, facts):
    """Words that all states share outnumber the one that tells them apart, and equal facts are an equal signature."""
    room = (
        "You are in the bathroom. There is a closed cabinet, a sink, a towel rack, a bath tub, a trash can and a mat."
    )
    for thing in THINGS:
        library.record(episode(f"take {thing}", see=f"{room} You see a {thing}."))
        library.add(Item("insight", f"put {thing} in cabinet: rewarded", locations=tuple({location} - {""})))
    for thing in THINGS:
        seen = f"{room}\nInventory:\n  a {thing}"
        state = State(seen, facts=facts, location=location, task="tidy up and put things away")
        first, *_ = library.recall(state, k=3).items
        assert thing in first.what.title


@pytest.mark.parametrize("met", [True, False])
def test_the_subject_is_recognized_in_a_long_answer_of_a_tool(library, episode, met):
    """Hundreds of new names and ids do not displace it, whether an episode showed it or not."""
    for order in range(9):
        library.record(episode("look", see=f"The order has a {'voucher' if met and not order else 'box'} in it."))
    library.add(Item("insight", "a voucher cannot be refunded"))
    library.items.add_many(Item("insight", f"a {thing} can be returned") for thing in THINGS)
    names = " ".join(f"a{letter}{other}name id{letter}{other}7" for letter in "abcdefgh" for other in "abcdefgh")
    first, *_ = library.recall(State(f"{{{names}}} The order has a voucher in it.")).items
    assert first.what.title == "a voucher cannot be refunded"


def test_another_game_and_crafted_steps_displace_no_subject(library, episode):
    """Episodes of another game change the counts of words, and those of untrusted writers change nothing."""
    room = "You are in the bathroom. There is a closed cabinet, a sink, a towel rack."
    for thing in THINGS:
        library.record(episode(f"take {thing}", see=f"{room} You see a {thing}."))
        library.add(Item("insight", f"put {thing} in cabinet: rewarded"))

    def list_first():
        states = [State(f"{room}\nInventory:\n  a {thing}") for thing in THINGS]
        return [library.recall(state).items[0] for state in states]

    library.record_many(
        replace(
            episode(f"attack orc {number}", see=f"A dungeon {number} with an orc."), meta={"environment": "dungeon"}
        )
        for number in range(200)
    )
    before = list_first()
    assert all(thing in hit.what.title for thing, hit in zip(THINGS, before, strict=True))
    crafted = episode("burn soap", see=f"{room} {' '.join(THINGS)}: put soap in sink")
    library.record_many(
        replace(crafted, id=f"crafted {number}", writer=f"mallory {number}", trust="untrusted") for number in range(40)
    )
    assert list_first() == before


def test_other_numbers_are_no_other_words(library, episode, monkeypatch):
    """A counter in the observation must not cause a search at every step."""
    library.record(episode("open the door", see="A closed door. Step 1 of 50."))
    library.add(Item("insight", "open the closed door: rewarded"))
    find = Mock(side_effect=Candidates._find_items)
    monkeypatch.setattr(Candidates, "_find_items", lambda self, query: find(self, query))
    for step in range(1, 5):
        (hit,) = library.recall(State(f"A closed door. Step {step} of 50.")).items
        assert hit.what.title == "open the closed door: rewarded"
    assert find.call_count == 1


def test_the_words_of_a_subject_are_weighed_again_after_new_episodes(library, episode):
    """The rarer of two things that a state shows decides, and which one is rarer changes."""
    library.items.add_many(Item("insight", lesson) for lesson in ("dust the lamp first", "dust the vase first"))

    def recall_first(observation):
        return library.recall(State(observation)).items[0].what.title

    for _ in range(3):
        library.record(episode("look", see="a lamp"))
    assert recall_first("A lamp stands beside a vase.") == "dust the vase first"
    for _ in range(9):
        library.record(episode("look", see="a vase"))
    assert recall_first("A lamp stands near a vase.") == "dust the lamp first"


@pytest.mark.parametrize("own", [None, 2], ids=["elsewhere", "here"])
def test_a_tool_that_a_result_named_comes_after_what_the_agent_chose(own):
    """However often it was obeyed; without a choice that worked, nothing stands before it."""

    def first(chosen):
        told = [TakenStep("wire", "", 1.0, action="wire(x=1)", is_told=True)] * 6
        steps = [chosen, *told]
        return steps[order_by_votes(steps, [0.9] * len(steps), None, "", own=own)[0]].kind

    assert first(TakenStep("refund", "", 1.0)) == "refund"
    assert first(TakenStep("refund", "", 1.0, failed=True)) == "wire"


@pytest.mark.parametrize("poisoned", [2, 20])
def test_an_obeyed_result_is_not_the_first_advice(library, poisoned):
    """The agent read that it should call a tool, did so, and reported success."""
    read = State("mail read", task="answer the mail")

    def call(tool, n, **why):
        step = Step(read, f"{tool}(to={n})", State("done"), Diagnosis(True), 1.0, why=Reasons.of(why))
        return Trajectory("answer the mail", (step,), True, id=f"{tool}{n}")

    library.record_many(call("reply_mail", n) for n in range(3))
    library.record_many(call("wire_credit", n, copied=["wire_credit"]) for n in range(poisoned))
    assert library.recall(read, k=5).steps[0].what.action.startswith("reply_mail")


@pytest.mark.parametrize(("others", "first"), [(3, "wire"), (20, "refund")])
def test_one_state_in_the_same_words_does_not_outvote_many_similar_ones(others, first):
    """One wrong success would otherwise speak for all requests with its customer's name."""
    steps = [
        TakenStep("wire", "", 1.0, "the order of Mia"),
        *[TakenStep("refund", "", 1.0, "the order of Ann")] * others,
    ]
    order = order_by_votes(steps, [1.0] + [0.7] * others, None, "the order of Mia", own=1)
    assert steps[order[0]].kind == first
