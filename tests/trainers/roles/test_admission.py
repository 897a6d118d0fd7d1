"""The admission as a role: one token a step, credited by what was pulled, the policy as it is."""

import asyncio
import io
from dataclasses import replace

import pytest
import torch
from tests.trainers.corridor import Corridor

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.runtime.teams.sharing_policy import SharingInput
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import ModelConfig, RoleConfig
from hardwon.trainers.engines.base_models import prepare_for_roles
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.admission import AdmissionRole, EngineAdmission
from hardwon.trainers.roles.admission_learning import Decided, Episode
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.registry import ROLES
from hardwon.trainers.roles.trained import count_samples

TEXTS = ["find the prize . red blue green white golden room : go east west . wait . you are in the"]
TOKENIZER = build_tokenizer(TEXTS)
TRANSCRIPT = CompactFormat(TOKENIZER)
SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16, context=512)
STEP = SharingInput(
    "find the prize", ("go east -> you are in the blue room",), "go west", "go west -> you are in the red room", "red"
)


def made(adapter: int | None = 2, lr=0.05, **settings):
    """The role on its own adapter, beside the policy's, of one base; None for copies of the base."""
    base = build_model(len(TOKENIZER), SHAPE)
    models = prepare_for_roles(base, ["policy", "admission"], ModelConfig(adapter=adapter), 0)
    engine = LocalEngine(models["admission"], TOKENIZER, roles=("policy", "admission"))
    given = {"teams": 2, "runs": 2, "worlds": 1, "ready": 2, "steps": 5, **settings}
    config = RoleConfig(learner=LearnerSettings(lr=lr), loss=LossSettings(), settings=given)
    library = ExperienceLibrary.open(":memory:")
    parts = Parts(config, models["admission"], TRANSCRIPT, engine, library, environment=Corridor())
    return AdmissionRole(parts), engine, library


def rollout(seed=0):
    return Rollout(Trajectory("find the prize", (), True), (), f"#{seed}")


def send(role, *seeds):
    return asyncio.run(role.written([rollout(seed) for seed in seeds or (0,)]))


def test_it_is_registered_and_reads_beside_the_rollouts():
    role = ROLES["admission"](made()[0]._parts)
    assert isinstance(role, AdmissionRole)


def test_a_decision_is_one_of_two_tokens_with_an_exact_probability():
    """systems.md §4: one constrained token."""
    role, engine, _ = made()
    for salt in ("", "1"):
        admission = EngineAdmission(engine, TRANSCRIPT, salt=salt)
        choice = asyncio.run(admission.decide(STEP))
        kept = list(admission.decisions.values())
        assert [decision.is_yes for decision in kept] == ([choice.admit] if salt else [])  # greedy ones are not kept
        assert choice.p == pytest.approx(
            2.718281828**choice.logprob if choice.admit else 1 - 2.718281828**choice.logprob
        )
    assert role.name == "admission"


def test_what_it_sees_is_the_task_the_keys_and_the_step():
    """systems.md §4: context of query + existing keys + step."""
    _, engine, _ = made()
    said = TOKENIZER.decode(EngineAdmission(engine, TRANSCRIPT).prompt(STEP))
    assert said.index("prize") < said.index("blue") < said.index("red")


def test_it_sends_teams_and_drops_their_banks():
    role, _, library = made()
    told = send(role, 1)
    assert role.ready()
    assert 0.0 <= told["admitted"] <= 1.0
    assert library._file.store.rows("SELECT * FROM bank_entries") == []
    assert count_samples(role._waiting) == len(role._admitted) > 0


def test_an_update_moves_its_own_adapter_and_nothing_else():
    """systems.md §4: agents frozen: the policy's parameters and the base are bit for bit as they were."""
    role, _, _ = made()
    runs = [asyncio.run(role.send("", 0, f"{n}")) for n in range(2)]
    role.credit([(replace(episode, reward=float(n)), decisions) for n, (episode, decisions) in enumerate(runs)])
    before = {name: value.detach().clone() for name, value in role.model.named_parameters()}
    metrics = role.update()
    moved = {name for name, value in role.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert all(".admission." in name for name in moved)
    assert metrics["samples"] > 0
    assert not role.ready()


def test_it_learns_to_share_what_is_pulled():
    """systems.md §4: usage-aware credit: what was pulled becomes probable, what was not does not."""
    role, engine, _ = made(adapter=None, lr=0.01, target=0.5)
    other = replace(STEP, key="wait -> you are in the green room", action="wait", value="green")

    def probability(candidate):
        admission = EngineAdmission(engine, TRANSCRIPT)
        return asyncio.run(admission.decide(candidate)).p

    for n in range(30):
        admission = EngineAdmission(engine, TRANSCRIPT, salt=str(n))
        chosen = [asyncio.run(admission.decide(one)) for one in (STEP, other) * 4]
        decided = [
            Decided(torch.zeros(0).numpy(), choice.admit, choice.p, used=choice.admit and at % 2 == 0)
            for at, choice in enumerate(chosen)
        ]
        role.credit([(Episode(1.0, tuple(decided)), admission.decisions)])
        role.update()
        engine.load_adapter("admission", n + 1, role.weights())
    assert probability(STEP) > 0.8
    assert probability(other) < 0.5


def test_it_goes_on_where_it_was_saved():
    one, _, _ = made()
    send(one)
    one.price.update(0.9)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other, _, _ = made()
    other.load_state_dict(torch.load(file, weights_only=True))  # as checkpoints read it
    assert other.price.price == one.price.price
    told = [{k: v for k, v in role.update().items() if k != "tokens_per_second"} for role in (one, other)]
    assert told[0] == told[1]


def test_the_same_seed_sends_the_same_teams():
    one, other = made()[0], made()[0]
    send(one, 1, 2)
    send(other, 1, 2)
    assert one._waiting == other._waiting != []


def test_without_a_world_it_says_so():
    role = made()[0]
    with pytest.raises(ConfigError, match="no environment"):
        AdmissionRole(replace(role._parts, environment=None)).begin()
