"""A guide that decides whether the recollection is shown: what it learns from, its credit, and where it is asked."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.trainers.corridor import Corridor
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, keep_requests, save_base
from tests.trainers.test_trainer import assert_same, lines

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.algorithms.samples import Rollout, WordChoice
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.consulting import ConsultedGuidance
from hardwon.trainers.gating.tuning import TUNING
from hardwon.trainers.models.adapters import parameters_of, read_adapter
from hardwon.trainers.player import Player
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.guides.lessons import Recollections, find_deeds, judge_recollections
from hardwon.trainers.roles.guides.role import GuideRole, GuideSettings
from hardwon.trainers.roles.guides.speech import GuideQuery
from hardwon.trainers.roles.supervised_stage import Marked
from hardwon.trainers.rollouts import rollout
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.serving import load_roles
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
HALL = State("You are in the hall.", task="find the coin")
GUIDED = Arm("guided", "guide")
LINES = "go east: rewarded\ngo west: failed"


class Fixed:
    """Guidance that always proposes the same text, or nothing."""

    def __init__(self, text=LINES):
        self._hint = Hint(text, ("an item",)) if text else None

    def propose(self, context):
        return self._hint


def build_role(**settings):
    """A guide of a small chat model that decides, with a cost of 0."""
    engine = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER, roles=("guide",))
    config = RoleConfig(settings={"says": "recalled", "cost": 0.0, "ready": 1, **settings})
    parts = Parts(config, engine.model, PROMPTS, engine, ExperienceLibrary.open(":memory:"))
    return GuideRole(parts)


def ask(guidance):
    """Return a hint, and the questions that its episode kept."""

    async def go():
        rollout._EPISODE.set(episode := rollout._Episode(Spec("train", 0)))
        return await guidance.apropose(Context(HALL, ("go east", "go west"))), episode.consulted

    return asyncio.run(go())


# -- being asked


@pytest.mark.parametrize("agrees", [True, False])
def test_the_recollection_is_shown_as_it_is_or_not_at_all(monkeypatch, agrees):
    engine = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER, roles=("guide",))
    word = PROMPTS.verdicts("guide").yes if agrees else PROMPTS.verdicts("guide").no
    original = engine.generate

    async def answer(request):
        completion = await original(request)
        zeros = (0.0,) * len(word)
        return replace(completion, tokens=word, logprobs=zeros, mask=(True,) * len(word), allowed=(None,) * len(word))

    monkeypatch.setattr(engine, "generate", answer)
    hint, kept = ask(ConsultedGuidance(Fixed(), engine, PROMPTS))
    assert hint.text == (LINES if agrees else "")
    assert hint.item_ids == (("an item",) if agrees else ())
    assert hint.why["p_speaks"] == (1.0 if agrees else 0.0)
    assert hint.usage.calls == 1
    assert kept == []


def test_in_training_it_is_asked_and_the_recollection_is_shown_anyway():
    engine = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER, roles=("guide",))
    hint, kept = ask(ConsultedGuidance(Fixed(), engine, PROMPTS, always=True))
    assert hint.text == LINES
    (question,) = kept
    assert question.p_yes == pytest.approx(hint.why["p_speaks"], abs=1e-3)
    assert question.tokens == len(PROMPTS.text(LINES))


def test_where_nothing_is_recalled_nobody_is_asked():
    nobody: Any = object()  # it would raise
    hint, kept = ask(ConsultedGuidance(Fixed(""), nobody, PROMPTS, always=True))
    assert (hint, kept) == (None, [])


def test_the_question_of_an_episode_is_that_of_the_first_stage():
    """Trained and asked on the same tokens."""
    role = build_role()
    _, (question,) = ask(ConsultedGuidance(Fixed(), role._parts.engine, PROMPTS, always=True))
    prompt = role.speaker.prompt(GuideQuery(HALL, tuple(LINES.splitlines())))
    assert question.prompt == prompt
    lesson = role.supervised.build_example(Marked(prompt, True, "a"), "a")
    assert lesson.completion == PROMPTS.verdicts("guide").yes


# -- credit


def end(arm, success, *questions, copy=0):
    spec = Spec("train", 0, arm, copy)
    trajectory = Trajectory("", (), success, arm=arm, id=spec.session)
    return Rollout(trajectory, (), spec.group, consulted=questions)


def test_every_question_of_a_group_has_the_advantage_of_showing():
    """Shown 1 and 1, not shown 0: +1 for `hint`, once for each episode that was asked; probabilities count as 1/4."""
    role, start, later = build_role(), (1, 2, 3), (1, 2, 4)
    first = (WordChoice(start, 0.5, 1, tokens=9), WordChoice(later, 0.1, 1, tokens=9))
    rollouts = [end("control", False), end("guided", True, *first), end("guided", True, first[0], copy=1)]
    assert role.wants(rollouts)
    role.collect(rollouts)
    ((rows, advantages),) = role._waiting
    weights = {(row.prompt, row.completion): advantages[row.trace][0] for row in rows}
    yes, no = PROMPTS.verdicts("guide").yes, PROMPTS.verdicts("guide").no
    assert weights == {
        (start, yes): pytest.approx(2 * 0.5),
        (start, no): 0.0,
        (later, yes): pytest.approx(TUNING.min_probability),
        (later, no): 0.0,
    }
    assert role.stats["decision"] == 1.0
    assert role.stats["generates"] == pytest.approx((0.5 + 0.1 + 0.5) / 3)


def test_a_recollection_that_hurts_trains_silence_and_its_length_costs():
    role, question = build_role(cost=0.5, length=10), WordChoice((1, 2), 0.6, 1, tokens=10)
    rollouts = [end("control", True), *(end("guided", success, question, copy=n) for n, success in enumerate((1, 0)))]
    role.collect(rollouts)
    ((rows, advantages),) = role._waiting
    assert role.stats["decision"] == pytest.approx(0.5 - 0.5 - 1.0)
    silent = next(row for row in rows if row.completion == PROMPTS.verdicts("guide").no)
    assert advantages[silent.trace] == [pytest.approx(2 * 1.0 * 0.4)]


@pytest.mark.parametrize(
    "rollouts",
    [
        [
            end("guided", True, WordChoice((1,), 0.5, 1, tokens=1)),
            end("guided", False, WordChoice((1,), 0.5, 1, tokens=1)),
        ],
        [end("control", True), end("guided", False, WordChoice((1,), 0.5, 1, tokens=1))],
        [end("control", True), end("guided", False), end("guided", True)],
    ],
    ids=["no control", "one episode", "nothing recalled"],
)
def test_a_group_without_both_kinds_of_episodes_teaches_nothing(rollouts):
    role = build_role()
    role.collect(rollouts)
    assert not role.wants(rollouts)
    assert not role.ready()


def test_an_update_moves_the_answer():
    """After a look at what helped, `hint` is more probable; the order of the episodes does not matter."""
    found = []
    for order in (1, -1):
        role = build_role()
        role._learner = type(role._learner)(role.model, role._parameters, role._parts.config.learner, role="guide")
        _, (question,) = ask(ConsultedGuidance(Fixed(), role._parts.engine, PROMPTS, always=True))
        group = [end("control", False), end("guided", True, question), end("guided", True, question, copy=1)]
        role.collect(group[::order])
        role.update()
        role._parts.engine.load_adapter("guide", 2, role.weights())
        _, (after,) = ask(ConsultedGuidance(Fixed(), role._parts.engine, PROMPTS, always=True))
        found.append(after.p_yes)
        assert after.p_yes > question.p_yes
    assert found[0] == pytest.approx(found[1], abs=1e-6)


# -- the first stage


def walk(*steps):
    made = [
        Step(State(f"{n}"), action, State(f"{n + 1}"), Diagnosis(True), reward, n)
        for n, (action, reward) in enumerate(steps)
    ]
    return Trajectory("", tuple(made), True)


def test_a_solution_is_known_by_its_rewarded_actions_or_its_last():
    assert find_deeds(walk(("open box", 0.0), ("put coin in box", 1.0), ("look", 0.0))) == ("put coin in box",)
    assert find_deeds(walk(("open box", 0.0), ("take coin", 0.0))) == ("take coin",)
    assert find_deeds(walk()) == ()


@pytest.fixture
def recollections():
    """What a library of two instances recalls for each of four, three of which have a solution."""
    lines = ("`go east`: rewarded", "`GO WEST`: rewarded", "`go eastward`: rewarded", "`look`: nothing")

    class Known(Recollections):
        def __init__(self):
            pass

        def ask(self, spec):
            return GuideQuery(replace(HALL, observation=f"room {spec.seed}"), (lines[spec.seed],), (lines[spec.seed],))

    return Known()


def build_parts(paths):
    engine = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER, roles=("guide",))
    library = ExperienceLibrary.open(":memory:")
    instances = [("train", seed) for seed in range(4)]

    def source(split, seed):
        return walk((paths[seed], 1.0)) if seed in paths else None

    return Parts(RoleConfig(), engine.model, PROMPTS, engine, library, source=source, instances=instances)


def test_a_recollection_fits_if_it_names_what_solved_the_instance(recollections):
    """Whole words in any case; that of another instance is judged by the same rule."""
    judged = judge_recollections(recollections, build_parts({0: "go east", 1: "go west", 2: "go east"}), most=99)
    own = {query.state.observation: fits for query, fits in judged[::2]}
    assert own == {"room 0": True, "room 1": True, "room 2": False}
    assert len(judged) == 6
    for query, fits in judged:
        wanted = {"room 0": "go east", "room 1": "go west", "room 2": "go east"}[query.state.observation]
        assert fits is any(line.lower().startswith(f"`{wanted}`") for line in query.recalled)
    assert judge_recollections(recollections, build_parts({}), most=99) == []
    assert len(judge_recollections(recollections, build_parts(dict.fromkeys(range(4), "x")), most=3)) <= 4


# -- a run


@pytest.fixture
def settings(tmp_path):
    base = save_base(tmp_path / "base")
    return {
        "environment": {"name": "tests.trainers.corridor:Corridor", "max_steps": 4},
        "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-103"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
        "model": {"base": str(base), "adapter": 2},
        "arms": {"control": 2, "guided": 3},
        "guidance": {"guided": "guide"},
        "library": {"explored": {"": {"seeds": "20-29"}}, "recall": 3},
        "roles": {
            "policy": {"learner": {"lr": 0.0}},
            "guide": {
                "settings": {"says": "recalled", "distil": 3, "distil_batch": 2, "distil_lr": 0.001, "ready": 1},
                "learner": {"lr": 0.001},
            },
        },
        "eval": {"every": 0, "copies": 1, "temperature": 0},
        "run": {"iterations": 2, "groups": 3, "save_every": 1, "out": str(tmp_path / "run")},
    }


def test_a_run_trains_it_where_it_is_asked_and_its_export_is_asked_the_same(settings, tmp_path, monkeypatch, capsys):
    """The first stage tells P(right); iterations train it; production asks it the questions of training."""
    asked = keep_requests(monkeypatch)
    train(settings, export=tmp_path / "export", quiet=False)
    assert "P(right) is 0." in capsys.readouterr().err
    trained = set(asked["guide"])
    asked["guide"].clear()
    roles: Any = load_roles(tmp_path / "export")
    with ExperienceLibrary.open(tmp_path / "run" / "library.db") as library:
        world = Corridor()
        state = world.reset("", 0)
        context = Context(state, tuple(world.admissible(state)), library.recall(state, k=3))
        hint = roles.guidance.propose(context)
    assert hint is not None
    assert "p_speaks" in hint.why
    (question,) = asked["guide"]
    instruction = PROMPTS.tokenizer.decode(list(question)).split("<recalled>")[0]
    assert any(PROMPTS.tokenizer.decode(list(prompt)).startswith(instruction) for prompt in trained)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guidance": {"guided": "role"}}, "two episodes that show what is recalled"),
        ({"arms": {"control": 2, "guided": 1}}, "two episodes that show what is recalled"),
        ({"roles": {"policy": {}}}, "arms.guided asks the guide, and there is none"),
        ({"roles": {"policy": {}, "guide": {}}, "arms": {"control": 1, "guided": 2, "told": 2},
          "guidance": {"guided": "guide", "told": "role"}}, "guidance.guided is guide, and roles.guide says texts"),
    ],
)  # fmt: skip
def test_a_guide_that_nobody_asks_is_refused(settings, changes, message):
    with pytest.raises((CannotLearn, ConfigError), match=message):
        of({**settings, **changes})


def test_settings_of_texts_are_refused():
    with pytest.raises(ConfigError, match="credit is himac"):
        GuideSettings(says="recalled", credit="himac")
    with pytest.raises(ConfigError, match="executions 2"):
        GuideSettings(says="recalled", executions=2)


def test_arms_ask_it_in_evaluations_and_training_and_not_where_it_has_learned_since(settings, tmp_path, monkeypatch):
    """A frozen arm shows all that the library recalls; in training the answer is kept, and does not matter."""
    asked = keep_requests(monkeypatch)
    session = Session.open(of(settings), tmp_path / "run")
    player = Player(session)

    def play(arm, learning=False):
        asked.clear()
        (played,) = asyncio.run(player.play([("", 0)], {arm: 1}, salt="a", learning=learning))
        return bool(played.trajectory.steps[0].why.memory), len(asked.get("guide", ())), len(played.consulted)

    try:
        was_shown, questions, kept = play(GUIDED, learning=True)
        assert was_shown
        assert questions == kept > 0
        _, questions, kept = play(GUIDED)
        assert questions > kept == 0
        assert play(GUIDED.freeze()) == (True, 0, 0)
    finally:
        player.close()
        session.close()


def test_a_warm_start_shows_everything_and_asks_nobody(settings, monkeypatch):
    """The guide has learned nothing yet, so demonstrations do not depend on it."""
    asked = keep_requests(monkeypatch)
    examples = {"copies": 2, "memory_share": 0.5}
    warmstart = {"examples": examples, "learning": {"updates": 1, "batch": 2, "lr": 0.001}}
    guide = {**settings["roles"]["guide"], "settings": {"says": "recalled", "distil": 0}}
    run = {**settings["run"], "iterations": 0}
    train({**settings, "warmstart": warmstart, "run": run, "roles": {**settings["roles"], "guide": guide}})
    assert not asked.get("guide")


def test_an_adapter_begins_as_the_policy_s_which_has_learned_to_read(settings, tmp_path):
    settings["roles"]["guide"]["settings"] = {"says": "recalled", "distil": 0, "ready": 1}
    session = Session.open(of(settings), tmp_path / "run")
    try:
        guide: Any = session.roles["guide"]
        policy = session.roles["policy"]
        with torch.no_grad():
            for parameter in parameters_of(policy.model, "policy").values():
                parameter.normal_()
        guide.begin()
        ours, theirs = (read_adapter(guide.model, name) for name in ("guide", "policy"))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    finally:
        session.close()


def test_a_run_in_two_parts_is_the_run_in_one(settings, tmp_path):
    """Weights and log; what stage 1 measured is no part of the log, because only the first part knows it."""
    one, two = tmp_path / "one", tmp_path / "two"
    train(settings, [f"run.out={one}", "run.threads=1"])
    train(settings, [f"run.out={two}", "run.threads=1", "run.iterations=1"])
    train(settings, [f"run.out={two}", "run.threads=1"], resume=True)
    assert_same(one, two)
    assert lines(one) == lines(two)
