"""A graph of thoughts as an environment (ARIES, arXiv:2502.21208)."""

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Agent
from hardwon.runtime.environments.thoughts import MOST, ThoughtEnvironment

EIGHT = "8 3 5 1 9 2 7 4"


class Sorter:
    """A worker that sorts lists up to a length; longer ones it only begins to sort."""

    def __init__(self, most=4):
        self.most = most

    def split(self, problem):
        numbers = problem.split()
        half = len(numbers) // 2
        return [" ".join(numbers[:half]), " ".join(numbers[half:])] if half else [problem]

    def solve(self, problem):
        numbers = problem.split()
        return " ".join([*sorted(numbers[: self.most]), *numbers[self.most :]])

    def refine(self, problem, answer):
        return answer

    def join(self, problem, answers):
        return " ".join(sorted(" ".join(answers).split()))

    def score(self, problem, answer):
        pairs = list(zip(answer.split(), sorted(problem.split()), strict=True))
        return sum(one == other for one, other in pairs) / len(pairs)


def play(environment, *actions):
    environment.reset()
    return [environment.step(action) for action in actions]


def test_parts_that_can_be_solved_solve_the_whole():
    """Worked example: decompose, solve, solve and aggregate reach score 1; solving at once does not."""
    actions = ("decompose thought 1", "solve thought 2", "solve thought 3", "aggregate thought 1")
    *_, (_, reward, done, info) = play(ThoughtEnvironment(Sorter(), [EIGHT]), *actions)
    assert (reward, done, info["success"]) == (1.0, True, True)
    ((_, reward, done, info),) = play(ThoughtEnvironment(Sorter(), [EIGHT]), "solve thought 1")
    assert 0 < reward < 1
    assert not done
    assert info["score"] == reward


def test_a_worker_that_solves_everything_needs_one_action():
    """Degenerate case."""
    ((_, reward, done, _),) = play(ThoughtEnvironment(Sorter(8), [EIGHT]), "solve thought 1")
    assert (reward, done) == (1.0, True)


def test_the_numbers_of_thoughts_are_no_part_of_the_situation():
    """Invariance: after dropping and splitting again, the same graph has other numbers and the same signature."""
    environment = ThoughtEnvironment(Sorter(), [EIGHT])
    first, again = play(environment, "decompose thought 1"), None
    environment.step("reduce thought 1")
    again = environment.step("decompose thought 1")
    assert again[0].signature == first[0][0].signature


def test_dropped_parts_are_gone_and_a_graph_stays_small():
    environment = ThoughtEnvironment(Sorter(), [EIGHT])
    state = environment.reset()
    for _ in range(40):
        splits = [action for action in environment.admissible(state) if action.startswith("decompose")]
        if not splits:
            break
        state, *_ = environment.step(splits[0])
    assert state.observation.count("\n") + 1 <= MOST
    state, *_ = environment.step("reduce thought 1")
    assert environment.admissible(state) == ["decompose thought 1", "solve thought 1"]


def test_what_is_not_possible_is_invalid():
    ((_, reward, done, info),) = play(ThoughtEnvironment(Sorter(), [EIGHT]), "aggregate thought 1")
    assert (reward, done) == (0.0, False)
    assert info["invalid"]
    with pytest.raises(ConfigError, match="problems is empty"):
        ThoughtEnvironment(Sorter(), [])


def test_an_agent_learns_the_schedule_without_a_model():
    """The same policy, library and loop as everywhere; later episodes solve the problem."""
    problems = [EIGHT, "6 4 9 1 7 8 2 3", "2 9 4 6 1 7 5 3"]
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent("episodic", library, ThoughtEnvironment(Sorter(), problems), max_steps=10)
        won = [agent.run(seed=seed).success for seed in range(30)]
        agent.close()
        reader = Agent(
            "episodic", library, ThoughtEnvironment(Sorter(), ["5 2 8 6 3 9 1 4"]), learn=False, max_steps=10
        )
        assert reader.run().success
        reader.close()
    assert sum(map(bool, won[20:])) >= 5


class Polite(Sorter):
    """Refines an answer by a sign, but only once."""

    def refine(self, problem, answer):
        return answer if answer.endswith("!") else f"{answer}!"

    def score(self, problem, answer):
        return 0.0


def test_the_observation_lists_the_thoughts_with_their_answers():
    environment = ThoughtEnvironment(Polite(), ["2 1"])
    assert environment.reset().observation == "Thought 1, open: 2 1 -> ?"
    environment.step("decompose thought 1")
    state, *_ = environment.step("solve thought 2")
    assert state.observation.splitlines() == [
        "Thought 1, open: 2 1 -> ?",
        "Thought 2, part of thought 1, solved: 2 -> 2",
        "Thought 3, part of thought 1, open: 1 -> ?",
    ]


def test_an_answer_is_refined_once_and_says_whether_it_changed():
    for worker, feedback in ((Polite(), "It is better."), (Sorter(), "It stays as it is.")):
        environment = ThoughtEnvironment(worker, [EIGHT])
        environment.reset()
        state, *_ = environment.step("solve thought 1")
        assert "refine thought 1" in environment.admissible(state)
        state, *_ = environment.step("refine thought 1")
        assert state.feedback == feedback
        assert "refine thought 1" not in environment.admissible(state)


def test_an_answer_that_was_put_together_can_be_refined():
    environment = ThoughtEnvironment(Polite(), ["2 1"])
    environment.reset()
    for action in ("decompose thought 1", "solve thought 2", "solve thought 3", "aggregate thought 1"):
        state, *_ = environment.step(action)
    assert "refine thought 1" in environment.admissible(state)


@pytest.mark.parametrize("parts", [1, MOST])
def test_a_thought_is_split_into_some_parts_and_not_too_many(parts):
    class Splits(Sorter):
        def split(self, problem):
            return [problem] * parts

    environment = ThoughtEnvironment(Splits(), [EIGHT])
    environment.reset()
    state, *_ = environment.step("decompose thought 1")
    assert state.feedback == "It cannot be split."
    assert len(state.observation.splitlines()) == 1
