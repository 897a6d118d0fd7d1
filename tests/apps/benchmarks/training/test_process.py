"""The comparison with labels of steps: trajectories are read, and every figure is that of a case computed by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training import process, process_credit
from benchmarks.training.process_data import read_episodes
from hardwon.memory import Diagnosis, Failure
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS


def write_call(name, **arguments):
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def write_result(text):
    return {"role": "tool", "content": text, "tool_call_id": "c1"}


def write_line(group=0, sample=0, final=1, labels=None, messages=None, **fields):
    """One trajectory: a lookup and an answer, with labels 1 and that of the outcome."""
    messages = messages or [
        {"role": "user", "content": "Where do bees live?"},
        write_call("look", about="bees"),
        write_result(f"Bees live in hives, page {sample}."),
        {"role": "assistant", "content": "<answer>hives</answer>"},
    ]
    line = {
        "query_index": group,
        "sample_index": sample,
        "question": "Where do bees live?",
        "messages": messages,
        "step_labels": {"1": 1, "3": final} if labels is None else labels,
        "final_label": final,
    }
    return line | fields


def write_file(folder: Path, *lines: object) -> Path:
    path = folder / "steps.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


# -- reading


def test_a_call_is_an_action_and_its_answer_the_state_after_it(tmp_path):
    (episode,) = read_episodes(write_file(tmp_path, write_line()))
    look, answer = episode.trajectory.steps
    assert (look.action, answer.action) == ('look(about="bees")', "<answer>hives</answer>")
    assert "page 0" in look.post.observation
    assert look.post.feedback == "Bees live in hives, page 0."
    assert (episode.labels, episode.steps) == ((1, 1), ((0,), (1,)))
    assert episode.trajectory.success
    assert answer.reward == 1.0


def test_the_last_step_of_a_failure_loses_the_task_and_looked_well_before(tmp_path):
    (episode,) = read_episodes(write_file(tmp_path, write_line(final=-1)))
    assert episode.trajectory.success is False
    assert episode.trajectory.steps[-1].diagnosis.failure is Failure.TASK_LOST
    assert episode.before_outcome.success
    assert process.grade_messages(episode, outcome=True) == [1, -1]
    assert process.grade_messages(episode, outcome=False) == [1, 1]


def test_a_message_without_a_call_is_refused_where_the_loop_says_so(tmp_path):
    messages = [
        {"role": "user", "content": "Where do bees live?"},
        {"role": "assistant", "content": "look: bees"},
        {"role": "user", "content": "No usable tool call was found. Use a tool."},
        {"role": "assistant", "content": "<answer>hives</answer>"},
    ]
    (episode,) = read_episodes(write_file(tmp_path, write_line(messages=messages, labels={"1": -1, "3": 1})))
    assert [step.diagnosis.failure for step in episode.trajectory.steps] == [Failure.INVALID_ACTION, Failure.NONE]
    assert process.grade_messages(episode, outcome=True) == [-1, 1]


def test_what_a_person_says_next_refuses_nothing(tmp_path):
    messages = [
        {"role": "user", "content": "Where do bees live?"},
        {"role": "assistant", "content": "Wild ones?"},
        {"role": "user", "content": "Yes. No need of a tool call."},
        {"role": "assistant", "content": "<answer>hives</answer>"},
    ]
    (episode,) = read_episodes(write_file(tmp_path, write_line(messages=messages, labels={"1": 1, "3": 1})))
    assert process.grade_messages(episode, outcome=True) == [1, 1]
    assert episode.trajectory.steps[0].post.feedback == "Yes. No need of a tool call."


def test_a_message_with_two_calls_has_one_verdict_and_one_credit(tmp_path):
    two = write_call("look", about="bees")
    two["tool_calls"].append({"id": "c2", "function": {"name": "look", "arguments": '{"about": "wasps"}'}})
    messages = [
        {"role": "user", "content": "Where do bees live?"},
        two,
        write_result("Bees live in hives."),
        {"role": "tool", "content": "Error: no such page", "tool_call_id": "c2"},
        {"role": "assistant", "content": "<answer>hives</answer>"},
    ]
    (episode,) = read_episodes(write_file(tmp_path, write_line(messages=messages, labels={"1": 1, "4": 1})))
    assert episode.steps == ((0, 1), (2,))
    assert process.grade_messages(episode, outcome=True) == [-1, 1]  # one of its calls failed
    credit = process_credit.compute_credits([episode])[process_credit.RETURN]
    assert credit == [[pytest.approx((0.95**2 + 0.95) / 2), 1.0]]


def test_a_message_without_a_label_is_a_step_and_not_compared(tmp_path):
    (episode,) = read_episodes(write_file(tmp_path, write_line(labels={"3": 1})))
    assert len(episode.trajectory.steps) == 2
    assert (episode.labels, episode.steps) == ((1,), ((1,),))


def test_a_call_without_an_answer_is_a_step(tmp_path):
    messages = [{"role": "user", "content": "Where do bees live?"}, write_call("look", about="bees")]
    (episode,) = read_episodes(write_file(tmp_path, write_line(messages=messages, labels={"1": 0}, final=-1)))
    assert [step.action for step in episode.trajectory.steps] == ['look(about="bees")']


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "steps.jsonl line 2 is not JSON"),
        ("[]", "steps.jsonl line 2 is not a JSON object"),
        (write_line(1, question=None), "line 2: 'question' is None"),
        (write_line(1, query_index=True), "line 2: 'query_index' is True"),
        (write_line(1, final_label=0), "'final_label' is 0; write 1 or -1"),
        (write_line(1, labels={"0": 1}), "labels message '0', which is not one of the assistant"),
        (write_line(1, labels={"9": 1}), "labels message '9'"),
        (write_line(1, labels={"1": 2}), "the label of message 1 is 2; write 1, 0 or -1"),
        (write_line(1, labels={}), "'step_labels' is empty"),
        (write_line(1, messages=[5], labels={"0": 1}), "labels message '0'"),
        (write_line(1, messages=[{"role": "assistant", "content": "hives"}, 5], labels={"0": 1}), "message 1 cannot"),
        (write_line(0), "query_index 0 and sample_index 0 were on an earlier line"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, problem):
    with pytest.raises(ConfigError, match=f"(?s){problem}") as caught:
        read_episodes(write_file(tmp_path, write_line(), line))
    assert "line 2" in str(caught.value)


def test_a_line_that_is_not_utf_8_is_named(tmp_path):
    path = write_file(tmp_path, write_line())
    path.write_bytes(path.read_bytes() + b'\n{"question": "\xff"}')
    with pytest.raises(ConfigError, match="line 2 is not UTF-8"):
        read_episodes(path)


def test_a_missing_or_empty_file_names_the_next_step(hardwon, tmp_path):
    assert "download the data first" in hardwon("bench", "process", str(tmp_path / "none"), expect=2).stderr
    assert "has no lines" in hardwon("bench", "process", str(write_file(tmp_path)), expect=2).stderr


# -- figures


@pytest.fixture
def file(tmp_path) -> Path:
    """Two questions of two samples. Labels: 1 1, 1 -1 (failed), -1 1, and 1 1 (failed, although no step is wrong)."""
    return write_file(
        tmp_path,
        write_line(0, 0),
        write_line(0, 1, final=-1),
        write_line(1, 0, labels={"1": -1, "3": 1}),
        write_line(1, 1, final=-1, labels={"1": 1, "3": 1}),
    )


def test_verdicts_agree_by_hand(file):
    """Six of eight steps are labeled 1. With the outcome, the diagnosis says -1 on the last step of each failure."""
    rows = {row["verdict"]: row for row in process.measure(file)["verdicts"]}
    shares = {name: (row["helped"], row["label"], row["steps"]) for name, row in rows.items()}
    assert shares == {
        "the most frequent label": (0.75, 0.75, 8),
        "outcome alone": (0.5, 0.5, 8),  # wrong: one step of the second, one of the third, both of the fourth
        "outcome at the last step": (0.75, 0.75, 8),
        "diagnosis before the outcome": (0.75, 0.75, 8),
        "diagnosis with the outcome": (0.75, 0.75, 8),  # right on the failed answer, wrong on the fourth's
    }


def test_first_errors_are_found_by_hand(file):
    """Two trajectories have an error: at the second message and at the first."""
    rows = {row["verdict"]: row for row in process.measure(file)["first_errors"]}
    figures = {name: (row["right"], row["found"], row["within_1"]) for name, row in rows.items()}
    assert figures == {
        "the most frequent label": (0.5, 0.0, 0.0),
        "outcome alone": (0.25, 0.0, 0.5),  # says the first message of every failure, which is one too early
        "outcome at the last step": (0.5, 0.5, 0.5),
        "diagnosis before the outcome": (0.5, 0.0, 0.0),
        "diagnosis with the outcome": (0.5, 0.5, 0.5),
    }
    assert rows["outcome alone"]["with_error"] == 2


def test_the_rank_correlation_of_a_case_by_hand():
    """Credits 1, 2, 3 with labels -1, 1, 0: two pairs agree, one does not. Ties leave the count of one ranking."""
    table = np.zeros((1, 3, 3), dtype=int)
    for row, column in enumerate((0, 2, 1)):
        table[0, row, column] = 1
    assert process_credit.compute_tau(table)[0] == pytest.approx(1 / 3)
    # credits 0 0 1 1 and labels -1 1 1 1: 2 agree, 0 do not; (6 - 2) and (6 - 3) pairs are not tied
    table = np.array([[[1, 0, 1], [0, 0, 2]]])
    assert process_credit.compute_tau(table)[0] == pytest.approx(2 / (4 * 3) ** 0.5)
    assert process_credit.compute_tau(table[:, ::-1])[0] == pytest.approx(-2 / (4 * 3) ** 0.5)


def test_credit_is_correlated_over_all_within_questions_and_within_episodes(file):
    """Outcomes 1 1 0 0 | 1 1 0 0 and labels 1 1 1 -1 | -1 1 1 1, each in a question, by hand."""
    rows = {row["credit"]: row for row in process.measure(file)["credit"]}
    alone = rows["outcome alone"]
    within = 2 / (4 * 3) ** 0.5  # as above; in the second question the failure has the better labels
    assert alone["question"] == pytest.approx((within - within) / 2)
    assert (alone["all"], alone["gain"]) == (0.0, 0.0)
    assert (alone["episode"], alone["episodes"]) == (None, 0)  # it is constant in every episode
    # The return rises within a success: 0.95 before 1. It orders the third episode's labels -1, 1 as they are.
    rising = rows[process_credit.RETURN]
    assert (rising["episode"], rising["episodes"]) == (1.0, 1)


def test_salt_shares_credit_of_equal_first_steps(tmp_path):
    """Two samples look up the same page and answer differently: only the answers get the blame and the praise."""
    page = [
        {"role": "user", "content": "Where do bees live?"},
        write_call("look", about="bees"),
        write_result("Bees live in hives."),
    ]
    lines = [
        write_line(0, n, final, {"1": 1, "3": final}, [*page, {"role": "assistant", "content": text}])
        for n, (final, text) in enumerate(((1, "hives"), (-1, "nests")))
    ]
    credit = process_credit.compute_credits(read_episodes(write_file(tmp_path, *lines)))["SALT"]
    assert [round(own[0], 6) for own in credit] == [0.0, 0.0]
    assert credit[0][1] > 0 > credit[1][1]


def test_equal_labels_have_no_rank_correlation(hardwon, tmp_path):
    path = write_file(tmp_path, *(write_line(0, n, final, {"1": 1, "3": 1}) for n, final in enumerate((1, -1))))
    for row in process.measure(path)["credit"]:
        assert (row["all"], row["all_ci95"], row["gain"], row["question"], row["episode"]) == (None,) * 5
    printed = hardwon("bench", "process", str(path)).stdout
    assert "undefined" in printed


def test_the_gain_is_that_over_the_outcome_alone(tmp_path):
    """Returns 0.95 1 0 0 with labels 1 1 1 -1: 2 pairs agree; (6 - 1) and (6 - 3) are not tied."""
    rows = process.measure(write_file(tmp_path, write_line(0, 0), write_line(0, 1, final=-1)))["credit"]
    alone, rising = rows[:2]
    assert (alone["all"], alone["gain"]) == (0.577, 0.0)
    assert (rising["all"], rising["gain"]) == (0.516, pytest.approx(2 / 15**0.5 - 2 / 12**0.5, abs=0.001))


@pytest.mark.parametrize(
    ("diagnosis", "label"),
    [
        (Diagnosis(True), 1),
        (Diagnosis(True, loop=True), 0),
        (Diagnosis(False, Failure.NO_EFFECT), 0),
        (Diagnosis(False, Failure.UNAVAILABLE), 0),
        (Diagnosis(False, Failure.NO_EFFECT, loop=True), 0),
        (Diagnosis(False, Failure.TOOL_ERROR, loop=True), -1),
    ],
)
def test_a_diagnosis_has_one_label(diagnosis, label):
    assert process.grade(diagnosis) == label


def test_the_order_of_lines_changes_nothing(file, tmp_path):
    lines = file.read_text(encoding="utf-8").split("\n")
    assert read_episodes(write_file(tmp_path, *lines[::-1])) == read_episodes(write_file(tmp_path, *lines))
    assert process.measure(write_file(tmp_path, *lines[::-1])) == process.measure(write_file(tmp_path, *lines))


def test_every_estimator_is_measured_or_has_a_reason():
    named = [*process_credit.MEASURED, *(name for names in process_credit.LEFT_OUT.values() for name in names)]
    assert sorted(named) == sorted(PARTS.list_cards("estimator"))


def test_estimators_that_are_left_out_as_equal_are_equal(file):
    """They give all steps of an episode one credit, or that of GiGPO."""
    traces = process_credit.build_traces(read_episodes(file))
    alike, same = list(process_credit.LEFT_OUT.values())[:2]
    for name in alike:
        assert all(np.ptp(values) == 0 for values in PARTS.get("estimator", name)(traces).values())
    for name in same:
        assert PARTS.get("estimator", name)(traces) == PARTS.get("estimator", "gigpo")(traces)


def test_the_command_prints_three_tables_or_json(hardwon, hardwon_json, file):
    result = hardwon_json("bench", "process", str(file))
    assert result["data"] == {
        "episodes": 4, "questions": 2, "successes": 2, "steps": 8, "labels": {"+1": 6, "0": 0, "-1": 2}
    }  # fmt: skip
    printed = hardwon("bench", "process", str(file))
    for head in ("helped", "within_1", "gain"):
        assert head in printed.stdout
    assert "probabilities of a policy" in printed.stdout
