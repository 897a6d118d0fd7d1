"""Stage 1 of the roles: its questions, what it learns, and how that is measured."""

import asyncio
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, build_settings

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms import learner, logprobs
from hardwon.trainers.algorithms.imitation import Imitation, WarmStart
from hardwon.trainers.algorithms.settings import LearnerSettings
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.deciding import Decider
from hardwon.trainers.prompting.base import Query
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.roles.admission import EngineAdmission
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.marking import find_deciding_steps, mark_steps
from hardwon.trainers.roles.supervised_stage import Marked, SupervisedStage, balance, plan_stage, split_marked
from hardwon.trainers.trainer import train
from hardwon.trainers.warmstart import updates

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
KITCHEN = State("You are in the kitchen.", task="put things away")


def walk(*steps, success=True):
    """An episode of (action, reward, whether it worked); each step leads to a state of its own."""
    states = [replace(KITCHEN, observation=f"{KITCHEN.observation} {'x' * n}") for n in range(len(steps) + 1)]
    return Trajectory(
        KITCHEN.task,
        tuple(
            Step(pre, action, post, Diagnosis(worked), reward, n)
            for n, ((action, reward, worked), pre, post) in enumerate(zip(steps, states, states[1:], strict=False))
        ),
        success,
    )


def test_a_step_is_shared_if_it_solves_the_instance_and_once_only():
    """Steps on the way to the solution are left out; those that the solution does without are held back."""
    episode = walk(
        ("look under bed", 0.0, True), ("take milk", 0.0, True), ("put milk in fridge", 1.0, True),
        ("put milk in fridge", 1.0, True), ("look at lamp", 0.0, True), ("wait", 0.0, True),
    )  # fmt: skip
    twice = replace(episode.steps[3], post=episode.steps[2].post)  # with the same outcome, so with the same key
    episode = replace(episode, steps=(*episode.steps[:3], twice, *episode.steps[4:]))
    solution = walk(("take milk", 0.0, True), ("put milk in fridge", 1.0, True))
    engine = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER, roles=("admission",))
    parts = Parts(
        RoleConfig(), engine.model, PROMPTS, engine, ExperienceLibrary.open(":memory:"),
        source=lambda *_: solution, explored=lambda *_: (episode,), instances=[("train", 0)],
    )  # fmt: skip
    asked: list[Any] = []

    def note(step):
        asked.append(step)
        return (len(asked),)

    marked = mark_steps(parts, EngineAdmission.value, note, most=99)
    put, look = "put milk in fridge", "look under bed"
    assert [step.action for step in asked] == [look, put, put, "look at lamp", "wait"]
    assert len(asked[2].keys) == 3
    yes = [asked[each.prompt[0] - 1] for each in marked if each.is_yes]
    assert [(step.action, len(step.keys)) for step in yes] == [(put, 2)]
    assert len(marked) == 2


def test_a_solution_without_rewards_is_decided_by_its_last_step():
    assert [s.action for s in find_deciding_steps(walk(("a", 0.0, True), ("b", 0.0, True)))] == ["b"]
    assert [s.action for s in find_deciding_steps(walk(("a", 1.0, True), ("b", 0.0, True)))] == ["a"]
    assert find_deciding_steps(Trajectory("", (), True)) == ()


def test_questions_are_balanced_and_their_order_follows_the_seed():
    marked = [Marked((n,), n % 3 == 0, str(n)) for n in range(30)]
    chosen = balance(marked, 99, 0)
    assert [each.is_yes for each in chosen] == [True, False] * 10
    assert chosen == balance(marked, 99, 0) != balance(marked, 99, 1)
    assert len(balance(marked, 7, 0)) == 6
    assert balance(marked[1:3], 9, 0) == []


def test_all_questions_about_a_subject_are_on_one_side():
    marked = [Marked((n,), answer, f"{n}") for n in range(10) for answer in (True, False)]
    learned, held_out = split_marked(marked)
    assert (len(learned), len(held_out)) == (16, 4)
    assert not {each.about for each in learned} & {each.about for each in held_out}
    assert [len(side) for side in split_marked(marked[:6])] == [4, 2]
    assert split_marked(marked[:2]) == (marked[:2], [])
    assert split_marked([]) == ([], [])


# -- learning


def build_study(updates=120, is_word=True, seed=0, budget=4096):
    engine = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER, roles=("admission",))
    config = RoleConfig(learner=LearnerSettings(budget=budget))
    parts = Parts(config, engine.model, PROMPTS, engine, ExperienceLibrary.open(":memory:"), seed)
    learning = None if updates is None else WarmStart(updates=updates, batch=8, lr=1e-2)
    decider = Decider(parts.engine, PROMPTS, "share", role="admission") if is_word else None
    return SupervisedStage(parts, "admission", decider, learning)


def ask(n, answer=False):
    """A question whose answer is in its words; n makes it another one."""
    word = "rewarded" if n % 2 else "punished"
    prompt = PROMPTS.query(Query("share", {"observation": f"put thing {n} in place: {word}"}))
    return Marked(prompt, None, str(n), PROMPTS.text(word)) if answer else Marked(prompt, bool(n % 2), str(n))


@pytest.mark.parametrize(
    ("is_word", "before", "words"),
    [(True, 0.5, "P(right) is"), (False, 0.0, "are its teacher's, word for word")],
    ids=["two words", "a text"],
)
def test_stage_1_makes_the_answer_depend_on_the_text(is_word, before, words):
    """P(right), or the share of equal texts, on held-out questions: far above what the base prefers."""
    stage, lines = build_study(is_word=is_word), list[str]()
    marked = [ask(n, answer=not is_word) for n in range(60)]
    _, stage._held_out = split_marked(marked)
    assert asyncio.run(stage.measure()) == pytest.approx(before, abs=0.1)
    stage.learn(marked, lines.append)
    stage._parts.engine.load_adapter("admission", 1, stage._parts.model.state_dict())
    assert asyncio.run(stage.measure()) > 0.9
    assert ("questions with known answers, 2" in lines[0]) is is_word
    told = asyncio.run(stage.describe())
    assert words in told
    assert re.search(r"(0\.9|1\.0)\d", told)


@pytest.mark.parametrize("seed", [0, 7])
def test_the_order_follows_the_seed_of_the_run_also_after_a_restart(seed):
    marked, kept = [ask(n) for n in range(40)], dict[str, Any]()
    straight = build_study(updates=4, seed=seed).learn(marked, print)
    other = build_study(updates=4, seed=seed + 1).learn(marked, print)
    halved = build_study(updates=4, seed=seed)
    halved.goes_on = lambda imitation: kept.update(imitation.write_state()) is None and len(imitation.curve) < 2
    halved.learn(marked, print)
    resumed = build_study(updates=4, seed=seed)
    resumed._parts.model.load_state_dict(halved._parts.model.state_dict())
    resumed.begun = kept
    assert halved.is_stopped
    assert resumed.learn(marked, print).curve == straight.curve != other.curve


@pytest.mark.parametrize(("budget", "passes"), [(1, 8), (4096, 1)])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_micro_batch_has_the_budget_of_the_learner(monkeypatch, budget, passes, is_resumed):
    """One that does not fit a question reads one in each pass."""
    marked, read = [ask(n) for n in range(40)], []
    stage = build_study(updates=1, budget=budget)
    if is_resumed:
        stopped = build_study(updates=1)
        stopped.goes_on = lambda imitation: setattr(stage, "begun", imitation.write_state())
        stopped.learn(marked, print)

    def note(*given, **how):
        read.append(1)
        return logprobs.forward(*given, **how)

    monkeypatch.setattr(learner, "forward", note)
    stage.learn(marked, print)
    assert len(read) == passes


def test_nothing_is_learned_or_measured_without_questions():
    stage = build_study()
    assert stage.learn([], print) is None
    assert "fewer than two explored situations" in asyncio.run(stage.describe())
    silent = build_study(None)
    assert silent.learn([ask(1), ask(2)], print) is None
    assert asyncio.run(silent.describe()) == ""
    assert plan_stage(0, 2, 1e-3) is None


# -- a run


@pytest.fixture
def settings(tmp_path):
    return build_settings(
        tmp_path,
        arms={"control": 1, "retrieved": 2},
        library={"explored": {"": {"seeds": "20-29"}}, "recall": 3},
        roles={
            "policy": {"learner": {"lr": 0.0}},
            "extractor": {"settings": {"distil": 2}},
            "admission": {"settings": {"distil": 2, "teams": 2, "runs": 2, "worlds": 1, "steps": 2}},
        },
    )


def test_a_run_tells_what_extractor_and_admission_have_learned(settings, capsys):
    train(settings, quiet=False)
    told = capsys.readouterr().err
    assert re.search(r"extractor: [01]\.\d\d of \d+ lessons|WARNING: extractor was not measured", told)
    assert re.search(r"admission: P\(right\) is 0\.|WARNING: admission was not measured", told)


def test_a_role_that_cannot_be_measured_warns_in_quiet_runs_too(settings, capsys):
    """Of a single instance, nothing says whether its lessons hold elsewhere."""
    settings["explore"]["worlds"]["seeds"] = "0-0"
    train(settings, quiet=True)
    assert "WARNING: extractor was not measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("role", "changes", "reason"),
    [
        ("extractor", {"distil_lr": 1e-3}, "distil above 0"),
        ("admission", {"distil_batch": 4}, "distil above 0"),
        ("admission", {"distil": 5, "distil_batch": 0}, "distil_batch is 0"),
        ("extractor", {"distil": -1}, "distil is -1"),
    ],
)
def test_settings_of_stage_1_that_nothing_reads_are_refused(settings, role, changes, reason):
    settings["roles"][role]["settings"] = changes
    if changes.get("reads") == "explored":  # another check asks for an arm that shows its texts
        settings |= {"arms": {"control": 1, "advice": 2}, "guidance": {"advice": "role"}, "library": {}}
    with pytest.raises(ConfigError, match=reason):
        train(of(settings))


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_after_stage_1_of_a_role_does_not_repeat_it(tmp_path, monkeypatch, stop):
    """The run that was stopped after the first of two roles ends with the weights of the straight run."""
    settings = build_settings(
        tmp_path,
        arms={"control": 1, "retrieved": 2},
        warmstart={"learning": {"updates": 2, "batch": 2}},
        library={"explored": {"": {"seeds": "20-23"}}},
        roles={
            "policy": {},
            "extractor": {"settings": {"distil": 2}},
            "admission": {"settings": {"distil": 2, "teams": 2, "runs": 2, "worlds": 1, "steps": 2}},
        },
    )
    straight = train(settings, [f"run.out={tmp_path / 'straight'}"])
    learn, studied = SupervisedStage.learn, list[str]()

    def count(self, *args):
        if self.learning is not None:
            studied.append(self._role)
        if stop == signal.SIGKILL and studied == ["extractor", "admission"]:
            raise Killed
        report = learn(self, *args)
        if stop == signal.SIGTERM and studied == ["extractor"]:
            os.kill(os.getpid(), stop)
        return report

    monkeypatch.setattr(SupervisedStage, "learn", count)
    if stop == signal.SIGTERM:
        assert train(settings).stopped
    else:
        with pytest.raises(Killed):
            train(settings)
    studied.clear()
    monkeypatch.setattr(updates, "imitate", lambda *_: pytest.fail("the policy imitates again"))
    stop = None
    resumed = train(settings, resume=True)
    assert studied == ["admission"]
    for role in settings["roles"]:
        before, after = (read_state(report.checkpoint, role) for report in (straight, resumed))
        assert all(torch.equal(before[name], value) for name, value in after.items()), role


@pytest.mark.parametrize("number", [1, 4, 6])
def test_a_stop_in_stage_1_is_heeded_after_the_update(tmp_path, monkeypatch, capsys, number):
    """Of the extractor's three updates and admission's, those that were made are not made again."""
    stage = {"distil": 3, "distil_batch": 2}
    settings = build_settings(
        tmp_path,
        arms={"control": 1, "retrieved": 2},
        library={"explored": {"": {"seeds": "20-23"}}},
        roles={
            "policy": {},
            "extractor": {"settings": stage},
            "admission": {"settings": {**stage, "teams": 2, "runs": 2, "worlds": 1, "steps": 2}},
        },
    )
    straight = train(settings, [f"run.out={tmp_path / 'straight'}"])
    update, made = Imitation.update, list[int]()

    def interrupted(self):
        update(self)
        made.append(len(self.curve))
        if len(made) == number:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Imitation, "update", interrupted)
    assert train(settings, quiet=False).stopped
    assert len(made) == number
    role = "extractor" if number < 3 else "admission"
    assert f"stage 1 of {role}; add --resume to continue" in capsys.readouterr().err
    resumed = train(settings, resume=True)
    assert made == [1, 2, 3, 1, 2, 3]
    for role in settings["roles"]:
        before, after = (read_state(report.checkpoint, role) for report in (straight, resumed))
        assert all(torch.equal(before[name], value) for name, value in after.items()), role


def test_a_kill_in_stage_1_loses_what_was_not_saved(tmp_path, monkeypatch):
    """With a checkpoint before each update, the run goes on with the update that the kill interrupted."""
    roles = {"policy": {}, "extractor": {"settings": {"distil": 3}}}
    settings = build_settings(
        tmp_path, arms={"control": 1, "retrieved": 2}, library={"explored": {"": {"seeds": "20-23"}}}, roles=roles
    )
    straight = train(settings, [f"run.out={tmp_path / 'straight'}"])
    update, made = Imitation.update, list[int]()

    def killed(self):
        made.append(len(self.curve))
        if made == [0, 1, 2]:
            raise Killed
        update(self)

    monkeypatch.setattr(updates, "SAVE_S", 0.0)
    monkeypatch.setattr(Imitation, "update", killed)
    with pytest.raises(Killed):
        train(settings)
    resumed = train(settings, resume=True)
    assert made == [0, 1, 2, 2]
    before, after = (read_state(report.checkpoint, "extractor") for report in (straight, resumed))
    assert all(torch.equal(before[name], value) for name, value in after.items())


class Killed(Exception):
    """Stands for a kill: nothing of the run is executed after it."""


def read_state(checkpoint, role):
    """Return the weights of a role."""
    return torch.load(Path(checkpoint) / f"{role}.pt", weights_only=True)["state"]["weights"]


def test_a_role_that_was_taught_is_not_called_untrained(tmp_path, capsys):
    settings = build_settings(
        tmp_path,
        arms={"control": 1, "retrieved": 2},
        library={"explored": {"": {"seeds": "20-23"}}},
        roles={"policy": {}, "admission": {"settings": {"distil": 1, "teams": 2, "runs": 2, "worlds": 1, "steps": 2}}},
    )
    train(settings)
    assert "the untrained base" not in capsys.readouterr().err
    settings["roles"]["admission"]["settings"]["distil"] = 0
    train(settings, [f"run.out={tmp_path / 'second'}"])
    assert "the untrained base" in capsys.readouterr().err
