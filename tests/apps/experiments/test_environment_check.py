"""An environment of one's own is played, and what will not be learned in it is said."""

from pathlib import Path

import pytest

from hardwon.apps.experiment.environment_check import check_environment
from hardwon.memory import State
from hardwon.runtime import Info


class Corridor:
    """Four rooms in a row; the lamp is in the last one."""

    name = "corridor"
    task = "find the lamp"

    def reset(self, task="", seed=0):
        self.room, self.seed, self.steps = seed % 3, seed, 0
        return self.state("")

    def step(self, action):
        self.steps += 1
        self.room = min(3, max(0, self.room + (1 if action == "go east" else -1)))
        won = self.room == 3
        return self.state("You walk."), float(won), won, self.info(won)

    def info(self, won) -> Info:
        return Info(success=won)

    def admissible(self, state):
        return ["go east", "go west"]

    def clone(self):
        return type(self)()

    def close(self):
        pass

    def state(self, feedback):
        return State(self.text(), task=self.task, feedback=feedback)

    def text(self):
        return f"You are in the {('hall', 'study', 'cellar', 'attic')[self.room]}."


class WithoutTask(Corridor):
    task = ""


class WithIds(Corridor):
    def text(self):
        return f"{super().text()} Session 7f3a{self.seed:04x}b9."


class WithTimes(Corridor):
    def text(self):
        return f"{super().text()} It is 12:{self.seed:02}:{self.steps:02}."


class WithoutOutcome(Corridor):
    def step(self, action):
        state, _, won, _ = super().step(action)
        return state, 0.0, won, Info()


class LostAtOnce(Corridor):
    def step(self, action):
        state, *_ = super().step(action)
        return state, 0.0, True, Info(lost=True)


class NeverRewarded(Corridor):
    def step(self, action):
        state, *_ = super().step(action)
        return state, 0.0, self.steps == 5, Info(success=False)


class Endless(Corridor):
    def step(self, action):
        state, reward, _, info = super().step(action)
        self.room = 0
        return state, reward, False, info


class Silent(Corridor):
    def step(self, action):
        before = self.room
        state, reward, won, info = super().step(action)
        if not won:
            self.room = before if self.steps % 4 else self.room
            return self.state(""), 0.0, False, Info()
        return state, reward, won, info


class WithoutPlace(Corridor):
    """All rooms look the same, and a score alone tells them apart."""

    def info(self, won):
        return Info(success=won, score=self.room / 3)

    def text(self):
        return "You are in a room."


class Raising(Corridor):
    def step(self, action):
        if action == "go west":
            raise ValueError("there is a wall")
        return super().step(action)


class OfAnotherSeed(Corridor):
    count = 0

    def reset(self, task="", seed=0):
        OfAnotherSeed.count += 1
        return super().reset(task, int(OfAnotherSeed.count > 15))


class WithoutActions(Corridor):
    def admissible(self, state):
        return []


class WithOneAction(Corridor):
    def admissible(self, state):
        return ["go east"]


class OfText(Corridor):
    def reset(self, task="", seed=0):
        return super().reset(task, seed).observation


class AsInGymnasium(Corridor):
    def reset(self, task="", seed=0):
        return super().reset(task, seed), {}


class WithFiveParts(Corridor):
    def step(self, action):
        state, reward, won, info = super().step(action)
        return state, reward, won, False, info


class WithoutInfo(Corridor):
    def info(self, won):
        return None


class OfNumbers(Corridor):
    def admissible(self, state):
        return [0, 1]


class WithoutList(Corridor):
    def admissible(self, state):
        return None


class NotCloned(Corridor):
    def clone(self):
        return self


class BrokenLater(Corridor):
    count = 0

    def reset(self, task="", seed=0):
        BrokenLater.count += 1
        if BrokenLater.count > 31:
            raise OSError("too many files")
        return super().reset(task, seed)


def test_nothing_stands_in_the_way():
    assert check_environment(Corridor()) == []


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (WithoutTask(), "no task"),
        (WithIds(), "ids, times or counters that no other episode has: 7f3a0000b9"),
        (WithTimes(), "ids, times or counters that no other episode has: 12:"),
        (WithoutOutcome(), "No episode says how it ended"),
        (LostAtOnce(), "Every episode was lost at its first step"),
        (NeverRewarded(), "Random actions were never rewarded in 30 episodes"),
        (Endless(), "No episode ended within 30 steps"),
        (Silent(), "Most actions change nothing and say nothing, such as `go "),
        (WithoutPlace(), "Most actions change nothing and say nothing, such as `go "),
        (Raising(), "raised ValueError: there is a wall"),
        (OfAnotherSeed(), "The same seed gives another episode"),
        (WithoutActions(), "No action is offered"),
        (WithOneAction(), "Only one action is offered"),
        (OfText(), "reset returns str"),
        (AsInGymnasium(), "reset returns (State, dict)"),
        (WithFiveParts(), "step returns (State, float, bool, bool, dict)"),
        (WithoutInfo(), "step returns (State, float, bool, NoneType)"),
        (OfNumbers(), "admissible returns list"),
        (WithoutList(), "admissible returns NoneType"),
        (NotCloned(), "clone returns the same environment"),
        (BrokenLater(), "An episode raised OSError: too many files"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Corridor) else "",
)
def test_what_will_not_be_learned_is_said(environment, words):
    """Each with what to change."""
    (finding, *others) = [each for each in check_environment(environment) if words in each.problem]
    assert not others
    assert finding.remedy.endswith((".", ")"))


def test_the_command_plays_a_class_and_names_the_next_one(hardwon, hardwon_json):
    assert f"hardwon run {__name__}:Corridor" in hardwon("check-env", f"{__name__}:Corridor").stdout
    answer = hardwon_json("check-env", f"{__name__}:LostAtOnce", expect=1)
    assert [finding["problem"] for finding in answer["findings"]] == ["Every episode was lost at its first step."]
    printed = hardwon("check-env", f"{__name__}:WithoutTask", expect=1).stdout
    assert printed.startswith("Some states have no task.\n    Say what is to be done")


def test_the_first_page_of_environments_leads_to_an_agent_that_learns(tmp_path, monkeypatch, hardwon, hardwon_json):
    """Its class passes the check, and its commands run."""
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "corridor_world.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "nothing stands in the way" in hardwon("check-env", "corridor_world:Corridor").stdout
    options = (
        "--episodes",
        12,
        "--eval-every",
        12,
        "--eval-seeds",
        "0-4",
        "--seed",
        0,
        "--arms",
        "empty,step",
        "--jobs",
        1,
    )
    arms = hardwon_json("run", "corridor_world:Corridor", *options)["arms"]
    assert arms["step"]["steps"] < arms["empty"]["steps"]
    assert "go east" in hardwon("memory", "search", "runs/corridor_world-Corridor/library.db", "go east").stdout
