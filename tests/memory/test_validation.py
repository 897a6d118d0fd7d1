# mypy: disable-error-code="arg-type,var-annotated,operator,assignment,index,call-overload,misc,type-var"
"""What cannot be kept is refused before anything is acknowledged; what is acknowledged can be filed and read back."""

import re
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, HardwonError, Item, State, Step, Trajectory
from hardwon.memory.records.episodes import with_worth
from hardwon.memory.validation import MAX_DEPTH, MAX_ID, MAX_K, MAX_TEXT

SEE = State("You see a drawer.", {"holding": ["a map"]}, "hall", "find a spoon", "Done.", ("a recipe",))
FINE = Diagnosis(True)
CIRCLE: dict[str, object] = {}
CIRCLE["self"] = CIRCLE
DEEP: list[object] = []
for _ in range(MAX_DEPTH + 1):
    DEEP = [DEEP]
TEXT = [None, 5, 1.5, b"bytes", ["x"], {"a": 1}, object()]
NUMBER = [None, "5", float("nan"), float("inf"), -float("inf"), 1e200, 10**400, 1j, [1.0]]
PLAIN: list[Any] = [
    {"x": value} for value in (CIRCLE, DEEP, float("nan"), 2**63, -(2**64), {1, 2}, b"x", Path("x"), {1: "x"})
]
PLAIN += [{5: "x"}, {None: 1}, None, "text", 7, [("a", 1)]]
IDS = [None, 5, b"id", "half \ud800", "nul \x00", "x" * (MAX_ID + 1), ["id"]]
IDS += ["clear \x1b[2J", "bell\x07", "line\nbreak", "csi \x9b2J", ".", "..", " ", "\u00a0"]


class Odd(Enum):
    """No text."""

    ONE = 1


def one(**changes):
    """An episode of one step."""
    return replace(Trajectory("find a spoon", (Step(SEE, "open drawer", SEE, FINE),), True), **changes)


def taken(**changes):
    """An episode whose step is changed."""
    return one(steps=(replace(Step(SEE, "open drawer", SEE, FINE), **changes),))


BROKEN = [
    *(lambda name=name, bad=bad: one(**{name: bad}) for name in ("task", "arm", "ending") for bad in TEXT),
    *(lambda bad=bad: one(id=bad) for bad in IDS),
    *(lambda bad=bad: one(score=bad) for bad in NUMBER),
    *(lambda bad=bad: one(seed=bad) for bad in (None, "1", 1.5, 2**63, -(2**70))),
    *(lambda bad=bad: one(success=bad) for bad in ("yes", 2, 0.5, [], {})),
    *(lambda bad=bad: one(meta=bad) for bad in [*PLAIN, {"skills": [1]}, {"skills": {"sk-1": "no"}}]),
    *(lambda bad=bad: one(steps=bad) for bad in (None, 5, "steps", (None,), ({"action": "x"},))),
    *(lambda bad=bad: taken(action=bad) for bad in [*TEXT, Odd.ONE]),
    *(lambda name=name, bad=bad: taken(**{name: bad}) for name in ("pre", "post") for bad in (None, "text", {}, 5)),
    *(lambda bad=bad: taken(reward=bad) for bad in NUMBER),
    *(lambda bad=bad: taken(keys=bad) for bad in (None, 5, "abc", ("a", None), (1, 2), (("a",),))),
    *(lambda bad=bad: taken(why=bad) for bad in [*PLAIN, {"recalled": [None]}, {"blocked": {"a": 1}}, {"skill": 5}]),
    *(lambda bad=bad: taken(diagnosis=bad) for bad in (None, True, {"success": True})),
    *(lambda bad=bad: taken(diagnosis=replace(FINE, success=bad)) for bad in (None, "yes", 2)),
    *(lambda bad=bad: taken(diagnosis=replace(FINE, failure=bad)) for bad in (None, "none", "nonsense", 5)),
    *(lambda bad=bad: taken(diagnosis=replace(FINE, progress=bad)) for bad in NUMBER),
    *(lambda bad=bad: taken(diagnosis=replace(FINE, diff=bad)) for bad in PLAIN),
    *(lambda bad=bad: taken(diagnosis=replace(FINE, evidence=bad)) for bad in TEXT),
    *(
        lambda name=name, bad=bad: taken(pre=replace(SEE, **{name: bad}))
        for name in ("observation", "location", "task", "feedback")
        for bad in TEXT
    ),
    *(lambda bad=bad: taken(post=replace(SEE, notes=bad)) for bad in (None, 5, "abc", ("a", None))),
    *(lambda bad=bad: taken(pre=replace(SEE, facts=bad, signature="")) for bad in PLAIN),
    *(lambda bad=bad: bad for bad in (None, {}, "episode", 5, ("task", (), True))),
    lambda: taken(action="x" * (MAX_TEXT + 1)),
    lambda: taken(pre=replace(SEE, observation="y" * (MAX_TEXT + 1))),
]


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(library):
    """Every field with every kind of wrong value: a typed error at the call, an empty library after it."""
    for number, make in enumerate(BROKEN):
        with pytest.raises(HardwonError) as refused:
            library.record(make())
        assert isinstance(refused.value, ValueError | TypeError), number
        assert len(str(refused.value)) < 400, number
    library.record(one(id="good"))
    assert [row["id"] for row in library.episodes.find()] == ["good"]
    assert library.admin.verify() == []


def test_a_broken_episode_refuses_its_batch_and_is_named(library):
    """Nothing of the batch is there, and the error tells which one it was."""
    with pytest.raises(HardwonError, match=r"episode 2 of the batch: step 0: action is 5 \(int\)"):
        library.record_many([one(id="a"), one(id="b"), taken(action=5), one(id="c")])
    assert library.episodes.find() == []
    for odd in (None, 5, "text", {"a": 1}):
        with pytest.raises(TypeError, match="give a list of a value of Trajectory"):
            library.record_many(odd)
    assert library.record_many(one(id=name) for name in "ab") == ["a", "b"]


@pytest.mark.parametrize("k", [True, 1.0, "5", None, -1, 2**70, MAX_K + 1, [5]])
def test_how_many_is_a_whole_number(library, k):
    """In recall and in search."""
    library.record(one())
    for ask in (library.recall, library.search):
        with pytest.raises(HardwonError, match="k is") as refused:
            ask("drawer", k=k)
        assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("odd", [None, 5, True, b"a.db", "", " ", "a\0b", "\ud800.db"])
def test_a_path_is_a_path(odd, tmp_path, monkeypatch):
    """And nothing is left behind under the name of another value."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HardwonError, match="path is"):
        ExperienceLibrary.open(odd)
    assert list(tmp_path.iterdir()) == []


def test_what_is_asked_is_checked(library):
    """States, actions, texts and choices of another type."""
    asked = [
        lambda: library.recall(5),
        lambda: library.recall(None),
        lambda: library.recall(State(None)),
        lambda: library.recall(SEE, task=5),
        lambda: library.recall(SEE, kinds="skill"),
        lambda: library.recall(SEE, kinds=[5]),
        lambda: library.recall(SEE, kinds=["nonsense"]),
        lambda: library.items.find(5),
        lambda: library.items.find("skill"),
        lambda: library.items.find([5]),
        lambda: library.items.find(limit="all"),
        lambda: library.items.find(offset=2**70),
        lambda: library.recall(SEE, level="day"),
        lambda: library.recall(SEE, budget_tokens="many"),
        lambda: library.recall(SEE, actions=["open"]),
        lambda: library.recall(SEE, actions={"open": None}),
        lambda: library.recall(SEE, actions={5: ""}),
        lambda: library.recall(SEE, after=5),
        lambda: library.check(None, "open"),
        lambda: library.check(SEE, None),
        lambda: library.check(SEE, ["open", 5]),
        lambda: library.episodes.keys(SEE, 5),
        lambda: library.episodes.keys("text", "open"),
        lambda: library.episodes.context(SEE, b"open"),
        lambda: library.offered(None),
        lambda: library.search(None),
        lambda: library.search("x", how="magic"),
        lambda: library.items.get(5),
        lambda: library.items.get("half \ud800"),
        lambda: library.episodes.get(None),
        lambda: library.add(None),
        lambda: library.add({"kind": "insight"}),
        lambda: library.items.add_many("item"),
        lambda: library.admin.bank(5),
        lambda: library.items.find(text=5),
        lambda: library.items.find(limit="5"),
        lambda: library.items.find(limit=-1),
    ]
    for number, ask in enumerate(asked):
        with pytest.raises(HardwonError) as refused:
            ask()
        assert isinstance(refused.value, ValueError | TypeError | LookupError), number


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("title", bad) for bad in (None, 5, " ")),
        *(("body", bad) for bad in (None, 5)),
        *(("id", bad) for bad in (5, "half \ud800", "nul \x00", "esc \x1b[2J", "..", " ", "x" * (MAX_ID + 1))),
        *(("forbids", bad) for bad in (5, ["x"])),
        *((name, bad) for name in ("steps", "tags", "signatures", "locations") for bad in (None, "abc", (1,), (None,))),
        *(("provenance", bad) for bad in (None, ("x",), (2**63,), (1.5,))),
        *((name, bad) for name in ("condition", "verify") for bad in ({"text": CIRCLE}, {"text": DEEP}, "text", 5)),
        *((name, bad) for name in ("score", "confidence") for bad in (None, "high", float("nan"), 2.0)),
        *(("pinned", bad) for bad in ("yes", None, 2)),
        *(("ttl", bad) for bad in ("3", 0, 1.5, 2**63)),
        *(("version", bad) for bad in ("3", None, 2**63)),
    ],
)
def test_an_item_that_cannot_be_kept_is_refused(library, name, bad):
    """By add, add_many and update, and nothing of it is there."""
    with pytest.raises(HardwonError) as refused:
        library.add(replace(Item("insight", "drawers jam in winter"), **{name: bad}))
    assert isinstance(refused.value, ValueError | TypeError)
    assert library.items.find(status=None) == []
    known = library.add(Item("insight", "drawers jam in winter")).item_id
    if name not in ("id", "version"):
        with pytest.raises(HardwonError):
            library.items.update(known, **{name: bad})
    assert library.items.get(known).version == 1


def test_a_namespace_is_a_name(path):
    """Text that a file can hold, and not too long."""
    for bad in (None, 5, "half \ud800", "nul \x00", "x" * (MAX_ID + 1)):
        with pytest.raises(HardwonError, match="namespace"):
            ExperienceLibrary.open(path, namespace=bad)


@pytest.mark.parametrize("call", ["put", "team", "pull", "reader", "after"])
def test_a_bank_takes_texts(library, call):
    """And whole numbers for entries."""
    with library.admin.bank("fetch the coin") as bank:
        ask = {
            "put": lambda: bank.put("red", "key", 5),
            "team": lambda: bank.put(None, "key", "value"),
            "pull": lambda: bank.pull("1", "blue"),
            "reader": lambda: bank.pull(1, None),
            "after": lambda: bank.entries("all"),
        }[call]
        with pytest.raises(TypeError):
            ask()


@pytest.mark.parametrize(
    "line",
    [
        '{"episode": {"id": 5, "task": "t", "steps": [], "success": true}}',
        '{"episode": {"id": "\\ud800", "task": "t", "steps": [], "success": true, "recorded_at": "now"}}',
        '{"episode": {"id": "a", "task": 5, "steps": [], "success": true, "recorded_at": "now"}}',
        '{"episode": {"id": "a", "task": "t", "steps": [], "success": true, "seed": 1e400, "recorded_at": "now"}}',
        '{"episode": {"id": "a", "task": "t", "steps": [], "success": true, "meta": {"x": NaN}, "recorded_at": "n"}}',
        '{"item": {"kind": "insight", "title": 5, "provenance": []}}',
        '{"item": {"kind": "insight", "title": "x", "provenance": [], "score": "high"}}',
        "[" * 100_000,
        '{"episode": ' + '{"a":' * 5000 + "1" + "}" * 5001,
    ],
)
def test_a_line_that_cannot_be_kept_is_named(library, tmp_path, line):
    """The file is refused whole, with the number of the line."""
    file = tmp_path / "lines.jsonl"
    file.write_text(f'{{"item": {{"kind": "insight", "title": "fine", "provenance": []}}}}\n{line}\n')
    with pytest.raises(HardwonError, match="line 2"):
        library.admin.import_jsonl(file)
    assert library.items.find() == []


# -- what is accepted reads back equal ------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = texts.filter(lambda text: text.strip() not in ("", ".", "..") and not re.search("[\x00-\x1f\x7f-\x9f]", text))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1000, 1000, width=16) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts.filter(lambda name: name not in ("skills", "trajectory")), plain, max_size=3)
reasons = objects.map(lambda why: {name: value for name, value in why.items() if name not in ("recalled", "blocked")})
numbers = st.floats(-1e100, 1e100)
states = st.builds(State, texts, objects, texts, texts, texts, st.lists(texts, max_size=2).map(tuple))
judgements = st.builds(Diagnosis, st.booleans(), st.sampled_from(Failure), numbers, diff=objects, evidence=texts)
taken_steps = st.builds(
    Step,
    states,
    texts,
    states,
    judgements,
    numbers,
    keys=st.lists(texts, min_size=1, max_size=2).map(tuple),
    why=reasons,
)
episodes = st.builds(
    Trajectory,
    texts,
    st.lists(taken_steps, max_size=3).map(tuple),
    st.booleans(),
    numbers,
    texts,
    st.integers(-(2**63), 2**63 - 1),
    texts,
    objects,
    names.filter(bool),
)


def said(episode):
    """What an episode says, without what the library adds."""
    steps = tuple(
        replace(
            step,
            id=None,
            return_to_go=None,
            why=step.why.to_dict(with_trajectory=False),
        )
        for step in episode.steps
    )
    return replace(episode, steps=steps)


@settings(
    max_examples=40,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(episodes)
def test_what_is_accepted_is_filed_and_travels(tmp_path_factory, episode):
    """It reads back equal, the library is sound, and another library gets the same by export and import."""
    file = tmp_path_factory.mktemp("travel") / "all.jsonl"
    worth = with_worth(episode) if episode.success else episode
    wanted = said(replace(worth, steps=tuple(replace(step, t=t) for t, step in enumerate(worth.steps))))
    with ExperienceLibrary.open(":memory:") as library, ExperienceLibrary.open(":memory:") as other:
        assert library.record(episode) == episode.id
        assert said(library.episodes.get(episode.id)) == wanted
        library.recall(episode.steps[0].pre if episode.steps else "anything", actions={"open": ""})
        assert library.admin.verify() == []
        assert library.admin.export_jsonl(file) == 1
        assert other.admin.import_jsonl(file) == 1
        assert said(other.episodes.get(episode.id)) == wanted
        assert other.admin.verify() == []


def test_an_id_that_an_earlier_version_stored_is_still_moved_and_forgotten(library, episode, tmp_path, monkeypatch):
    """One odd id must not make a backup unreadable, nor keep its episode from being forgotten."""
    odd = "ev\x1b[2Jil"
    with monkeypatch.context() as earlier:
        earlier.setattr("hardwon.memory.validation._NOT_IN_NEW_IDS", re.compile("(?!)"))
        library.record(episode("wait", id=odd))
    library.admin.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "other.db") as other:
        other.admin.import_jsonl(tmp_path / "all.jsonl")
        assert other.episodes.get(odd).steps
    assert library.admin.forget(episode=odd).episodes == (odd,)
