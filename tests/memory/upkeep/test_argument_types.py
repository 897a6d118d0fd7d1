"""An argument of a wrong type is named, with its value and what to give, by every method of a library."""

from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.memory.upkeep.arguments import find_raw_errors

from hardwon.memory import Diagnosis, HardwonError, Item, State, Step, Trajectory
from hardwon.memory.errors import WrongType
from hardwon.memory.upkeep.argument_types import ArgumentTypes

SEE = State("You see a drawer.", task="find a spoon")
DONE = Trajectory("find a spoon", (Step(SEE, "open drawer", SEE, Diagnosis(True)),), True)


def test_every_method_names_the_argument(library, tmp_path, monkeypatch):
    """Every parameter of every public method with values of other types: an answer, or an error that hardwon wrote."""
    monkeypatch.chdir(tmp_path)
    ref = library.record(DONE)
    item = library.items.get(str(library.add(Item("insight", "drawers jam in winter")).item_id))
    known = {"state": SEE, "trajectory": DONE, "item": item, "item_id": item.id, "item_ids": [item.id]}
    known |= {"episode_id": ref, "trajectories": [DONE], "actions": ["open drawer"]}
    calls, raw = find_raw_errors(library, known)
    assert calls > 800
    assert raw == []
    assert library.admin.verify() == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda library: library.recall(SEE, after=0), r"after is 0 \(int\); give text or None"),
        (lambda library: library.recall(SEE, beside="x"), r"beside is 'x' \(str\); give a value of Item or None"),
        (
            lambda library: library.evolve(extractor="gpt"),
            r"extractor is 'gpt' \(str\); give a value of Ex",
        ),
        (lambda library: library.look_ahead(SEE, None), r"actions is None \(NoneType\); give a list of text"),
        (lambda library: library.items.settle_trial(5, True), r"item_ids is 5 \(int\); give a list of text"),
        (lambda library: library.episodes.count(7), r"state is 7 \(int\); give a value of State or None"),
        (lambda library: library.admin.export_jsonl(None), r"path is None \(NoneType\); give text or a path"),
        (lambda library: library.items.merge([], Item("insight", "x")), r"item_ids is empty; give the ids"),
        (lambda library: library.feedback("x", True, writer=b"w"), r"writer is b'w' \(bytes\); give text"),
    ],
)
def test_the_message_says_what_to_give(library, call, words):
    """The argument, its value with its type, and the types that it may have."""
    library.record(DONE)
    with pytest.raises(HardwonError, match=words) as refused:
        call(library)
    assert isinstance(refused.value, ValueError)


class Reads(Protocol):
    """An object with a method."""

    def extract(self) -> str:
        """Return text."""


def test_types_are_read_from_the_annotations():
    """Lists and dicts by their parts; a text is no list of texts; a whole number is a number."""

    def method(texts: list[str], numbers: dict[str, float] | None = None, reader: Reads | None = None) -> None:
        """Do nothing."""

    class Reader:
        def extract(self) -> str:
            return ""

    types = ArgumentTypes(method)
    types.check((["a"], {"a": 1}, Reader()), {})
    types.check((), {})  # Python says what is missing
    for arguments, named, words in (
        (("abc",), {}, "texts is 'abc'"), ((["a", None],), {}, "texts is"),
        ((["a"],), {"numbers": {"a": "b"}}, "numbers"),
        ((["a"], None, object()), {}, "reader"), ((["a"], None, Reader), {}, "reader"),
    ):  # fmt: skip
        with pytest.raises(WrongType, match=words):
            types.check(arguments, named)


SILENT: list[Any] = [
    lambda library: library.grade("x", success=True, trust="trusteed"),
    lambda library: library.grade("x", success=True, grader=3),
    lambda library: library.record(DONE, continued="no"),
    lambda library: library.items.find(trust="trustd"),
    lambda library: library.items.find(status=5),
    lambda library: library.items.settle_trial("abc", True),
    lambda library: library.items.settle_trial(["a"], "yes"),
    lambda library: library.episodes.find("abc"),
    lambda library: library.episodes.count(SEE, 5),
    lambda library: library.look_ahead(SEE, "open drawer"),
    lambda library: library.offered(SEE, ["open drawer"], masked=5),
]


@pytest.mark.parametrize("call", SILENT)
def test_an_argument_is_refused_before_anything_is_done(library, call):
    """Such values were taken without a word: the method did something else than what was meant."""
    library.record(DONE)
    revision = library.revision
    with pytest.raises(WrongType, match=r"is .* \(\w+\); give "):
        call(library)
    assert library.revision == revision


def test_an_export_writes_over_nothing_else(library, tmp_path):
    """Not over the library itself, another library, a text or a folder; an earlier export is replaced."""
    library.record(DONE)
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes")
    for path in (library.path, notes, tmp_path, Path()):
        with pytest.raises(HardwonError, match="is there and no export"):
            library.admin.export_jsonl(path)
    assert notes.read_text() == "my notes"
    assert library.admin.verify() == []
    for _ in range(2):
        assert library.admin.export_jsonl(tmp_path / "all.jsonl") == 1
