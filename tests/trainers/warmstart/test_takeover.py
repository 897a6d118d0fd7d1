"""A run that begins with the roles of another one."""

import os
import signal
from pathlib import Path

import pytest
import torch
from tests.trainers.folder_base import build_settings, save_base

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.imitation import Imitation
from hardwon.trainers.config.loading import of
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train


@pytest.fixture
def settings(tmp_path):
    return build_settings(tmp_path, arms={"control": 2}, warmstart={"learning": {"updates": 2, "batch": 2}})


@pytest.fixture
def first(settings):
    return train(settings).checkpoint


def begin(settings, first, tmp_path, **changes):
    return train({**settings, "warmstart": {"run": str(first)}} | changes, [f"run.out={tmp_path / 'second'}"])


def read_weights(checkpoint, role="policy"):
    return torch.load(Path(checkpoint) / f"{role}.pt", weights_only=True)["state"]["weights"]


def test_the_policy_begins_as_that_of_the_run(settings, first, tmp_path):
    """From the folder of the run or of a checkpoint; the second run imitates nothing, and goes on from there."""
    weights = read_weights(first)
    assert any(value.any() for name, value in weights.items() if "lora_B" in name)
    second = begin(settings, first, tmp_path)
    assert all(torch.equal(value, weights[name]) for name, value in read_weights(second.checkpoint).items())
    assert not (tmp_path / "second" / "warmstart").exists()
    third = train({**settings, "warmstart": {"run": str(tmp_path / "second")}}, [f"run.out={tmp_path / 'third'}"])
    assert all(torch.equal(value, weights[name]) for name, value in read_weights(third.checkpoint).items())


def test_the_other_roles_begin_as_those_of_the_run_too(settings, tmp_path):
    """A role that the first run lacks begins as usual."""
    extractor = {"settings": {"distil": 2}}
    settings |= {"arms": {"control": 1, "library": 1}, "roles": {"policy": {}, "extractor": extractor}}
    first = train(settings).checkpoint
    weights = read_weights(first, "extractor")
    assert any(not torch.equal(value, read_weights(first)[name.replace("extractor", "policy")])
               for name, value in weights.items())  # fmt: skip
    admission = {"settings": {"teams": 2, "runs": 2, "worlds": 1, "steps": 2}}
    more = {"policy": {}, "extractor": {}, "admission": admission}
    second = begin(settings, first, tmp_path, roles=more).checkpoint
    assert all(torch.equal(value, weights[name]) for name, value in read_weights(second, "extractor").items())
    assert not any(value.any() for name, value in read_weights(second, "admission").items() if "lora_B" in name)


def test_a_resumed_run_does_not_begin_again(settings, first, tmp_path):
    """Its own checkpoint counts, and the first run may be gone by then."""
    begin(settings, first, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    Path(first).parent.parent.rename(elsewhere)
    again = {**settings, "warmstart": {"run": str(first)}}
    report = train(again, [f"run.out={tmp_path / 'second'}", "run.iterations=1"], resume=True)
    assert report.iterations == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"base": "BASE", "adapter": 4}}, "differs in model.adapter"),
        ({"model": {"base": "BASE"}}, "differs in model.adapter"),
        ({"model": {"base": "tiny"}}, "whose vocabulary each run builds itself"),
        (
            {
                "tasks": {"train": {"seeds": "20-25"}, "eval": {"seeds": "3-8"}},
                "explore": {"worlds": {"seeds": "30-33"}},
            },
            r"learned from 6 task instances of tasks.eval, such as #3",
        ),
    ],
)
def test_a_run_that_does_not_fit_is_refused(settings, first, tmp_path, changes, reason):
    if changes.get("model", {}).get("base") == "BASE":
        changes = {"model": {**changes["model"], "base": settings["model"]["base"]}}
    with pytest.raises(ConfigError, match=reason):
        begin(settings, first, tmp_path, **changes)


def test_a_run_is_refused_before_anything_is_played(settings, tmp_path, monkeypatch):
    """Exploring takes minutes."""
    monkeypatch.setattr(Session, "open", lambda *args, **options: pytest.fail("the session was opened"))
    with pytest.raises(ConfigError, match="there is no checkpoint in"):
        begin(settings, tmp_path / "nothing", tmp_path)


def test_worlds_of_a_library_and_of_an_earlier_run_count_as_learned(settings, tmp_path):
    """The third run inherits what the first one learned from."""
    explored = {"explored": {"": {"seeds": "200-201"}}}
    first = train({**settings, "library": explored, "arms": {"control": 1, "retrieved": 1}}).checkpoint
    free = {"train": {"seeds": "300-305"}, "eval": {"seeds": "400-401"}}
    second = begin(settings, first, tmp_path, tasks=free, explore={"worlds": {"seeds": "310-313"}})
    for seeds in ("3-4", "200-201"):
        with pytest.raises(
            ConfigError, match=f"learned from 2 task instances of tasks.eval, such as #{seeds.split('-')[0]}"
        ):
            train(
                {**settings, "tasks": {"train": {"seeds": "300-305"}, "eval": {"seeds": seeds}},
                 "explore": {"worlds": {"seeds": "310-313"}}, "warmstart": {"run": second.checkpoint}},
                [f"run.out={tmp_path / 'third'}"],
            )  # fmt: skip


def test_a_base_at_another_place_is_named(settings, first, tmp_path, capsys):
    moved = save_base(tmp_path / "moved")
    begin(settings, first, tmp_path, model={"base": str(moved), "adapter": 2})
    assert f"and that of this run {moved}" in capsys.readouterr().err


def test_a_missing_run_is_refused_and_so_are_settings_that_nothing_reads(settings, tmp_path):
    with pytest.raises(ConfigError, match="there is no checkpoint in"):
        begin(settings, tmp_path / "nothing", tmp_path)
    with pytest.raises(ConfigError, match=r"nothing is imitated; set warmstart\.learning"):
        of({**settings, "warmstart": {"run": "a", "examples": {"copies": 3}}})


def test_with_learning_the_policy_goes_on_to_imitate(settings, first, tmp_path):
    """With small updates it stays near the policy of the first run, and with none it would be equal."""
    learning = {"updates": 2, "batch": 2, "lr": 1e-6}
    report = begin(settings, first, tmp_path, warmstart={"run": first, "learning": learning})
    before, after = read_weights(first), read_weights(report.checkpoint)
    assert all(torch.allclose(value, before[name], atol=1e-4) for name, value in after.items())
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


def test_a_stop_while_it_goes_on_to_imitate_does_not_begin_again(settings, first, tmp_path, monkeypatch):
    """Resumed, it has the weights of a run without the stop; the first run may be gone by then."""
    goes_on = {**settings, "warmstart": {"run": first, "learning": {"updates": 6, "batch": 2, "lr": 0.01}}}
    straight = train(goes_on, [f"run.out={tmp_path / 'straight'}"])
    update = Imitation.update
    losses: list[object] = []

    def stop(self):
        losses.append(update(self))
        if len(losses) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses[-1]

    monkeypatch.setattr(Imitation, "update", stop)
    assert train(goes_on, [f"run.out={tmp_path / 'second'}"]).stopped
    Path(first).parent.parent.rename(tmp_path / "elsewhere")
    resumed = train(goes_on, [f"run.out={tmp_path / 'second'}"], resume=True)
    weights = read_weights(straight.checkpoint)
    assert all(torch.equal(value, weights[name]) for name, value in read_weights(resumed.checkpoint).items())
