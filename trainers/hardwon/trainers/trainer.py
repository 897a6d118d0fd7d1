"""Training: open a run from its settings, or from its newest checkpoint, and drive it to the end.

    report = train("examples/train_coin.yaml", ["run.out=runs/coin"])

Episodes run through the production runtime. A checkpoint holds the weights, the library and the random
states, so a stopped or killed run resumes bit for bit on a CPU. `session` builds the objects of a run, `player`
plays, `learning` passes on what was played, and `loop` decides what happens when.
"""

import asyncio
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError

from . import checkpoint as checkpoints, feasibility
from .algorithms import parallel
from .checkpoint import Checkpoints, restore_random_states
from .config import loading
from .config.kinds import ASKS, LESSONS, RECALLS, TELLS, TRIES
from .config.schema import CONTROL, TrainConfig, as_dict, as_yaml, differences
from .console import Screen
from .engines import base_models
from .exports import write_manifest
from .loop import Position, TrainingLoop
from .metrics import Metrics, is_worse, read as read_metrics
from .player import Player
from .roles.decisions import PURPOSES, look
from .roles.trained import TrainedRole
from .session import Session, read_config
from .warmstart import updates
from .warmstart.demonstrations import measure_recalled
from .warmstart.takeover import check_run, read_weights, take_over
from .workers.pool import open_pool

MAY_DIFFER = (
    "engine.",
    "eval.",
    "rollouts.",
    "run.iterations",
    "run.save_every",
    "run.at_once",
    "run.keep",
    "run.history",
    "run.out",
    "run.threads",
)
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
    warnings: tuple[str, ...] = ()
    """Roles that made episodes worse or were never trained, with the next step."""
    temperature: float = 1.0
    """Sampling temperature of the evaluations; 0 is greedy."""


def train(
    config: TrainConfig | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    method: str = "",
    resume: bool = False,
    export: str | Path | None = None,
    quiet: bool = True,
) -> TrainReport:
    """Train the roles of an agent until the last iteration, or until SIGTERM.

    On SIGTERM, the current iteration finishes, or the current update of a warm start or of a role's stage 1, and a
    checkpoint is saved.

    Args:
        config: The settings: a `TrainConfig`, the path of a YAML file, or a nested mapping.
        overrides: Settings that replace those of `config`, such as `"roles.policy.learner.lr=1e-4"`.
        method: Published method whose settings replace those of `config`, such as gigpo; empty for none.
        resume: Continue from the newest intact checkpoint in `run.out`; start a new run if there is none.
        export: Folder for the trained weights, one subfolder per role. None exports nothing.
        quiet: Print no progress to stderr.

    Returns:
        The paths of the checkpoints, and the first and the last evaluation.

    Raises:
        ConfigError: The settings are invalid, `run.out` already holds a run and `resume` is false, or a
            resumed run changes a setting that must stay the same.
        UnknownName: There is no such method.
    """
    config = _load_settings(config, overrides, method)
    wall, cpu = time.perf_counter(), time.process_time()
    parallel.check_sharding(config)
    if (team := parallel.get_team()) is not None and team.rank:
        return _run_worker(config, team)
    with _open_loop(config, resume=resume, quiet=quiet) as loop, loop.stop_on_sigterm():
        if loop.saved >= 0 or _begin(loop):
            asyncio.run(loop.run())
        exported = _export(loop, Path(export)) if export is not None else ()
        best = loop.checkpoints.best()
        return TrainReport(
            str(loop.session.out),
            loop.position.iteration,
            loop.stopping and (loop.saved < 0 or loop.position.iteration < config.run.iterations),
            str(_find_latest(loop.session.out)),
            str(best) if best else None,
            loop.position.first_evaluation,
            loop.position.last_evaluation,
            time.process_time() - cpu,
            time.perf_counter() - wall,
            exported,
            warnings=(
                *find_harmful_guides(config, loop.session.out),
                *find_harmful_memory(config, loop.session.out),
                *feasibility.find_untrained_roles(config, loop.session.engine.versions(), loop.position.iteration),
            ),
            temperature=config.eval.temperature,
        )


def extrapolate_run(config: TrainConfig, step: int) -> Path:
    """Write a new run with one checkpoint, whose weights are extrapolated from the history of a run (RELEX).

    The checkpoint is a copy of the newest one with other weights, and `derived.json` names its origin. Evaluate it
    before you use it. The run itself does not change.
    """
    import torch

    from .models.extrapolation import extrapolate

    source = Path(config.run.out)
    latest, history = checkpoints.find(source), checkpoints.read_history(source / checkpoints.HISTORY)
    out = source.with_name(f"{source.name}-at-{step}")
    if out.exists():
        raise ConfigError(f"{out} exists already; move it away, or choose another step.")
    lines: dict[str, Any] = {"source": str(latest), "steps": sorted(history), "step": step, "roles": {}}
    new: dict[str, Any] = {}
    for role in next(iter(history.values()), {}):
        weights, fits = extrapolate({at: saved[role] for at, saved in history.items()}, step)
        new[role] = weights
        lines["roles"][role] = {name: {"r2": fit.r2, "lost": fit.lost} for name, fit in fits.items()}
    if not new:
        raise ConfigError(f"{source} has no history; train with run.history=1, or another number of iterations.")

    def write(folder: Path) -> None:
        shutil.copytree(latest, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(checkpoints.MANIFEST))
        for role, weights in new.items():
            saved = torch.load(folder / f"{role}.pt", map_location="cpu", weights_only=True)
            saved["state"]["weights"].update(weights)
            torch.save(saved, folder / f"{role}.pt")
        (folder / checkpoints.DERIVED).write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")

    Checkpoints(out / "checkpoints").save(step, write)
    return out


def _load_settings(
    config: TrainConfig | str | Path | Mapping[str, Any], overrides: Sequence[str], method: str
) -> TrainConfig:
    """Return the settings as a `TrainConfig`, with those of the method and the overrides applied."""
    if isinstance(config, str | Path):
        return loading.load(config, overrides, method=method)
    if isinstance(config, TrainConfig):
        config = as_dict(config)
    return loading.of(config, overrides, method=method)


def _run_worker(config: TrainConfig, team: parallel.ProcessGroup) -> TrainReport:
    """Take part in the updates as a process that plays no episodes, until the run ends."""
    _set_threads(config)
    # a folder of its own: the first process writes to the libraries in run.out
    with tempfile.TemporaryDirectory() as folder:
        parallel.run_worker(
            team, lambda checkpoint: Session.restore(Path(checkpoint), Path(folder), config, plays=False)
        )
    out = str(Path(config.run.out))
    return TrainReport(out, 0, False, "", None, {}, {}, time.process_time(), 0.0, rank=team.rank)


# -- opening a run --------------------------------------------------------------------------------


@contextmanager
def _open_loop(config: TrainConfig, *, resume: bool, quiet: bool) -> Iterator[TrainingLoop]:
    """Open a new run, or one from its newest checkpoint, from the bottom up; close it on exit."""
    _set_threads(config)
    out = Path(config.run.out)
    screen = Screen(config.run.iterations, list(config.arms), outcome=config.outcome, quiet=quiet)
    checkpoint = _find_checkpoint(config, screen, resume=resume)
    if checkpoint is None:
        if config.warmstart is not None and config.warmstart.run is not None and (warning := check_run(config)):
            screen.warn(warning)
        _prepare_new_run(config, out)
    session = Session.open(config, out, checkpoint=checkpoint, tell=screen.tell)
    player = Player(session, screen.tell, pool=open_pool(session))
    # The random states come last: building the session may draw random numbers.
    position = Position() if checkpoint is None else _load_position(checkpoint)
    is_warming = checkpoint is not None and (checkpoint / updates.STATE).exists()
    begun = None if checkpoint is None or is_warming else position.iteration
    # a resumed run writes the lines after its checkpoint again
    with Metrics(out, begun=begun) as metrics:
        loop = TrainingLoop(session, player, position, metrics, screen)
        try:
            screen.tell(session.prompts.describe())
            if checkpoint is not None:
                loop.saved, loop.warming = (-1, checkpoint) if is_warming else (position.iteration, None)
                screen.tell(f"resuming from {checkpoint}.")
            yield loop
        except KeyboardInterrupt as stop:
            stop.add_note(f"Checkpoints are in {out}; add --resume to continue.")
            raise
        finally:
            if (team := parallel.get_team()) is not None:
                # also after an error: workers block on the next job and would never exit
                team.broadcast_job(("end", None))
            player.close()
            session.close()


def _set_threads(config: TrainConfig) -> None:
    """Set the number of threads that torch uses in this process."""
    import torch

    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)


def _find_checkpoint(config: TrainConfig, screen: Screen, *, resume: bool) -> Path | None:
    """Return the checkpoint to resume from, or None for a new run."""
    latest = _find_latest(Path(config.run.out), screen.tell)
    if latest is None:
        if resume:
            screen.tell(f"no checkpoint in {Path(config.run.out)} yet: starting a new run.")
        return None
    if not resume:
        raise ConfigError(
            f"{Path(config.run.out)} holds a run already; continue it with --resume, or choose another run.out."
        )
    for path, (before, now) in differences(read_config(latest), config).items():
        if not path.startswith(MAY_DIFFER):
            raise ConfigError(
                f"{path} was {before!r} and is now {now!r}, but a resumed run must keep it. "
                "Restore it, or choose another run.out."
            )
    return latest


def _find_latest(out: Path, tell: Callable[[str], None] = lambda _: None) -> Path | None:
    """Return the newest intact checkpoint of a run, after its warm start or within it; None if there is none."""
    return Checkpoints(out / "checkpoints").latest(tell) or updates.open_checkpoints(out).latest(tell)


def _prepare_new_run(config: TrainConfig, out: Path) -> None:
    """Seed the random numbers, and delete library files that a run left before its first checkpoint."""
    import torch

    for leftover in out.glob("library*.db*"):
        if leftover.is_file():
            leftover.unlink()
    random.seed(config.run.seed)
    torch.manual_seed(config.run.seed)


def _load_position(checkpoint: Path) -> Position:
    """Return the position of a run at a checkpoint, and restore the random states of that moment."""
    import torch

    saved = torch.load(checkpoint / "run.pt", map_location="cpu", weights_only=True)
    restore_random_states(saved["random"])
    return Position(**saved["state"])


# -- before the first iteration, and after the last -----------------------------------------------


def _begin(loop: TrainingLoop) -> bool:
    """Run the warm start if there is one, then load the weights of every role into the engine."""
    session, warmstart = loop.session, loop.config.warmstart
    (session.out / "config.yaml").write_text(as_yaml(loop.config), encoding="utf-8")
    # checked before the warm start, which may take hours
    feasibility.check_groups(session)
    feasibility.check_prompts(session, 0 if loop.warming is not None else measure_recalled(loop))
    feasibility.check_roles(session)
    if note := feasibility.find_revisits(loop.config):
        loop.screen.tell(note)
    if warmstart is not None and warmstart.run is not None and loop.warming is None:
        take_over(session)
        loop.screen.tell(f"the roles begin as those of {warmstart.run}.")
    progress = updates.read_progress(loop.warming)  # read now: a later checkpoint of the warm start deletes this one
    if warmstart is not None and warmstart.imitates and not progress.is_past_imitation:
        if not updates.imitate(loop, warmstart, progress.begun):
            return False
        feasibility.check_prompts(session)  # its demonstrations may be longer
        progress = updates.Progress(is_past_imitation=True)
    if not _begin_roles(loop, progress):
        return False
    _warn_of_verdicts(session, loop.screen)
    if warmstart is not None or any(map(_studies, session.roles.values())):
        updates.finish(loop)  # a kill in the first evaluation must not lose the warm start
    return True


def _begin_roles(loop: TrainingLoop, progress: updates.Progress) -> bool:
    """Prepare every role, with checkpoints in its stage 1 and after it, and load its weights into the engine."""
    session, done = loop.session, progress.studied
    for name, role in session.roles.items():
        if isinstance(role, TrainedRole):
            stage = role.supervised
            if name in done:
                stage.skip()
            elif stage.teaches:
                stage.goes_on = updates.Saver(loop, {"studied": list(done)})
                stage.begun = progress.begun if done == progress.studied else None
        role.begin(loop.screen.tell)
        if isinstance(role, TrainedRole) and role.supervised.is_stopped:
            loop.screen.tell(f"stopped and saved in stage 1 of {name}; add --resume to continue.")
            return False
        session.engine.load_adapter(name, 1, role.weights())
        if isinstance(role, TrainedRole) and (text := asyncio.run(role.report_accuracy())):
            (loop.screen.warn if text.startswith("WARNING") else loop.screen.tell)(text)
        if _studies(role) and name not in done:
            done = (*done, name)
            updates.save_studied(loop, done)
            if loop.stopping:
                loop.screen.tell(f"stopped and saved after stage 1 of {name}; add --resume to continue.")
                return False
    return True


def _studies(role: object) -> bool:
    """Return whether a role has a stage 1 in this run."""
    return isinstance(role, TrainedRole) and role.supervised.teaches


def _warn_of_verdicts(session: Session, screen: Screen) -> None:
    """Warn about roles whose base does not obey their question, or hardly reads what it is about."""
    if session.config.model.is_compact:
        return
    for name in [*PURPOSES.keys() & session.roles.keys()]:
        if _studies(session.roles[name]):
            continue  # its right answers were measured
        verdicts = asyncio.run(look(session.engine, session.prompts, name))
        if warning := verdicts.explain(name):
            screen.warn(warning)


def find_harmful_guides(config: TrainConfig, out: Path) -> tuple[str, ...]:
    """Return a warning if the guide's hints did clearly worse than the recalled text that it makes them of."""
    rows = read_metrics(out)
    guided, recalled = (
        [arm for arm in config.arms if config.get_guidance(arm) in kinds]
        for kinds in (TELLS | ASKS, TRIES - TELLS - LESSONS)
    )
    return tuple(
        f"{arm} solves fewer tasks than {reference} (success/{arm} and success/{reference} in metrics.jsonl). Train "
        "the guide longer, or leave it out of the export: delete its folder and its entry in roles.json."
        for arm in guided
        for reference in recalled
        if is_worse(rows, f"success/{arm}", f"success/{reference}")
    )


def find_harmful_memory(config: TrainConfig, out: Path) -> tuple[str, ...]:
    """Return a warning for each arm that recalls and did clearly worse than control."""
    rows = read_metrics(out)
    return tuple(
        f"{arm} solves fewer tasks than {CONTROL} (success/{arm} and success/{CONTROL} in metrics.jsonl): what it "
        "recalls hurts. Look at the library (hardwon memory ls), or begin with a policy that reads (warmstart)."
        for arm in config.arms
        if config.get_guidance(arm) in RECALLS and is_worse(rows, f"success/{arm}", f"success/{CONTROL}")
    )


def _export(loop: TrainingLoop, folder: Path) -> tuple[str, ...]:
    """Write the best evaluated weights of every role with the tokenizer and a manifest, and return the folders.

    A run that never evaluated exports its last weights.
    """
    session = loop.session
    if (best := loop.checkpoints.best()) is not None:
        read_weights(session, best)
    written = tuple(
        str(base_models.export(role.model, session.tokenizer, name, folder, session.config.model))
        for name, role in session.roles.items()
    )
    write_manifest(folder, session.config, session.roles["policy"].model)
    return written
