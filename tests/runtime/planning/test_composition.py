"""Demonstrations that are bound to a new task, and the search for what their steps need."""

from dataclasses import replace
from typing import Literal

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step
from hardwon.memory.values.demonstration_index import DemonstrationIndex
from hardwon.runtime import Agent, Decision
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.loop.tuning import TUNING as LOOP
from hardwon.runtime.planning.composer import DemonstrationComposer, continue_with
from hardwon.runtime.planning.composition import Argument, Binding, BoundStep, bind_demonstration
from hardwon.runtime.planning.tuning import TUNING as PLANNING


class House:
    """A house of places, some closed, with things to bring, to wash first, or to bring twice."""

    name = "house"

    def __init__(self, things, closed=(), places=("table 1", "shelf 1", "shelf 2", "chest 1", "basin 1")):
        self.start, self.closed_at_start, self.places = things, frozenset(closed), places

    def reset(self, task="", seed=0):
        self.task, self.here, self.held, self.washed = task, "", "", set()
        self.things, self.closed, self.over = dict(self.start), set(self.closed_at_start), False
        return self._state("")

    def _visible(self):
        return sorted(t for t, place in self.things.items() if place == self.here and self.here not in self.closed)

    def _state(self, feedback):
        seen = f"The {self.here} is closed." if self.here in self.closed else f"You see {self._visible()}."
        return State(
            f"You are at {self.here or 'the door'}. {seen} You hold {self.held or 'nothing'}.",
            location=self.here, task=self.task, feedback=feedback,
        )  # fmt: skip

    def admissible(self, state):
        found = [f"walk to {place}" for place in self.places if place != self.here]
        if self.here in self.closed:
            return sorted([*found, f"open {self.here}"])
        if self.held:
            found += [f"lay {self.held} in {self.here}"] if self.here else []
            found += [f"wash {self.held} with {self.here}"] if self.here.startswith("basin") else []
        elif self.here:
            found += [f"grab {thing} from {self.here}" for thing in self._visible()]
        return sorted(found)

    def step(self, action):
        assert action in self.admissible(None)
        verb, rest = action.split(" ", 1)
        if verb == "walk":
            self.here = rest.removeprefix("to ")
        elif verb == "open":
            self.closed.discard(rest)
        elif verb == "grab":
            self.held = rest.split(" from ")[0]
            del self.things[self.held]
        elif verb == "wash":
            self.washed.add(self.held)
        else:
            self.things[self.held], self.held = self.here, ""
        won = self._is_won()
        return self._state(f"You {action}."), float(won), won, {"success": won}

    def _is_won(self):
        words = self.task.split()
        kind, place = words[2], words[-1]
        there = [t for t, at in self.things.items() if t.startswith(kind) and at.startswith(place)]
        if "clean" in words:
            there = [thing for thing in there if thing in self.washed]
        at_one = [sum(self.things[thing] == at for thing in there) for at in self.places]
        return max(at_one) >= (2 if words[1] == "two" else 1)

    def clone(self):
        return House(self.start, self.closed_at_start, self.places)

    def close(self):
        pass


class Script:
    """A policy that repeats given actions."""

    name = "script"
    reads: Literal["values", "text"] = "values"

    def __init__(self, *actions):
        self.actions = actions

    def decide(self, context):
        return Decision(self.actions[len(context.history)])

    async def adecide(self, context):
        return self.decide(context)


BRING = ("bring a lamp to shelf", House({"lamp 1": "table 1", "cup 2": "table 1"}),
         ("walk to table 1", "grab lamp 1 from table 1", "walk to shelf 1", "lay lamp 1 in shelf 1"))  # fmt: skip
CLEAN = ("bring clean cup to table", House({"cup 1": "shelf 2", "lamp 4": "shelf 2"}),
         ("walk to shelf 2", "grab cup 1 from shelf 2", "walk to basin 1", "wash cup 1 with basin 1",
          "walk to table 1", "lay cup 1 in table 1"))  # fmt: skip
TWO = ("bring two book to shelf", House({"book 1": "chest 1", "book 2": "table 1"}, ["chest 1"]),
       ("walk to chest 1", "open chest 1", "grab book 1 from chest 1", "walk to shelf 2", "lay book 1 in shelf 2",
        "walk to table 1", "grab book 2 from table 1", "walk to shelf 2", "lay book 2 in shelf 2"))  # fmt: skip


@pytest.fixture
def library():
    """A library with a demonstration of each kind of task."""
    with ExperienceLibrary.open(":memory:") as opened:
        for task, house, actions in (BRING, CLEAN, TWO):
            assert Agent(Script(*actions), opened, house, guardrails=False).run(task).success
        yield opened


def play(library, house, task, **options):
    agent = Agent("episodic", library, house, planner="demonstrations", learn=False, max_steps=20, **options)
    return agent.run(task).trajectory


def acted(trajectory):
    return [step.action for step in trajectory.steps]


def test_a_demonstration_is_bound_to_another_thing_at_another_place(library):
    """Neither the thing nor where it lies is that of the demonstration."""
    house = House({"vase 3": "shelf 2", "lamp 1": "table 1"})
    trajectory = play(library, house, "bring a vase to table")
    assert trajectory.success
    assert "lay vase 3 in table 1" in acted(trajectory)
    assert all(step.why.planned for step in trajectory.steps)


def test_a_step_tells_its_chain_and_its_demonstration(library):
    """The record of a step is what `hardwon memory show` and the replay print."""
    trajectory = play(library, House({"vase 3": "shelf 2"}), "bring a vase to table")
    why = trajectory.steps[-2].why.to_dict()
    assert why["plan"] == "walk to table 1, then lay vase in table"
    sources = {f"episode:{row['id']}" for row in library.episodes.find()}
    assert why["demonstration"] in sources


PAN = "bring clean pan to shelf"
GRAB_PAN = ["walk to table 1", "grab pan 1 from table 1"]


def clean_pan(*known, learn=True, seed=0):
    """Return what an agent that knows some demonstrations, and the words of the task, does in two episodes."""
    house = House({"pan 1": "table 1", "pot 2": "table 1"})
    with ExperienceLibrary.open(":memory:") as library:
        for task, other, actions in known:
            assert Agent(Script(*actions), library, other, guardrails=False).run(task).success
        failed = Agent(Script("walk to table 1", "walk to shelf 1"), library, house, max_steps=2).run(PAN)
        assert not failed.success
        agent = Agent("episodic", library, house, planner="demonstrations", learn=learn, seed=seed, max_steps=20)
        return [acted(agent.run(PAN, number).trajectory) for number in range(2)]


@pytest.fixture
def always_followed(monkeypatch):
    """No episode goes without demonstrations to measure them."""
    monkeypatch.setattr("hardwon.runtime.loop.holdout.TUNING", replace(LOOP, withhold=0.0))


@pytest.mark.usefixtures("always_followed")
@pytest.mark.parametrize("seed", range(4))
def test_what_a_new_kind_of_task_needs_is_looked_for_before_the_last_step(seed):
    """The thing is taken to places of each kind, before it is laid where it belongs."""
    first, actions = clean_pan(BRING, seed=seed)
    assert first[:4] == [*GRAB_PAN, "walk to shelf 1", "lay pan 1 in shelf 1"], "the words may mean nothing"
    assert actions[:2] == GRAB_PAN
    assert "wash pan 1 with basin 1" in actions
    assert actions[-1].startswith("lay pan 1 in shelf")
    assert len(actions) <= 8  # with a place of each other kind


@pytest.mark.usefixtures("always_followed")
def test_a_frozen_agent_and_one_that_knows_the_kind_of_task_make_no_detour():
    for actions in clean_pan(BRING, learn=False):
        assert actions[:4] == [*GRAB_PAN, "walk to shelf 1", "lay pan 1 in shelf 1"]
    wash = ["walk to basin 1", "wash pan 1 with basin 1"]
    assert clean_pan(BRING, CLEAN) == [[*GRAB_PAN, *wash, "walk to shelf 1", "lay pan 1 in shelf 1"]] * 2


def test_what_is_closed_is_opened_in_the_search(library):
    trajectory = play(library, House({"vase 3": "chest 1"}, ["chest 1"]), "bring a vase to shelf")
    assert trajectory.success
    assert "open chest 1" in acted(trajectory)


def test_a_closed_goal_is_opened_where_only_empty_ones_were_opened():
    """Opening an empty chest shows nothing, but makes laying possible."""
    carried = (
        "walk to table 1",
        "grab lamp 1 from table 1",
        "walk to chest 1",
        "open chest 1",
        "lay lamp 1 in chest 1",
    )
    with ExperienceLibrary.open(":memory:") as library:
        house = House({"lamp 1": "table 1", "cup 2": "table 1"}, ["chest 1"])
        assert Agent(Script(*carried), library, house, guardrails=False).run("bring a lamp to chest").success
        two = House({"vase 3": "table 1"}, ["chest 1", "chest 2"], ("table 1", "chest 1", "chest 2"))
        trajectory = play(library, two, "bring a vase to chest")
    assert acted(trajectory) == [action.replace("lamp 1", "vase 3") for action in carried]


def test_a_kind_of_place_that_all_successes_used_is_kept(library):
    """The basin is no word of the task, but every washing used one."""
    trajectory = play(library, House({"vase 3": "shelf 2"}), "bring clean vase to shelf")
    assert trajectory.success
    assert "wash vase 3 with basin 1" in acted(trajectory)


def test_two_of_a_kind_are_two_things_at_one_place(library):
    house = House({"cup 1": "table 1", "cup 2": "chest 1"}, ["chest 1"])
    trajectory = play(library, house, "bring two cup to shelf")
    assert trajectory.success
    assert len([action for action in acted(trajectory) if action.startswith("grab")]) == 2


def test_the_search_begins_where_such_things_were_found(library):
    """Books lay in a chest and on a table, never on a shelf or in the basin."""
    trajectory = play(library, House({"book 9": "chest 1"}, ["chest 1"]), "bring a book to table")
    assert acted(trajectory)[:2] in (["walk to chest 1", "open chest 1"], ["walk to table 1", "walk to chest 1"])
    assert trajectory.success


def test_a_task_that_no_demonstration_is_worded_like_is_left_to_the_policy(library):
    trajectory = play(library, House({"vase 3": "table 1"}), "sing loudly until dawn breaks outside")
    assert not any(step.why.planned for step in trajectory.steps)


def test_an_arm_without_memory_gets_no_demonstration(library):
    trajectory = play(library, House({"vase 3": "table 1"}), "bring a vase to shelf", arm="control")
    assert not any(step.why.planned for step in trajectory.steps)


def test_binding_follows_the_order_of_names(library):
    index = library.episodes.index_demonstrations()
    (best, *_) = index.list_demonstrations("bring a vase to table")

    def bound(task):
        binding = bind_demonstration(best, task, index)
        return [step.text for step in binding.steps] if binding else None

    assert bound("bring a vase to table") == ["grab vase from {2}", "lay vase in table"]
    assert bound("bring a table to vase") == ["grab table from {2}", "lay table in vase"]


def test_a_place_that_the_task_names_by_coincidence_is_free(library):
    """The jar lay on a shelf and belonged on a shelf; where a thing lies is not what a task names."""
    house = House({"jar 1": "shelf 1"})
    actions = ("walk to shelf 1", "grab jar 1 from shelf 1", "walk to basin 1", "wash jar 1 with basin 1",
               "walk to shelf 2", "lay jar 1 in shelf 2")  # fmt: skip
    assert Agent(Script(*actions), library, house, guardrails=False).run("bring clean jar to shelf").success
    index = library.episodes.index_demonstrations()
    (best, *_) = index.list_demonstrations("bring clean vase to shelf")
    assert best.task == "bring clean jar to shelf"
    binding = bind_demonstration(best, "bring clean vase to shelf", index)
    assert binding is not None
    assert [step.text for step in binding.steps] == ["grab vase from {2}", "wash vase with basin", "lay vase in shelf"]


def test_what_was_seen_while_carrying_is_found_again(library):
    """With full hands nothing can be grabbed, so only the text tells of the second cup."""
    house = House({"cup 1": "table 1", "cup 2": "table 1"})
    trajectory = play(library, house, "bring two cup to shelf")
    assert trajectory.success
    assert acted(trajectory).count("walk to table 1") == 2


def test_an_unseen_thing_is_searched_where_things_were_found():
    """The share of a kind of thing by kind of place, drawn towards that of all things."""
    index = DemonstrationIndex()
    now = State("", location="desk 1")
    step = Step(now, "grab pen 1 from desk 1", now, Diagnosis(True), admissible=("grab pen 1 from desk 1",))
    index.add("e1", "bring pen", [step], outcome=False)
    assert index.likelihood("pen", "desk") == index.likelihood("ink", "desk") == 1.0
    there = State("", location="shelf 1")
    other = Step(there, "grab ink 1 from shelf 1", there, Diagnosis(True), admissible=("grab ink 1 from shelf 1",))
    index.add("e2", "bring ink", [other], outcome=False)
    assert index.likelihood("pen", "desk") == pytest.approx((1 + 3 / 2) / (1 + 3))
    assert index.likelihood("cup", "desk") == pytest.approx(1 / 2)


def test_new_successes_are_demonstrations_at_once(library):
    before = library.episodes.index_demonstrations().size
    task, house, actions = CLEAN
    assert Agent(Script(*actions), library, house, guardrails=False).run(task, seed=1).success
    assert library.episodes.index_demonstrations().size == before + len(actions)


class Described(House):
    """A house whose every description lists all places."""

    def _state(self, feedback):
        state = super()._state(feedback)
        return replace(state, observation=f"{state.observation} Around you are {', '.join(self.places)}.")

    def clone(self):
        return Described(self.start, self.closed_at_start, self.places)


def test_a_place_that_every_text_lists_was_not_found_there(library):
    """After the grab, the way leads to the goal and not back to places whose text mentions it."""
    trajectory = play(library, Described({"vase 3": "basin 1"}), "bring a vase to table")
    grabbed = acted(trajectory).index("grab vase 3 from basin 1")
    assert grabbed > 2  # other places were searched before
    assert acted(trajectory)[grabbed + 1 :] == ["walk to table 1", "lay vase 3 in table 1"]


class Deviating:
    """A policy that does one step of the plan with another thing than planned, and keeps the later plans."""

    name = "deviating"
    reads: Literal["values", "text"] = "values"

    def __init__(self, planned, instead):
        self.planned, self.instead = planned, instead

    def decide(self, context):
        action = context.plan.next.action
        return Decision(self.instead if action == self.planned else action)

    async def adecide(self, context):
        return self.decide(context)


def test_what_the_policy_did_with_another_thing_counts(library):
    """Both are vases: the plan goes on with the one that the agent took."""
    house = House({"vase 3": "shelf 2", "vase 4": "shelf 2", "jar 1": "shelf 2"})
    task = "bring a vase to table"
    grabbed = next(action for action in acted(play(library, house, task)) if action.startswith("grab"))
    other = grabbed.replace("vase 3", "vase 5").replace("vase 4", "vase 3").replace("vase 5", "vase 4")
    agent = Agent(Deviating(grabbed, other), library, house, planner="demonstrations", learn=False, max_steps=20)
    done = acted(agent.run(task).trajectory)
    thing = other.removeprefix("grab ").removesuffix(" from shelf 2")
    assert done[done.index(other) :] == [other, "walk to table 1", f"lay {thing} in table 1"]


@pytest.mark.parametrize(
    ("action", "feedback", "worked", "counts"),
    [
        ("grab lamp 2 from table 1", "", True, True),
        ("grab lamp 2 from table 1", "You need gloves first.", True, False),  # and nothing changed
        ("grab lamp 2 from table 1", "", False, False),
        ("grab cup 1 from table 1", "", True, False),
    ],
    ids=["another lamp", "without effect", "failed", "another kind of thing"],
)
def test_what_the_policy_did_counts_only_if_it_does_the_step(library, action, feedback, worked, counts):
    house = House({"lamp 1": "table 1", "lamp 2": "table 1", "cup 1": "table 1"})
    house.reset(BRING[0])
    before, *_ = house.step("walk to table 1")
    after = replace(before, feedback=feedback)
    diagnosis = Diagnosis(True) if worked else Diagnosis(False, Failure.TOOL_ERROR)
    history = (Step(before, action, after, diagnosis),)
    context = Context(state=after, actions=tuple(house.admissible(after)), history=history)
    plan = DemonstrationComposer().follow(None, context, library.episodes.index_demonstrations())
    assert plan is not None
    assert [step.action for step in plan.done] == [action] * counts


class Locked(Described):
    """A house in which nothing can be opened."""

    def step(self, action):
        if action.startswith("open"):
            return self._state("It is locked."), 0.0, False, {"success": False}
        return super().step(action)

    def clone(self):
        return Locked(self.start, self.closed_at_start, self.places)


def test_no_plan_leads_back_from_the_only_goal(library):
    """Texts of other places mention the chest, but the agent stands at it, and it stays closed."""
    house = Locked({"vase 3": "table 1"}, ["chest 1"], ("table 1", "chest 1"))
    trajectory = play(library, house, "bring a vase to chest")
    planned = [step.action for step in trajectory.steps if step.why.planned]
    assert "open chest 1" in planned
    assert "walk to table 1" not in planned[planned.index("open chest 1") :]


THING, GOAL = Argument("cup 1", "vase"), Argument("table 1", "shelf")
GRAB, LAY, WASH = BoundStep("grab {1}", (THING,)), BoundStep("lay {1} in {2}", (THING, GOAL)), BoundStep("wash {1}", ())


@pytest.mark.parametrize(
    ("first", "then", "parts"),
    [
        ((GRAB,), (GRAB, LAY), [1]),  # it ended early
        ((WASH, GRAB), (GRAB, WASH), [0, 1]),  # in another order: only the grab leads up to the rest
        ((GRAB, LAY), (GRAB, WASH, LAY), [0, 0]),  # the thing is no longer in hand
        ((GRAB, LAY), (GRAB, LAY, GRAB, LAY), [1, 2]),
        ((GRAB,), (LAY,), [0]),
    ],
)
def test_what_a_demonstration_achieved_is_kept_if_it_leads_up_to_the_next(first, then, parts):
    one, other = Binding("one", first), Binding("other", then)
    done = tuple(PlannedStep(n, step.text, done=True, source="one", part=n) for n, step in enumerate(first, 1))
    steps = continue_with(Plan("bring a vase", done, source="one"), other, [one, other]).steps
    assert [step.part if step.source == "other" else 0 for step in steps] == parts


def test_a_demonstration_is_bound_to_a_task_with_as_many_things(library):
    """With more or fewer, nobody knows which thing takes whose place, and so with none at all."""
    index = library.episodes.index_demonstrations()
    (best, *_) = index.list_demonstrations("bring a vase to table")
    assert bind_demonstration(best, "bring a vase to shelf", index)
    assert bind_demonstration(best, "bring a vase and a bowl to table", index) is None
    assert bind_demonstration(best, "bring a vase", index) is None
    assert bind_demonstration(replace(best, task="bring it here"), "bring it here", index) is None


def test_an_empty_index_has_no_demonstrations():
    assert DemonstrationIndex().list_demonstrations("bring a vase to table") == []
    assert DemonstrationIndex().likelihood("vase", "table 1") == 0.0


class Cellar(House):
    """A house of another name, with the same words and actions."""

    name = "cellar"


def test_a_demonstration_of_another_environment_never_binds(library):
    """The words of the task and the actions are the same; the environment is not."""
    trajectory = play(library, Cellar({"vase 3": "table 1"}), "bring a vase to shelf")
    assert not any(step.why.planned for step in trajectory.steps)
    assert library.episodes.index_demonstrations("cellar", ["walk to table 1"]).size == 0
    assert library.episodes.index_demonstrations("house").size == library.episodes.index_demonstrations().size > 0


def test_a_success_without_a_label_serves_the_environments_that_it_is_like():
    """An import names no environment; its actions tell where it belongs."""
    task, house, actions = BRING
    with ExperienceLibrary.open(":memory:") as first, ExperienceLibrary.open(":memory:") as second:
        done = Agent(Script(*actions), first, house, guardrails=False).run(task).trajectory
        second.record(replace(done, meta={}))
        assert play(second, House({"vase 3": "table 1"}), "bring a vase to shelf").success
        assert second.episodes.index_demonstrations("puzzle", ["press the red button"]).size == 0


def test_episodes_that_were_passed_over_are_counted_once_they_belong():
    """Without an episode of its own, an environment does not know what an unlabelled one has to do with it."""
    task, house, actions = BRING
    with ExperienceLibrary.open(":memory:") as first, ExperienceLibrary.open(":memory:") as second:
        done = Agent(Script(*actions), first, house, guardrails=False).run(task).trajectory
        second.record(replace(done, meta={}))
        assert second.episodes.index_demonstrations("house", ["shout loudly"]).size == 0
        second.record(replace(done, id=""))
        assert second.episodes.index_demonstrations("house", ["shout loudly"]).size == 2 * len(actions)


def test_a_success_that_did_more_than_the_task_names_is_not_bound(workshop):
    """The task says `iron`, but nearly all of the success was about wood and stone."""
    actions = ("gather wood", "craft table", "craft pickaxe", "mine stone", "build furnace", "mine ore", "smelt iron")
    with ExperienceLibrary.open(":memory:") as opened:
        assert Agent(Script(*actions), opened, workshop(), guardrails=False).run().success
        assert opened.episodes.index_demonstrations().list_demonstrations("make iron")
        agent = Agent("episodic", opened, workshop(), planner="demonstrations", learn=False, max_steps=3)
        assert not any("demonstration" in step.why.extra for step in agent.run().trajectory.steps)


def test_what_an_episode_gave_up_is_not_tried_again(library):
    """No vase exists: each place is searched once, and the plan does not begin anew when the policy moves on."""
    agent = Agent(
        "episodic", library, House({"lamp 1": "table 1"}), planner="demonstrations", learn=False, max_steps=40
    )
    steps = agent.run("bring a vase to shelf").trajectory.steps
    assert sum("demonstration" in step.why.extra for step in steps) == len(House({}).places)


@pytest.mark.parametrize(
    ("place", "part", "tries", "goes_on"),
    [
        ("table 1", 1, PLANNING.step_tries - 1, True),
        ("table 1", 1, PLANNING.step_tries, False),
        ("table 1", 2, PLANNING.step_tries, True),
        ("", 0, PLANNING.step_tries, True),
    ],
    ids=["the next step has a try left", "the next step has none", "a later step has none", "the way there has none"],
)
def test_a_demonstration_whose_next_step_was_tried_often_is_given_up(library, place, part, tries, goes_on):
    house = House({"lamp 1": "table 1"})
    state = house.reset(BRING[0])
    if place:
        state, *_ = house.step(f"walk to {place}")
    context, index = (
        Context(state=state, actions=tuple(house.admissible(state))),
        library.episodes.index_demonstrations(),
    )
    plan = DemonstrationComposer().follow(None, context, index)
    assert plan is not None
    steps = tuple(replace(step, tries=tries) if step.part == part else step for step in plan.steps)
    assert steps != plan.steps
    continued = DemonstrationComposer().follow(replace(plan, steps=steps), context, index)
    assert continued is not None
    assert (continued.source == plan.source) == goes_on
    if goes_on:
        assert continued.open[0].tries == (tries if part == 1 else 0)


def add_trials(index, outcomes, followed):
    for won in outcomes:
        index.add("", "bring a lamp to shelf", (), outcome=won, trial="followed" if followed else "withheld")


@pytest.mark.parametrize(
    ("followed", "withheld", "worse"),
    [
        ([False] * 8, [True] * 5, True),
        ([True] * 8, [False] * 5, False),
        ([True] * 8, [True] * 5, False),  # equal: nothing speaks against them
        ([False] * 8, [True] * 3, False),  # too few
        ([], [True] * 9, False),
    ],
)
def test_demonstrations_yield_where_outcomes_are_better_without(followed, withheld, worse):
    index = DemonstrationIndex()
    add_trials(index, followed, followed=True)
    add_trials(index, withheld, followed=False)
    assert index.are_worse("bring a lamp to shelf") is worse
    # Outcomes of tasks that are worded otherwise do not count.
    assert not index.are_worse("sing loudly until dawn breaks outside")


def test_an_agent_that_learns_measures_demonstrations_and_yields(library, monkeypatch):
    """Episodes without them are drawn at random; where they succeed more often, the plan is left out."""
    house, task = House({"vase 3": "shelf 2"}), "bring a vase to table"
    agent = Agent("episodic", library, house, planner="demonstrations", max_steps=20)
    assert agent.run(task, 1).trajectory.meta["demonstrations"] == "followed"
    monkeypatch.setattr("hardwon.runtime.loop.holdout.TUNING", replace(LOOP, withhold=1.0))
    withheld = agent.run(task, 2).trajectory
    assert withheld.meta["demonstrations"] == "withheld"
    assert not any("demonstration" in step.why.extra for step in withheld.steps)
    monkeypatch.setattr(DemonstrationIndex, "are_worse", lambda self, task: True)
    assert not any("demonstration" in step.why.extra for step in play(library, house, task).steps)


class Compass(House):
    """A house in which one moves by direction, so that no action names where it leads."""

    name = "compass"

    def admissible(self, state):
        actions = [action for action in super().admissible(state) if not action.startswith("walk")]
        return sorted([*actions, "move north", "move south"])

    def step(self, action):
        if not action.startswith("move"):
            return super().step(action)
        at = self.places.index(self.here) if self.here else 0
        self.here = self.places[(at + (1 if action.endswith("north") else -1)) % len(self.places)]
        return self._state(f"You {action}."), 0.0, False, {"success": False}

    def clone(self):
        return Compass(self.start, self.closed_at_start, self.places)


def test_where_no_action_names_a_place_the_policy_finds_the_way():
    """A direction is no place to search; the plan goes on as soon as its step is possible."""
    actions = ("move north", "move south", "grab lamp 1 from table 1", "move north", "lay lamp 1 in shelf 1")
    with ExperienceLibrary.open(":memory:") as opened:
        assert Agent(Script(*actions), opened, Compass({"lamp 1": "table 1"}), guardrails=False).run(BRING[0]).success
        steps = play(opened, Compass({"vase 3": "table 1"}), "bring a vase to shelf").steps
    planned = [step.action for step in steps if step.why.planned]
    assert not [action for action in planned if action.startswith("move")]
    assert "grab vase 3 from table 1" in planned
