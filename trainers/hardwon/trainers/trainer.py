"""A training run: worlds drawn, groups played, credit, one role moved, the engine reloaded, again.

    report = train("examples/train_coin.yaml", ["run.out=runs/coin"])

The runtime that plays here is the one of production. Everything that chance or learning has moved is
in a checkpoint, so that a run which was stopped, or killed, goes on bit for bit on a CPU. This file
is the loop alone: what it drives is in `session`, `roles`, `evaluate` and `checkpoint`.
"""

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from hardwon.memory.errors import ConfigError

from .algorithms import parallel
from .algorithms.imitation import build_examples, warm_start
from .algorithms.samples import Rollout
from .checkpoint import Checkpoints, random_states, restore_random_states
from .config import schema as settings
from .config.schema import CONTROL, TrainConfig
from .console import Screen
from .engines import base_models
from .engines.factory import tokens_read
from .evaluate import metrics_of, of_rollouts, summarise
from .metrics import Metrics, keep_until
from .roles.base import Role
from .rollouts.explore import Task, way
from .rollouts.task_sampler import Drawn
from .session import FROZEN, GATE_LOG, Stage, failures, read_config

MAY_DIFFER = ("engine.", "eval.", "run.iterations", "run.save_every", "run.keep", "run.out", "run.threads", "run.wandb")
"""Settings that may be changed when a run goes on."""


@dataclass(frozen=True, slots=True)
class TrainReport:
    """What a run did."""

    out: str
    iterations: int
    """Done so far, earlier parts of the run included."""
    stopped: bool
    """Whether it was asked to stop before the end."""
    checkpoint: str
    """The newest."""
    best: str | None
    """The checkpoint that did best in the evaluations."""
    start: dict[str, Any]
    """The first evaluation, by arm; empty where there was none."""
    final: dict[str, Any]
    """The last one."""
    cpu_s: float
    """Of this part of the run, in this process."""
    wall_s: float
    exported: tuple[str, ...] = ()
    """Folders that peft, transformers and vLLM load."""
    rank: int = 0
    """Of the process, where several train one run: only the first has something to say."""


def train(
    config: TrainConfig | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    export: str | Path | None = None,
    quiet: bool = True,
) -> TrainReport:
    """Run to the end, or until SIGTERM, which finishes the iteration and saves.

    `resume` goes on from the newest whole checkpoint in `run.out`, or begins anew where there is none.
    Raises: ConfigError for settings that cannot work, and for a folder that holds a run already.
    """
    config = _read(config, overrides)
    wall, cpu = time.perf_counter(), time.process_time()
    parallel.check_sharding(config)
    if (ours := parallel.get_team()) is not None and ours.rank:
        return _worked(config, ours)
    with _Run.opened(config, resume=resume, quiet=quiet) as run, run.stoppable():
        asyncio.run(run.go())
        exported = run.export(Path(export)) if export is not None else ()
        best = run.checkpoints.best()
        return TrainReport(
            str(run.out),
            run.state.iteration,
            run.stopping and run.state.iteration < config.run.iterations,
            str(run.checkpoints.latest()),
            str(best) if best else None,
            run.state.first_evaluation,
            run.state.last_evaluation,
            time.process_time() - cpu,
            time.perf_counter() - wall,
            exported,
        )


def _worked(config: TrainConfig, ours: parallel.Team) -> TrainReport:
    """The part of a process that does not play."""
    out = Path(config.run.out)
    _prepare_torch(config)
    with tempfile.TemporaryDirectory() as folder:
        parallel.run_worker(ours, lambda checkpoint: Stage.restore(Path(checkpoint), Path(folder), config, plays=False))
    return TrainReport(str(out), 0, False, "", None, {}, {}, time.process_time(), 0.0, rank=ours.rank)


def _read(config: TrainConfig | str | Path | Mapping[str, Any], overrides: Sequence[str]) -> TrainConfig:
    if isinstance(config, str | Path):
        return settings.load(config, overrides)
    if isinstance(config, TrainConfig):
        return settings.of(settings.as_dict(config), overrides) if overrides else config
    return settings.of(config, overrides)


@dataclass(slots=True)
class _State:
    """Where a run stands, beside its weights."""

    iteration: int = 0
    drawn: int = 0
    """Environment seeds drawn so far."""
    turn: int = 0
    """Number of the role whose turn it is."""
    in_turn: int = 0
    """Updates it has made in this turn."""
    evaluated: int = -1
    """The iteration after which the last evaluation was."""
    first_evaluation: dict[str, Any] = field(default_factory=dict)
    last_evaluation: dict[str, Any] = field(default_factory=dict)


class _Run:
    """One run, from where it stands to its end."""

    def __init__(self, stage: Stage, out: Path, state: _State, screen: Screen, metrics: Metrics) -> None:
        self.stage, self.config, self.out, self.state = stage, stage.config, out, state
        self.screen, self.metrics = screen, metrics
        self.checkpoints = Checkpoints(out / "checkpoints", self.config.run.keep)
        self.worlds = Drawn(self.config.tasks.train.all, self.config.run.seed)
        self.worlds.count = state.drawn
        self.saved = -1
        self.stopping = False

    @classmethod
    @contextmanager
    def opened(cls, config: TrainConfig, *, resume: bool, quiet: bool) -> Iterator["_Run"]:
        """From the newest checkpoint, or from nothing; closed in the end."""
        _prepare_torch(config)
        out = Path(config.run.out)
        screen = Screen(config.run.iterations, list(config.arms), quiet=quiet)
        found = Checkpoints(out / "checkpoints").latest(screen.tell)
        if found is not None and not resume:
            raise ConfigError(f"{out} holds a run already; go on with --resume, or choose another run.out.")
        if resume and found is None:
            screen.tell(f"there is no checkpoint in {out} yet: beginning anew.")
        stage, state = _begun(config, out) if found is None else _gone_on(config, found, out)
        begun = None if found is None else state.iteration
        keep_until(out / GATE_LOG, -1 if begun is None else begun)
        with screen, Metrics(out, begun=begun, wandb=config.run.wandb, config=settings.as_dict(config)) as metrics:
            run = cls(stage, out, state, screen, metrics)
            try:
                if found is not None:
                    run.saved = state.iteration
                    screen.tell(f"going on from {found}.")
                yield run
            except KeyboardInterrupt as stop:
                stop.add_note(f"What was saved is in {out / 'checkpoints'}; --resume goes on from there.")
                raise
            finally:
                if (ours := parallel.get_team()) is not None:
                    ours.broadcast_job(("end", None))
                stage.close()

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """While this lasts SIGTERM asks the run to stop; a second one kills it as usual."""

        def stop(*_: object) -> None:
            self.stopping = True
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.screen.tell("asked to stop: finishing the iteration, then saving.")

        try:
            before: Any = signal.signal(signal.SIGTERM, stop)
        except ValueError:  # not in the main thread, where nobody can be told
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    # -- the loop -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The warm start, if there is one; then every role's weights are what the engine serves."""
        config = self.config
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "config.yaml").write_text(settings.as_yaml(config), encoding="utf-8")
        if config.warmstart is not None:
            self._warm_start(config.warmstart)
        for name, role in self.stage.roles.items():
            role.begin()
            self.stage.engine.load_adapter(name, 1, role.weights())

    def _warm_start(self, config: settings.WarmStartConfig) -> None:
        trajectories = self.stage.explorer.trajectories(self.config.explore.worlds)
        streams = build_examples(trajectories, self.stage.transcript.rows, config.examples, memory=way)
        model = self.stage.roles["policy"].model
        report = warm_start(model, streams, config.learning, self.screen.tell, role="policy")
        told = {"first": report.first, "last": report.last, "examples": report.examples, "cpu_s": report.cpu_s}
        self.metrics.log(0, told, kind="warmstart")

    async def go(self) -> None:
        """Evaluate and save where it is due, iterate, until the end or until asked to stop."""
        if self.saved < 0:
            self.begin()
        self.screen.begin(self.state.iteration)
        while True:
            here, last = self.state.iteration, self.state.iteration >= self.config.run.iterations
            if not self.stopping and self._is_due(self.config.eval.every, last) and self.state.evaluated != here:
                await self._evaluate()
                self._save()
            elif self.saved != here and (self.stopping or self._is_due(self.config.run.save_every, last)):
                self._save()
            if last or self.stopping:
                break
            await self._iterate()
        if self.stopping and not last:
            self.screen.tell(f"stopped after iteration {here}, saved; --resume goes on from there.")

    def _is_due(self, every: int, last: bool) -> bool:
        return every > 0 and (last or self.state.iteration % every == 0)

    async def _iterate(self) -> None:
        """Play, credit and move one role, serve its new weights, let the library learn; read meanwhile."""
        began, number = time.perf_counter(), self.state.iteration + 1
        self._gather()
        self.stage.snapshot = f"library@{self.state.iteration}" if self.config.uses_library else ""
        read = tokens_read(self.stage.engine)
        await self._read_ahead(number)
        first, kept, told = await self._groups(number)
        played = time.perf_counter() - began
        self.stage.learned(kept)
        metrics = {**_counts(first, list(self.config.arms)), **told, **self.stage.gate_told(number)}
        metrics.update(await self.stage.library_learns(number, first))
        if (mine := self._whose_turn()) is not None:
            metrics.update({f"{mine.name}/{name}": value for name, value in mine.update().items()})
            self.stage.engine.load_adapter(mine.name, self.stage.engine.versions()[mine.name] + 1, mine.weights())
        self.state.iteration, self.state.drawn = number, self.worlds.count
        metrics["tokens_per_second"] = (tokens_read(self.stage.engine) - read) / max(played, 1e-9)
        metrics["seconds"] = time.perf_counter() - began
        self.metrics.log(number, metrics)
        self.screen.show(number, metrics)

    def _gather(self) -> None:
        """The other processes, if there are any, read where the run stands: then they help with its updates."""
        ours = parallel.get_team()
        if ours is not None and not ours.active:
            if self.saved != self.state.iteration:
                self._save()
            ours.broadcast_job(("start", str(self.checkpoints.latest())))
            ours.active = True

    async def _read_ahead(self, number: int) -> None:
        """Whoever reads begins to, what comes next included; before the first rollouts it has to be waited for."""
        config, readers = self.config.run, self.stage.readers
        most = config.groups * (1 + config.rerolls)
        for reader in readers:
            reader.read(self.worlds.ahead(2 * most), f"{config.seed}/{number}")
            if number == 1:
                await reader.written()
                reader.read(self.worlds.ahead(2 * most), f"{config.seed}/{number}'")

    async def _groups(self, number: int) -> tuple[list[Rollout], list[Rollout], dict[str, float]]:
        """The groups as they were drawn, those that are learnt from, and counts.

        Dynamic sampling: a group from which no role can learn is replaced by another world's, so many
        times. What stays without a signal counts in the loss's denominator.
        """
        config = self.config.run
        groups = await self._play(self.worlds.draw(config.groups), f"{config.seed}/{number}")
        first = [rollout for group in groups.values() for rollout in group]
        rerolled = 0
        for again in range(1, config.rerolls + 1):
            dull = [world for world, group in groups.items() if not self._is_wanted(group)]
            others = self.worlds.draw(len(dull), without=list(groups))
            if not others:
                break
            rerolled += len(others)
            for world in dull[: len(others)]:
                del groups[world]
            groups.update(await self._play(others, f"{config.seed}/{number}.{again}"))
        dull_left = sum(not self._is_wanted(group) for group in groups.values())
        told = {"groups_rerolled": float(rerolled), "groups_without_signal": float(dull_left)}
        return first, [rollout for group in groups.values() for rollout in group], told

    async def _play(self, worlds: Sequence[Task], salt: str) -> dict[Task, list[Rollout]]:
        """The rollouts of a group for each world."""
        rollouts = await self.stage.play(
            worlds, self.config.arms, salt=salt, temperature=self.config.run.temperature, learning=True
        )
        size = sum(self.config.arms.values())
        return {world: rollouts[n * size : (n + 1) * size] for n, world in enumerate(worlds)}

    def _is_wanted(self, group: Sequence[Rollout]) -> bool:
        return any(role.wants(group) for role in self.stage.roles.values())

    def _whose_turn(self) -> Role | None:
        """The role to train now: one a phase, the next one that is ready."""
        roles, state = list(self.stage.roles.values()), self.state
        if state.in_turn >= self.config.roles[roles[state.turn].name].phase:
            state.turn, state.in_turn = (state.turn + 1) % len(roles), 0
        for ahead in range(len(roles)):
            at = (state.turn + ahead) % len(roles)
            if roles[at].ready():
                if ahead:
                    state.turn, state.in_turn = at, 0
                state.in_turn += 1
                return roles[at]
        return None

    async def _evaluate(self) -> None:
        """Play the held-out worlds in every arm."""
        config, here = self.config.eval, self.state.iteration
        rollouts = await self.stage.play(
            self.config.tasks.eval.all,
            self.stage.arms_to_evaluate(config.copies),
            salt=f"eval/{self.config.run.seed}",
            temperature=config.temperature,
        )
        report = summarise(of_rollouts(rollouts))
        self.metrics.log(here, {**metrics_of(report), **self.stage.gate_told(here, "eval")}, kind="eval")
        self.state.evaluated, self.state.last_evaluation = here, {arm: asdict(part) for arm, part in report.items()}
        self.state.first_evaluation = self.state.first_evaluation or self.state.last_evaluation
        said = ", ".join(
            f"{arm} {part.success:.2f} ({part.low:.2f} to {part.high:.2f})" for arm, part in report.items()
        )
        self.screen.tell(f"held out after {here}: {said}")

    def _score(self) -> float | None:
        """Success with memory, or without where every arm is control; None where it was not evaluated now."""
        if self.state.evaluated != self.state.iteration:
            return None
        found = {arm: part["success"] for arm, part in self.state.last_evaluation.items()}
        return fmean([found[arm] for arm in found if arm != CONTROL and not arm.endswith(FROZEN)] or found.values())

    # -- what is kept ---------------------------------------------------------------------------------

    def _save(self) -> None:
        import torch

        def write(folder: Path) -> None:
            self.stage.save(folder)
            torch.save({"state": asdict(self.state), "random": random_states()}, folder / "run.pt")

        self.checkpoints.save(self.state.iteration, write, self._score())
        self.saved = self.state.iteration

    def export(self, folder: Path) -> tuple[str, ...]:
        """Every role's weights with the tokenizer."""
        stage = self.stage
        return tuple(
            str(base_models.export(role.model, stage.tokenizer, name, folder, self.config.model))
            for name, role in stage.roles.items()
        )


def _prepare_torch(config: TrainConfig) -> None:
    import torch

    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)


def _begun(config: TrainConfig, out: Path) -> tuple[Stage, _State]:
    """From nothing; what an earlier run left before its first checkpoint is cleared away."""
    import torch

    for left in out.glob("library*.db*"):
        if left.is_file():
            left.unlink()
    random.seed(config.run.seed)
    torch.manual_seed(config.run.seed)
    return Stage.build(config, out), _State()


def _gone_on(config: TrainConfig, checkpoint: Path, out: Path) -> tuple[Stage, _State]:
    """From a checkpoint. Raises ConfigError for settings that make it another run."""
    import torch

    differing = settings.differences(read_config(checkpoint), config)
    for path, (before, now) in differing.items():
        if not path.startswith(MAY_DIFFER):
            raise ConfigError(
                f"{path} was {before!r} and is {now!r}: that is another run. Leave it, or choose another run.out."
            )
    stage = Stage.restore(checkpoint, out, config)
    saved = torch.load(checkpoint / "run.pt", map_location="cpu", weights_only=True)
    restore_random_states(saved["random"])
    return stage, _State(**saved["state"])


def _counts(rollouts: Sequence[Rollout], arms: Sequence[str]) -> dict[str, float]:
    """How an iteration's episodes went, as they were drawn."""
    counted = [rollout.trajectory for rollout in rollouts if not rollout.failed]
    told: dict[str, float] = {f"failed/{why}": float(number) for why, number in sorted(failures(rollouts).items())}
    for arm in arms:
        mine = [trajectory for trajectory in counted if trajectory.arm == arm]
        if mine:
            told[f"success/{arm}"] = fmean(bool(trajectory.success) for trajectory in mine)
            told[f"steps/{arm}"] = fmean(len(trajectory.steps) for trajectory in mine)
    if counted:
        told["reward"] = fmean(trajectory.total_reward for trajectory in counted)
    told["episodes"] = float(len(counted))
    return told
