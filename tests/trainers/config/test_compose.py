"""Composers in a run: what nothing feeds is refused, and a run resumes as if it had not stopped."""

import json
from pathlib import Path

import pytest

from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.trainers import metrics, train
from hardwon.trainers.config.loading import of

CREDIT = {"learner": {"lr": 0.003}}


def set_up(corridor, composer, credit="dr-grpo", **more):
    policy = {**CREDIT, "credit": {"name": credit}, **more.pop("policy", {})}
    tasks = {"compose": composer, **more.pop("tasks", {})}
    base = corridor(arms={"control": 4}, roles={"policy": policy}, run={"rerolls": 0, "iterations": 4}, **more)
    return {**base, "tasks": {**base["tasks"], **tasks}}


def test_an_unknown_composer_is_refused(corridor):
    with pytest.raises(ConfigError, match="Did you mean 'prefixed'"):
        of(set_up(corridor, {"prefixd": {}}))


def test_two_composers_are_refused(corridor):
    with pytest.raises(ConfigError, match="choose one"):
        of(set_up(corridor, {"prefixed": {}, "hinted": {}}))


def test_a_composer_without_its_signal_is_refused_with_the_source(corridor):
    with pytest.raises(CannotLearn, match=r"tasks.compose.arpo needs the signal entropy.*sources.entropy"):
        of(set_up(corridor, {"arpo": {}}, "arpo"))


@pytest.mark.parametrize("credit", ["hdpo", "lite", "decs"])
def test_prefixes_are_refused_where_an_estimator_compares_whole_episodes(corridor, credit):
    settings = set_up(corridor, {"prefixed": {}}, credit, tasks={"demonstrations": ["explored"]})
    if credit == "decs":
        settings["roles"]["policy"]["sources"] = {"redundant": {}}
    with pytest.raises(ConfigError, match=f"compose.prefixed begins some episodes.* is {credit}"):
        of(settings)
    of(set_up(corridor, {"prefixed": {}}, "dr-grpo", tasks={"demonstrations": ["explored"]}))


@pytest.mark.parametrize(("composer", "credit"), [({"tree": {}}, "gigpo"), ({}, "tree"), ({}, "rise")])
def test_branches_and_their_estimators_go_together(corridor, composer, credit):
    with pytest.raises((CannotLearn, ConfigError), match=r"use one of|nothing feeds it"):
        of(set_up(corridor, composer, credit))


def test_a_wrong_setting_names_its_path(corridor):
    with pytest.raises(ConfigError, match=r"compose.prefixed.share"):
        of(set_up(corridor, {"prefixed": {"share": "0.5"}}))
    with pytest.raises(ConfigError, match="shares is"):
        of(set_up(corridor, {"prefixed": {"shares": "2"}}))


@pytest.mark.parametrize(
    ("composer", "credit"),
    [({"prefixed": {"groups": 1.0}}, "dr-grpo"), ({"tree": {}}, "tree"), ({"successes": {}}, "dr-grpo")],
    ids=["prefixed", "tree", "successes"],
)
def test_stopped_and_resumed_is_uninterrupted(corridor, tmp_path, composer, credit):
    """The state of a composer is in the checkpoint."""
    settings = set_up(corridor, composer, credit)
    train(settings, [f"run.out={tmp_path / 'whole'}"])
    train(settings, [f"run.out={tmp_path / 'parts'}", "run.iterations=2"])
    train(settings, [f"run.out={tmp_path / 'parts'}"], resume=True)
    whole, parts = (_read(tmp_path / name) for name in ("whole", "parts"))
    assert whole == parts
    assert any(name.startswith("compose/") for line in whole for name in line)


def _read(out: Path):
    """The logged figures of a run, without times."""
    return [
        json.loads(json.dumps({name: value for name, value in line.items() if "second" not in name}))
        for line in metrics.read(out)
    ]
