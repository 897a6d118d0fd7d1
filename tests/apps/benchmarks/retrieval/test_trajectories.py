import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.intervals import bootstrap_groups
from benchmarks.retrieval.trajectories import read
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


def test_only_successful_episodes_are_read_in_order(folder):
    asked = read(folder)
    assert [(one.task, one.t, one.action) for one in asked[:3]] == [
        (1, 0, "find_key"),
        (1, 1, "send_key"),
        (2, 0, "find_key"),
    ]
    assert [one.before for one in asked[:3]] == ["", "find_key()", ""]


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
        "name a folder of sets by --data"
        in hardwon("bench", "retrieval", "--data", str(tmp_path / "none"), expect=2).stderr
    )


def test_intervals_resample_whole_groups():
    """Within a group all is alike: two groups, as wide as can be; one group, no width."""
    values = np.array([0.0, 0.0, 1.0, 1.0])
    assert bootstrap_groups(values, np.array([1, 1, 2, 2])) == [0.0, 1.0]
    assert bootstrap_groups(values, np.array([1, 1, 1, 1])) == [0.5, 0.5]
    assert bootstrap_groups(values[:0], np.array([])) is None
