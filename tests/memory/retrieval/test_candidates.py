import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from hardwon import memory
from hardwon.memory import Diagnosis, ExperienceLibrary, Hit, Item, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.memory.retrieval import recall
from hardwon.memory.retrieval.candidates import find, match
from hardwon.memory.retrieval.request import make_key

DRAWER = State("You see a wooden drawer. It is closed.", location="kitchen", task="find the spoon")
CALLS, FILES = 45, 7
"""Largest number of calls, and of our files, of a recall in a known situation."""
OURS = str(Path(memory.__file__).parent)


def count_calls(call):
    """Return what a call returns, and the number of Python calls in each of our files."""
    calls: Counter[str] = Counter()

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = call()
    finally:
        sys.setprofile(before)
    return result, calls


@pytest.fixture
def house(library: ExperienceLibrary, episode):
    """A library with steps, items of every source, and a guardrail."""
    for number, action in enumerate(("open drawer", "kick drawer", "go yard", "wait", "open drawer 2", "look"), 1):
        library.record(episode(action, see=DRAWER.observation, reward=number / 10))
        library.record(episode(action, see=f"You see a wooden {action}.", reward=number / 10))
    library.items.add_many(
        Item("insight", f"a wooden drawer {word}", score=0.8) for word in ("closed", "open", "of oak")
    )
    library.add(Item("strategy", "zzz here", signatures=(DRAWER.signature,)))
    library.add(Item("strategy", "zzz there", locations=("kitchen",)))
    library.add(Item("strategy", "zzz tagged", tags=("wooden", "drawer")))
    library.add(Item("guardrail", "no kicks", condition={"text": "closed"}, forbids="kick {1}", score=0.9, pinned=True))
    return library


# ---- the cost of a known situation


@pytest.mark.parametrize(
    "options", [{}, {"actions": {"open drawer": "", "kick drawer": "tried"}, "after": "wait", "budget_tokens": 500}]
)
def test_a_recall_in_a_known_situation_is_a_short_path(house, options):
    """The arguments are looked up; no search, no ranking and no query of rows."""
    house.recall(DRAWER, **options)
    second = house.recall(replace(DRAWER), **options)
    third, calls = count_calls(lambda: house.recall(replace(DRAWER), **options))
    assert third == second
    assert third.path == "cluster"
    assert third.steps
    assert third.items
    assert 0 < calls.total() <= CALLS, calls
    assert len(calls) <= FILES, calls


def test_what_a_caller_does_with_a_result_changes_no_other(house):
    """Estimates are a dict, and everyone gets their own."""
    options = {"actions": {"open drawer": ""}}
    for _ in range(4):
        estimates = house.recall(DRAWER, **options).estimates
        assert list(estimates) == ["open drawer"]
        estimates.clear()


def test_an_invalid_argument_is_refused_also_after_a_valid_one(house):
    """True equals 1, and is no number of results."""
    for _ in range(3):
        house.recall(DRAWER, k=1)
    with pytest.raises(ConfigError):
        house.recall(DRAWER, k=True)
    with pytest.raises(ConfigError):
        house.recall(replace(DRAWER, notes=cast(Any, ([],))), k=1)


def test_facts_are_compared_by_their_content():
    """A dict has no hash; the same facts are the same key."""
    one, other = (replace(DRAWER, facts={"open": [value]}, signature="s") for value in "ab")
    again = replace(one, facts={"open": ["a"]})
    arguments: Any = None, 5, None, None, "step", None, None
    assert make_key(one, *arguments) == make_key(again, *arguments) != make_key(other, *arguments)
    assert make_key("a question", *arguments) is None
    assert make_key(one, None, 5, None, None, "task", None, None) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"task": "dance"}, {"k": 4}, {"k": True}, {"kinds": ("skill",)}, {"budget_tokens": 7}, {"after": "wait"},
        {"budget_tokens": 1.0}, {"actions": {}}, {"actions": {"wait": ""}}, {"actions": {"wait": "tried"}},
        {"observation": "A door."}, {"location": "yard"}, {"state_task": "dance"}, {"notes": ("a note",)},
        {"feedback": "ouch"}, {"facts": {"open": ["a"]}}, {"signature": "other"},
    ],
    ids=str,
)  # fmt: skip
def test_every_argument_is_part_of_the_key(changed):
    """Also the type of a number: True equals 1."""
    state = replace(DRAWER, signature="s")
    plain: Any = {
        "task": None,
        "k": 1,
        "kinds": None,
        "budget_tokens": 1,
        "level": "step",
        "actions": None,
        "after": None,
    }
    arguments = {name: changed.get(name, value) for name, value in plain.items()}
    fields = {name.removeprefix("state_"): value for name, value in changed.items() if name not in plain}
    key = make_key(replace(state, **fields), **arguments)
    assert key is not None
    assert key != make_key(state, **plain)
    assert make_key(replace(state), **plain) == make_key(state, **plain)


def test_few_results_are_kept(house):
    """Their number is bounded."""
    for number in range(512 + 10):
        for _ in range(2):
            house.recall(DRAWER, k=1, budget_tokens=1000 + number)
    assert 0 < len(house._file.derived.findings.recollections) <= 512


# ---- merging


def test_every_source_names_its_reason(house):
    """An item is a candidate once, with the strongest reason to show it."""
    why = {hit.what.title: hit.why for hit in house.recall(DRAWER, k=20).items}
    assert why["zzz here"] == "its own situation"
    assert why["zzz there"] == "its own place"
    assert why["zzz tagged"] in ("its tags", "words and meaning")
    assert why["a wooden drawer closed"] == "words and meaning"


def test_a_match_asks_each_index_once(house, monkeypatch):
    """Also for the cosines of items that neither words nor meaning found."""
    house.admin.index()
    index = house._file.search
    vectors = index.index("items")
    spies = [Mock(wraps=vectors.search), Mock(wraps=vectors.cosine)]
    for name, spy in zip(("search", "cosine"), spies, strict=True):
        monkeypatch.setattr(vectors, name, spy)
    scans = index.scans
    found = match(
        index, "items", "a wooden drawer", index.embed(["a wooden drawer"])[0], count_episodes=Counter, version=None,
        depth=2, further=range(1, 7),
    )  # fmt: skip
    assert [spy.call_count for spy in spies] == [1, 1]
    assert index.scans == scans + 1
    assert set(found.cosines) == set(range(1, 7))
    assert found.rated.keys() <= set(found.cosines)


def test_a_match_by_words_counts_by_its_share_of_them(house):
    """A short question has a small cosine to a long text."""
    house.admin.index()
    (first, *_) = find(house._file.search, "items", "oak", 3, count_episodes=Counter, how="text")
    hybrid = {
        ref: (near, why) for ref, near, why in find(house._file.search, "items", "oak", 3, count_episodes=Counter)
    }
    assert hybrid[first[0]][0] >= first[1] == 1.0
    assert "words" in hybrid[first[0]][1]


@pytest.mark.parametrize(
    ("action", "n"), [("pay(n=1, to=card)", 1), ("pay(n=1, to=gift)", 1), ("pay(n=1, to=cash)", 0), ("send(n=1)", 0)]
)
def test_a_remedy_is_about_the_call_that_failed_and_the_one_that_worked(action, n):
    item = Item("remedy", "pay by gift", forbids="pay(n={1}, to=card)", steps=("pay(n={1}, to=gift)",))
    steps = [Hit(Step(State("a"), action, State("b"), Diagnosis(True)), 1.0, "")]
    assert len(list(recall._find_remedies([item], steps, ()))) == n


@pytest.mark.parametrize("cure", ["rash", "cough", "fever"])
def test_of_the_items_of_a_situation_that_of_the_task_comes_first(library, cure):
    """One situation serves many tasks, and its signature says nothing about them."""
    bed = State("You are at the bed.", task=f"cure the {cure}")
    for name in ("cough", "fever", "rash"):
        library.add(Item("strategy", f"Give basil for the {name}.", signatures=(bed.signature,)))
    first, *rest = library.recall(bed, k=3).items
    assert first.what.title == f"Give basil for the {cure}."
    assert {hit.why for hit in (first, *rest)} == {"its own situation"}
