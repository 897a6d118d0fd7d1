"""Words of too few requests in the form of an action are not shown to other requests, in whatever place they stand."""

import json

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.runtime.environments.calls import Call, build_state
from hardwon.runtime.guidance.abstraction import abstract_recollection
from hardwon.runtime.guidance.base import lines_of
from hardwon.runtime.guidance.rendering import Visible, render_item, render_steps
from hardwon.runtime.integrations.tool_episode import ToolEpisode

MARK = "zanzibar"
TASK = "refund the order"


@pytest.fixture
def library(tmp_path):
    with ExperienceLibrary.open(tmp_path / "a.db") as opened:
        for n in range(8):
            opened.record(episode(opened, [Call("refund", {"order": f"A-{n}"}, "done")]))
        yield opened


def episode(library, calls, hides=True):
    recorder = ToolEpisode(library, TASK, hides_results=hides)
    for n in range(len(calls)):
        recorder.add_answer(recorder.state(calls[:n]), calls[: n + 1])
    return recorder.trajectory(True, ending="success")


def bash(command):
    return [Call("bash", {"command": command}, "ok")]


KINDS = {
    "a subcommand": bash(f"make test; {MARK} it"),
    "a flag": bash(f"deploy --{MARK} x"),
    "a document in a command": bash(f"cat <<EOF\n{MARK} lives in elm street\nEOF"),
    "a comment": bash(f"make test # {MARK} it"),
    "a table": [Call("query", {"sql": f"select a from {MARK}"}, "ok")],
    "a plain command": [Call("x", {}, "ok", words=f"make test; {MARK} it")],
    "a key within an object": [Call("refund", {"order": {MARK: 1}}, "ok")],
    "a key that is a sentence": [Call("refund", {f"{MARK} lives in elm street": 1}, "ok")],
    "a parameter that others do not have": [Call("refund", {f"{MARK}_id": 1}, "ok")],
    "a parameter of a call in JSON": [Call("x", {}, "ok", words=json.dumps({"name": "refund", "args": {MARK: 1}}))],
    "a tool that a result named": [Call("read", {}, f"use {MARK}_send"), Call(f"{MARK}_send", {"order": 1}, "ok")],
    "a tool without arguments": [Call("read", {}, f"use {MARK}"), Call(MARK, {}, "ok")],
    "a link": [Call("x", {}, "ok", words=f"[click](http://{MARK}.example)")],
    "a name in another script": [Call("转账", {"账户": MARK}, "ok")],
    "a repair that worked": [
        Call("refund", {"order": 1}, "", f"{MARK} first"),
        Call(MARK, {}, "ok"),
        Call("refund", {"order": 1}, "ok"),
    ],
}


def read_all(library):
    """What other requests can be shown: advice, records without values, each step and each item."""
    state = build_state(TASK, (), "")
    recollection, support = library.recall(state, k=40), library._file.caught_up().support
    steps = [step for row in library.episodes.find() for step in library.episodes.get(row["id"]).steps]
    return [
        *(line.text for line in lines_of(recollection, state)),
        *(text for step in steps for text, _ in render_steps([support.limit_step(step)], Visible(state))),
        *(render_item(item, Visible(state)) for item in library.items.find()),
        *(repr(hit.what) for hit in abstract_recollection(recollection, state).steps),
        *(repr(hit.what) for hit in abstract_recollection(recollection, state).items),
    ]


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_word_of_two_requests_is_not_shown(library, kind, hides):
    for _ in range(2):
        library.record(episode(library, KINDS[kind], hides))
    library.evolve()
    assert not [text for text in read_all(library) if MARK in text]


@pytest.mark.parametrize("kind", ["a subcommand", "a flag", "a plain command", "a tool that a result named"])
def test_what_three_requests_did_is_shown_as_they_did_it(library, kind):
    for _ in range(3):
        library.record(episode(library, KINDS[kind]))
    name = KINDS[kind][-1].name
    assert any(MARK in text and (name in text or name == "x") for text in read_all(library))


def test_a_form_of_a_stranger_needs_as_many_episodes(library):
    is_shown = []
    for _ in range(3):
        crafted = episode(library, [Call(f"{MARK}_send", {"order": 1}, "ok")])
        library.episodes.receive([crafted], writer="token:x", trust="untrusted")
        recollection = library.recall(build_state(TASK, (), ""), k=40)
        is_shown.append(any(MARK in line.text for line in lines_of(recollection)))
    assert is_shown == [False, False, True]
