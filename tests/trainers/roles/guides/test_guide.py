"""The guide: structured groups, exact gradients, a frozen policy, and what it learns as a language model."""

import asyncio
import io
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from hardwon.memory import Diagnosis, ExperienceLibrary, Item, Recollection, State, Step, Trajectory
from hardwon.memory.records import Hit
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers import EngineChatModel, TrainedGuidance, train
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings
from hardwon.trainers.algorithms.logprobs import collate, forward
from hardwon.trainers.algorithms.losses import policy_loss
from hardwon.trainers.algorithms.samples import Rollout, pack_samples
from hardwon.trainers.config.loading import load
from hardwon.trainers.config.schema import ModelConfig, RoleConfig
from hardwon.trainers.engines.base_models import prepare_for_roles
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.tuning import TUNING
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.guides.credit import Branch, guide_credit
from hardwon.trainers.roles.guides.lessons import build_lessons, build_query
from hardwon.trainers.roles.guides.role import GuideRole, rows_of
from hardwon.trainers.roles.guides.speech import GuideQuery, Speaker
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect

TEXTS = ["leave the easy hard room . red blue green white golden insight warning : go east west wait - led"]
TOKENIZER = build_tokenizer(TEXTS)
TRANSCRIPT = CompactFormat(TOKENIZER)
SHAPE = TinyConfig(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, context=256)
GOOD, BAD = "go east .", "go west . wait . go west ."
KINDS = ("easy", "hard")


def asked(kind, *offers):
    return GuideQuery(State(f"You are in the {kind} room.", task="leave"), ("red : go east .",), offers or (GOOD, BAD))


def kind_of(spec):
    return KINDS[spec.seed % 2]


def guide(*, model=None, settings=None, loss=None, lr=3e-3, lessons=(), seed=0, engine=None):
    """A role over a tiny model; contexts are easy and hard in turns of the seed."""
    model = model or build_model(len(TOKENIZER), TinyConfig(**SHAPE_OF), seed=seed)
    engine = engine or LocalEngine(model, TOKENIZER, roles=("guide",))
    config = RoleConfig(
        learner=LearnerSettings(lr=lr), loss=loss or LossSettings(), settings={"ready": 1, **(settings or {})}
    )
    parts = Parts(config, model, TRANSCRIPT, engine, ExperienceLibrary.open(":memory:"), seed)
    role = GuideRole(parts, lambda spec: asked(kind_of(spec)), lambda: lessons)
    role.begin()
    return role


SHAPE_OF = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 32, "context": 256}


def prepared(role, specs, **options):
    async def go():
        return list(await role.prepare(specs, **options))

    return asyncio.run(go())


def chosen(role, specs, **options):
    async def go():
        return list(await role.choose(specs, **options))

    return asyncio.run(go())


def specs(seeds, *, arm="guided", copies=3, salt=""):
    return [Spec("", seed, arm, copy, salt=salt) for seed in seeds for copy in range(copies)]


def ended(spec, success):
    return Rollout(Trajectory("", (), success, arm=spec.arm, id=spec.session), (), spec.group)


def group(role, seed=0, outcomes=(True, False, True), control=(False,), salt=""):
    """The rollouts of a group, in which the guide was made to speak."""
    spoken = prepared(role, specs([seed], copies=len(outcomes), salt=salt))
    silent = specs([seed], arm="control", copies=len(control), salt=salt)
    pairs = [*zip(spoken, outcomes, strict=True), *zip(silent, control, strict=True)]
    return [ended(spec, outcome) for spec, outcome in pairs]


# -- what it says


def test_it_says_one_of_the_texts_on_offer_or_nothing():
    role = guide()
    assert {spec.memory for spec in chosen(role, specs([0, 1]), speaks=True)} <= {GOOD, BAD}
    assert {spec.memory for spec in chosen(role, specs([0, 1]), speaks=False)} == {None}
    assert {spec.memory for spec in chosen(role, specs([0, 1]))} <= {GOOD, BAD, None}


def test_in_training_texts_are_drawn_and_otherwise_the_most_probable_is_taken():
    role, draws = guide(), [specs([1], salt=str(n)) for n in range(8)]
    assert {spec.memory for own in draws for spec in prepared(role, own)} == {GOOD, BAD}
    assert len({spec.memory for own in draws for spec in chosen(role, own, speaks=True)}) == 1


def test_every_token_is_kept_as_it_was_sampled():
    """The decision among two, its log-probability that of the token it was made to take; then the content."""
    role = guide()
    said = asyncio.run(role.speaker.say(asked("hard"), "one", speaks=True))
    assert said.content is not None
    assert said.content.prompt == said.decision.prompt + said.decision.completion
    (stream,) = pack_samples([said.decision, said.content], {"one": [1.0, 1.0]})
    (again,) = asyncio.run(role._parts.engine.logprobs([stream], "guide"))
    assert again == pytest.approx(stream.logprobs, abs=1e-5)
    assert said.p_speaks == pytest.approx(torch.tensor(said.decision.logprobs[0]).exp().item())


def test_free_words_end_by_themselves_or_at_the_most():
    model = build_model(len(TOKENIZER), SHAPE)
    speaker = Speaker(LocalEngine(model, TOKENIZER, roles=("guide",)), TRANSCRIPT, free=True, most=5)
    said = asyncio.run(speaker.say(asked("hard"), "one", speaks=True))
    assert 1 <= said.tokens <= 5


@pytest.mark.parametrize("free", [True, False])
def test_a_text_to_imitate_is_bound_as_the_guide_is(free):
    """By the lines on offer, whose only continuations are not learned, or by nothing."""
    speaker = Speaker(
        LocalEngine(build_model(len(TOKENIZER), SHAPE), TOKENIZER, roles=("guide",)), TRANSCRIPT, free=free
    )
    sample = speaker.lesson(asked("hard"), GOOD, "lesson")
    assert sample.mask == tuple(allowed is None or len(allowed) > 1 for allowed in sample.allowed)
    assert all(sample.mask) is free
    assert {allowed is None for allowed in sample.allowed} == {free}


def test_with_nothing_recalled_nothing_is_said():
    role = guide()
    role._source = lambda spec: None
    assert prepared(role, specs([0]))[0].memory is None


def test_under_abstain_the_policy_reads_what_it_reads_without_memory(library, rooms):
    """systems.md §2: under ABSTAIN the agent prompt is byte-identical to no memory (the trainer's transcript)."""
    model = build_model(len(TOKENIZER), SHAPE)
    engine = LocalEngine(model, TOKENIZER)
    policy = TokenPolicy(engine, TRANSCRIPT)
    agents = {
        arm: Agent(policy, library, rooms(), arm=arm, learn=False, guidance=GivenGuidance(), max_steps=5)
        for arm in ("control", "guided")
    }
    silent = chosen(guide(), specs([0], copies=1), speaks=False)
    rollouts = asyncio.run(collect(agents, engine, [*silent, *specs([0], arm="control", copies=1)]))
    first, second = ([row.prompt for row in rollout.rows] for rollout in rollouts)
    assert first[0] == second[0]
    assert first == [row.prompt for row in TRANSCRIPT.rows(rollouts[0].trajectory)]


# -- groups


def test_every_group_has_one_abstain_branch_and_two_or_more_that_generate():
    """systems.md §2: every stage-2 group has exactly one abstain and >= 2 generate branches from the same env seed."""
    role = guide()
    spoken = prepared(role, specs([0, 1]))
    assert all(spec.memory for spec in spoken)
    role.collect([ended(spec, True) for spec in (*spoken, *specs([0, 1], arm="control", copies=2))])
    assert role.stats["groups_left_out"] == 0
    for rows, _ in role._waiting:
        decisions = [TOKENIZER.convert_ids_to_tokens(list(row.completion)) for row in rows if row.turn == 0]
        assert decisions == [["<skip>"], ["<keep>"]]
        assert len({row.prompt for row in rows if row.turn == 0}) == 1
    assert len(role._waiting) == 2


@pytest.mark.parametrize(("outcomes", "control"), [((True,), (True,)), ((True, False), ())])
def test_a_group_without_both_kinds_says_nothing(outcomes, control):
    role = guide()
    rollouts = group(role, outcomes=outcomes, control=control)
    assert not role.wants(rollouts)
    role.collect(rollouts)
    assert not role.ready()
    assert role.stats["groups_left_out"] == 1


def test_a_group_whose_episodes_all_ended_alike_is_not_wanted():
    role = guide()
    assert not role.wants(group(role, outcomes=(True, True), control=(True,)))
    assert role.wants(group(role, outcomes=(True, False), control=(True,), salt="b"))


# -- gradients


def gradients(role, credit):
    """Of the loss with respect to each token's log-probability: of the decisions, and of the contents."""
    said = [asyncio.run(role.speaker.say(asked("hard"), f"{n}", speaks=True)) for n in range(len(credit.content))]
    rows, advantages = rows_of(said, credit)
    for one in said:  # also those that have no signal, and that a learner would not read
        if one.content is not None and f"{one.content.trace}/text" not in advantages:
            rows.append(replace(one.content, trace=f"{one.content.trace}/text"))
            advantages[rows[-1].trace] = [0.0]
    given = collate(pack_samples(rows, advantages))
    new, _ = forward(role.model, given)
    new.retain_grad()
    policy_loss(new, given.old, given.advantages, torch.ones_like(new), denominator=1.0).value.backward()
    assert new.grad is not None
    found = [float(value) for value in new.grad]
    return found[:2], found[2:]


def credit_of(abstained, *generated):
    return guide_credit(Branch((abstained,)), [Branch((float(one),)) for one in generated])


def test_content_rewards_leave_decision_gradients_alone():
    """systems.md §2: changing content rewards with equal mean leaves decision gradients unchanged."""
    one, other = (gradients(guide(), credit_of(0.0, *rewards)) for rewards in ((1, 0), (0.5, 0.5)))
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_the_better_word_is_trained_once_for_every_branch():
    """The tiny base is undecided, so this is the exact gradient of the expected reward."""
    role = guide()
    p = asyncio.run(role.speaker.say(asked("hard"), "0")).p_speaks
    assert TUNING.min_probability < p < 1 - TUNING.min_probability
    assert gradients(role, credit_of(0.0, 1, 1))[0] == pytest.approx([0.0, -3 * p])
    assert gradients(role, credit_of(1.0, 0, 0))[0] == pytest.approx([-3 * (1 - p), 0.0])


# -- what is moved


def digest(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_policy_is_frozen():
    """systems.md §2: agent frozen in this phase: parameters unchanged; adapters of one base."""
    base = build_model(len(TOKENIZER), SHAPE)
    model = prepare_for_roles(base, ["policy", "guide"], ModelConfig(adapter=4), 0)["guide"]
    engine = LocalEngine(model, TOKENIZER, roles=("policy", "guide"))
    role = guide(model=model, engine=engine, loss=LossSettings(kl=0.1), settings={"distil": 2}, lessons=LESSONS)
    mine = set(parameters_of(model, "guide"))
    before = digest(model)
    for n in range(2):
        role.collect(group(role, seed=n, salt=f"{n}"))
        role.update()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert changed <= mine


LESSONS = [(asked(kind), GOOD) for kind in KINDS] * 4


def probability(role, text, kind="hard"):
    said = [asyncio.run(role.speaker.say(asked(kind), f"p{n}", speaks=True)).text for n in range(60)]
    return fmean(one == text for one in said)


def test_stage_1_teaches_what_to_say():
    """systems.md §2: experience distillation: supervised learning of (context -> memory)."""
    assert probability(guide(lessons=LESSONS, settings={"distil": 60}), GOOD) > 0.9


def test_divergence_keeps_it_near_stage_1():
    """The reference is what stage 1 left, not what came before it."""
    role = guide(lessons=LESSONS, settings={"distil": 5}, loss=LossSettings(kl=1.0))
    first = digest(role.model)
    assert all(torch.equal(value, role._learner.reference.state_dict()[name]) for name, value in first.items())
    role.collect(group(role))
    assert role.update()["kl"] == pytest.approx(0.0, abs=1e-6)


RATES = {"easy": (0.9, 0.7, 0.7), "hard": (0.3, 0.9, 0.1)}
"""Success without a hint, with the good one, with the bad one."""


def learned(seed, updates=60):
    """A language model that was paid by a world in which easy rooms need no hint, hard ones the good one."""
    role = guide(seed=seed, settings={"cost": 0.1, "length": 32}, loss=LossSettings(kl=0.01))
    chance = random.Random(seed)

    def play(spec):
        without, good, bad = RATES[kind_of(spec)]
        return ended(spec, chance.random() < (without if spec.memory is None else good if spec.memory == GOOD else bad))

    for update in range(updates):
        spoken = prepared(role, specs(range(12), salt=f"{update}"))
        silent = specs(range(12), arm="control", copies=2, salt=f"{update}")
        role.collect([play(spec) for spec in (*spoken, *silent)])
        role.update()
    return role


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_language_model_learns_when_and_what(seed):
    """systems.md §2: generate rate < 20% on easy, > 80% on hard; P(good | generate, hard) > 0.9."""
    role = learned(seed)
    easy, hard = (asyncio.run(role.speaker.say(asked(kind), "x")).p_speaks for kind in KINDS)
    assert easy < 0.2
    assert hard > 0.8
    assert probability(role, GOOD) > 0.9


# -- what is kept


def test_a_guide_goes_on_exactly():
    """Saved between collecting and updating, through a file."""
    role = guide(lessons=LESSONS, settings={"distil": 3}, loss=LossSettings(kl=0.1))
    role.collect(group(role))
    file = io.BytesIO()
    torch.save(role.state_dict(), file)
    file.seek(0)
    other = guide(seed=7, loss=LossSettings(kl=0.1))
    other.load_state_dict(torch.load(file, weights_only=True))
    role.update()
    other.update()
    assert all(torch.equal(value, other.model.state_dict()[name]) for name, value in role.model.state_dict().items())


def test_frozen_is_what_stage_1_left():
    role = guide(lr=0.1)
    before = [spec.memory for spec in chosen(role, specs([0, 1]))]
    for n in range(5):
        role.collect(group(role, seed=n % 2, outcomes=(False, False), control=(True,), salt=f"{n}"))
        role.update()
    now = digest(role.model)
    assert [spec.memory for spec in prepared(role, specs([0, 1]), frozen=True)] == before
    assert all(torch.equal(value, now[name]) for name, value in role.model.state_dict().items())


# -- of episodes, and in the loop


def walk(*actions, success=True):
    fine = Diagnosis(True)
    places = [State(f"You are in the {name} room.", location=name) for name in ("red", "blue", "red", "blue", "green")]
    steps = tuple(Step(places[n], action, places[n + 1], fine, t=n) for n, action in enumerate(actions))
    return Trajectory("leave", steps, success, id="w")


def test_a_walk_is_on_offer_whole_and_without_its_circles():
    """Both kinds of endings are recalled; only what succeeded is taught."""
    one = walk("go east", "go west", "go east", "go east")
    assert build_query(one).offers == (
        "red : go east . blue : go east .",
        "red : go east . blue : go west . red : go east . blue : go east .",
    )
    assert build_query(walk("go east", success=False)).recalled == ("red : go east . warning",)
    assert [text for _, text in build_lessons([one, walk("go east", success=False)])] == [build_query(one).offers[0]]


def test_a_trained_guide_in_the_loop(library, rooms, script):
    """Its cost is counted, and only the items that it says are credited."""
    role = guide()
    recollection = Recollection(tuple(Hit(Item("insight", title, id=title), 0.9, "") for title in ("east", "west")))
    guidance = TrainedGuidance(role._parts.engine, TRANSCRIPT)
    hint = guidance.propose(Context(State("You are in the red room."), recollection=recollection))
    assert hint is not None
    assert hint.usage.calls in (1, 2)
    assert (len(hint.item_ids) == 1) is bool(hint.text)
    library.add(Item("insight", "the red room is a room"))
    agent = Agent(script("go east", reads="text"), library, rooms(), guidance=guidance, learn=False)
    assert asyncio.run(agent.arun()).trajectory.meta["guidance"]["calls"] >= 1


def test_the_example_trains_the_guide_alone():
    config = load(Path(__file__).parents[4] / "examples" / "train_guide.yaml")
    assert next(iter(config.roles)) == "guide"
    assert config.roles["guide"].phase > config.run.iterations
    assert config.roles["policy"].learner.lr == 0.0


def test_a_run_with_a_guide_goes_on_after_a_stop(corridor, tmp_path):
    """Policy and guide in turns; the same weights as one that was never stopped; what is exported gives hints."""
    roles = {"policy": {"learner": {"lr": 0.003}}, "guide": {"settings": {"ready": 1, "distil": 2}}}
    arms = {"arms": {"control": 2, "guided": 2}, "guidance": {"guided": "role"}, "roles": roles}
    whole = train(corridor(**arms, run={"iterations": 4}), export=tmp_path / "export")
    settings = corridor(**arms, run={"iterations": 2})
    settings["run"]["out"] += "-parts"
    train(settings)
    settings["run"]["iterations"] = 4
    parts = train(settings, resume=True)
    weights = [
        torch.load(f"{report.checkpoint}/guide.pt", weights_only=True)["state"]["weights"] for report in (whole, parts)
    ]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    engine = EngineChatModel.load(tmp_path / "export" / "guide", role="guide").engine
    recalled = Recollection((Hit(Item("insight", "the prize is in the golden room"), 0.9, ""),))
    hint = TrainedGuidance(engine, CompactFormat(engine.tokenizer)).propose(
        Context(State("You are in the red room."), recollection=recalled)
    )
    assert hint is not None
    assert hint.text in ("", "- insight: the prize is in the golden room.")
