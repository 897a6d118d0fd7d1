"""The training loop: draw tasks, play groups, assign credit, update one role, reload the engine.

    report = train("examples/train_coin.yaml", ["run.out=runs/coin"])

Episodes run through the production runtime. A checkpoint holds the weights, the library and the random
states, so a stopped or killed run resumes bit for bit on a CPU. The objects that the loop drives are in
`session`, `roles`, `evaluate` and `checkpoint`.
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
from .engines.factory import get_tokens_read
from .evaluate import collect_episodes, flatten_report, summarise
from .metrics import Metrics, keep_until
from .roles.base import Role
from .rollouts.explore import Task, way
from .rollouts.task_sampler import Drawn
from .session import FROZEN, GATE_LOG, Stage, failures, read_config

MAY_DIFFER = ("engine.", "eval.", "run.iterations", "run.save_every", "run.keep", "run.out", "run.threads", "run.wandb")
"""Prefixes of the settings that may change when a run resumes."""


@dataclass(frozen=True, slots=True)
class TrainReport:
    """The result of a training run."""

    out: str
    iterations: int
    """Iterations finished in total, including those before the run was resumed."""
    stopped: bool
    """True if SIGTERM ended the run early."""
    checkpoint: str
    """Path of the newest checkpoint."""
    best: str | None
    """Path of the checkpoint with the highest evaluation score, or None without an evaluation."""
    start: dict[str, Any]
    """Results of the first evaluation by arm; empty if there was none."""
    final: dict[str, Any]
    """Results of the last evaluation by arm; empty if there was none."""
    cpu_s: float
    """CPU seconds of this process, since the run was started or resumed."""
    wall_s: float
    exported: tuple[str, ...] = ()
    """Folders of the exported weights, readable by peft, transformers and vLLM."""
    rank: int = 0
    """Rank of this process in a multi-process run. Only rank 0 has results to report."""


def train(
    config: TrainConfig | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    export: str | Path | None = None,
    quiet: bool = True,
) -> TrainReport:
    """Train the roles of an agent until the last iteration, or until SIGTERM.

    On SIGTERM, the current iteration finishes and a checkpoint is saved.

    Args:
        config: The settings: a `TrainConfig`, the path of a YAML file, or a nested mapping.
        overrides: Settings that replace those of `config`, such as `"roles.policy.learner.lr=1e-4"`.
        resume: Continue from the newest intact checkpoint in `run.out`; start a new run if there is none.
        export: Folder for the trained weights, one subfolder per role. None exports nothing.
        quiet: Print no progress to stderr.

    Returns:
        The paths of the checkpoints, and the first and the last evaluation.

    Raises:
        ConfigError: The settings are invalid, `run.out` already holds a run and `resume` is false, or a
            resumed run changes a setting that must stay the same.
    """
    config = _load_settings(config, overrides)
    wall, cpu = time.perf_counter(), time.process_time()
    parallel.check_sharding(config)
    if (workers := parallel.get_team()) is not None and workers.rank:
        return _run_worker(config, workers)
    with _Run.open(config, resume=resume, quiet=quiet) as run, run.stop_on_sigterm():
        asyncio.run(run.run_loop())
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


def _run_worker(config: TrainConfig, workers: parallel.Team) -> TrainReport:
    """Take part in the updates as a process that plays no episodes, until the run ends."""
    out = Path(config.run.out)
    _prepare_torch(config)
    # a folder of its own: the first process writes to the libraries in run.out
    with tempfile.TemporaryDirectory() as folder:
        parallel.run_worker(
            workers, lambda checkpoint: Stage.restore(Path(checkpoint), Path(folder), config, plays=False)
        )
    return TrainReport(str(out), 0, False, "", None, {}, {}, time.process_time(), 0.0, rank=workers.rank)


def _load_settings(config: TrainConfig | str | Path | Mapping[str, Any], overrides: Sequence[str]) -> TrainConfig:
    """Return the settings as a `TrainConfig`, with the overrides applied."""
    if isinstance(config, str | Path):
        return settings.load(config, overrides)
    if isinstance(config, TrainConfig):
        return settings.of(settings.as_dict(config), overrides) if overrides else config
    return settings.of(config, overrides)


@dataclass(slots=True)
class _State:
    """The position of a run, without its weights."""

    iteration: int = 0
    drawn: int = 0
    """Environment seeds drawn so far."""
    turn: int = 0
    """Index of the role whose turn it is."""
    in_turn: int = 0
    """Updates that this role has made in its turn."""
    evaluated: int = -1
    """Iteration of the last evaluation, or -1."""
    first_evaluation: dict[str, Any] = field(default_factory=dict)
    last_evaluation: dict[str, Any] = field(default_factory=dict)


class _Run:
    """One training run, from its current position to its end."""

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
    def open(cls, config: TrainConfig, *, resume: bool, quiet: bool) -> Iterator["_Run"]:
        """Open a run from the newest checkpoint, or a new one, and close it on exit."""
        _prepare_torch(config)
        out = Path(config.run.out)
        screen = Screen(config.run.iterations, list(config.arms), quiet=quiet)
        latest = Checkpoints(out / "checkpoints").latest(screen.tell)
        if latest is not None and not resume:
            raise ConfigError(f"{out} holds a run already; continue it with --resume, or choose another run.out.")
        if resume and latest is None:
            screen.tell(f"no checkpoint in {out} yet: starting a new run.")
        stage, state = _start_run(config, out) if latest is None else _resume_run(config, latest, out)
        begun = None if latest is None else state.iteration
        # a resumed run writes the lines after its checkpoint again
        keep_until(out / GATE_LOG, -1 if begun is None else begun)
        with screen, Metrics(out, begun=begun, wandb=config.run.wandb, config=settings.as_dict(config)) as metrics:
            run = cls(stage, out, state, screen, metrics)
            try:
                if latest is not None:
                    run.saved = state.iteration
                    screen.tell(f"resuming from {latest}.")
                yield run
            except KeyboardInterrupt as stop:
                stop.add_note(f"Checkpoints are in {out / 'checkpoints'}; add --resume to continue.")
                raise
            finally:
                if (workers := parallel.get_team()) is not None:
                    # also after an error: workers block on the next job and would never exit
                    workers.broadcast_job(("end", None))
                stage.close()

    @contextmanager
    def stop_on_sigterm(self) -> Iterator[None]:
        """Stop the run cleanly at the first SIGTERM; the second one kills the process."""

        def stop(*_: object) -> None:
            self.stopping = True
            # The default handler is back, so a second SIGTERM kills a run that hangs.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.screen.tell("stopping: finishing the current iteration, then saving a checkpoint.")

        try:
            before: Any = signal.signal(signal.SIGTERM, stop)
        except ValueError:  # signal handlers can only be installed in the main thread
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    # -- the loop -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Run the warm start if there is one, then load the weights of every role into the engine."""
        config = self.config
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "config.yaml").write_text(settings.as_yaml(config), encoding="utf-8")
        if config.warmstart is not None:
            self._warm_start(config.warmstart)
        for name, role in self.stage.roles.items():
            role.begin()
            self.stage.engine.load_adapter(name, 1, role.weights())

    def _warm_start(self, config: settings.WarmStartConfig) -> None:
        """Train the policy to imitate the exploring episodes."""
        trajectories = self.stage.explorer.trajectories(self.config.explore.worlds)
        streams = build_examples(trajectories, self.stage.transcript.rows, config.examples, memory=way)
        model = self.stage.roles["policy"].model
        report = warm_start(model, streams, config.learning, self.screen.tell, role="policy")
        metrics = {"first": report.first, "last": report.last, "examples": report.examples, "cpu_s": report.cpu_s}
        self.metrics.log(0, metrics, kind="warmstart")

    async def run_loop(self) -> None:
        """Iterate until the end or a stop request; evaluate and save on schedule."""
        if self.saved < 0:
            self.begin()
        self.screen.begin(self.state.iteration)
        while True:
            iteration, is_last = self.state.iteration, self.state.iteration >= self.config.run.iterations
            if (
                not self.stopping
                and self._is_due(self.config.eval.every, is_last)
                # a run that resumes right after an evaluation must not repeat it
                and self.state.evaluated != iteration
            ):
                # save at once: only a checkpoint of the evaluated iteration can carry the score
                await self._evaluate()
                self._save()
            elif self.saved != iteration and (self.stopping or self._is_due(self.config.run.save_every, is_last)):
                self._save()
            if is_last or self.stopping:
                break
            await self._iterate()
        if self.stopping and not is_last:
            self.screen.tell(f"stopped and saved after iteration {iteration}; add --resume to continue.")

    def _is_due(self, every: int, last: bool) -> bool:
        """Return whether something that happens every `every` iterations is due now."""
        return every > 0 and (last or self.state.iteration % every == 0)

    async def _iterate(self) -> None:
        """Run one iteration: play, assign credit, update one role, reload the engine, update the library.

        Roles of the `Reader` kind read episodes in the background while the groups are played.
        """
        began, number = time.perf_counter(), self.state.iteration + 1
        self._start_workers()
        self.stage.snapshot = f"library@{self.state.iteration}" if self.config.uses_library else ""
        read = get_tokens_read(self.stage.engine)
        await self._read_ahead(number)
        played, learnable, group_counts = await self._play_groups(number)
        rollout_seconds = time.perf_counter() - began
        self.stage.distribute(learnable)
        metrics = {
            **_summarize_episodes(played, list(self.config.arms)),
            **group_counts,
            **self.stage.log_gate(number),
        }
        metrics.update(await self.stage.update_library(number, played))
        if (role := self._select_role()) is not None:
            metrics.update({f"{role.name}/{name}": value for name, value in role.update().items()})
            self.stage.engine.load_adapter(role.name, self.stage.engine.versions()[role.name] + 1, role.weights())
        # Advance only after the update: a checkpoint must describe finished iterations.
        self.state.iteration, self.state.drawn = number, self.worlds.count
        metrics["tokens_per_second"] = (get_tokens_read(self.stage.engine) - read) / max(rollout_seconds, 1e-9)
        metrics["seconds"] = time.perf_counter() - began
        self.metrics.log(number, metrics)
        self.screen.show(number, metrics)

    def _start_workers(self) -> None:
        """Have the other processes, if any, load the current checkpoint and join the updates."""
        workers = parallel.get_team()
        if workers is not None and not workers.active:
            # Workers load their state from a checkpoint, so there must be one of this iteration.
            if self.saved != self.state.iteration:
                self._save()
            workers.broadcast_job(("start", str(self.checkpoints.latest())))
            workers.active = True

    async def _read_ahead(self, number: int) -> None:
        """Start reading for the upcoming tasks; wait for the results only before the first rollouts."""
        config, readers = self.config.run, self.stage.readers
        # 2 * most below: readings are usually shown one iteration later, after the draws of this one
        most = config.groups * (1 + config.rerolls)
        for reader in readers:
            reader.read(self.worlds.ahead(2 * most), f"{config.seed}/{number}")
            if number == 1:  # nothing was read during an earlier iteration, so wait once
                await reader.written()
                reader.read(self.worlds.ahead(2 * most), f"{config.seed}/{number}'")

    async def _play_groups(self, number: int) -> tuple[list[Rollout], list[Rollout], dict[str, float]]:
        """Return the groups as first drawn, the rollouts to learn from, and counts.

        Dynamic sampling: a group without a learning signal for any role is replaced by a group of another task
        instance, at most `rerolls` times. Remaining groups without a signal still count in the loss denominator.
        """
        config = self.config.run
        groups = await self._play(self.worlds.draw(config.groups), f"{config.seed}/{number}")
        # rerolling selects groups by outcome, so success rates and the library use the first draw
        first = [rollout for group in groups.values() for rollout in group]
        rerolled = 0
        for again in range(1, config.rerolls + 1):
            without_signal = [world for world, group in groups.items() if not self._is_wanted(group)]
            # groups are keyed by task instance: a repeated one would overwrite its own group
            replacements = self.worlds.draw(len(without_signal), without=list(groups))
            if not replacements:
                break
            rerolled += len(replacements)
            # Near the end of a small pool there may be fewer replacements than groups without a signal.
            for world in without_signal[: len(replacements)]:
                del groups[world]
            groups.update(await self._play(replacements, f"{config.seed}/{number}.{again}"))
        remaining = sum(not self._is_wanted(group) for group in groups.values())
        counts = {"groups_rerolled": float(rerolled), "groups_without_signal": float(remaining)}
        return first, [rollout for group in groups.values() for rollout in group], counts

    async def _play(self, worlds: Sequence[Task], salt: str) -> dict[Task, list[Rollout]]:
        """Play one group per task instance and return the rollouts by instance."""
        rollouts = await self.stage.play(
            worlds, self.config.arms, salt=salt, temperature=self.config.run.temperature, learning=True
        )
        size = sum(self.config.arms.values())
        return {world: rollouts[n * size : (n + 1) * size] for n, world in enumerate(worlds)}

    def _is_wanted(self, group: Sequence[Rollout]) -> bool:
        """Return whether any role can learn from a group."""
        return any(role.wants(group) for role in self.stage.roles.values())

    def _select_role(self) -> Role | None:
        """Return the role to train now: the current one until its phase ends, then the next that is ready."""
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
        """Play the held-out task instances in every arm, then log the results."""
        config, iteration = self.config.eval, self.state.iteration
        rollouts = await self.stage.play(
            self.config.tasks.eval.all,
            self.stage.arms_to_evaluate(config.copies),
            salt=f"eval/{self.config.run.seed}",
            temperature=config.temperature,
        )
        report = summarise(collect_episodes(rollouts))
        self.metrics.log(iteration, {**flatten_report(report), **self.stage.log_gate(iteration, "eval")}, kind="eval")
        self.state.evaluated, self.state.last_evaluation = (
            iteration,
            {arm: asdict(part) for arm, part in report.items()},
        )
        self.state.first_evaluation = self.state.first_evaluation or self.state.last_evaluation
        summary = ", ".join(
            f"{arm} {part.success:.2f} ({part.low:.2f} to {part.high:.2f})" for arm, part in report.items()
        )
        self.screen.tell(f"evaluation after iteration {iteration}: {summary}")

    def _score_checkpoint(self) -> float | None:
        """Return the mean success of the arms with memory, or of control; None without a current evaluation."""
        if self.state.evaluated != self.state.iteration:
            return None
        successes = {arm: part["success"] for arm, part in self.state.last_evaluation.items()}
        return fmean(
            [successes[arm] for arm in successes if arm != CONTROL and not arm.endswith(FROZEN)] or successes.values()
        )

    # -- saving ---------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save a checkpoint of the current iteration."""
        import torch

        def write(folder: Path) -> None:
            self.stage.save(folder)
            torch.save({"state": asdict(self.state), "random": random_states()}, folder / "run.pt")

        self.checkpoints.save(self.state.iteration, write, self._score_checkpoint())
        self.saved = self.state.iteration

    def export(self, folder: Path) -> tuple[str, ...]:
        """Write the weights of every role with the tokenizer, and return the folders."""
        stage = self.stage
        return tuple(
            str(base_models.export(role.model, stage.tokenizer, name, folder, self.config.model))
            for name, role in stage.roles.items()
        )


def _prepare_torch(config: TrainConfig) -> None:
    """Apply the settings of torch for this process."""
    import torch

    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)


def _start_run(config: TrainConfig, out: Path) -> tuple[Stage, _State]:
    """Build a new session; delete library files that a run left before its first checkpoint."""
    import torch

    for leftover in out.glob("library*.db*"):
        if leftover.is_file():
            leftover.unlink()
    random.seed(config.run.seed)
    torch.manual_seed(config.run.seed)
    return Stage.build(config, out), _State()


def _resume_run(config: TrainConfig, checkpoint: Path, out: Path) -> tuple[Stage, _State]:
    """Restore a session and its state from a checkpoint.

    Raises:
        ConfigError: A setting that must stay the same was changed.
    """
    import torch

    differing = settings.differences(read_config(checkpoint), config)
    for path, (before, now) in differing.items():
        if not path.startswith(MAY_DIFFER):
            raise ConfigError(
                f"{path} was {before!r} and is now {now!r}, but a resumed run must keep it. "
                "Restore it, or choose another run.out."
            )
    stage = Stage.restore(checkpoint, out, config)
    saved = torch.load(checkpoint / "run.pt", map_location="cpu", weights_only=True)
    # Restore the random states last: building the session may draw random numbers.
    restore_random_states(saved["random"])
    return stage, _State(**saved["state"])


def _summarize_episodes(rollouts: Sequence[Rollout], arms: Sequence[str]) -> dict[str, float]:
    """Return success and steps by arm, mean reward, and counts of failures."""
    counted = [rollout.trajectory for rollout in rollouts if not rollout.failed]
    metrics: dict[str, float] = {f"failed/{why}": float(number) for why, number in sorted(failures(rollouts).items())}
    for arm in arms:
        of_arm = [trajectory for trajectory in counted if trajectory.arm == arm]
        if of_arm:
            metrics[f"success/{arm}"] = fmean(bool(trajectory.success) for trajectory in of_arm)
            metrics[f"steps/{arm}"] = fmean(len(trajectory.steps) for trajectory in of_arm)
    if counted:
        metrics["reward"] = fmean(trajectory.total_reward for trajectory in counted)
    metrics["episodes"] = float(len(counted))
    return metrics
