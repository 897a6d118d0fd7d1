"""How many planted secrets redaction finds, and how many normal lines it changes; `pytest -s` prints the figures."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.memory.privacy import config_set, fresh_set
from tests.memory.privacy.config_set import configured
from tests.memory.privacy.fresh_set import fresh
from tests.memory.privacy.normal_set import normal
from tests.memory.privacy.secrets_set import Half, Planted, planted

from hardwon.memory import Diagnosis, Item, State, Step, Trajectory
from hardwon.memory.privacy.redaction import redact, redact_item, redact_trajectory

SEEDS = range(5)
"""Secrets of other letters for the same lines."""
GOAL = 0.88
"""75 of 85 kinds."""
MOST_CHANGED = 0.02
HALVES: tuple[Half, ...] = ("tuning", "held_out")


def is_gone(one: Planted) -> bool:
    """Return whether the secret cannot be read in the redacted line."""
    return one.secret not in redact(one.line)


@pytest.mark.parametrize("half", HALVES)
def test_most_kinds_of_secrets_are_found(half):
    """A kind counts as found when all of its lines are; the set was made without a look at the patterns."""
    all_ = [one for seed in SEEDS for one in planted(half, seed)]
    kinds = {one.kind for one in all_}
    missed = {one.kind for one in all_ if not is_gone(one)}
    print(
        f"\n{half}: {len(kinds) - len(missed)} of {len(kinds)} kinds, {sum(map(is_gone, all_))} of {len(all_)} lines;",
        end=" ",
    )
    print(f"missed: {', '.join(sorted(missed)) or 'none'}")
    assert len(kinds) >= 85
    assert len(kinds) - len(missed) >= GOAL * len(kinds)


@pytest.mark.parametrize("half", HALVES)
def test_few_normal_lines_are_changed(half):
    """Prose, games, code, logs and results of tools stay as they are."""
    lines = normal(half)
    changed = [line for line in lines if redact(line) != line]
    print(f"\n{half}: {len(changed)} of {len(lines)} normal lines changed: {changed}")
    assert len(lines) >= 150
    assert len(changed) < MOST_CHANGED * len(lines)


@pytest.mark.parametrize(
    ("make", "lines", "kept"),
    [
        (fresh, fresh_set.NORMAL, {"gcp private key id"}),  # an id
        (configured, config_set.NORMAL, {"putty ppk", "rsyncd", "algolia"}),  # a checksum, and values without a name
    ],
    ids=["fresh", "configured"],
)
def test_most_kinds_of_a_fresh_set_are_found(make, lines, kept):
    """Files of systems, arguments of tools, pairs of an id and a secret, and settings of well-known products."""
    all_ = [one for seed in SEEDS for one in make(seed)]
    kinds = {one.kind for one in all_}
    missed = {one.kind for one in all_ if not is_gone(one)}
    print(f"\n{make.__name__}: {len(kinds) - len(missed)} of {len(kinds)} kinds,", end=" ")
    print(f"{sum(map(is_gone, all_))} of {len(all_)} lines; missed: {', '.join(sorted(missed)) or 'none'}")
    assert len(kinds) >= 100
    assert missed <= kept
    assert [line for line in lines if redact(line) != line] == []
    assert all(redact(redact(one.line)) == redact(one.line) for one in all_)


@pytest.mark.parametrize("half", HALVES)
def test_redacting_twice_is_redacting_once(half):
    """What was stored redacted is looked up redacted."""
    for line in [*(one.line for one in planted(half)), *normal(half)]:
        assert redact(redact(line)) == redact(line)


def test_a_secret_goes_from_every_field():
    """Names of facts, nested values, endings and the fields of items are read as texts are."""
    for one in list(planted("tuning"))[::9]:
        if not is_gone(one):
            continue
        facts: Any = {"a": {"b": [one.line]}, one.line: "c"}
        state = State("x", facts=facts, notes=(one.line,), signature="-")
        steps = (Step(state, one.line, state, Diagnosis(True)),)
        episode = Trajectory("x", steps, success=True, ending=one.line, meta={"m": [{"n": one.line}]})
        assert one.secret not in repr(redact_trajectory(episode))
        item = Item("strategy", one.line, one.line, condition={"text": one.line}, tags=(one.line,), steps=(one.line,))
        assert one.secret not in repr(redact_item(item))


def test_texts_are_redacted_apart():
    """A name at the end of one text does not make the next text a secret."""
    state = State(
        "Your password is:", notes=("hunter2000 is a rabbit", "Password:"), feedback="walnut77", signature="-"
    )
    episode = redact_trajectory(Trajectory("x", (Step(state, "wait", state, Diagnosis(True)),), success=True))
    assert episode.steps[0].pre.notes == state.notes
    assert episode.steps[0].pre.feedback == "walnut77"


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("password:=-'\" \n<>/u123ＡＢ\u200b{}[]%$;,.&?"), max_size=80))
def test_any_text_is_redacted_once(text):
    """No text changes when it is redacted again."""
    told = redact(text)
    assert redact(told) == told


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "part", ["--password ", "mysql -u ", "password is ", "a:1:b:c:", "password%3d", "curl -u a:", "</", "<pass"]
)
def test_a_long_text_takes_no_time(part):
    """Patterns are bounded."""
    assert redact(part * 5_000)
