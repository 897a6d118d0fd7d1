"""A setting that nothing reads, because of another one, is refused with the name of that other one."""

from pathlib import Path

import pytest

from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.trainers.config.loading import load, of
from hardwon.trainers.config.schema import as_dict

EXAMPLES = Path(__file__).parents[3] / "examples"
LIBRARY = {"arms": {"control": 2, "retrieved": 2}}
CHAT = {"model": {"base": "models/smollm2", "adapter": 4}}
GUIDED = {"arms": {"control": 2, "guided": 2}}


def settings(**sections):
    return {
        "environment": {"name": "textworld"},
        "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}},
        **sections,
    }


def policy(**section):
    return {"roles": {"policy": section}}


def extractor(**section):
    return {**LIBRARY, "roles": {"policy": {}, "extractor": {"settings": section}}}


def guide(**section):
    return {**GUIDED, "roles": {"policy": {}, "guide": {"settings": section}}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": {"folder": "DIR"}}, "engine.folder is 'DIR', and nothing reads it without engine.url; set that"),
        (
            {"warmstart": {"examples": {"renamed": 0.5}}},
            "examples.renamed is 0.5.*a base that reads messages",
        ),
        ({"tasks": {"demonstrations": ["gold"]}}, "tasks.demonstrations.*tasks.compose or roles.policy.extra"),
        ({"library": {"explored": {"dev": {"seeds": "0-9"}}}}, "library.explored.*an arm that shows the library"),
        ({"library": {"learn": False}}, "library.learn is False"),
        (policy(loss={"kind": "imitation", "low": 0.1}), "roles.policy.loss.low.*with ratios"),
        (policy(loss={"max_mismatch": 5.0}), "roles.policy.loss.max_mismatch.*loss.old=trainer"),
        (policy(learner={"constant": 64}), "learner.constant.*denominator=constant"),
        (
            {**CHAT, **policy(settings={"speech_tokens": 9})},
            "speech_tokens.*a kind of roles.policy.settings.speech, such as free",
        ),
        ({**CHAT, **guide(distil=9)}, "distil is 9,.*model.base=tiny"),
        ({**CHAT, **guide(distil_lr=0.1)}, "distil_lr"),
        (guide(distil=0, distil_lr=0.1), "distil_lr.*distil above 0"),
    ],
)
def test_what_nothing_reads_is_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        of(settings(**sections))


@pytest.mark.parametrize(
    "sections",
    [
        {"tasks": {"demonstrations": ["gold"], "compose": {"prefixed": {}}}},
        policy(loss={"old": "trainer", "max_mismatch": 5.0}),
        policy(learner={"constant": 64, "denominator": "constant"}),
        {**CHAT, **guide(distil=0)},
        guide(distil=9, distil_lr=0.1),
        {"library": {"learn": False, "explored": {"dev": {"seeds": "0-9"}}}, **LIBRARY},
    ],
)
def test_what_something_reads_is_taken_and_comes_back(sections):
    config = of(settings(**sections))
    assert of(as_dict(config)) == config


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({**LIBRARY, "library": {"learn": False}}, "arms.retrieved recalls from a library that stays empty"),
        ({**CHAT, **guide(), "library": {"learn": False}}, "roles.guide recalls from a library that stays empty"),
        (
            {**LIBRARY, "model": {"base": "tiny"}, "roles": {"policy": {}, "extractor": {"loss": {"kl": 0.1}}}},
            "roles.extractor.loss.kl is 0.1, .* model.adapter is null",
        ),
    ],
)
def test_what_could_never_learn_is_refused(sections, message):
    with pytest.raises((CannotLearn, ConfigError), match=message):
        of(settings(**sections))


def read_commands():
    """Return the training commands in the comments of the examples, without options."""
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        yield path, ()
        for line in path.read_text(encoding="utf-8").splitlines():
            command, _, _ = line.removeprefix("#").strip().partition("  #")
            if command.startswith("hardwon train "):
                yield path, tuple(word for word in command.split() if "=" in word)


@pytest.mark.parametrize(("path", "overrides"), list(read_commands()), ids=str)
def test_the_commands_of_the_examples_are_taken(path, overrides):
    assert load(path, overrides).run.iterations >= 0
