"""A configuration that cannot learn is refused, or stops at its first iteration with the reason and exit code 1."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from tests.trainers.corridor import Corridor
from tests.trainers.folder_base import save_base

from hardwon.memory import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.runtime.interfaces.types import Info
from hardwon.trainers import metrics, train
from hardwon.trainers.__main__ import main, print_arms
from hardwon.trainers.algorithms.samples import Rollout, Sample
from hardwon.trainers.checkpoint import find
from hardwon.trainers.config.loading import of
from hardwon.trainers.feasibility import (
    PATIENCE,
    ActionWatch,
    SignalWatch,
    _check_answers,
    find_untrained_roles,
)
from hardwon.trainers.session import read_config

REWARDED = {"policy": {"credit": {"outcome": "reward"}}}


class Graded(Corridor):
    """It reports how far one came, and never a success."""

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        state, _, over, _ = super().step(action)
        return state, 0.0, over, Info(score=1 - abs(self.at - self.goal) / 4)

    def clone(self) -> "Graded":
        return type(self)()


def report(doc: str, tell: Callable[[float], tuple[float, Info]]) -> type[Graded]:
    """Return a world that reports a reward and more, given how far one came."""

    def step(self: Graded, action: str) -> tuple[State, float, bool, Info]:
        state, _, over, info = Graded.step(self, action)
        reward, told = tell(info["score"])
        return state, reward, over, told

    return type("Told", (Graded,), {"step": step, "__doc__": doc})


Paid = report("It reports rewards, and neither a success nor a score.", lambda far: (far, Info()))
Worthless = report("It reports nothing at all, and no reward is other than 0.", lambda far: (0.0, Info()))
Unsolved = report("Nobody ever solves it, and it says so.", lambda far: (0.0, Info(success=False)))


class Mute(Graded):
    """It lists no actions."""

    def admissible(self, state: State) -> list[str]:
        return []


class Open(Graded):
    """A room without end, reward, failure or place: all that it reports is an outcome."""

    def reset(self, task: str = "", seed: int = 0) -> State:
        self.steps, self.won = 0, bool(seed % 2)
        return self.state()

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        self.steps += 1
        return self.state(), 0.0, self.steps > 1, Info(success=self.won)

    def state(self) -> State:
        return State(f"You are in a room. It is {self.steps} o'clock.", task="wait")


class Late(Open):
    """It reports its outcome in the fourth step, which is its last."""

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        self.steps += 1
        over = self.steps > 3
        return self.state(), 0.0, over, Info(success=self.won) if over else Info()


class Broken(Graded):
    """It breaks at the second step of every episode that is not an exploration."""

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        raise RuntimeError("the server of the shop is gone")


def world(name: str) -> dict[str, Any]:
    return {"name": f"tests.trainers.test_feasibility:{name}", "max_steps": 6}


def test_a_graded_world_is_trained_by_its_score(corridor, capsys):
    """It has no `success`: advantages, the evaluation, the best checkpoint and the report go by the score."""
    roles = {"policy": {"credit": {"name": "gigpo", "outcome": "score"}, "learner": {"lr": 0.01}}}
    settings = corridor(environment=world("Graded"), roles=roles, eval={"every": 2}, run={"iterations": 2})
    report = train(settings)
    control = report.final["control"]
    assert control["measure"] == "score"
    assert control["success"] == 0.0 < control["outcome"] < 1.0
    assert control["low"] <= control["outcome"] <= control["high"]
    assert report.best is not None
    print_arms(report.final)
    assert "score" in capsys.readouterr().out


def test_a_graded_world_moves_the_policy(corridor, tmp_path):
    """With success as the outcome the same run would make no update; see the next test."""
    roles = {"policy": {"credit": {"name": "dr-grpo", "outcome": "reward"}}}
    report = train(corridor(environment=world("Paid"), roles=roles, run={"iterations": 1}, warmstart=None))
    (line,) = metrics.read(tmp_path / "run")
    assert line["policy/advantage_spread"] > 0
    assert line["policy/grad_norm"] > 0
    assert line["reward/control"] > 0
    assert read_config(find(tmp_path / "run")).outcome == "reward"
    assert report.iterations == 1


@pytest.mark.parametrize(
    ("name", "sections", "says"),
    [
        ("Graded", {}, "no step .* reported a success.*set roles.policy.credit.outcome=score"),
        ("Paid", {}, "no step .* reported a success.*set roles.policy.credit.outcome=reward"),
        ("Mute", {}, "lists no actions, and a base whose prompts are content words can only choose among listed ones"),
        ("Worthless", {}, "no step .* reported a success.*let its steps report `success`"),
        ("Worthless", {"roles": REWARDED}, "no step .* reported a reward.*let its steps have rewards"),
        (
            "Late",
            {"environment": {**world("Late"), "max_steps": 2}, "explore": {"worlds": {"seeds": "1-5"}, "steps": 2}},
            r"all of them ended with the step limit, so raise environment\.max_steps \(2\)",
        ),
        # an exploring episode that ended says that more steps would not help
        (
            "Worthless",
            {
                "environment": {**world("Worthless"), "max_steps": 1},
                "tasks": {"train": {"seeds": "4-4"}},  # it begins in the middle, so one step ends nothing
                "run": {"groups": 1},
            },
            "no step .* reported a success, so every episode counts as 0; let its steps report `success`",
        ),
        ("Broken", {}, "all 18 episodes .* failed .*the server of the shop is gone"),
        (
            "Unsolved",
            {"arms": {"control": 2, "experience": 2}},
            "arms.experience shows .* none of 12 instances has one with a success above 0.*explore.tries",
        ),
    ],
)
def test_what_cannot_learn_stops_at_the_first_iteration(corridor, name, sections, says):
    with pytest.raises(CannotLearn, match=says):
        train(corridor(**{"environment": world(name), "warmstart": None, "run": {"rerolls": 0}, **sections}))


def test_a_world_that_reports_late_is_trained_with_enough_steps(corridor):
    settings = {"environment": {**world("Late"), "max_steps": 4}, "explore": {"worlds": {"seeds": "1-5"}, "steps": 2}}
    settings = corridor(**settings, arms={"control": 2}, warmstart=None, run={"iterations": 1, "rerolls": 0})
    assert train(settings).iterations == 1


def test_rewards_that_are_only_rare_do_not_stop_a_run(corridor):
    run = {"iterations": 1, "rerolls": 0}
    assert (
        train(
            corridor(environment=world("Unsolved"), arms={"control": 3}, roles=REWARDED, warmstart=None, run=run)
        ).iterations
        == 1
    )


def attempt(*steps: Step, success: bool | None = False, bound: bool = False) -> Rollout:
    rows = (Sample((1,), (2,), (0.0,), (True,), ((2, 3),), "policy", 0, "", "", "", "x", 0),) if bound else ()
    return Rollout(Trajectory("x", steps, success), rows, "x#1")


def test_answers_that_are_no_actions_stop_the_run():
    """With the words of the parser, if all of the first iteration are none."""
    words = "the answer is no action, because it is empty: ''."
    failed = Step(State("x"), "", State("x"), Diagnosis(False, Failure.POLICY_ERROR, evidence=words))
    acted = Step(State("x"), "look", State("x"), Diagnosis(True))
    rollouts = [attempt(failed, failed), attempt(failed, acted)]
    with pytest.raises(CannotLearn, match=r"none of the 2 answers .* was an action. The first: .* because it is empty"):
        _check_answers(rollouts[:1], name="shop", compact=False)
    _check_answers(rollouts, name="shop", compact=False)


def test_actions_that_all_fail_stop_the_run():
    """Where actions are not listed, a base that never finds one that works has nothing to compare."""
    refused = Step(State("x"), "fly", State("x"), Diagnosis(False, Failure.INVALID_ACTION, evidence="unknown verb."))
    acted = Step(State("x"), "look", State("x"), Diagnosis(True))
    with pytest.raises(CannotLearn, match=r"every one of the 2 actions .* failed.*`fly`: unknown verb\. .* shop takes"):
        _check_answers([attempt(refused, refused)], name="shop", compact=False)
    _check_answers([attempt(refused, acted)], name="shop", compact=False)
    _check_answers([attempt(refused), attempt(refused, success=True)], name="shop", compact=False)
    _check_answers([attempt(refused, bound=True)], name="shop", compact=True)


def test_the_command_says_why_and_exits_with_1(corridor, tmp_path, monkeypatch, capsys):
    settings = corridor(environment=world("Broken"), warmstart=None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setattr(sys, "argv", ["hardwon.trainers", str(tmp_path / "config.yaml"), "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    written = capsys.readouterr()
    assert written.err.startswith("error: all 18 episodes of the first iteration failed")
    assert "done" not in written.out


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"arms": {"control": 2, "guided": 2}}, "arms.guided shows the text of a role, and no role writes one"),
        ({"roles": {"guide": {}}}, "roles.guide compares at least two of its texts"),
        (
            {
                "roles": {"extractor": {"credit": {"name": "rloo"}}},
                "arms": {"control": 2, "library": 2},
            },
            "has no use",
        ),
        ({"library": {"path": "some.db"}, "arms": {"control": 2}}, "library.path is set, and no arm shows"),
        ({"roles": {"policy": {"credit": {"name": "igpo"}}}}, "igpo needs the signal answer, which nothing feeds"),
        ({"roles": {"policy": {"credit": {"name": "rlvmr"}}}}, "rlvmr needs the signal tags, which nothing feeds"),
        ({"roles": {"policy": {"credit": {"outcome": "points"}}}}, "points"),
    ],
)
def test_what_contradicts_itself_is_refused_at_load(corridor, sections, says):
    with pytest.raises((CannotLearn, ConfigError), match=says):
        train(corridor(**sections))


def test_a_group_of_one_episode_per_arm_has_nothing_to_compare(corridor):
    with pytest.raises(CannotLearn, match="every advantage is 0"):
        train(corridor(arms={"control": 1}, warmstart=None))


def test_decisions_between_frozen_equal_tokens_are_refused(corridor, tmp_path):
    """The marks of a compact transcript are added to a base of words: under LoRA their rows never move."""
    model = {"base": str(save_base(tmp_path / "base")), "adapter": 2, "device": "cpu", "prompt": "compact"}
    with pytest.raises(CannotLearn, match=r"roles\.admission decides between tokens that were added"):
        train(corridor(model=model, roles={"admission": {}}, warmstart=None))


def test_a_prompt_longer_than_the_model_reads_is_refused_before_the_first_iteration(corridor):
    tiny = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16, "context": 24}
    with pytest.raises(CannotLearn, match=r"has \d+ tokens, and the model reads 24"):
        train(corridor(model={"tiny": tiny}, warmstart=None))


class Growing(Corridor):
    """What it shows grows with every step of an odd seed; exploration sees only even ones."""

    def reset(self, task: str = "", seed: int = 0) -> State:
        self.steps, self.grows = 0, bool(seed % 2)
        super().reset(task, seed)
        self.at = 2
        return self.state()

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        self.steps += 1
        return super().step(action)

    def clone(self) -> "Growing":
        return Growing()

    def state(self) -> State:
        seen = super().state()
        more = " You are in the red blue green room." * (40 * self.steps if self.grows else 0)
        return State(seen.observation + more, location=seen.location, task=seen.task)


def test_an_episode_that_outgrows_the_model_fails_alone(corridor, tmp_path):
    tiny = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16, "context": 160}
    settings = corridor(
        environment={**world("Growing"), "max_steps": 4},
        explore={"worlds": {"seeds": "0-0"}, "steps": 4},
        tasks={"train": {"seeds": "2-13"}},
        model={"tiny": tiny},
        arms={"control": 3},
        warmstart=None,
        run={"iterations": 1, "groups": 8, "rerolls": 0},
    )
    train(settings)
    (line,) = metrics.read(tmp_path / "run")
    assert line["failed/context_exceeded"] >= 3
    assert line["episodes"] + line["failed/context_exceeded"] == 24
    assert line["episodes"] >= 3


@pytest.mark.parametrize(
    ("arms", "named"),
    [
        ({"control": 2, "experience": 2}, "arms.experience"),
        ({"control": 2, "retrieved": 2}, None),
        ({"control": 2, "another": 2}, None),
    ],
)
def test_a_run_says_which_arms_read_of_the_instance_that_is_played(corridor, capsys, arms, named):
    """Their gain says nothing of other instances, and a report does not show the difference."""
    library = {"explored": {"more": {"seeds": "400-405"}}} if "retrieved" in arms else {}
    sections = {"arms": arms, "library": library}
    train(corridor(**sections, warmstart=None, run={"iterations": 0}), quiet=False)
    lines = capsys.readouterr().err
    assert ("an earlier episode of the same task instance" in lines) is (named is not None)
    assert named is None or f"{named}: the policy is shown" in lines


def test_a_run_without_any_signal_warns_loudly(corridor, capsys):
    arms, run = {"control": 3}, {"iterations": PATIENCE}
    report = train(corridor(environment=world("Unsolved"), arms=arms, warmstart=None, run=run), quiet=True)
    assert report.iterations == PATIENCE
    assert f"WARNING: no group of the last {PATIENCE} iterations" in capsys.readouterr().err


def test_a_signal_starts_the_count_anew():
    watch, nothing = SignalWatch(), {"groups_without_signal": 2.0}
    assert [watch.update(nothing, 2) for _ in range(PATIENCE - 1)] == [None] * (PATIENCE - 1)
    assert watch.update({"groups_without_signal": 1.0}, 2) is None
    assert [bool(watch.update(nothing, 2)) for _ in range(PATIENCE)] == [*[False] * (PATIENCE - 1), True]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_the_loss_is_at_the_temperature_of_sampling(corridor, tmp_path, temperature):
    """At the first update the policy is the one that sampled, so the importance ratio is 1."""
    torch.manual_seed(0)
    run = {"iterations": 1, "temperature": temperature, "rerolls": 0}
    train(corridor(run=run, roles={"policy": {"credit": {"name": "gigpo"}}}))
    line = [one for one in metrics.read(tmp_path / "run") if one["kind"] == "train"][-1]
    assert line["policy/kl_old"] == pytest.approx(0.0, abs=1e-6)
    assert line["policy/ess"] == pytest.approx(1.0, abs=1e-5)


# -- mechanisms that never act --------------------------------------------------------------------


def test_a_mechanism_that_never_acted_is_named_with_its_metric():
    watch = ActionWatch({"tasks.compose.hinted": ("compose/hinted_groups", 0.0)})
    logs = [watch.update({}) for _ in range(PATIENCE)]
    assert [bool(warning) for _, warning in logs] == [*[False] * (PATIENCE - 1), True]
    assert "tasks.compose.hinted never acted" in str(logs[-1][1])
    assert logs[0][0] == {"idle/tasks.compose.hinted": 1.0}


def test_one_that_acted_once_is_not_named_again():
    watch = ActionWatch({"roles.policy.sources.entropy": ("signal/entropy/missing", 1.0)})
    assert watch.update({"signal/entropy/missing": 0.2}) == ({"idle/roles.policy.sources.entropy": 0.0}, None)
    assert [watch.update({"signal/entropy/missing": 1.0})[1] for _ in range(PATIENCE)] == [None] * PATIENCE


def test_the_last_iteration_of_a_short_run_names_it():
    watch = ActionWatch({"roles.policy.shape.overlong": ("policy/shape/overlong", 0.0)})
    assert "overlong never acted in 1 iterations" in str(watch.update({}, last=True)[1])


def test_a_run_warns_in_its_log_and_its_metrics(corridor, capsys, tmp_path):
    """A shaper for episodes that are far too long, in a world where none is."""
    roles = {"policy": {"credit": {"name": "dr-grpo"}, "shape": {"overlong": {"limit": 99, "buffer": 1}}}}
    train(corridor(roles=roles, warmstart=None, run={"iterations": 1}), quiet=True)
    assert "roles.policy.shape.overlong never acted" in capsys.readouterr().err
    line = [one for one in metrics.read(tmp_path / "run") if one["kind"] == "train"][-1]
    assert line["idle/roles.policy.shape.overlong"] == 1.0


def test_a_role_that_was_never_trained_is_named(corridor):
    """A guide that waits for more texts than the run writes; nothing else would tell."""
    roles = {"policy": {}, "guide": {"settings": {"distil": 0, "ready": 10_000}}}
    settings = corridor(arms={"control": 2, "guided": 2}, roles=roles, warmstart=None, run={"iterations": 2})
    (warning,) = train(settings).warnings
    assert warning.startswith("roles.guide was not trained in 2 iterations, so its weights are those of the start")


def test_a_frozen_role_is_not_named():
    config = of({"environment": {"name": "textworld"}, "tasks": {"train": {"fold": "train"}, "eval": {"fold": "dev"}}})
    assert find_untrained_roles(config, {"policy": 1}, 3)
    assert not find_untrained_roles(config, {"policy": 2}, 3)
    assert not find_untrained_roles(config, {"policy": 1}, 0)
    frozen = replace(config.roles["policy"], learner=replace(config.roles["policy"].learner, lr=0.0))
    idle = replace(config, roles={"policy": frozen}, run=replace(config.run, iterations=0))
    assert not find_untrained_roles(idle, {"policy": 1}, 3)
