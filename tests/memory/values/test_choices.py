"""Learning from successes alone: what was done beside what could have been done."""

import json
from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Reasons, State, Step, Trajectory
from hardwon.memory.reasons import NO_REASONS
from hardwon.memory.upkeep.write_buffer import pack_episode, unpack_episode
from hardwon.memory.values.choices import Choices, weight_of
from hardwon.memory.values.tuning import TUNING

HALL = State("You see a shelf and a sink. A dirty cup is on the shelf.", task="put a clean cup on the shelf")
OFFER = ("go to shelf", "go to sink", "smash cup", "take cup from shelf", "wait")


def walk(*actions, success=True, offer=OFFER, reward=1.0):
    """An episode of these actions, each chosen among all that is offered, paid at its end."""
    steps = [
        Step(HALL, action, HALL, Diagnosis(True), reward * (t == len(actions) - 1), t, admissible=offer)
        for t, action in enumerate(actions)
    ]
    return Trajectory(HALL.task, tuple(steps), success)


def values(library):
    """The estimates of all that is offered."""
    found = library.recall(HALL, k=0, actions=dict.fromkeys(OFFER, "")).estimates
    return {action: estimate.value for action, estimate in found.items()}


def go_by(*actions, verb="wash", why=NO_REASONS, thing="car", place="Dorfin"):
    """An errand, done by these actions, which the agent chose or somebody demonstrated."""
    task = f"{verb} the {thing} at {place}"
    here = State(f"You are at home. The {thing} is at home.", task=task)
    there = State(f"You are at {place}.", task=task)
    made = [(here, action, ("load it", "walk there")) for action in actions[:1]]
    made += [(there, action, (*actions[1:], "wait")) for action in actions[1:]]
    steps = [
        Step(state, action, there, Diagnosis(True), float(t == len(made) - 1), t, why=why, admissible=offer)
        for t, (state, action, offer) in enumerate(made)
    ]
    return Trajectory(task, tuple(steps), True)


FAR, NEAR = ("load it", "drive", "finish"), ("walk there", "finish")


@pytest.mark.parametrize(
    ("why", "is_own"), [(Reasons(value=0.9), True), (Reasons(explored=True), True), (NO_REASONS, False)]
)
def test_of_its_own_ways_an_agent_prefers_the_quickest_and_of_others_the_usual_one(library, why, is_own):
    """Once the near way with another thing, else the long one, for one kind of errand of two."""
    things = ("car", "van", "bus", "tram")
    for n in range(24):
        library.record(go_by(*(NEAR if n == 17 else FAR), why=why, thing=things[n % 4]))
        library.record(go_by(*FAR, verb="weigh", why=why, thing=things[n % 4]))
        library.admin.stats()  # files them, with the words that are frequent by now
    chosen = {}
    for verb in ("wash", "weigh"):
        state = go_by(*FAR, verb=verb, thing="car").steps[0].pre
        estimates = library.recall(state, k=0, actions=dict.fromkeys(("load it", "walk there"), "")).estimates
        chosen[verb] = max(estimates, key=lambda action: estimates[action].value)
        assert [estimates[action].untried for action in ("load it", "walk there")] == [
            False,
            is_own and verb == "weigh",
        ]
    assert chosen == {"wash": "walk there" if is_own else "load it", "weigh": "load it"}


SLOW = ("walk there", *["wait"] * 3, "finish")


def test_the_quickest_way_of_one_world_is_not_that_of_another(library):
    """Their tasks have one form, and so have their texts."""
    things = {"yard": ("car", "van", "bus", "tram"), "kitchen": ("cup", "pan", "pot", "jug")}
    for n in range(24):
        for world, names in things.items():
            way = FAR if n % 2 else NEAR if world == "yard" else SLOW
            walk = go_by(*way, why=Reasons(value=0.9), thing=names[n % 4], place=world)
            library.record(replace(walk, meta={"environment": world}))
        library.admin.stats()
    assert len(library._file.caught_up().worlds.standing) == 2
    chosen = {}
    for world, names in things.items():
        state = go_by(*FAR, thing=names[0], place=world).steps[0].pre
        estimates = library.recall(state, k=0, actions=dict.fromkeys(("load it", "walk there"), "")).estimates
        chosen[world] = max(estimates, key=lambda action: estimates[action].value)
    assert chosen == {"yard": "walk there", "kitchen": "load it"}


def test_where_episodes_fail_nothing_is_marked_as_untried(library):
    """There, returns tell what an action is worth, and exploration is random."""
    for n in range(24):
        library.record(replace(go_by(*FAR, why=Reasons(value=0.9)), success=n % 3 > 0))
        library.admin.stats()
    state = go_by(*FAR).steps[0].pre
    estimates = library.recall(state, k=0, actions=dict.fromkeys(("load it", "walk there"), "")).estimates
    assert not any(estimate.untried for estimate in estimates.values())


def keyed(library, episode):
    """The episode with the keys of its steps, as the runtime records it."""
    return replace(
        episode,
        steps=tuple(replace(step, keys=library.episodes.keys(step.pre, step.action)) for step in episode.steps),
    )


def test_after_successes_alone_what_was_done_is_worth_more_than_what_was_not(library):
    """The failure: every action was worth 0.87, the smashing of the cup as much as taking it."""
    for _ in range(10):
        library.record(keyed(library, walk("take cup from shelf", "go to sink")))
    found = values(library)
    assert min(found["take cup from shelf"], found["go to sink"]) > 2 * max(found["smash cup"], found["wait"])


def test_without_what_was_admissible_all_is_as_before(library):
    """Older episodes do not say what could have been done: values alone."""
    for _ in range(10):
        library.record(keyed(library, walk("take cup from shelf", "go to sink", offer=())))
    assert values(library)["smash cup"] > 0.5


def test_failures_take_the_weight_from_choices():
    """None is left where a fifth of the episodes failed: then the returns tell."""
    assert weight_of(74, 74) == 1.0
    assert weight_of(90, 100) == pytest.approx(0.5)
    assert weight_of(80, 100) == weight_of(0, 10) == weight_of(0, 0) == 0.0


def test_shares_by_hand():
    """`go to {1}`: 2 chances a step, taken once of 4 in general; the words themselves once of 2."""
    choices = Choices()
    choices.read(walk("go to sink", "wait", offer=("go to shelf", "go to sink", "wait")).steps, frozenset())
    general = (2 + TUNING.prior_opportunities * 0.0) / (6 + TUNING.prior_opportunities)
    form = (1 + TUNING.prior_opportunities * general) / (4 + TUNING.prior_opportunities)
    assert choices.share(["*"]) == pytest.approx(general)
    assert choices.share(["*", "go to {1}"]) == pytest.approx(form)
    assert choices.share(["*", "never seen"]) == pytest.approx(general)


def test_what_was_tried_here_is_tried_less(library):
    """No demonstrator repeats in one state what led nowhere; nor does who learns from it."""
    for _ in range(10):
        library.record(keyed(library, walk("take cup from shelf", "go to sink", "wait")))
    fresh = library.recall(HALL, k=0, actions=dict.fromkeys(OFFER, "tried 0 to unknown")).estimates
    tried = {**dict.fromkeys(OFFER, "tried 0 to unknown"), "go to sink": "tried 2 to seen"}
    again = library.recall(HALL, k=0, actions=tried).estimates
    assert again["go to sink"].value < 0.7 * fresh["go to sink"].value


def test_a_failed_step_and_one_without_a_choice_tell_nothing():
    """Nor does an action that was not on the list."""
    choices = Choices()
    only, failed, outside = (
        walk("wait", offer=("wait",)).steps[0],
        replace(walk("wait").steps[0], diagnosis=Diagnosis(False)),
        walk("fly").steps[0],
    )
    choices.read((only, failed, outside), frozenset())
    assert choices.steps == 0


def test_failed_episodes_are_not_imitated(library):
    """Their choices are not counted, whatever they were."""
    for _ in range(40):
        library.record(keyed(library, walk("take cup from shelf")))
    library.record(keyed(library, walk("smash cup", success=False, reward=0.0)))
    assert values(library)["take cup from shelf"] > 3 * values(library)["smash cup"]


def test_what_was_admissible_is_kept(library, path, tmp_path):
    """In the inbox, in the file, in an export, without what looks like a secret; a list is stored once."""
    secret = "run(password='hunter2hunter2')"
    episode = walk("wait", "go to sink", offer=(*OFFER, secret))
    assert unpack_episode(pack_episode(episode), "").steps[0].admissible == (*OFFER, secret)
    ref = library.record(episode)
    steps = library.episodes.get(ref).steps
    assert steps[0].admissible[: len(OFFER)] == OFFER
    assert "hunter2" not in repr(steps)
    assert library._file.filed().rows("SELECT count(*) FROM offers") == [(1,)]
    library.admin.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "other.db") as other:
        other.admin.import_jsonl(tmp_path / "all.jsonl")
        assert other.episodes.get(ref).steps[1].admissible == steps[1].admissible


def test_what_an_older_version_packed_is_read():
    """An inbox that was written before an update has seven parts a step and no list of offers."""
    told = json.loads(pack_episode(walk("wait")))
    old = json.dumps([*told[:8], [step[:7] for step in told[8]]])
    assert unpack_episode(old, "").steps[0].admissible == ()


def test_what_was_admissible_is_forgotten_with_its_episode(library):
    """A text that stood in nothing but a list of actions selects the episode, and leaves the file."""
    library.record(walk("wait", offer=(*OFFER, "call agent zebra")))
    library.record(walk("wait"))
    library.admin.forget(text="agent zebra")
    assert library._file.filed().rows("SELECT count(*), min(actions) FROM offers")[0][0] == 1
    assert "zebra" not in repr(library._file.filed().rows("SELECT * FROM offers"))
    assert len(library.episodes.find()) == 1
