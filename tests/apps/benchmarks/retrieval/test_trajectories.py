import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.retrieval import trajectories
from benchmarks.retrieval.trajectories import interval, read
from hardwon.memory.errors import ConfigError

SEEN = (("I lost my key, %s.", "find_key"), ('{"key": "%s", "found": true}', "send_key"))


def step(task=1, n=0, reward=1.0, obs="A door.", action="open", args="{}", **fields):
    """One line of the documented form."""
    line = {"id": f"e{task}.t0.{n}", "task_id": task, "reward": reward, "obs": obs, "action": action, "args": args}
    return line | fields


def told(task=1):
    """The line of its episode."""
    return {"id": f"e{task}.t0", "task_id": task, "instruction": f"You are person {task} who lost a key."}


def write(folder: Path, *lines: object) -> Path:
    """The lines as one file of the folder."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "data.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """Four tasks, two of them held out, each done in the same two steps by another person; and a failure."""
    lines = []
    for task, name in ((1, "Ann"), (2, "Bob"), (30, "Cid"), (31, "Dee")):
        lines += [told(task), *(step(task, n, obs=obs % name, action=do) for n, (obs, do) in enumerate(SEEN))]
    return write(tmp_path, *lines, step(40, reward=0.0, action="shout"))


@pytest.fixture
def hashing_only(monkeypatch):
    """No model in the tests."""
    monkeypatch.setattr(trajectories, "EMBEDDERS", {"hashing": "hashing"})


@pytest.fixture
def rows(folder, hashing_only):
    """By method and level."""
    return {(row["method"], row["level"]): row for row in trajectories.measure(folder, lambda message: None)}


def test_every_way_of_retrieving_has_a_row(rows):
    baselines = [("BM25", level) for level in ("task", "step")] + [("the commonest action", "-")]
    assert {*baselines, ("dense, hashing", "step"), ("hybrid, hashing", "task"), ("ours, hashing", "step")} <= set(rows)
    assert sum(method.startswith("ours, hashing, with") for method, _ in rows) == 6


def test_steps_tell_the_next_action_where_situations_repeat(rows):
    """Two situations, an action each: recall knows which; the task, or always the same action, does not."""
    assert rows["ours, hashing", "step"]["agreement"] == 1.0
    assert rows["the commonest action", "-"]["agreement"] == 0.5
    assert rows["BM25", "task"]["agreement"] < 1.0


def test_halves_are_told_apart(rows):
    """Task ids up to 24, and above."""
    row = rows["ours, hashing", "step"]
    assert (row["tuning"], row["held_out"], row["n"], row["answered"]) == (1.0, 1.0, 8, 8)


def test_only_successful_episodes_are_read_in_order(folder):
    asked = read(folder)
    assert [(one.task, one.t, one.action) for one in asked[:3]] == [
        (1, 0, "find_key"),
        (1, 1, "send_key"),
        (2, 0, "find_key"),
    ]
    assert [one.before for one in asked[:3]] == ["", "find_key()", ""]


def test_a_task_never_sees_itself(tmp_path, hashing_only):
    """Two tasks alike in nothing but the observation: what the left-out one did is never returned."""
    write(tmp_path, told(1), step(1, action="open"), told(2), step(2, action="kick"))
    rows = trajectories.measure(tmp_path, lambda message: None)
    assert {row["agreement"] for row in rows} == {0.0}
    assert all(row["answered"] == 2 for row in rows if row["method"] == "ours, hashing")


@pytest.mark.parametrize(
    ("args", "call"),
    [
        ('{"city": "Rome", "seats": 2}', 'open(city="Rome", seats=2)'),
        ({"city": "Rome"}, 'open(city="Rome")'),
        ('{"cut sho', "open()"),
        ("[1]", "open()"),
    ],
)
def test_arguments_are_an_object_or_its_text(tmp_path, args, call):
    write(tmp_path, told(1), step(1, args=args), told(2), step(2))
    assert next(one.call for one in read(tmp_path)) == call


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "data.jsonl line 1 is not JSON"),
        ("[]", "data.jsonl line 1 is not a JSON object"),
        ({"id": "e1.t0"}, "neither a step"),
        (step(obs=None), "'obs' of a step is None"),
        (step(task_id="1"), "'task_id' of a step is '1'"),
        (step(reward=True), "'reward' of a step is True"),
        (step(id="e1"), "write EPISODE.N"),
        (step(id="e1.t0.last"), "write EPISODE.N"),
        (step(), "no line with its instruction"),
    ],
)
def test_a_line_in_another_form_is_refused_with_its_place(tmp_path, line, said):
    with pytest.raises(ConfigError, match=said):
        read(write(tmp_path, line))


def test_one_task_cannot_be_left_out(tmp_path):
    with pytest.raises(ConfigError, match="fewer than 2 tasks"):
        read(write(tmp_path, told(), step()))


def test_a_missing_folder_says_what_to_do(hardwon, tmp_path):
    assert (
        "Name a folder of trajectories by --data"
        in hardwon("bench", "retrieval", "--data", str(tmp_path / "none"), expect=2).stderr
    )


def test_a_model_that_is_not_installed_is_skipped_with_a_word(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    said: list[str] = []
    rows = trajectories.measure(folder, said.append)
    assert not any("MiniLM" in row["method"] for row in rows)
    assert any("MiniLM is left out" in line for line in said)


def test_the_command_prints_json_or_a_table(hardwon, hardwon_json, folder, hashing_only, monkeypatch):
    rows = hardwon_json("bench", "retrieval", "--data", str(folder))["rows"]
    assert {"method", "level", "agreement", "agreement_ci95", "tuning", "held_out", "any", "answered", "n"} <= set(
        rows[0]
    )
    monkeypatch.setenv("HARDWON_DATA", str(folder))
    assert "ours, hashing" in hardwon("bench", "retrieval").stdout


def test_intervals_resample_whole_groups():
    """Within a group all is alike: two groups, as wide as can be; one group, no width."""
    values = np.array([0.0, 0.0, 1.0, 1.0])
    assert interval(values, np.array([1, 1, 2, 2])) == [0.0, 1.0]
    assert interval(values, np.array([1, 1, 1, 1])) == [0.5, 0.5]
    assert interval(values[:0], np.array([])) is None
