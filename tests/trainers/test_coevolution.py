"""Policy, extractor and library in one run: who waits for whom, what is written, shown, paid and logged."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import CannotLearn
from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.loading import of
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.player import Player
from hardwon.trainers.roles.extractor import ExtractorRole
from hardwon.trainers.roles.note_generators import KeepOrSkip
from hardwon.trainers.roles.trials import Trials

WRITES = {"arms": {"control": 2, "library": 3}, "library": {"evolve_every": 0}, "warmstart": None}


def library_run(corridor: Any, iterations: int = 5, **settings: Any) -> dict[str, Any]:
    """Settings in which the extractor writes into the library."""
    extractor = {"trials": 1, "ready": 4, "episodes": 6, **settings}
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

        async def reads(self: KeepOrSkip, *episode: Any, **how: Any) -> list[Any]:
            await asyncio.sleep(delay_s)
            return []

        async def timed(self: Player, *worlds: Any, **how: Any) -> Any:
            began = asyncio.get_running_loop().time()
            rollouts = await play(self, *worlds, **how)
            spent.append((began, asyncio.get_running_loop().time()))
            return rollouts

        patch.setattr(LocalEngine, "generate", slowly)
        patch.setattr(KeepOrSkip, "read", reads)
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


def test_candidates_are_tried_in_other_worlds_before_they_are_stored(corridor, tmp_path, monkeypatch):
    """From a YAML file with the defaults of the extractor; the trials leave no trace but what helped."""
    played: list[tuple[Rollout, str]] = []
    judged: list[Any] = []
    collect, take = Trials.collect, Trials.take_judged

    def watch(self: Trials, rollouts: Any) -> int:
        sessions = {name: each.candidate for each in self._assigned.values() for name in each.sessions}
        groups = {name: self._trials[ref].group for name, ref in sessions.items()}
        played.extend((one, groups[one.trajectory.id]) for one in rollouts if one.trajectory.id in groups)
        return collect(self, rollouts)

    def keep(self: Trials) -> list[Any]:
        judged.extend(found := take(self))
        return found

    monkeypatch.setattr(Trials, "collect", watch)
    monkeypatch.setattr(Trials, "take_judged", keep)
    settings = library_run(corridor, 6, cost=0.0)
    del settings["roles"]["extractor"]["settings"]["trials"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    report = train(tmp_path / "run.yaml")
    assert played
    assert all(rollout.group != group for rollout, group in played)
    assert {rollout.tried for rollout, _ in played} <= {"shown", "known"}
    lines = metrics.read(Path(report.out))
    total = {name: sum(line.get(f"extractor/{name}", 0) for line in lines) for name in ("proposed", "judged", "added")}
    assert total["proposed"] >= total["judged"] == len(judged) > 0
    helped = {each.item.title for each in judged if each.helped}
    with ExperienceLibrary.open(Path(report.out) / "library.db", read_only=True) as library:
        stored = [item for item in library.items(limit=None) if item.writer.startswith("extractor/")]
        assert not any("on trial" in item.body or "#" in item.id for item in library.items(limit=None))
    assert len(stored) == total["added"]
    assert {item.title for item in stored} <= helped
    assert all(item.provenance for item in stored)


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
