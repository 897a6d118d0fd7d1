"""Edges of the roles: each test fails when one operator of a condition or of a figure is another."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hardwon.memory import ExperienceLibrary, Item, Recollection, State
from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Hit
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.teams.sharing_policy import NAMES, LogisticAdmission
from hardwon.trainers.algorithms.settings import LossSettings
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.adapters import add_adapter
from hardwon.trainers.models.tiny import build_model
from hardwon.trainers.roles import base
from hardwon.trainers.roles.admission_learning import AdmissionTrainer, Decided, Episode
from hardwon.trainers.roles.base import Parts, PolicyRole
from hardwon.trainers.roles.guides.lessons import explored
from hardwon.trainers.roles.guides.speech import TrainedGuidance, query_of
from hardwon.trainers.roles.registry import check_settings
from hardwon.trainers.rollouts.rollout import Spec

from .test_extractor import SHAPE, TOKENIZER, TRANSCRIPT, episode

# -- admission


def test_two_steps_of_adam_by_hand():
    trainer = AdmissionTrainer(LogisticAdmission(), lr=0.1)
    g = np.zeros(len(NAMES))
    g[0] = 2.0
    trainer._move(g)
    assert trainer.admission.weights[0] == pytest.approx(0.1)
    trainer._move(3 * g)
    mean, square = (0.9 * 0.1 + 0.1 * 3) * 2 / (1 - 0.9**2), (0.99 * 0.01 + 0.01 * 9) * 4 / (1 - 0.99**2)
    assert trainer.admission.weights[0] == pytest.approx(0.1 + 0.1 * mean / math.sqrt(square))
    assert not trainer.admission.weights[1:].any()


def test_the_share_of_used_entries_is_of_those_that_were_shared():
    x = np.zeros(len(NAMES))
    decisions = tuple(Decided(x, admit, 0.5, used) for admit, used in ((True, True), (True, False), (False, False)))
    figures = AdmissionTrainer(LogisticAdmission()).update([[Episode(1.0, decisions), Episode(0.0, decisions)]])
    assert figures["used"] == 0.5
    assert figures["admitted"] == pytest.approx(2 / 3)
    assert figures["reward"] == 0.5


# -- the guide


def test_a_hint_names_the_line_that_was_chosen_and_that_a_model_wrote_it():
    hits = [Hit(Item("insight", f"lamp {n} is blue", id=f"item-{n}", source="person"), 1.0, "alike") for n in (1, 2)]
    context = Context(State("a hall", task="find"), ("look",), Recollection(items=tuple(hits)))
    found = query_of(context)
    assert found is not None
    second = found[1][1].text

    async def say(query, name, greedy):
        return SimpleNamespace(text=second, usage=None, p_speaks=0.7)

    guidance = TrainedGuidance(cast(Any, None), TRANSCRIPT)
    guidance._speaker = cast(Any, SimpleNamespace(say=say))
    hint = asyncio.run(guidance.apropose(context))
    assert hint is not None
    assert (hint.text, hint.item_ids, hint.written) == (second, ("item-2",), True)


def test_a_world_without_a_walk_or_whose_walk_has_no_steps_is_not_asked_about():
    walks: dict[int, list[Any]] = {0: [], 1: [SimpleNamespace(steps=())], 2: [episode()]}
    parts = cast(Any, SimpleNamespace(explored=lambda task, seed: walks[seed]))
    assert [explored(Spec("find", seed), parts) is None for seed in walks] == [True, True, False]


# -- the policy


@pytest.mark.parametrize(("kl", "adapter", "copied"), [(0.1, False, True), (0.1, True, False), (0.0, False, False)])
def test_the_reference_is_a_copy_only_where_a_divergence_needs_one(kl, adapter, copied):
    model = build_model(len(TOKENIZER), SHAPE)
    model = add_adapter(model, "policy", rank=2) if adapter else model
    config = RoleConfig(loss=LossSettings(kl=kl))
    with ExperienceLibrary.open(":memory:") as library:
        role = PolicyRole(Parts(config, model, TRANSCRIPT, LocalEngine(model, TOKENIZER), library))
        role.begin()
    assert (role._learner.reference is not None) is copied


def test_only_rollouts_that_have_samples_and_did_not_fail_are_learned_from():
    every = [SimpleNamespace(rows=rows, failed=failed) for rows in ((), (1,)) for failed in ("", "environment_crash")]
    assert base._select_finished(cast(Any, every)) == [every[2]]


@pytest.mark.parametrize("name", ["policy", "guide", "extractor", "admission"])
def test_an_unknown_setting_of_a_role_names_its_path(name):
    with pytest.raises(ConfigError, match=rf"roles\.{name}\.settings.*speed"):
        check_settings(RoleConfig(settings={"speed": 9}), name)


def test_the_settings_of_a_role_of_your_own_are_not_checked():
    check_settings(RoleConfig(settings={"speed": 9}), "critic of mine")
