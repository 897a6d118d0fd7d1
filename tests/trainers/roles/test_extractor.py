"""The extractor: what its lessons earn, which of them are stored, and what it learns from them."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from tests.trainers.corridor import Corridor

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.learner import LearnerSettings
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.base import Completion
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.extractor import ExtractorRole, spread

TOKENIZER = build_tokenizer(["find the coin . red blue green hall : go east west . take coin . you are in the room"])
TRANSCRIPT = CompactFormat(TOKENIZER)
SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16, context=256)
GOOD, BAD, OTHER, NONE = "take coin", "go west", "go east", ""


def episode(success=True):
    fine = Diagnosis(True)
    names = ("red", "blue", "red", "green")
    states = [State(f"You are in the {name} room.", location=name, task="find the coin") for name in names]
    moves = ("go east", "go west", "go west")
    steps = tuple(Step(states[n], moves[n], states[n + 1], fine, t=n, id=n + 1) for n in range(3))
    return Trajectory("find the coin", steps, success, id="e")


def ended(spec, success, arm="memory", name=None, meta=None):
    trajectory = Trajectory("find", (), success, arm=arm, id=name or spec.session, meta=meta or {})
    return Rollout(trajectory, (), spec.group)


class Says(LocalEngine):
    """An engine that writes these lessons, one after another, with the probabilities of a model."""

    def __init__(self, model, *texts):
        super().__init__(model, TOKENIZER, roles=("extractor",))
        self.answers = [TRANSCRIPT.text(text) for text in texts]

    async def generate(self, request):
        tokens = self.answers.pop(0)
        n = len(tokens)
        return Completion(tokens, measure(self.model, request.prompt, tokens), (True,) * n, (None,) * n, 0)


def measure(model, prompt, tokens):
    """Return the log-probabilities of an answer."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits, -1)[range(len(tokens)), list(tokens)]
    return tuple(map(float, chosen))


def build_role(*texts, seeds=6, **settings):
    model = build_model(len(TOKENIZER), SHAPE)
    config = RoleConfig(
        learner=LearnerSettings(lr=1e-2),
        settings={"samples": max(2, len(texts)), "pairs": 16, "ready": 1, "cost": 0.0, **settings},
    )
    library = ExperienceLibrary.open(":memory:")
    instances = [("find", seed) for seed in range(seeds)]
    parts = Parts(config, model, TRANSCRIPT, Says(model, *texts), library, trained=instances,
                  environment=cast(Any, Corridor()))  # fmt: skip
    return ExtractorRole(parts)


def read_and_try(role, helps=lambda spec: spec.candidate.title == GOOD, trust="trusted", tried="shown"):
    """Let a role read one episode and try its lessons; return the metrics and the episodes that were played.

    Without a lesson, all fail.
    """
    played: list[Any] = []

    async def play(specs):
        played.extend(specs)
        outcomes = [spec.candidate is not None and helps(spec) for spec in specs]
        rollouts = [ended(spec, outcome) for spec, outcome in zip(specs, outcomes, strict=True)]
        return [
            replace(each, tried="" if spec.candidate is None else tried)
            for each, spec in zip(rollouts, specs, strict=True)
        ]

    async def run():
        library = role._parts.library
        trajectory = replace(episode(), trust=trust)
        library.record(trajectory)
        await role.written([Rollout(trajectory, (), "find#0")])
        role.read("s")
        assert (await role.written())["problems"] == 0
        return await role.try_candidates(play, "library", "s")

    return asyncio.run(run()), played


def get_advantages(role):
    return pytest.approx([value for _, credit in role._waiting for (value,) in credit.values()])


def stored(role):
    return [item for item in role._parts.library.items.find() if item.writer.startswith("extractor/")]


# -- what a lesson earns


@pytest.mark.parametrize(
    ("texts", "settings", "advantages"),
    [
        ((GOOD, BAD, OTHER), {}, [1.0, -0.5, -0.5]),
        ((GOOD, GOOD, BAD), {}, [0.5, 0.5, -1.0]),
        ((BAD, NONE), {"malformed": 0.3}, [0.3, -0.3]),
        ((BAD, "go west . go west"), {"cost": 0.2, "length": 10}, [0.06, -0.06]),
    ],
    ids=["one helps", "equal ones", "no lesson", "longer"],
)
def test_a_lesson_is_paid_for_its_gain_less_what_its_siblings_earn(texts, settings, advantages):
    role = build_role(*texts, **settings)
    read_and_try(role)
    assert get_advantages(role) == advantages


def test_equal_lessons_are_tried_once_and_what_is_no_lesson_never():
    metrics, played = read_and_try(build_role(GOOD, GOOD, BAD, NONE))
    shown = [spec for spec in played if spec.candidate is not None]
    assert {spec.candidate.title for spec in shown} == {GOOD, BAD}
    assert {spec.candidate.id for spec in shown} == {"s/e/0", "s/e/2"}
    assert "find#0" not in {spec.group for spec in played}
    assert {name: metrics[name] for name in ("written", "malformed", "judged", "helps", "added")} == {
        "written": 4, "malformed": 1, "judged": 2, "helps": 1, "added": 1,
    }  # fmt: skip
    assert metrics["pairs"] == len(shown)
    assert metrics["reward"] == pytest.approx((1 + 1 + 0 - 0.1) / 4)


def test_the_episodes_without_a_lesson_are_shared():
    _, played = read_and_try(build_role(BAD, OTHER), helps=lambda spec: False)
    assert sum(spec.candidate is None for spec in played) == 16
    assert sum(spec.candidate is not None for spec in played) == 32


@pytest.mark.parametrize(("helps", "score"), [(lambda spec: True, 1.0), (lambda spec: spec.copy % 4 < 3, 0.875)])
def test_what_helped_is_stored_with_its_gain_and_its_steps(helps, score):
    role = build_role(GOOD, BAD)
    read_and_try(role, lambda spec: spec.candidate.title == GOOD and helps(spec))
    (item,) = stored(role)
    assert (item.title, item.kind, item.score, item.provenance) == (GOOD, "insight", pytest.approx(score), (1, 2, 3))
    assert not item.id.startswith("s/")


def test_a_lesson_that_is_recalled_anyway_earns_nothing():
    role = build_role(GOOD, BAD)
    metrics, _ = read_and_try(role, tried="known")
    assert metrics["known"] == 2
    assert get_advantages(role) == [0.0, 0.0]
    assert not stored(role)


def test_a_lesson_of_an_untrusted_episode_waits_in_quarantine_untried():
    role = build_role(GOOD, BAD)
    _, played = read_and_try(role, trust="untrusted")
    assert (played, role._waiting) == ([], [])
    assert {item.status for item in role._parts.library.items.find(status=None)} == {"quarantined"}


def test_a_lesson_about_the_only_instance_cannot_be_tried():
    role = build_role(GOOD, BAD, seeds=1)
    metrics, played = read_and_try(role)
    assert (played, metrics["undecided"], stored(role)) == ([], 2, [])


def test_an_episode_that_was_forgotten_meanwhile_keeps_no_lesson():
    role = build_role(GOOD, BAD)

    def forget_and_help(spec):
        if role._parts.library.episodes.find():
            role._parts.library.admin.forget(episode="e")
        return spec.candidate.title == GOOD

    metrics, _ = read_and_try(role, forget_and_help)
    assert (metrics["rejected"], stored(role)) == (1, [])


# -- learning


def test_an_update_makes_what_helped_likelier_than_its_siblings():
    role = build_role(GOOD, BAD, OTHER)
    read_and_try(role)
    assert role.ready()
    rows = [row for own, _ in role._waiting for row in own]
    assert role.update()["samples"] == 3
    now = [sum(measure(role.model, row.prompt, row.completion)) - sum(row.logprobs) for row in rows]
    assert now[0] > max(now[1:])
    assert not role.ready()


@pytest.mark.parametrize(("texts", "ready"), [((BAD, OTHER), 1), ((GOOD, BAD), 3)])
def test_there_is_no_update_from_equal_rewards_or_too_few_lessons(texts, ready):
    role = build_role(*texts, ready=ready)
    read_and_try(role)
    assert not role.ready()


def test_it_goes_on_where_it_was():
    role, other = build_role(GOOD, BAD), build_role()
    read_and_try(role)
    asyncio.run(role.written([Rollout(replace(episode(), id="next"), (), "find#1")]))
    saved = role.state_dict()
    other.load_state_dict(saved)
    restored = other.state_dict()
    assert all(torch.equal(value, restored["weights"][name]) for name, value in saved["weights"].items())
    assert restored["unread"] == ["next"]
    assert {name: restored[name] for name in ("samples", "unread", "groups")} == {
        name: saved[name] for name in ("samples", "unread", "groups")
    }
    assert other.update()["loss"] == pytest.approx(role.update()["loss"])


def test_a_checkpoint_of_an_earlier_version_is_refused():
    saved = {name: value for name, value in build_role().state_dict().items() if name != "samples"}
    with pytest.raises(ConfigError, match="an earlier version"):
        build_role().load_state_dict({**saved, "judged": []})


def test_episodes_are_read_one_of_each_group_first():
    def rollout(group, number, *, failed="", steps=True):
        trajectory = replace(episode(), id=f"{group}{number}", steps=episode().steps if steps else ())
        return Rollout(trajectory, (), group, failed)

    rollouts = [rollout("a", 1), rollout("a", 2), rollout("a", 3), rollout("b", 1), rollout("b", 2)]
    useless = [rollout("a", 4, failed="environment_crash"), rollout("c", 1, steps=False)]
    assert [one.trajectory.id for one in spread([*useless, *rollouts])] == ["a1", "b1", "a2", "b2", "a3"]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"redy": 3}, "did you mean ready"),
        ({"teacher": "gpt"}, "teacher is 'gpt'; use rules, or MODULE:CALLABLE"),
    ],
)
def test_settings_are_checked(settings, match):
    with pytest.raises(ConfigError, match=match):
        build_role(**settings)
