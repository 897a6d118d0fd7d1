"""A trace in several files, copies of a session, and conversations that were imported at several moments."""

import json
from itertools import permutations

import pytest

from .test_versions import claude, codex, langfuse, langsmith, load as load, openai, otel


def with_short_ids(lines):
    return json.loads(json.dumps(lines).replace("call_0123456789abcdef", "call_"))


def go_on(lines):
    """Return the lines of a request that follows another one."""
    return [{**line, "parentUuid": line["parentUuid"] or "u-end"} for line in lines]


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("cut", [2, 3])
@pytest.mark.parametrize("make", [langsmith, langfuse, otel])
def test_parts_of_a_trace_in_two_files_are_one_episode(load, library, make, cut, is_reversed):
    lines = make(4)
    parts = [lines[cut:], lines[:cut]] if is_reversed else [lines[:cut], lines[cut:]]
    assert [load(*part) for part in parts] == [(1, 0), (0, 1)]
    (row,) = library.episodes.find()
    whole = library.episodes.get(row["id"])
    assert [step.action for step in whole.steps] == [f'run(command="make {n}")' for n in range(4)]
    assert [step.diagnosis.success for step in whole.steps] == [True, False, True, True]
    assert (whole.success, whole.task) == (True, "x" if make is otel else "Fix it.")
    assert [load(*part) for part in (*parts, lines)] == [(0, 0)] * 3


@pytest.mark.parametrize("make", [langsmith, langfuse])
def test_parts_that_overlap_count_their_calls_once(load, library, make):
    lines = make(5)
    load(*lines[:4])
    assert load(*lines[2:]) == (0, 1)
    assert [row["n_steps"] for row in library.episodes.find()] == [5]


def test_equal_calls_of_two_parts_are_two(load, library):
    root, first, second = json.loads(json.dumps(langsmith(2)).replace("make 1", "make 0"))
    load(root, first)
    load(second)
    assert [row["n_steps"] for row in library.episodes.find()] == [2]


def test_the_outcome_of_the_root_stays_when_the_other_part_comes(load, library):
    root, *calls = langsmith(4)
    load({**root, "feedback_stats": {"correctness": {"avg": 0.0}}}, *calls[:2])
    load(*calls[2:])
    assert [(row["n_steps"], row["success"]) for row in library.episodes.find()] == [(4, 0)]


def test_a_copy_of_a_session_with_short_call_ids_is_known(load, library):
    load(*with_short_ids(codex(4)))
    copy = with_short_ids(codex(4, session="s-2"))
    assert load(*copy) == (0, 0)
    assert load(*[{**line, "timestamp": "2026-04-13T09:40:02Z"} for line in copy]) == (1, 0)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_versions_of_a_turn_come_in_any_order(load, library, order):
    files = [claude(2, finished=False), claude(3, session="s-2", finished=False), claude(4, session="s-3")]
    for n in order:
        load(*files[n])
    assert [(row["n_steps"], row["success"]) for row in library.episodes.find()] == [(4, 1)]


def test_side_chains_of_a_resumed_session_are_known(load, library):
    main, side = claude(2), claude(3, request="side", sidechain=True)
    assert load(*main[:2], *side, *main[2:]) == (2, 0)
    summary = {"type": "summary", "summary": "The tests are fixed.", "leafUuid": "u-end"}
    again = [{**line, "sessionId": "s-2"} for line in (*main, *side)]
    assert load(summary, *again, *go_on(claude(1, session="s-2", request="w"))) == (1, 0)
    assert load(*[{**line, "agentId": "other"} for line in side]) == (0, 0)
    assert sorted(row["n_steps"] for row in library.episodes.find()) == [1, 2, 3]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_forks_share_what_came_before(load, library, is_reversed):
    files = [[*claude(3, session=name), *go_on(claude(2, session=name, request=name))] for name in ("v", "w")]
    assert [load(*file) for file in (files[::-1] if is_reversed else files)] == [(2, 0), (1, 0)]
    assert sorted(row["n_steps"] for row in library.episodes.find()) == [2, 2, 3]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_older_version_of_a_conversation_is_known(load, library, n):
    load(*openai(4))
    assert load(*openai(n, finished=False)) == (0, 0)
    (row,) = library.episodes.find()
    assert (row["n_steps"], row["success"]) == (4, 1)


def test_an_older_version_of_a_graded_conversation_is_known(load, library):
    load({**openai(4)[0], "reward": 0.5})
    assert load(*openai(2, finished=False)) == load(*openai(4)) == (0, 0)


def test_a_shorter_conversation_that_is_over_is_another_one(load, library):
    load(*openai(4))
    assert load(*openai(2)) == (1, 0)
    assert load(*openai(2)) == load(*openai(4)) == (0, 0)


def test_older_versions_with_other_results_are_others(load, library):
    load(*openai(4))
    other = json.loads(json.dumps(openai(2, finished=False)).replace("result 1", "no answer"))
    assert load(*other) == (1, 0)
    assert sorted(row["n_steps"] for row in library.episodes.find()) == [2, 4]


def test_conversations_of_one_file_that_begin_alike_are_all_imported(load, library):
    def talk(name):
        lines = json.loads(json.dumps(openai(3)).replace("make 1", name))
        return {"messages": lines[0]["messages"]}

    names = ["lint", "build", "clean"]
    assert load(*map(talk, names)) == (3, 0)
    assert load(*map(talk, reversed(names))) == (0, 0)
    assert [load({"messages": talk(name)["messages"][:5]}) for name in names] == [(0, 0)] * 3
