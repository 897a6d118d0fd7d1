"""Settings: what is wrong is named with its path, what is right comes back as it was written."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import yaml

from hardwon.memory.errors import ConfigError
from hardwon.trainers.config import schema as settings
from hardwon.trainers.config.loading import load, of
from hardwon.trainers.config.parsing import documented
from hardwon.trainers.config.schema import TaskInstances, TrainConfig, as_dict, as_yaml, differences

LEAST: dict[str, Any] = {"environment": {"name": "textworld"}}


def with_(path, value):
    """The least settings with one value set."""
    made: dict[str, Any] = {"environment": {"name": "textworld"}}
    *sections, name = path.split(".")
    place = made
    for section in sections:
        place = place.setdefault(section, {})
    place[name] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("roles.policy.learner.lrr", 1, r"roles\.policy\.learner\.lrr is no setting: did you mean lr\?"),
        ("runn", {}, r"^runn is no setting: did you mean run\?"),
        ("run.iterations", "many", r"run\.iterations is 'many'; it must be a whole number"),
        ("run.iterations", True, r"run\.iterations is True; it must be a whole number"),
        ("run.groups", 0, r"run\.groups is 0; use a number from 1"),
        ("roles.policy.learner.lr", "fast", r"roles\.policy\.learner\.lr is 'fast'; it must be a number"),
        ("roles.policy.loss.kind", "ppoo", r"roles\.policy\.loss\.kind is 'ppoo': did you mean ppo\?"),
        ("roles.policy.credit.name", "gigppo", r"roles\.policy\.credit: unknown estimator 'gigppo'\. Did you mean"),
        ("roles.policy.credit.settings", {"omega": 1.0}, r"settings\.omega is no setting: There are: none"),
        ("roles", {"extractor": {}}, "roles has no policy, only extractor"),
        ("arms", {"experience": 4}, "arms has no control"),
        ("arms", {"control": 0}, r"arms\.control is 0"),
        ("arms", {"control": 1, "librari": 1}, r"guidance\.librari is 'librari': did you mean library\?"),
        ("guidance", {"control": "library"}, "control is shown nothing"),
        ("guidance", {"other": "none"}, r"guidance\.other is no arm: .*must be one of the arms"),
        ("tasks.train.seeds", "9-5", r"tasks\.train: seeds are '9-5'"),
        ("tasks.eval.seeds", "nine", r"tasks\.eval: seeds are 'nine'; write them as A-B"),
        ("model.adapter", 0, r"model\.adapter is 0"),
        ("environment", {"game": "coin"}, r"environment\.name is missing\. textworld, babyai"),
        ("run", 3, "run is 3; it must be a section with: iterations"),
        ("arms", 8, "arms is 8; it must be a mapping"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(path, value, message):
    with pytest.raises(ConfigError, match=message):
        of(with_(path, value))


def test_worlds_that_are_trained_in_are_not_evaluated_in():
    """By fold and seed: the same seed of another fold is another world."""
    with pytest.raises(ConfigError, match=r"tasks\.train and tasks\.eval share 2 worlds, such as #8"):
        of({**LEAST, "tasks": {"train": {"seeds": "0-9"}, "eval": {"seeds": "8-20"}}})
    of({**LEAST, "tasks": {"train": {"fold": "train", "seeds": "0-9"}, "eval": {"fold": "dev", "seeds": "0-9"}}})


def test_worlds_that_are_explored_are_not_evaluated_in():
    with pytest.raises(ConfigError, match=r"explore\.worlds and tasks\.eval share"):
        of({**LEAST, "explore": {"worlds": {"seeds": "900-901"}}})


def test_overrides_replace_values_of_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("environment: {name: textworld}\nrun: {iterations: 5}\nwarmstart:\n")
    found = load(path, ["roles.policy.learner.lr=1e-4", "run.iterations=7", "warmstart.examples.copies=2"])
    assert found.roles["policy"].learner.lr == 1e-4
    assert found.run.iterations == 7
    assert found.warmstart is not None
    assert found.warmstart.examples.copies == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.iterations", "has no value"),
        ("run.iteration=3", "did you mean iterations"),
        ("a=1", "^a is no setting: There are"),
    ],
)
def test_an_override_that_cannot_be_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        of(LEAST, [override])


def test_a_file_that_is_no_yaml_or_not_there_is_named(tmp_path):
    (tmp_path / "c.yaml").write_text("a: [")
    for name, message in (("c.yaml", "is not YAML"), ("d.yaml", "cannot be read")):
        with pytest.raises(ConfigError, match=message):
            load(tmp_path / name)


def test_settings_come_back_from_what_is_printed():
    """`--print-config` is a file that gives the same run."""
    config = of(
        {
            **LEAST,
            "arms": {"control": 2, "shown": 2},
            "guidance": {"shown": "experience"},
            "warmstart": {"learning": {"lr": 1e-3}},
            "roles": {"policy": {"credit": {"name": "gigpo", "settings": {"omega": 0.5}}, "loss": {"high": 3.0}}},
        }
    )
    assert of(yaml.safe_load(as_yaml(config))) == config
    assert of(as_dict(config)) == config


def sections(kind):
    yield kind
    for one in fields(kind):
        if is_dataclass(one.type):
            yield from sections(one.type)


def test_every_setting_says_what_it_means():
    for kind in vars(settings).values():
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__.startswith("hardwon.trainers.config"):
            assert set(documented(kind)) == {one.name for one in fields(kind)}, kind
    assert "# Episodes per group in each arm" in as_yaml(of(LEAST))


def test_what_two_runs_differ_in():
    one, other = of(LEAST), of(LEAST, ["run.iterations=3", "roles.policy.credit.name=rloo"])
    assert differences(one, other) == {"run.iterations": (60, 3), "roles.policy.credit.name": ("grpo", "rloo")}


def test_an_arm_is_shown_what_its_name_says():
    config = of({**LEAST, "arms": {"control": 1, "library": 1, "shown": 1}, "guidance": {"shown": "experience"}})
    assert [config.get_guidance(arm) for arm in config.arms] == ["none", "library", "experience"]
    assert config.uses_library
    assert not TrainConfig(environment=config.environment).uses_library


def test_seeds_name_worlds():
    assert TaskInstances(fold="dev", seeds="7-8").all == (("dev", 7), ("dev", 8))
    assert TaskInstances(seeds="7").all == (("", 7),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root:x:0:0:secret-word:/root:/bin/bash\n", "holds str, not settings; write sections"),
        ("- secret-word\n", "holds list"),
        ("run: {seed: [secret-word\n", "is not YAML in line 2"),
        ("a: b: secret-word\n", "is not YAML in line 1"),
        ("\x00secret-word", "is not UTF-8"),
        ("run: \x00secret-word", "is not YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_named_and_not_quoted(tmp_path, text, words):
    path = tmp_path / "passwd"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        load(path)
    assert "secret-word" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    """Such as a date, which YAML makes of digits."""
    path = tmp_path / "c.yaml"
    path.write_text("2020-01-01: {}\n")
    with pytest.raises(ConfigError, match="Use text as names"):
        load(path)
