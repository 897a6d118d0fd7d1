"""Numbers with which a run could not learn, or would break far from their cause, are refused with their path."""

import pytest

from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.trainers.config.loading import of

LIBRARY = {"control": 2, "retrieved": 2}


def settings(path, value, **sections):
    """Return settings with one value at a dotted path."""
    made = {
        "environment": {"name": "textworld"},
        "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}},
        "roles": {"policy": {}},
        **sections,
    }
    *names, last = path.split(".")
    section = made
    for name in names:
        section = section.setdefault(name, {})
    section[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("roles.policy.learner.lr", float("nan"), r"roles\.policy\.learner\.lr is nan; it must be a finite number"),
        ("roles.policy.learner.lr", "inf", r"lr is 'inf'; it must be a finite number"),
        ("run.temperature", float("nan"), r"run\.temperature is nan"),
        ("eval.temperature", float("inf"), r"eval\.temperature is inf"),
        ("model.tiny.hidden", 0, r"model\.tiny: hidden is 0; use 1 or more"),
        ("model.tiny.context", -5, r"model\.tiny: context is -5; use 1 or more"),
        ("model.tiny.hidden", 12, r"hidden is 12 and heads 4; use an even"),
        ("model.tiny.kv_heads", 3, r"heads is 4 and kv_heads 3; .* divides"),
    ],
)
def test_a_number_out_of_its_range_is_refused(path, value, message):
    with pytest.raises(ConfigError, match=message):
        of(settings(path, value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("roles.policy.learner.lr", 0, r"learner\.lr of roles\.policy.* is 0, so nothing is trained"),
        (
            "roles.policy.phase",
            60,
            r"phase is 60 and run\.iterations 60, so roles\.guide never has a turn",
        ),
        ("roles.policy.learner.decay", 1, r"decay is 1, .* learning rate is 0 .* run\.iterations is 60"),
    ],
)
def test_what_begins_after_the_end_of_the_run_is_refused(path, value, message):
    guide = {} if path.endswith(("decay", "lr")) else {"guide": {"settings": {"distil": 0}}}
    arms = {**LIBRARY, "guided": 2}
    sections = {"arms": arms, "guidance": {"guided": "role"}, "roles": {"policy": {}, **guide}} if guide else {}
    with pytest.raises(CannotLearn, match=message):
        of(settings(path, value, run={"iterations": 60}, **sections))
    assert of(settings(path, value, run={"iterations": 0}, **sections))


def test_a_role_may_be_frozen_beside_one_that_learns():
    """So may all, where the library learns: the run that all others are compared with."""
    guide = {"guide": {"settings": {"distil": 0}}}
    assert of(settings("roles.policy.learner.lr", 0, arms={"control": 2, "guided": 2}, roles={"policy": {}, **guide}))
    assert of(settings("roles.policy.learner.lr", 0, arms=LIBRARY))
    assert of(settings("roles.policy.learner.lr", 0, run={"iterations": 0}))


def test_a_run_of_one_iteration_may_have_more_roles_than_turns():
    sections = {"arms": {**LIBRARY, "guided": 2}, "roles": {"policy": {}, "guide": {"settings": {"distil": 0}}}}
    assert of(settings("run.iterations", 1, **sections))
