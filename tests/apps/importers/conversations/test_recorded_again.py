"""The same chat that is recorded again, under other words of the system or in another row, is one request."""

import json

import pytest

from hardwon.apps import importers

REFS = ["call_Ab3kQ9z81LmPx7Yt", "call_Zk29dJw0qBvN4c6R", "call_M3nB7vC1xZ9aS5dF"]
OTHER = [f"{ref[:-4]}a1B2" for ref in REFS]
PLAIN = ["c1", "c2", "c3"]


def talk(count=3, system="It is 10:00.", role="system", refs=REFS, finished=True):
    messages = [{"role": role, "content": system}] if system else []
    messages.append({"role": "user", "content": "Refund A-1."})
    for at in range(count):
        function = {"name": "find", "arguments": json.dumps({"at": at})}
        messages.append({"role": "assistant", "tool_calls": [{"id": refs[at], "function": function}]})
        messages.append({"role": "tool", "tool_call_id": refs[at], "content": f"result {at}"})
    return [*messages, {"role": "assistant", "content": "Done."}] if finished else messages


REMINDED = [*talk()[:4], {"role": "system", "content": "Be brief."}, *talk()[4:]]
SAME = {
    "another system": ({"messages": talk(system="It is 11:00.")}, {}),
    "without a system": ({"messages": talk(system="")}, {}),
    "a developer": ({"messages": talk(role="developer", system="It is 11:00.")}, {}),
    "a reminder": ({"messages": REMINDED}, {}),
    "a last word of the system": ({"messages": [*talk(), REMINDED[4]]}, {}),
    "a shorter one": ({"messages": talk(2, system="It is 11:00.", finished=False)}, {}),
    "a row of its own": ({"messages": talk(), "id": "r-2", "reward": 1.0}, {"id": "r-1", "reward": 1.0}),
    "graded now": ({"messages": talk(system="It is 11:00."), "reward": 1.0}, {}),
    "graded before": ({"messages": talk(system="It is 11:00.")}, {"reward": 1.0}),
    "another grade": ({"messages": talk(), "reward": 0.0}, {"reward": 1.0}),
}


@pytest.fixture
def load(tmp_path, library):
    """Imports files of lines one after the other, and returns the rows of the library."""

    def load(*files):
        for number, lines in enumerate(files):
            path = tmp_path / f"{number}.jsonl"
            path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
            form, logged = importers.read(path)
            importers.write(library, logged, source=form, trust="trusted")
        return library.episodes.find()

    return load


@pytest.mark.parametrize("place", ["one file", "two files", "backwards"])
@pytest.mark.parametrize(("again", "fields"), SAME.values(), ids=SAME)
def test_a_chat_that_is_recorded_again_is_one_request(load, again, fields, place):
    lines = [{"messages": talk(), **fields}, again]
    files = [lines] if place == "one file" else [[line] for line in lines[:: 1 if place == "two files" else -1]]
    (row,) = load(*files)
    assert row["n_steps"] == 3


@pytest.mark.parametrize("place", ["one file", "a file each"])
def test_a_log_of_requests_with_the_time_in_the_system_is_one_request(load, place):
    lines = [{"messages": talk(at, system=f"It is 10:0{at}.", finished=at == 3)} for at in range(1, 4)]
    ((steps, success),) = [
        (row["n_steps"], row["success"])
        for row in load(*([lines] if place == "one file" else [[line] for line in lines]))
    ]
    assert (steps, success) == (3, 1)


@pytest.mark.parametrize("place", ["one file", "a file each"])
@pytest.mark.parametrize("fields", [{}, {"reward": 1.0}], ids=["plain", "graded"])
def test_another_run_with_the_same_words_is_another_request(load, place, fields):
    """Its calls have other random ids."""
    lines = [{"messages": talk(refs=refs), **fields} for refs in (REFS, OTHER)]
    files = [lines] if place == "one file" else [[line] for line in lines]
    assert len(load(*files)) == len(load(*files)) == 2


def test_a_system_that_asks_itself_is_part_of_a_chat(load):
    lines = [[m for m in talk(system=task, refs=PLAIN) if m["role"] != "user"] for task in ("Find A.", "Find B.")]
    assert len(load([{"messages": messages} for messages in lines])) == 2


def test_rows_of_an_earlier_version_are_known(load, library, monkeypatch):
    """It read the words of the system, and no ids of calls."""
    conversations, digest = "hardwon.apps.importers.conversations", importers.conversations.digest_beginnings
    with monkeypatch.context() as older:
        older.setattr(f"{conversations}.refer_to_call", lambda ref: "")
        older.setattr(f"{conversations}.digest_beginnings", lambda m, **_: digest(m, with_system=True))
        (row,) = load([{"messages": talk(2, finished=False)}])
    assert [known["id"] for known in load([{"messages": talk()}])] == [row["id"]]
    assert [known["n_steps"] for known in library.episodes.find()] == [3]
