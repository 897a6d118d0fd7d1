"""A base from a folder: byte-level BPE, tied embeddings, no spare rows. It exports, resumes and evaluates exactly."""

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainers.fake_vllm import serving
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, build_settings, save_base
from tests.trainers.test_trainer import assert_same, lines

from hardwon.memory import ExperienceLibrary
from hardwon.trainers import player, train
from hardwon.trainers.checkpoint import find
from hardwon.trainers.config.schema import ModelConfig
from hardwon.trainers.engines.base_models import load_base, load_tokenizer
from hardwon.trainers.evaluate import evaluate_checkpoint
from hardwon.trainers.loop import TrainingLoop
from hardwon.trainers.rollouts.renaming import Names
from hardwon.trainers.rollouts.rollout import Spec

FEW = {"samples": 2, "pairs": 2, "tokens": 8}
EXTRACTOR = {
    "arms": {"control": 2, "library": 2},
    "roles": {"policy": {"learner": {"lr": 0.01}}, "extractor": {"settings": {**FEW, "ready": 2}}},
}
ADMISSION = {
    "arms": {"control": 2, "library": 2},
    "roles": {
        "policy": {"learner": {"lr": 0.01}},
        "admission": {"settings": {"teams": 2, "runs": 2, "worlds": 1, "ready": 2, "steps": 3}},
    },
}
STAGE_1 = {"distil": 4, "distil_batch": 2}
ALL_ROLES: dict[str, Any] = {
    "explore": {"policy": "episodic", "worlds": {"seeds": "12-23"}, "steps": 10, "tries": 1},
    "library": {"explored": {"more": {"seeds": "30-41"}}, "recall": 3},
    "arms": {"control": 2, "retrieved": 4, "guided": 2},
    "guidance": {"retrieved": "library", "guided": "guide"},
    "warmstart": {"examples": {"copies": 2, "memory_share": 0.5}, "learning": {"updates": 2, "batch": 2}},
    "roles": {
        # outcomes that are alike give no signal, and the entropy moves an adapter without one
        "policy": {"phase": 1, "credit": {"name": "grpo"}, "learner": {"lr": 0.01}, "loss": {"entropy": 0.1}},
        "extractor": {
            "learner": {"lr": 0.01},
            "settings": {**FEW, "episodes": 3, "ready": 1, **STAGE_1},
        },
        "guide": {
            "learner": {"lr": 0.01},
            "loss": {"kl": 0.01},
            "settings": {"says": "recalled", "ready": 1, **STAGE_1},
        },
        "admission": {
            "learner": {"lr": 0.01},
            "loss": {"entropy": 0.1},
            "settings": {"teams": 2, "runs": 2, "worlds": 1, "ready": 2, "steps": 3, **STAGE_1},
        },
    },
}
"""The sections of examples/train_smollm2.yaml with few examples, instances and steps."""


@pytest.fixture
def base(tmp_path):
    return save_base(tmp_path / "base")


def run_of(corridor, base, adapter, **sections):
    model = {"base": str(base), "adapter": adapter, "device": "cpu"}
    fewer = {"iterations": 3, "groups": 2, "rerolls": 0, "save_every": 1}
    few = {"arms": {"control": 2, "experience": 2}, "environment": {"max_steps": 3}, **sections}
    return corridor(model=model, warmstart=None, run=fewer, eval={"every": 3}, **few)


@pytest.mark.parametrize(("adapter", "sections"), [(None, {}), (4, {}), (None, EXTRACTOR)])
def test_a_run_in_two_parts_is_the_run_in_one(corridor, base, tmp_path, adapter, sections):
    """Embeddings that the run adds are drawn with a seed of their own, so a resumed run has the same."""
    settings = run_of(corridor, base, adapter, **sections)
    one, two = ([f"run.out={tmp_path / name}", "run.iterations=2", "eval.every=2"] for name in ("one", "two"))
    train(settings, one)
    train(settings, [*two, "run.iterations=1"])
    torch.manual_seed(977)
    train(settings, two, resume=True)
    assert_same(tmp_path / "one", tmp_path / "two")
    again = [line for line in lines(tmp_path / "two") if (line["iteration"], line["kind"]) != (1, "eval")]
    assert lines(tmp_path / "one") == again
    counts = {line["policy/samples_per_rollout"] for line in again if "policy/samples_per_rollout" in line}
    assert counts == {1.0}, "an episode of an append-only conversation is one sample"


def read_adapters(out, iteration):
    """Return the tensors of each role's adapter in a checkpoint of a run."""
    saved = {role: torch.load(out / "checkpoints" / f"{iteration:06}" / f"{role}.pt") for role in ALL_ROLES["roles"]}
    return {role: state["state"]["weights"] for role, state in saved.items()}


def test_four_roles_that_are_resumed_are_the_four_roles_in_one(tmp_path):
    """Stage 1, trials of lessons and a guide: every adapter moves before the resume and after it, bit for bit."""
    one, two = tmp_path / "one", tmp_path / "two"
    settings = build_settings(tmp_path, **ALL_ROLES)
    settings["run"] |= {"iterations": 6, "groups": 1, "rerolls": 0, "save_every": 1, "keep": 9}
    train(settings, [f"run.out={one}"])
    shutil.copytree(one, two)
    for number in range(3, 7):  # as if it had been killed after two iterations, which is cheaper than to run them again
        shutil.rmtree(two / "checkpoints" / f"{number:06}")
    torch.manual_seed(977)
    train(settings, [f"run.out={two}"], resume=True)
    assert_same(one, two)
    assert lines(one) == lines(two)
    start, before, after = (read_adapters(two, number) for number in (0, 2, 6))
    for role, weights in before.items():
        assert any(not torch.equal(value, after[role][name]) for name, value in weights.items()), role
        policy = {name.replace("policy", role): value for name, value in start["policy"].items()}
        # the others began stage 1 as the policy, which has an update in the first iteration
        earlier, later = (start[role], weights) if role == "policy" else (policy, start[role])
        assert any(not torch.equal(value, later[name]) for name, value in earlier.items()), role


@pytest.mark.parametrize("adapter", [None, 4])
def test_an_export_computes_what_the_best_weights_of_the_run_compute(corridor, base, tmp_path, adapter, monkeypatch):
    """`--export` with tied embeddings: transformers, or peft on the base that it names, gives the same logits.

    Here each evaluation is worse than the one before, so the best weights are those of the start.
    """
    from transformers import AutoModelForCausalLM

    from hardwon.trainers.session import Session

    monkeypatch.setattr(TrainingLoop, "_score_checkpoint", lambda loop: -float(loop.position.iteration))
    report = train(run_of(corridor, base, adapter), export=tmp_path / "export")
    assert report.best is not None
    assert report.best != report.checkpoint
    folder = Path(report.exported[0])
    tokens = torch.tensor([load_tokenizer(folder)("You are in the red room.").input_ids])
    if adapter is None:
        exported: Any = AutoModelForCausalLM.from_pretrained(str(folder))
    else:
        from peft import PeftConfig, PeftModel

        named = PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
        exported = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(str(named)), str(folder))
    session = Session.restore(Path(report.best), tmp_path / "work")
    try:
        trained = session.roles["policy"].model
        if adapter is not None:
            trained.set_adapter("policy")
        with torch.no_grad():
            assert torch.equal(exported.eval()(tokens).logits, trained(tokens).logits)
    finally:
        session.close()


def test_a_checkpoint_evaluates_as_the_run_did(corridor, base, tmp_path):
    report = train(run_of(corridor, base, 4))
    torch.manual_seed(31)
    evaluated = asyncio.run(evaluate_checkpoint(find(tmp_path / "run")))
    assert {name: arm.success for name, arm in evaluated.items()} == {
        name: arm["success"] for name, arm in report.final.items()
    }


def test_a_run_warns_of_a_base_whose_verdicts_are_close_to_chance(corridor, base, capsys):
    train(run_of(corridor, base, None, **ADMISSION), ["run.iterations=0", "eval.every=0"])
    warned = capsys.readouterr().err
    assert "WARNING: the untrained base puts" in warned
    assert "as admission. Its first verdicts are close to chance; train roles.admission" in warned


def test_a_run_with_a_server_warns_in_the_same_words(corridor, base, tmp_path, capsys):
    """The base is the same, and adapters that have learned nothing change nothing."""
    settings, only = run_of(corridor, base, 4, **ADMISSION), ["run.iterations=0", "eval.every=0"]
    train(settings, only)
    here = read_warning(capsys)
    with serving(build_chat_model(build_chat_tokenizer())) as fake:
        train(settings, [*only, f"run.out={tmp_path / 'served'}", f"engine.url={fake.url}"])
        asked = {body["model"].partition("-")[0] for _, body in fake.asked if body and "prompt_logprobs" in body}
    assert read_warning(capsys) == here
    assert "the untrained base puts" in here
    assert asked == {"admission"}


def read_warning(capsys):
    """Return the warning about verdicts on standard error, as one line."""
    told = " ".join(capsys.readouterr().err.split())
    return told[told.index("WARNING: the untrained base") :].partition("rely on them.")[0]


def test_added_embeddings_do_not_depend_on_the_random_state_of_the_process(base):
    config = ModelConfig(base=str(base), adapter=4, device="cpu")
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, _ = load_base(base, config)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    second, _ = load_base(base, config)
    assert torch.equal(first.get_input_embeddings().weight, second.get_input_embeddings().weight)


@pytest.mark.parametrize(("seeds", "warns"), [("400-405", False), ("0-5", True)])
def test_a_warm_start_warns_if_the_library_has_its_instances(corridor, base, tmp_path, capsys, seeds, warns):
    """Their hints lack the past return of actions, so the policy would imitate without what it reads later."""
    train(
        corridor(
            model={"base": str(base), "adapter": 4, "device": "cpu"},
            arms={"control": 2, "retrieved": 2},
            explore={"worlds": {"seeds": "0-5"}},
            library={"explored": {"more": {"seeds": seeds}}},
            warmstart={"examples": {"copies": 2, "memory_share": 0.5}, "learning": {"updates": 1, "batch": 2}},
            run={"iterations": 0, "groups": 1, "out": str(tmp_path / "run")},
            eval={"every": 0},
        )
    )
    assert ("are in library.explored" in capsys.readouterr().err) is warns


@pytest.mark.parametrize(("at_once", "most"), [(None, 2), (3, 3), (1, 1)])
def test_a_run_plays_as_many_episodes_at_once_as_it_is_told(at_once, most, monkeypatch):
    """Long episodes need fewer than the default, or the run is killed for memory; a large GPU takes more."""
    monkeypatch.setattr(player, "CONCURRENT_CHATS", 2)
    config = SimpleNamespace(run=SimpleNamespace(at_once=at_once), model=SimpleNamespace(is_compact=False))
    playing: Any = SimpleNamespace(_session=SimpleNamespace(config=config))
    episodes: Any = range(7)
    batches: list[Any] = list(player.Player._split(playing, episodes))
    assert [len(batch) for batch in batches][:-1] == [most] * (len(batches) - 1)
    assert [number for batch in batches for number in batch] == list(range(7))


def test_a_warm_start_demonstrates_with_and_without_recall(corridor, base, tmp_path, monkeypatch):
    """Explored paths are played again in both arms; the explored library is recorded once, not again by a resume."""
    played, batches = [], []
    real, split = player.Player.demonstrate, player.Player._split

    async def demonstrate(self, paths, arms, *rename):
        rollouts = await real(self, paths, arms, *rename)
        played.append((paths, arms, rollouts))
        return rollouts

    def keep_batches(self, specs):
        batches.append(split(self, specs))
        return batches[-1]

    monkeypatch.setattr(player.Player, "demonstrate", demonstrate)
    monkeypatch.setattr(player, "CONCURRENT_CHATS", 2)
    monkeypatch.setattr(player.Player, "_split", keep_batches)
    settings = corridor(
        model={"base": str(base), "adapter": 4, "device": "cpu"},
        arms={"control": 2, "retrieved": 2},
        library={"explored": {"more": {"seeds": "400-405"}}},
        warmstart={"examples": {"copies": 2, "memory_share": 0.5}, "learning": {"updates": 1, "batch": 2}},
        run={"iterations": 1, "groups": 1, "rerolls": 0, "save_every": 1, "out": str(tmp_path / "run")},
        eval={"every": 0},
    )
    train(settings)
    _, (paths, arms, rollouts) = played  # those before measured prompts
    assert {arm.name: copies for arm, copies in arms.items()} == {"control": 1, "retrieved": 1}
    assert len(rollouts) == 2 * len(paths)
    assert all(rollout.trajectory.success and rollout.rows for rollout in rollouts)
    assert max(len(batch) for split_specs in batches for batch in split_specs) == 2
    recorded = count_explored(tmp_path / "run")
    assert recorded >= 6
    train(settings, ["run.iterations=2"], resume=True)
    assert count_explored(tmp_path / "run") == recorded


@pytest.mark.parametrize(("share", "copies"), [(0.0, 0), (0.5, 1), (1.0, 2)])
def test_things_are_renamed_in_a_share_of_the_copies_with_memory(corridor, base, tmp_path, monkeypatch, share, copies):
    """Without memory the old names stay: there is nothing to read, so the places must be remembered."""
    drawn, plain = [], Names.shuffle

    def shuffle(self, chance):
        drawn.append(self.groups)
        return plain(self, chance)

    kept, real = [], player.Player.demonstrate

    async def demonstrate(self, paths, arms, rename=None):
        for arm, number in arms.items() if rename is not None else ():  # without one, prompts are measured
            specs = [Spec("train", 1, arm.name, copy) for copy in range(number)]
            kept.append((arm.name, sum(rename(spec) is not str for spec in specs)))
        return await real(self, paths, arms, *([] if rename is None else [rename]))

    monkeypatch.setattr(Names, "shuffle", shuffle)
    monkeypatch.setattr(player.Player, "demonstrate", demonstrate)
    train(
        corridor(
            model={"base": str(base), "adapter": 4, "device": "cpu"},
            arms={"control": 2, "retrieved": 2},
            warmstart={
                "examples": {"copies": 3, "memory_share": 0.67, "renamed": share},
                "learning": {"updates": 1, "batch": 2},
            },
            run={"iterations": 0, "groups": 1, "out": str(tmp_path / "run")},
            eval={"every": 0},
        )
    )
    assert kept == [("control", 0), ("retrieved", copies)]
    assert all(any(len(group) > 1 for group in groups) for groups in drawn)
    assert bool(drawn) is (copies > 0)


def count_explored(out):
    """Return the number of recorded episodes of the instances that were explored for the library."""
    with ExperienceLibrary.open(out / "library.db", read_only=True) as library:
        return sum(400 <= row["seed"] <= 405 for row in library.episodes.find(limit=None))
