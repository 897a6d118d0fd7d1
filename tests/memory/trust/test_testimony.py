"""Testimony: what the actions of untrusted writers may say, and in which order."""

import pytest

from hardwon.memory import Failure
from hardwon.memory.trust.testimony import ARGUMENTS, FormUsage, _rank, form_of


@pytest.mark.parametrize("count", [ARGUMENTS, ARGUMENTS + 1])
def test_a_call_with_more_arguments_than_a_tool_has_says_nothing(count):
    """Each name is a name; together they could be a message."""
    names = [f"field_{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]
    action = f"refund({', '.join(f'{name}=1' for name in names)})"
    assert bool(form_of(action)) is (count <= ARGUMENTS)


def test_of_forms_used_as_often_the_one_that_mostly_works_comes_first():
    """Half of the uses failing is not yet mostly."""
    episodes = {1: {"a", "b"}}

    def rank(form, failed):
        usage = FormUsage({1: set(episodes[1])}, set(failed), [Failure.TOOL_ERROR] * len(failed), {form})
        return _rank(form, usage, lambda template: False, {})

    assert rank("z", "a") < rank("a", "ab")
    assert sorted(["z", "a"], key=lambda form: rank(form, "ab" if form == "a" else "")) == ["z", "a"]
