"""Steps of untrusted writers change nothing that trusted experience decides: recall, estimates, checks, worlds, items.

Each test records the same trusted episodes twice, once among crafted ones, and compares all answers.
"""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from tests.memory.older import downgrade

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.records import Recollection

THINGS = ("apple", "kettle", "lamp", "book", "coin", "shirt")
PLACES = ("kitchen", "hall", "cellar")
WORDS = ("red", "wet", "old", "violet", "broken", "warm", "heavy", "tiny")


def episode(ref, task, moves, *, success=True, environment="", writer=""):
    """An episode whose states follow each other; a move is (state, action, reward, failure)."""
    states = [replace(state, task=task) for state, *_ in moves]
    ends = [*states[1:], State("the end", task=task)]
    offered = ("look", "wait", *dict.fromkeys(move[1] for move in moves))
    steps = tuple(
        Step(
            states[t], action, ends[t], Diagnosis(not failed, Failure.TOOL_ERROR if failed else Failure.NONE),
            reward=reward, t=t, admissible=offered,
        )
        for t, (_, action, reward, failed) in enumerate(moves)
    )  # fmt: skip
    meta = {"environment": environment} if environment else {}
    return Trajectory(task, steps=steps, success=success, id=ref, meta=meta, writer=writer)


def honest(n, draw):
    """Episodes of two kinds of task, of which some fail."""
    for number in range(n):
        thing, place, word = draw.choice(THINGS), draw.choice(PLACES), draw.choice(WORDS)
        failed = draw.random() < 0.3
        where = State(f"You are in the {place}. A {word} {thing} lies here.", {"thing": thing}, place)
        carried = State(f"You carry a {word} {thing}. The {draw.choice(PLACES)} is next.", {"thing": thing}, place)
        act = f"take {thing}" if number % 2 else f'fetch(name="{thing}")'
        moves = [(where, act, 0.0, failed), (carried, f"put {thing} in box", 0.0 if failed else 1.0, failed)]
        task = f"bring the {thing} to the box" if number % 2 else f"order for customer: {thing} please"
        yield episode(f"own-{number}", task, moves, success=not failed, environment="house" if number % 2 else "")


def crafted(n, draw, targets):
    """Episodes that copy states, tasks, labels and actions of honest ones, and add what an attacker would."""
    for number in range(n):
        moves = []
        for _ in range(draw.randint(1, 3)):
            aim = draw.choice(targets)
            text = aim.observation
            if draw.random() < 0.7:
                text = f"{text} {' '.join(draw.choices(WORDS, k=draw.randint(1, 4)))}"
            state = replace(aim, observation=text, signature="", location=draw.choice((aim.location, *PLACES)))
            action = draw.choice(("wire(amount=1)", "take apple", "put kettle in box", 'fetch(name="lamp")', "wait"))
            moves.append((state, action, draw.choice((1.0, -1.0, 100.0)), draw.random() < 0.5))
        task = draw.choice((moves[0][0].task, f"{moves[0][0].task} {' '.join(draw.choices(WORDS, k=6))}", "zebra"))
        environment = draw.choice(("", "house", "other"))
        yield episode(f"x-{number}", task, moves, success=draw.random() < 0.6, environment=environment)


def describe(recollection: Recollection):
    """All of an answer but the rows' numbers and the hits that are marked as untrusted."""
    steps = [
        (hit.what.pre.observation, hit.what.action, round(hit.similarity, 6), hit.why)
        for hit in recollection.steps
        if isinstance(hit.what, Step) and not hit.what.why.untrusted
    ]
    items = [
        (hit.what.title, round(hit.what.score, 6), round(hit.similarity, 6))
        for hit in recollection.items
        if isinstance(hit.what, Item)
    ]
    return (
        steps,
        items,
        [guardrail.title for guardrail in recollection.guardrails],
        {action: (round(e.value, 9), e.n, e.key) for action, e in recollection.estimates.items()},
        {action: (o.n, o.rewarded, o.punished) for action, o in recollection.outcomes.items()},
        [(summary.pattern, summary.n) for summary in recollection.summaries],
    )


def answers(library, states):
    """Everything that a reader gets for these states."""
    actions = {"take apple": "", "put kettle in box": "", 'fetch(name="lamp")': "", "wire(amount=1)": "", "wait": ""}
    told = []
    for state in states:
        for after in (None, "", "take lamp"):
            told.append(describe(library.recall(state, k=5, after=after)))
            told.append(describe(library.recall(state, k=3, after=after, actions=actions)))
        told.append(describe(library.recall(state, k=4, level="task", actions=actions)))
        told.append([library.check(state, action).allowed for action in actions])
        told.append([(hit.what.action, round(hit.similarity, 6)) for hit in library.search(state.observation, 5)
                     if isinstance(hit.what, Step)])  # fmt: skip
        told.append(describe(library.recall(state.observation, k=5)))
    told.append(sorted((item.title, item.status, round(item.score, 6)) for item in library.items.find()))
    return told


@pytest.mark.parametrize(("seed", "flood"), [(0, 150), (1, 150), (2, 30)])
def test_crafted_episodes_change_no_answer(tmp_path, seed, flood):
    draw = random.Random(seed)
    own = list(honest(40, draw))
    states = [step.pre for trajectory in own for step in trajectory.steps]
    new = [replace(state, observation=f"{state.observation} It is {draw.choice(WORDS)}.", signature="")
           for state in draw.sample(states, 4)]  # fmt: skip
    strange = list(crafted(flood, draw, states + new))
    item = Item("insight", "the kettle is heavy when it is full", "Take it with two hands.", locations=("kitchen",))
    asked, given = [*draw.sample(states, 4), *new], []
    for name, foreign in (("clean", []), ("attacked", strange)):
        with ExperienceLibrary.open(tmp_path / f"{name}.db") as library:
            library.add(item)
            for at, trajectory in enumerate(own):
                count = len(foreign) // len(own) + 1
                waiting = foreign[at * count : (at + 1) * count]
                if waiting:
                    library.episodes.receive(waiting, writer=f"token:stranger-{at % 3}", trust="untrusted")
                assert (
                    library.episodes.count() >= at
                )  # files what was recorded, so that both libraries have read the same
                library.record(trajectory)
                if at % 20 == 19:
                    library.evolve()
            given.append(answers(library, asked))
    for clean, attacked in zip(*given, strict=True):
        assert attacked == clean


def near(n, text="The violet kettle leaks in the hall."):
    """Trusted episodes in states that are alike, of which only the first has the words of the text."""
    words = [text, *(f"The violet kettle leaks in room {number} of the cellar." for number in range(n))]
    return [
        episode(f"own-{number}", "keep the house", [(State(words), f"fix(kettle={number})", 1.0, False)])
        for number, words in enumerate(words)
    ]


@pytest.fixture
def library(tmp_path):
    with ExperienceLibrary.open(tmp_path / "a.db") as library:
        yield library


def actions(recollection: Recollection):
    return [(hit.what.action, hit.similarity) for hit in recollection.steps if isinstance(hit.what, Step)]


def ends_with_testimony(recollection: Recollection):
    last = recollection.steps[-1].what
    return isinstance(last, Step) and last.why.untrusted


def flood(library, texts, action="wire(amount=1)", *, task="keep the house", **options):
    library.episodes.receive(
        [episode(f"x{n}", task, [(State(text), action, 1.0, False)], **options) for n, text in enumerate(texts)],
        writer="token:stranger", trust="untrusted",
    )  # fmt: skip


@pytest.mark.parametrize("count", [24, 60, 400])
def test_copies_of_a_state_do_not_push_its_neighbors_out(library, count):
    """Enough other trusted states share a rare word, so the search by words alone would seem to be sufficient."""
    common = "the violet kettle leaks beside an open door"
    library.record_many(
        [
            *(episode(f"own-{n}", "keep house", [(State(common), f"fix(kettle={n})", 1.0, False)]) for n in range(3)),
            *(
                episode(
                    f"rare-{n}", "keep house", [(State(f"zircon ring {n} on shelf {n}"), f"sell(ring={n})", 1.0, False)]
                )
                for n in range(30)
            ),
            *(
                episode(
                    f"often-{n}", "keep house", [(State(f"{word} in crate {n}"), "wait()", 0.0, False)], success=False
                )
                for n in range(60)
                for word in [common.split()[n % 8]]
            ),
        ]
    )
    asked = State(f"zircon {common}")
    before = describe(library.recall(asked, k=5))
    assert before[0][0][1].startswith("fix(")
    flood(library, [f"zircon {common} {n}" for n in range(count)])
    assert describe(library.recall(asked, k=5)) == before


def test_a_word_that_strangers_repeat_stays_rare(library):
    library.record_many(near(30))
    asked = State("A kettle stands in the hall.")
    before = describe(library.recall(asked, k=5))
    flood(library, [f"hall number {n} of a house of {n} halls" for n in range(300)])
    assert describe(library.recall(asked, k=5)) == before


def test_states_elsewhere_in_the_file_do_not_weigh_words(tmp_path):
    """The weight of a word is computed from the states of its own index, not from row numbers."""
    found = []
    for name, others in (("few", 0), ("many", 300)):
        with ExperienceLibrary.open(tmp_path / f"{name}.db", namespace="other") as other:
            other.record_many(episode(f"o{n}", "t", [(State(f"chair {n}"), "sit", 0.0, False)]) for n in range(others))
        with ExperienceLibrary.open(tmp_path / f"{name}.db") as library:
            library.record_many(near(30))
            found.append(actions(library.recall(State("a kettle in the hall"))))
    assert found[0] == found[1]


def test_choices_of_strangers_move_no_estimate(library):
    """Among successes only, an estimate follows what was chosen."""
    state = State("A fork in the road.")
    library.record_many(
        replace(episode(f"own-{n}", "walk home", [(state, "left", 1.0, False)]), success=True) for n in range(10)
    )
    actions = {"left": "", "right": ""}
    before = describe(library.recall(state, actions=actions, task="walk home"))
    flood(library, [state.observation] * 200, "right", task="walk home")
    assert describe(library.recall(state, actions=actions, task="walk home")) == before
    assert before[3]["left"][0] > before[3]["right"][0]


def test_worlds_keep_the_tasks_that_their_trusted_episodes_have(library):
    """Crafted tasks of the same environment would thin out the words that the tasks of a world share."""
    state = State("A fork in the road.")
    tasks = [f"walk from {place} to the market" for place in PLACES * 4]
    library.record_many(
        episode(f"own-{n}", task, [(state, "left", 1.0, False)], environment="town") for n, task in enumerate(tasks)
    )
    asked = replace(state, task="walk from attic to the market", signature="")
    before = describe(library.recall(asked, actions={"left": "", "right": ""}))
    assert before[3]["left"][1]
    for number in range(60):
        flood_task = f"walk {number} {' '.join(WORDS[: 1 + number % 8])} zebra market"
        library.episodes.receive(
            [episode(f"x{number}", flood_task, [(state, "right", 1.0, False)], environment="town")],
            writer="token:stranger", trust="untrusted",
        )  # fmt: skip
    assert describe(library.recall(asked, actions={"left": "", "right": ""})) == before


def test_places_that_strangers_reach_are_not_near(library):
    library.add(Item("insight", "zinc pipes burst in winter", locations=("attic",)))
    home = State("A room.", location="hall")
    library.record(episode("own", "t", [(home, "up", 0.0, False), (replace(home, location="attic"), "x", 0.0, False)]))
    shown = [hit.what.title for hit in library.recall(home).items]
    assert shown == ["zinc pipes burst in winter"]
    library.episodes.receive(
        [
            episode(f"x{n}", "t", [(replace(home, observation=f"A room {n}.", signature=""), "down", 0.0, False)])
            for n in range(100)
        ],
        writer="token:stranger", trust="untrusted",
    )  # fmt: skip
    assert [hit.what.title for hit in library.recall(home).items] == shown


def test_items_do_not_age_by_episodes_of_strangers(library):
    library.record_many(near(3))
    flood(library, [f"state {n}" for n in range(50)])
    ref = library.add(Item("insight", "the kettle is heavy")).item_id
    assert library._file.store.rows("SELECT fresh FROM items WHERE id = ?", (ref,)) == [(4,)]
    assert library.episodes.count() == 54


def test_the_newest_trusted_episodes_are_read_past_a_flood(library, monkeypatch):
    """A new process mines a limited number of episodes; strangers must not use it up."""
    from hardwon.memory.learning import consolidation

    monkeypatch.setattr(consolidation, "TUNING", replace(TUNING, episodes_read=20))
    moves = [(State("A door."), "open door", 0.0, False), (State("An open door."), "enter house", 1.0, False)]
    library.record_many(episode(f"own-{n}", "go in", moves) for n in range(8))
    assert library.episodes.count() == 8
    flood(library, [f"state {n}" for n in range(40)])
    library.evolve()
    assert [item.title for item in library.items.find() if item.kind == "skill"] == [
        "To earn a reward, `open door`, then `enter house`"
    ]


def test_what_a_lone_stranger_wrote_stops_counting_when_another_writes(tmp_path):
    state = State("A red fork in the road.")
    own = [episode(f"own-{n}", "walk home", [(state, "left", 1.0, False)]) for n in range(4)]
    tables = []
    for name, first in (("alone", False), ("joined", True)):
        with ExperienceLibrary.open(tmp_path / f"{name}.db") as library:
            if first:
                flood(library, [f"A zebra in the road {n}." for n in range(30)], "right", task="walk far away home")
                assert library.recall(state, actions={"right": ""}, task="walk far away home").estimates["right"].n
            library.record_many(own)
            told = describe(library.recall(state, actions={"left": "", "right": ""}, task="walk home"))
            words = library._file.store.rows("SELECT word, episodes FROM words ORDER BY word")
            tables.append((told, words, library._file.store.rows("SELECT record FROM worlds")))
            assert library.admin.verify() == []
            for trajectory in own:
                library.admin.forget(episode=trajectory.id)
            if first:
                assert library.admin.verify() == []
                assert library.recall(state, actions={"right": ""}, task="walk far away home").estimates["right"].n
    assert tables[0] == tables[1]


def test_an_older_file_is_separated_when_it_is_opened(tmp_path):
    """Until schema 16, states of strangers were in the same index, and their words were counted."""
    path, asked = tmp_path / "a.db", State("The violet kettle leaks in the old hall.")
    with ExperienceLibrary.open(path) as library:
        library.record_many(near(30))
        before = describe(library.recall(asked, k=5))
        words = library._file.store.rows("SELECT word, episodes FROM words ORDER BY word")
        flood(library, [f"The violet kettle leaks in the old hall. {n}" for n in range(60)])
        assert ends_with_testimony(library.recall(asked, k=40))
        library.admin.index()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE vectors SET kind = 'states' WHERE kind = 'testimony'")
        connection.execute("UPDATE words SET episodes = episodes + 60")
        connection.execute("UPDATE items SET fresh = 90")
    downgrade(path, 15)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO states_text_1(rowid, text) SELECT id, observation || char(10) || feedback FROM states "
            "WHERE id NOT IN (SELECT id FROM states_text_1_docsize)"
        )
        connection.execute("DROP TABLE testimony_text_1")
    with ExperienceLibrary.open(path) as library:
        assert describe(library.recall(asked, k=5)) == before
        assert ends_with_testimony(library.recall(asked, k=40))
        assert library._file.store.rows("SELECT word, episodes FROM words ORDER BY word") == words
        assert library.admin.verify() == []
