"""Reasons: the typed record of a step, and its JSON form on disk, in files and over HTTP."""

import copy
import json
import pickle
import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Reasons, State, Step, Trajectory, reasons
from hardwon.memory.errors import HardwonError, WrongType
from hardwon.memory.reasons import ITEM_KEYS, NO_REASONS
from hardwon.memory.wire import plain, read

SEE = State("A door.")
OLD: list[dict[str, Any]] = [
    {},
    {"recalled": [], "like": []},
    {"blocked": ["g-1"], "overrode": ["g-2"], "trial": ["g-2"], "withheld": ["i-1"], "recalled": ["i-2", "i-3"]},
    {"value": 0.25, "n": 3, "key": "* | said", "like": [4, 5], "planned": True},
    {"explored": True, "guidance": {"asked": "start", "abstained": False, "seconds": 0.5}},
    {"said": [1, 2, 3], "memory": "- push the door", "skill": "sk-1"},
    {"answer": "push door", "attempts": 2, "repaired": False, "mine": {"deep": [1, None, {"x": "y"}]}},
    {"untrusted": True, "episodes": 4, "failed": 1, "writers": 2},
    # forms that callers may have written: one id without a list, null, several skills, other types of known keys
    {"recalled": "i-1", "skill": ["sk-1"], "blocked": None},
    {"skill": ["sk-1", "sk-2"], "overrode": "g-1"},
    {"value": "high", "n": 1.5, "key": 3, "like": ["a"], "said": "so", "memory": ["x"], "guidance": "yes", "n2": True},
]


def step_of(why):
    return Step(SEE, "push door", SEE, Diagnosis(True), 1.0, why=why)


def dump(values):
    return json.dumps(values, sort_keys=True)


@pytest.mark.parametrize("old", OLD, ids=dump)
def test_json_form_is_the_same(old, tmp_path):
    """Whatever an earlier version stored is read and written without a change, on disk, in files and over HTTP."""
    assert dump(Reasons.of(old).to_dict()) == dump(old)
    assert read(Step, plain(Step, step_of(old))) == step_of(old)
    assert dump(plain(Step, step_of(old))["why"]) == dump(old)
    with ExperienceLibrary.open(tmp_path / "a.db") as library:
        ref = library.record(Trajectory("open it", (step_of(old),), True, 1.0))
        assert library.episodes.get(ref).steps[0].why == {**old, "trajectory": ref}
        if "like" not in old:  # ids of steps are places in the file
            library.admin.export_jsonl(tmp_path / "a.jsonl")
            (line, *_) = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
            assert dump(line["episode"]["steps"][0]["why"]) == dump(old)
            with ExperienceLibrary.open(tmp_path / "b.db") as other:
                other.admin.import_jsonl(tmp_path / "a.jsonl")
                assert other.episodes.get(ref).steps[0].why == {**old, "trajectory": ref}
    (stored,) = sqlite3.connect(tmp_path / "a.db").execute("SELECT why FROM steps").fetchone()
    assert stored == json.dumps(old, sort_keys=True, separators=(",", ":"))


def test_fields_are_typed_and_other_keys_are_kept():
    why = Reasons.of({"recalled": ["i"], "overrode": "g", "like": [1], "said": [2], "n": 3, "skill": "s", "mine": 1})
    assert (why.recalled, why.overridden, why.similar, why.tokens) == (("i",), ("g",), (1,), (2,))
    assert (why.count, why.skills, why.extra["mine"], why.blocked) == (3, ("s",), 1, None)


def test_a_dict_is_converted_and_compared():
    """People may go on to pass dicts; steps of equal dicts are equal."""
    assert step_of({"recalled": ["i"], "mine": 1}) == step_of(Reasons(recalled=("i",), extra={"mine": 1}))
    assert step_of({"recalled": ["i"]}).why == {"recalled": ("i",)}
    assert step_of({"recalled": ["i"]}).why != {"recalled": []}
    assert Reasons() == NO_REASONS == {}
    assert Reasons(recalled=()) != NO_REASONS
    assert NO_REASONS != 5
    assert not Reasons()
    assert Reasons(recalled=())
    assert Step(SEE, "a", SEE, Diagnosis(True)).why is NO_REASONS
    assert repr(Reasons(value=0.5, extra={"mine": 1})) == "Reasons(value=0.5, extra={'mine': 1})"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda why: pickle.loads(pickle.dumps(why)), replace])
def test_copies_are_equal(copied):
    why = Reasons.of(OLD[2] | {"mine": 1, "skill": ["s"]})
    assert copied(why) == Reasons.of(OLD[2] | {"mine": 1, "skill": "s" if copied is replace else ["s"]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"recalled": "i-1"},
        {"recalled": [1]},
        {"similar": ["a"]},
        {"value": "high"},
        {"count": True},
        {"memory": 1},
        {"explored": 1},
        {"guidance": []},
        {"extra": []},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(WrongType, match=f"Reasons {name} is .*; give "):
        Reasons(**wrong)
    if name != "extra":
        with pytest.raises(WrongType, match=f"Reasons {name} is .*; give "):
            NO_REASONS.updated(**wrong)
    with pytest.raises(HardwonError, match="no field 'nothing'; use one of recalled"):
        NO_REASONS.updated(nothing=value)


@pytest.mark.parametrize("wrong", [5, "why", ["recalled"], None])
def test_something_else_than_a_dict_is_refused(wrong):
    with pytest.raises(WrongType, match="give Reasons or a dict"):
        step_of(wrong)


@pytest.mark.parametrize("key", ITEM_KEYS)
@pytest.mark.parametrize("wrong", [5, [None], {"a": 1}, [["x"]]], ids=str)
def test_ids_of_the_wrong_type_are_not_recorded(library, key, wrong):
    """They change the scores of items, so the library refuses them where they enter."""
    with pytest.raises(HardwonError, match=key):
        library.record(Trajectory("open it", (step_of({key: wrong}),), True, 1.0))


def test_a_new_value_replaces_the_original_form():
    """What `of` keeps of another form must not come back in place of a later value."""
    old = Reasons.of({"recalled": "i-1", "value": "high", "mine": 1})
    assert old.updated(recalled=("i-2",), value=0.5).to_dict() == {"recalled": ["i-2"], "value": 0.5, "mine": 1}
    assert replace(old, recalled=("i-2",)).to_dict() == {"recalled": ["i-2"], "value": "high", "mine": 1}
    assert old.updated(recalled=None).to_dict() == {"value": "high", "mine": 1}


def test_merging_prefers_the_other_record():
    ruling, decision = Reasons(blocked=("g",), extra={"a": 1}), Reasons(blocked=(), value=0.5, extra={"a": 2})
    assert ruling.merged(decision) == {"blocked": [], "value": 0.5, "a": 2}
    assert ruling.merged(NO_REASONS) is ruling
    assert NO_REASONS.merged(decision) is decision


def test_the_episode_is_last_and_not_stored():
    why = Reasons.of({"value": 0.1, "trajectory": "e-1", "untrusted": False})
    assert list(why.to_dict()) == ["untrusted", "value", "trajectory"]
    assert list(why.to_dict(with_trajectory=False)) == ["untrusted", "value"]


def test_another_thread_may_read_a_shared_record_meanwhile(monkeypatch):
    """The failure: `record` ended with "dictionary changed size during iteration", as the empty record is shared."""

    class ReadByOthers(dict[str, str]):
        def __contains__(self, name):
            assert shared.to_dict() == {"answer": "north"}  # computes its cached values
            return super().__contains__(name)

        def __getitem__(self, name):
            assert name in self
            return super().__getitem__(name)

    shared = Reasons(extra={"answer": "north"})
    monkeypatch.setattr(reasons, "_KEY_OF", ReadByOthers(reasons._KEY_OF))
    assert repr(shared) == "Reasons(extra={'answer': 'north'})"
