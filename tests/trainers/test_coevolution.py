"""Policy, extractor and library in one run: who waits for whom, what is written, shown, paid and logged."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.learner import Learner
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.loading import of
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.player import Player
from hardwon.trainers.roles.extractor import ExtractorRole
from hardwon.trainers.roles.trials import Trial, Trials
from hardwon.trainers.roles.writing import LessonWriter
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.workers.agent_pool import AgentPool, AgentSpec

WRITES = {"arms": {"control": 2, "library": 3}, "library": {"evolve_every": 0}, "warmstart": None}


def library_run(corridor: Any, iterations: int = 5, **settings: Any) -> dict[str, Any]:
    """Settings in which the extractor writes into the library."""
    extractor = {"samples": 2, "pairs": 2, "tokens": 8, "ready": 4, "episodes": 6, **settings}
    run = {"iterations": iterations, "rerolls": 0}
    made: dict[str, Any] = corridor(**WRITES, roles={"extractor": {"settings": extractor}}, run=run)
    return made


class Clock(asyncio.SelectorEventLoop):
    """A loop in which to sleep takes no time: the clock jumps to what is due next, and work is free."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.working = 0.0, 0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def jump(timeout: float | None) -> Any:
            ready = select(timeout if timeout is None else 0)
            if not ready and timeout and self.working:  # in a thread, which ends when it ends
                return select(0.1)
            self.now += 0.0 if ready else timeout or 0.0
            return ready

        selector.select = jump

    def time(self) -> float:
        return self.now

    def run_in_executor(self, *call: Any) -> Any:  # type: ignore[override]
        def done(_: Any) -> None:
            self.working -= 1

        self.working += 1
        future = super().run_in_executor(*call)
        future.add_done_callback(done)
        return future


def run_by(clock: type[Clock], main: Any) -> Any:
    with asyncio.Runner(loop_factory=clock) as runner:
        return runner.run(main)


def seconds_of(settings: dict[str, Any], out: Path, delay_s: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """How long all rollouts take where a decision takes 0.1 s, and a reading `delay_s` to find nothing."""
    spent = []
    with monkeypatch.context() as patch:
        generate, play = LocalEngine.generate, Player.play

        async def slowly(self: LocalEngine, request: Any) -> Any:
            await asyncio.sleep(0.1)
            return await generate(self, request)

        async def reads(self: LessonWriter, *episode: Any, **how: Any) -> list[Any]:
            await asyncio.sleep(delay_s)
            return []

        async def timed(self: Player, *worlds: Any, **how: Any) -> Any:
            began = asyncio.get_running_loop().time()
            rollouts = await play(self, *worlds, **how)
            spent.append((began, asyncio.get_running_loop().time()))
            return rollouts

        patch.setattr(LocalEngine, "generate", slowly)
        patch.setattr(LessonWriter, "write", reads)
        patch.setattr(Player, "play", timed)
        patch.setattr(asyncio, "run", partial(run_by, Clock))
        train(settings, [f"run.out={out}"])
    return spent[-1][1] - spent[0][0]


def test_rollouts_never_wait_for_extraction(corridor, tmp_path, monkeypatch):
    """systems.md §5: non-blocking: rollout throughput with a 5-s extractor delay within 5% of no delay."""
    monkeypatch.setattr(ExtractorRole, "waits", False)
    settings = library_run(corridor, 3)
    without, delayed = (seconds_of(settings, tmp_path / f"{d}", d, monkeypatch) for d in (0.0, 5.0))
    assert 0.5 < without < 5.0
    assert delayed == pytest.approx(without, rel=0.05)


def test_to_be_repeatable_a_run_waits_at_the_end_of_an_iteration_alone(corridor, tmp_path, monkeypatch):
    """A reading that is shorter than an iteration's rollouts still costs them nothing."""
    settings = library_run(corridor, 3)
    without, delayed = (seconds_of(settings, tmp_path / f"{d}", d, monkeypatch) for d in (0.0, 0.2))
    assert delayed == pytest.approx(without, rel=0.05)


def test_lessons_are_tried_in_other_instances_before_they_are_stored(corridor, tmp_path, monkeypatch):
    """From a YAML file, after a stage 1; the trials leave no trace but what helped, and the policy learns from none."""
    tried: dict[str, tuple[Spec, Rollout]] = {}
    trials: list[Trial] = []
    learned: dict[str, set[str]] = {}
    asked: list[AgentSpec] = []
    play, add, step = Player.play_trials, Trials.add, Learner.step

    async def watch(self: Player, specs: Any, arm: Any, **how: Any) -> list[Rollout]:
        asked.clear()
        rollouts = await play(self, specs, arm, **how)
        assert not any(spec.learning for spec in asked), "nothing is withheld in a trial"
        tried.update({spec.session: (spec, one) for spec, one in zip(specs, rollouts, strict=True)})
        return rollouts

    def note(self: Trials, trial: Trial) -> None:
        trials.append(trial)
        add(self, trial)

    def learn(self: Learner, sequences: Any, *more: Any, **how: Any) -> Any:
        for each in sequences:
            learned.setdefault(each.role, set()).add(each.trace)
        return step(self, sequences, *more, **how)

    get_agent = AgentPool.get_agent
    monkeypatch.setattr(AgentPool, "get_agent", lambda self, spec: asked.append(spec) or get_agent(self, spec))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Player, "play_trials", watch)
    monkeypatch.setattr(Trials, "add", note)
    monkeypatch.setattr(Learner, "step", learn)
    taught = {"distil": 40, "distil_batch": 8, "distil_lr": 1e-2, "tokens": 24}
    settings = library_run(corridor, 4, cost=0.0, pairs=8, **taught)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    report = train(tmp_path / "run.yaml")
    lines = metrics.read(Path(report.out))
    total = {name: sum(line.get(f"extractor/{name}", 0) for line in lines) for name in ("written", "judged", "added")}
    assert total["written"] >= total["judged"] == len(trials) > 0
    homes = {trial.item.id: trial.group for trial in trials}
    shown = [(spec.candidate, one) for spec, one in tried.values() if spec.candidate is not None]
    assert shown
    assert all(one.group != homes[item.id] for item, one in shown)
    assert {one.tried for _, one in shown} <= {"shown", "known", "missed"}
    assert all(one.rows for _, one in tried.values()), "the policy played them"
    assert not {*tried} & {name for names in learned.values() for name in names}
    helped = {trial.item.title for trial in trials if trial.test.verdict == "helps"}
    with ExperienceLibrary.open(Path(report.out) / "library.db", read_only=True) as library:
        items = library.items.find(limit=None)
        assert not {*tried} & {each["id"] for each in library.episodes.find(limit=None)}
    stored = [item for item in items if item.writer.startswith("extractor/")]
    assert not any("on trial" in item.body or "/" in item.id for item in items)
    assert len(stored) == total["added"]
    assert {item.title for item in stored} <= helped
    assert all(item.provenance for item in stored)


def test_the_speed_of_rollouts_leaves_the_trials_out(corridor, tmp_path, monkeypatch):
    play = Player.play_trials

    async def read_much(self: Player, *specs: Any, **how: Any) -> list[Rollout]:
        rollouts = await play(self, *specs, **how)
        engine: Any = self._session.engine
        engine.tokens_read += 10**12
        return rollouts

    monkeypatch.setattr(Player, "play_trials", read_much)
    settings = library_run(corridor, 3, cost=0.0, distil=40, distil_batch=8, distil_lr=1e-2, tokens=24)
    lines = metrics.read(Path(train(settings, [f"run.out={tmp_path / 'run'}"]).out))
    assert sum(line["extractor/pairs"] for line in lines if "extractor/pairs" in line)
    assert all(line["tokens_per_second"] < 10**9 for line in lines)


def test_an_extractor_that_fails_costs_its_reading_alone(corridor, monkeypatch):
    async def fails(self, trajectory_id, salt):
        raise RuntimeError("no model")

    monkeypatch.setattr(ExtractorRole, "_read_finished", fails)
    report = train(library_run(corridor, 3))
    assert [line["extractor/problems"] for line in metrics.read(Path(report.out))] == [0, 6, 6]


def test_what_an_extractor_writes_must_be_shown_somewhere(corridor):
    settings = library_run(corridor)
    with pytest.raises(CannotLearn, match=r"no arm shows its items; add an arm whose guidance is library"):
        of({**settings, "arms": {"control": 2, "experience": 2}})


@pytest.mark.parametrize("credit", ["grpo", "slea"])
def test_the_credit_is_one_setting(corridor, credit):
    """GRPO against SLEA credit: the same file, one override."""
    report = train(corridor(run={"iterations": 1}), [f"roles.policy.credit={{name: {credit}}}"])
    (line,) = metrics.read(Path(report.out))
    assert line["policy/updates"] == 1


def test_a_frozen_policy_takes_no_turn_from_the_extractor(corridor, tmp_path):
    """Although its loss has a term that needs no advantage."""
    settings = library_run(corridor, 3, samples=2, pairs=2, tokens=8)
    settings["roles"]["policy"] = {"learner": {"lr": 0.0}, "loss": {"entropy": 0.1}}
    report = train(settings, [f"run.out={tmp_path / 'run'}"])
    assert not any("policy/lr" in line for line in metrics.read(Path(report.out)))


def test_a_run_does_not_write_through_a_link(corridor, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "library.db").symlink_to(tmp_path / "precious.db")
    with pytest.raises(ConfigError, match=r"library\.db is a link"):
        train(library_run(corridor, 1), [f"run.out={tmp_path / 'run'}"])
    assert not (tmp_path / "precious.db").exists()
