"""Run an experiment.

Each agent seed is one process. Every episode is a row of `episodes.jsonl`. An interrupted experiment continues from
these rows and the library when you start it again in the same folder.
"""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hardwon.apps.shared.common import ADDRESSES, must_exist
from hardwon.apps.shared.trained import FOLDER, TRAINED, Paced, open_agent_policy, open_policy, open_roles

from .folder import ROWS, ResultRow, load_rows, own_folder, read_counts
from .plan import BASELINE, LEARNER, ArmSetup, ExperimentPlan, open_beside
from .versions import read_versions

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent
    from hardwon.runtime.interfaces.extension import Budget, Router
    from hardwon.runtime.strategies.strategy import Strategy

OnRow = Callable[[ResultRow], None]


def run_plan(
    plan: ExperimentPlan,
    out: Path,
    *,
    jobs: int | None = None,
    on_row: OnRow = lambda row: None,
    on_resume: Callable[[list[ResultRow]], None] = lambda rows: None,
) -> list[ResultRow]:
    """Run the episodes that are not finished yet.

    Args:
        plan: The experiment.
        out: Folder of the results.
        jobs: Number of agent seeds to run in parallel; None for one per core.
        on_row: Receives every new row. Within the episodes of a slow policy, it also receives rows of the phase
            `decide` with `step` and `seconds` per decision, which are not kept.
        on_resume: Receives the rows of an earlier run, if there are any, before the first new one.

    Returns:
        All rows, those of earlier runs first. Errors of the environment and the library propagate.

    Raises:
        ConfigError: The folder holds the results of another experiment, or another process is writing into it.
    """
    versions = _open_and_describe(plan)
    with own_folder(out) as rows:
        rows += load_rows(plan, versions, out)
        if rows:
            on_resume(list(rows))
        _run_missing(plan, out, rows, jobs, on_row)
        return rows


def _open_and_describe(plan: ExperimentPlan) -> dict[str, str]:
    """Open the environment once, so that a wrong setting ends the run here, and return what the results depend on."""
    from hardwon.runtime.environments import open_environment

    open_environment(plan.environment, game=plan.game, params=plan.params).close()
    for library in plan.beside:
        if not library.startswith(ADDRESSES):
            must_exist(Path(library))
    return read_versions(plan)


def _run_missing(plan: ExperimentPlan, out: Path, done: list[ResultRow], jobs: int | None, on_row: OnRow) -> None:
    """Run the episodes without a row, and add their rows to the list and to the file."""
    with (out / ROWS).open("a", encoding="utf-8") as file:

        def keep(row: ResultRow) -> None:
            if row["phase"] == "decide":
                on_row(row)
                return
            file.write(json.dumps(row) + "\n")
            # Per row, so that after a crash every finished episode counts.
            file.flush()
            done.append(row)
            on_row(row)

        finished, before = frozenset(map(_row_key, done)), read_counts(out)
        workers = min(jobs or os.cpu_count() or 1, len(plan.seeds))
        if workers == 1:
            for seed in plan.seeds:
                run_seed(plan, seed, finished, before.get(seed, 0), keep)
        else:
            _run_in_processes(plan, finished, before, workers, keep)


def _run_in_processes(
    plan: ExperimentPlan, finished_keys: frozenset[Any], before: Mapping[int, int], workers: int, keep: OnRow
) -> None:
    # "spawn", because a forked child would share the parent's SQLite connections and threads.
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = ProcessPoolExecutor(workers, context, initializer=_join_pool, initargs=(queue,))
    try:
        with _without_interrupts():
            running: set[Future[None]] = {
                pool.submit(_run_seed_in_pool, plan, seed, finished_keys, before.get(seed, 0)) for seed in plan.seeds
            }
        while running:
            # Only the parent writes episodes.jsonl, so rows of several workers cannot interleave.
            finished, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            while not queue.empty():
                keep(queue.get())
            for future in finished:
                future.result()
        # Rows that arrived after the last poll.
        while not queue.empty():
            keep(queue.get())
    except BaseException:
        # `shutdown` alone waits for the running episodes, which can take minutes.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that leave Ctrl-C to this one from their first moment, in which they import modules."""
    if threading.current_thread() is not threading.main_thread():  # only that one sets handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


_queue: Any = None


def _join_pool(queue: Any) -> None:
    """Initialize a worker process."""
    global _queue
    _queue = queue


def _run_seed_in_pool(plan: ExperimentPlan, seed: int, finished: frozenset[Any], before: int) -> None:
    run_seed(plan, seed, finished, before, _queue.put)


def _row_key(row: ResultRow) -> tuple[Any, ...]:
    return (row["phase"], row["arm"], row["agent_seed"], row["trained"], row["seed"])


@dataclass(frozen=True)
class _SeedRun:
    """The open parts of the run of one agent seed."""

    plan: ExperimentPlan
    seed: int
    library: "ExperienceLibrary"
    environment: Any
    recaller: "Router | None"
    report: OnRow

    def play(self, agent: "Agent", phase: Literal["learn", "test"], arm: str, trained: int, seed: int) -> None:
        """Play an episode, and report its row."""
        # CPU time, because parallel seeds share the cores.
        began = time.process_time()
        result = agent.run("train" if phase == "learn" else self.plan.eval_fold, seed)
        cpu_s, episode = time.process_time() - began, result.trajectory
        self.report(
            {
                "phase": phase,
                "arm": arm,
                "agent_seed": self.seed,
                "trained": trained,
                "seed": seed,
                "episode": episode.id,
                "success": episode.success,
                "score": round(episode.score, 4),
                "steps": len(episode.steps),
                "ending": str(episode.ending),
                "blocked": result.blocked,
                "tokens": result.usage.prompt_tokens + result.usage.completion_tokens,
                "cpu_s": round(cpu_s, 4),
            }
        )


def run_seed(plan: ExperimentPlan, seed: int, finished: frozenset[Any], before: int, report: OnRow) -> None:
    """Run all episodes of one agent seed: test, learn until the next checkpoint, test, and so on."""
    from hardwon.runtime.agent import Agent
    from hardwon.runtime.environments import open_environment

    environment = open_environment(plan.environment, game=plan.game, params=plan.params)
    # A library file says itself how many training episodes are done. A shared one also holds those of others.
    learned = sum(key[0] == "learn" and key[2] == seed for key in finished)
    with plan.open_library(seed) as library, open_beside(plan.beside, library) as recaller:
        learner = Agent(
            _open_policy(plan, report),
            library,
            environment,
            arm=LEARNER,
            max_steps=_make_budget(plan, library),
            seed=seed,
            guidance=open_roles(plan.roles, plan.device).guidance,
            extractor=open_roles(plan.roles, plan.device).extractor,
            recall_k=open_roles(plan.roles, plan.device).recall_k,
            guardrails=open_roles(plan.roles, plan.device).guardrails,
            planner=open_roles(plan.roles, plan.device).planner,
            recaller=recaller,
            strategies=_read_strategies(plan),
        )
        run = _SeedRun(plan, seed, library, environment, recaller, report)
        try:
            order = training_order(plan, seed)
            for checkpoint in plan.checkpoints:
                if plan.learns:
                    start = learned if plan.is_shared else library.episodes.count() - before
                    for episode in range(start, checkpoint):
                        run.play(learner, "learn", LEARNER.name, episode, order[episode])
                    learned = max(learned, checkpoint)
                for setup, at in plan.tests():
                    if at == checkpoint:
                        _test(run, setup, checkpoint, finished)
            if plan.learns and plan.episodes:
                library.admin.index()
        finally:
            learner.close()


def _make_budget(plan: ExperimentPlan, library: "ExperienceLibrary") -> "int | Budget":
    """Return the number of steps of an episode, or what decides about it."""
    if plan.budget == "fixed":
        return plan.max_steps
    from hardwon.runtime.loop.budgets import LearnedBudget

    return LearnedBudget(library, most=plan.max_steps)


def _read_strategies(plan: ExperimentPlan) -> "tuple[Strategy, ...]":
    if not plan.strategies:
        return ()
    from hardwon.runtime.strategies.strategy import load_strategies

    return load_strategies(plan.strategies)


def _open_policy(plan: ExperimentPlan, report: OnRow) -> Any:
    """Return the trained policy, if there is one, or the policy that the plan names. A slow one reports its steps."""
    trained = open_roles(plan.roles, plan.device).policy
    if trained is None and not plan.policy.startswith((FOLDER, TRAINED)):
        return open_agent_policy(plan.policy)
    return Paced(
        trained or open_policy(plan.policy),
        lambda step, seconds: report({"phase": "decide", "step": step, "seconds": round(seconds, 2)}),
    )


def training_order(plan: ExperimentPlan, seed: int) -> list[int]:
    """Return the training seeds in order: every seed of the fold once before any repeats."""
    # A string seed does not depend on PYTHONHASHSEED; a resumed run needs the same order.
    rng = random.Random(f"order:{seed}")
    order: list[int] = []
    while len(order) < plan.episodes:
        order += rng.sample(plan.train_seeds, len(plan.train_seeds))
    return order[: plan.episodes]


def _test(run: _SeedRun, setup: ArmSetup, checkpoint: int, finished: frozenset[Any]) -> None:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent

    plan, library, arm = run.plan, run.library, setup.arm
    missing = [task for task in plan.eval_seeds if ("test", arm.name, run.seed, checkpoint, task) not in finished]
    consulted = library if arm.has_memory else ExperienceLibrary.open(":memory:")
    agent = Agent(
        open_policy(setup.policy) if setup.policy else _open_policy(plan, run.report),
        consulted,
        # A clone, because `agent.close` closes its environment, which the learner still needs.
        run.environment.clone(),
        arm=arm,
        level=setup.level,
        learn=False,
        guardrails=setup.guardrails and open_roles(plan.roles, plan.device).guardrails,
        planner=setup.planner or (open_roles(plan.roles, plan.device).planner if arm.has_memory else None),
        guidance=open_roles(plan.roles, plan.device).guidance if arm.has_memory else None,
        recall_k=open_roles(plan.roles, plan.device).recall_k,
        max_steps=_make_budget(plan, consulted),
        seed=run.seed,
        recaller=run.recaller if arm.has_memory else None,
        strategies=_read_strategies(plan) if setup.has_strategies else (),
    )
    try:
        for task in missing:
            run.play(agent, "test", arm.name, checkpoint, task)
    finally:
        agent.close()
        if consulted is not library:  # an in-memory library of this test
            consulted.close()


def summarise(plan: ExperimentPlan, rows: Iterable[ResultRow]) -> dict[str, Any]:
    """Return the figures of every arm at its last checkpoint, and its learning curve."""
    tests = [row for row in rows if row["phase"] == "test"]
    control = {(row["agent_seed"], row["seed"]): row["success"] for row in tests if row["arm"] == BASELINE.name}
    learning_s = sum(row["cpu_s"] for row in rows if row["phase"] == "learn")
    return {
        setup.arm.name: _summarise_arm(
            plan,
            [row for row in tests if row["arm"] == setup.arm.name],
            control if setup.arm.has_memory else {},
            # Learning happens once; the other arms only read the learner's library.
            learning_s * (setup.arm == LEARNER),
        )
        for setup in plan.setups
    }


def _summarise_arm(
    plan: ExperimentPlan, rows: list[ResultRow], control: Mapping[Any, Any], learning_s: float
) -> dict[str, Any]:
    last = max((row["trained"] for row in rows), default=0)
    final = [row for row in rows if row["trained"] == last and row["success"] is not None]
    per_seed = [_mean(row["success"] for row in final if row["agent_seed"] == seed) for seed in plan.seeds]
    points = sorted({row["trained"] for row in rows})
    curve = [[at, _mean(row["success"] for row in rows if row["trained"] == at)] for at in points]
    if len(curve) == 1 and plan.episodes:  # the arm does not learn: draw a constant
        curve.append([plan.episodes, curve[0][1]])
    # Harm compares the same task and agent seed with and without the library.
    paired = [(control[key], row["success"]) for row in final if (key := (row["agent_seed"], row["seed"])) in control]
    return {
        "success_rate": _mean(row["success"] for row in final),
        "mean_score": _mean(row["score"] for row in final),
        "per_seed": per_seed,
        "ci95": interval(per_seed, len(plan.eval_seeds)),
        "curve": curve,
        "curve_ci95": [[at, *interval(_mean_per_seed(plan, rows, at), len(plan.eval_seeds))] for at in points],
        "steps": _mean(row["steps"] for row in final),
        "blocked": _mean(row["blocked"] for row in final),
        "task_lost": _mean(row["ending"] == "task_lost" for row in final),
        "harm_rate": _mean(bool(before) and not after for before, after in paired) if paired else None,
        "excluded": sum(row["success"] is None for row in rows),
        "tokens": _mean(row["tokens"] for row in final),
        "cpu_s": round(sum(row["cpu_s"] for row in rows) + learning_s, 2),
    }


def _mean_per_seed(plan: ExperimentPlan, rows: list[ResultRow], at: int) -> list[float]:
    return [
        _mean(r["success"] for r in rows if r["agent_seed"] == seed and r["trained"] == at and r["success"] is not None)
        for seed in plan.seeds
    ]


def _mean(values: Iterable[Any]) -> float:
    present = [float(value) for value in values if value is not None]
    return round(sum(present) / len(present), 4) if present else 0.0


def interval(per_seed: list[float], episodes: int) -> list[float]:
    """Return the 95% interval of a success rate.

    Student's t over agent seeds, or the Wilson interval over episodes for one seed.

    Args:
        per_seed: Success rate of every agent seed, in [0, 1].
        episodes: Number of test episodes per seed.
    """
    n = len(per_seed)
    mean = sum(per_seed) / n
    if n == 1:
        # Wilson, because the normal approximation has no width at a rate of 0 or 1.
        z, size = 1.96, max(1, episodes)
        centre = (mean + z * z / (2 * size)) / (1 + z * z / size)
        half = z / (1 + z * z / size) * (mean * (1 - mean) / size + z * z / (4 * size * size)) ** 0.5
    else:
        spread = (sum((value - mean) ** 2 for value in per_seed) / (n - 1)) ** 0.5
        # n - 1 degrees of freedom; beyond the table, its last value gives a slightly wide interval.
        centre, half = mean, _T95[min(n - 1, len(_T95)) - 1] * spread / n**0.5
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95% points of Student's t for 1, 2, ... degrees of freedom."""
