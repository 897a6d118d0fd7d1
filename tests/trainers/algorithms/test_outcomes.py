"""What counts as the outcome of an episode: success, the environment's score, or the rewards."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hardwon.memory import Diagnosis, Reasons, State, Step, Trajectory
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.imitation import build_examples
from hardwon.trainers.algorithms.outcomes import mark_outcome, measure_outcome, name_outcome, select_best
from hardwon.trainers.algorithms.samplers.balance import score_balance
from hardwon.trainers.algorithms.samples import Rollout, Sample, to_trace
from hardwon.trainers.config.loading import of
from hardwon.trainers.models.tiny import build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.guides.lessons import build_lessons, build_query
from hardwon.trainers.roles.writing import GRADES, OUTCOMES, LessonWriter, build_item
from hardwon.trainers.rollouts.explore import way
from hardwon.trainers.session import _open_base

HALL = State("You are in the hall.", location="hall", task="tidy up")


def played(name, score, *, success: bool | None = False, reward=0.0, **why):
    step = Step(HALL, "wait", HALL, Diagnosis(True), reward, 0, why=Reasons.of(why))
    return Trajectory("tidy up", (step,), success, score, id=name)


def rollout(trajectory, measure="score", failed=""):
    sample = Sample((1,), (2,), (-0.1,), (True,), (None,), "policy", 1, "control", "", "", trajectory.id, 0)
    return Rollout(trajectory, (sample,), "tidy up#0", failed, measure)


@pytest.mark.parametrize(("measure", "outcome"), [("success", 0.0), ("score", 0.6), ("reward", 2.0)])
def test_an_episode_has_one_outcome_per_measure(measure, outcome):
    trajectory = played("a", 0.6, reward=2.0)
    assert measure_outcome(trajectory, measure) == outcome
    assert rollout(trajectory, measure).outcome == outcome
    assert to_trace(rollout(trajectory, measure)).outcome == outcome


def test_an_excluded_episode_has_none():
    assert measure_outcome(played("a", 0.6, success=None), "score") is None
    assert rollout(played("a", 0.6), failed="policy_error").outcome is None


def test_a_group_without_any_success_has_advantages_by_its_scores():
    group = [rollout(played(f"{n}", score)) for n, score in enumerate((0.2, 0.8))]
    advantages = PARTS.get("estimator", "dr-grpo")([to_trace(one) for one in group])
    assert advantages == {"0": [pytest.approx(-0.3)], "1": [pytest.approx(0.3)]}


def test_the_best_of_several_tries_has_the_highest_outcome_above_zero():
    tries = [played("a", 0.1), played("b", 0.7), played("c", 0.0, success=None)]
    assert select_best(tries, "score") is tries[1]
    assert select_best(tries) is None
    both = [played("d", 0.0, success=True), played("e", 0.0, success=True)]
    assert select_best([*tries, *both]) is both[-1]
    assert select_best([]) is None


def test_episodes_with_a_score_are_imitated_where_none_succeeds():
    seen = []

    def render(trajectory, memory):
        seen.append((trajectory.id, memory))
        return [replace(rollout(trajectory).rows[0], trace=trajectory.id)]

    both = [played("none", 0.0), played("some", 0.4)]
    assert build_examples(both, render) == []
    assert build_examples(both, render, outcome="score", memory=lambda one: way(one, "score"))
    assert {name for name, _ in seen} == {"some"}
    assert {memory for _, memory in seen} <= {None, "hall : wait ."}
    assert way(both[1]) is None


# ---- the outcome in words


@pytest.mark.parametrize(
    ("meta", "success", "text"),
    [
        ({}, True, "success"),
        ({}, False, "failure"),
        ({}, None, "unknown"),
        ({"outcome": "success"}, False, "failure"),
        ({"outcome": "score"}, False, "score 0.75"),
        ({"outcome": "reward"}, True, "reward 2.00"),
        ({"outcome": "score"}, None, "unknown"),
    ],
)
def test_an_outcome_is_named_by_a_word_or_by_its_figure(meta, success, text):
    assert name_outcome(replace(played("a", 0.75, success=success, reward=2.0), meta=meta)) == text


@pytest.mark.parametrize(("score", "kind"), [(1.0, "insight"), (0.5, "insight"), (0.49, "warning"), (0.0, "warning")])
def test_a_text_about_a_well_graded_episode_is_an_insight(score, kind):
    graded = mark_outcome(played("a", score), "score")
    assert build_item("wait in the hall", graded, "extractor/0").kind == kind
    assert build_item("wait in the hall", played("a", score), "extractor/0").kind == "warning"
    assert build_query(graded).recalled[0].endswith(kind)
    assert bool(build_lessons([graded])) == (kind == "insight")


def test_words_of_graded_outcomes_are_read_and_those_of_others_stay():
    """The tokens of a success or failure are those of before; of a figure, no piece is unknown to a new tokenizer."""
    texts = ["find the coin hall wait tidy up . you are in the", OUTCOMES]
    plain, graded = (CompactFormat(build_tokenizer([*texts, *more])) for more in ([], [GRADES]))
    for success, word in ((True, "success"), (False, "failure"), (None, "failure")):
        tokens = LessonWriter(None, plain).ask(played("a", 0.75, success=success))  # type: ignore[arg-type]
        assert f"<see> {word} ." in plain.tokenizer.decode(tokens)
    for number in range(-100, 101):
        episode = mark_outcome(played("a", number / 100), "score")
        asked = LessonWriter(None, graded).ask(episode)  # type: ignore[arg-type]
        outcome = graded.tokenizer.decode(asked).rpartition("<see>")[2]
        assert "<unk>" not in outcome
    assert "score 1 . 00" in outcome


def test_different_graded_episodes_count_for_the_temperature():
    """Without any success, those above 0 are different ways; else every temperature would score 0."""
    group = [rollout(played("a", 0.6)), rollout(played("b", 0.0))]
    assert score_balance([group], 1) == pytest.approx(0.5)
    assert score_balance([[rollout(played("a", 0.6), "success")]], 1) == 0.0


@pytest.mark.parametrize(("measure", "is_known"), [("score", True), ("reward", True), ("success", False)])
def test_a_new_base_knows_the_words_of_grades_only_where_outcomes_are_graded(library, measure, is_known):
    """Others keep their vocabulary, and with it the numbers of their tokens."""
    settings = {
        "environment": {"name": "textworld"},
        "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}},
        "roles": {"policy": {"credit": {"outcome": measure}}},
    }
    explorer = SimpleNamespace(trajectories=lambda worlds: [played("a", 0.5)])
    _, tokenizer = _open_base(of(settings), explorer, library, None)  # type: ignore[arg-type]
    words = tokenizer.tokenize("score reward - 0.05 1.00 0.75 42")
    assert ("<unk>" not in tokenizer.decode(tokenizer.convert_tokens_to_ids(words))) == is_known
    assert ("score" in tokenizer.get_vocab()) == is_known
