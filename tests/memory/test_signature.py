import re
import subprocess
import sys

import pytest
from hypothesis import example, given, strategies as st

from hardwon.memory import State
from hardwon.memory.signature import abstract, abstract_facts, signature


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("You see drawer 3, which is closed.", "You see drawer 7, which is closed."),
        ("You are carrying 2 coins.", "You are carrying 15 coins."),
        ("You see a map.", "You see two map."),
        ("There is a fork, a spoon and a knife.", "There is a knife, a fork, and a spoon."),
        ("Order 550e8400-e29b-41d4-a716-446655440000 is late.", "Order 67e55044-10b1-426f-9247-bb680e5fe0c8 is late."),
        ("Commit 9f8c7b6a5d4e3f21 failed.", "Commit 0123456789abcdef failed."),
        ("User hathat1 is away.", "User ab12-9 is away."),
        ("It is 10:30. Pay 1,200.50 now.", "It is 9:05. Pay 7 now."),
        ("The door is open.\nThe box is shut.", "The box is shut. The door is open."),
        ("YOU SEE A DOOR.", "you see the door"),
        ("You see a fork\tand\ta spoon.", "You see a fork and a spoon."),
        ("You see a fork\u00a0and\u00a0a spoon.", "You see a spoon and a fork."),
    ],
)
def test_names_numbers_counts_and_order_do_not_matter(one, other):
    """Situations that differ only in what is abstracted share a cluster."""
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("You see drawer 3, which is closed.", "You see drawer 3, which is open."),
        ("You carry a raw potato.", "You carry a roasted potato."),
        ("The door is locked.", "The door is not locked."),
        ("You see a fork.", "You see a fork and a spoon."),
        ("", "You see nothing."),
    ],
)
def test_states_of_things_matter(one, other):
    """What can be done differs between these, and so does their signature."""
    assert signature(one) != signature(other)


def test_facts_are_preferred_to_the_text():
    """Two wordings of one situation are one situation where the environment gives facts."""
    facts = {"front": "wall", "carrying": ["a key"]}
    assert signature("A wall is before you.", facts) == signature("Before you: a wall!", facts)


def test_facts_that_differ_tell_situations_apart():
    """The same words with another fact are another situation."""
    assert signature("You look around.", {"front": "wall"}) != signature("You look around.", {"front": "clear"})


def test_numbers_of_facts_fall_into_buckets():
    """Seventeen coins are as good as twenty, but not as none."""
    assert abstract_facts({"coins": 17}) == abstract_facts({"coins": 20}) == "coins=10+"
    assert [abstract_facts({"n": n}) for n in (-2, 0, 1, 5, True)] == ["n=-", "n=0", "n=1", "n=2-9", "n=true"]


def test_listed_facts_have_no_order():
    """An inventory is a set."""
    assert abstract_facts({"has": ["a map", "coin 3"]}) == abstract_facts({"has": ["coin 9", "a map"]})


def test_an_empty_text_has_a_signature():
    """Nothing shown is a situation too, and so is nothing but numbers."""
    assert signature("") == signature("  \n ") == State("").signature


def test_a_signature_given_is_kept():
    """A state read back keeps the signature under which it was filed."""
    assert State("You see a door.", signature="feed").signature == "feed"


def test_another_process_gives_the_same_signature():
    """Clusters outlive the process, whatever seed its hashes have."""
    code = "from hardwon.memory import State; print(State('b, a and 3 c. x', {'s': ['q', 'p', 'r'], 'n': 4}).signature)"
    made = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    here = State("b, a and 3 c. x", {"s": ["q", "p", "r"], "n": 4}).signature
    assert [run.stdout.decode().strip() for run in made] == [here, here]


things = st.lists(st.sampled_from(["fork 3", "red box", "map", "drawer-2", "key of brass"]), min_size=2, unique=True)


def told(listed):
    return f"You are in the hall. You see {', '.join(f'a {thing}' for thing in listed)}. The door is open."


@given(things, st.randoms(use_true_random=False))
def test_any_order_of_a_list_is_one_situation(listed, chance):
    """What is listed is a set, its first member after the lead-in included."""
    assert signature(told(listed)) == signature(told(chance.sample(listed, len(listed))))


@given(things)
def test_abstracting_twice_changes_nothing(listed):
    """What is abstract already stays as it is."""
    assert abstract(abstract(told(listed))) == abstract(told(listed))


@given(st.text(max_size=200))
@example("file \ud800.txt")
def test_any_text_has_a_signature(text):
    """Of sixteen hexadecimal digits, also half of a surrogate pair, as file names may have."""
    for made in (signature(text), signature("", {text: 1})):
        assert re.fullmatch("[0-9a-f]{16}", made)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text", ["a" * 20_000, "a-" * 10_000, "1" + "a" * 20_000, "_" * 20_000, "1," * 10_000, " and" * 5_000, " " * 20_000]
)
def test_a_long_text_takes_no_time(text):
    """No text of 20,000 characters sends the patterns backtracking."""
    assert signature(text)
