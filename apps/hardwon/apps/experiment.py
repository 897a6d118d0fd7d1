"""An experiment: arms on identical seeds, learning on one fold, tested frozen and greedy on another.

    random   any admissible action, no memory
    empty    the same agent with an empty library: what memory within the episode alone is worth
    task     the learnt library, retrieved once an episode, by task
    step     the learnt library, consulted at every step: the agent that learns
    unguarded   as step, its guardrails switched off
    skills   as step, following the library's skills and remedies where one is offered

Each agent seed is one process. Every episode becomes a row of `episodes.jsonl`; an experiment that
was killed goes on from these rows and the library when it is started again in the same folder.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardwon.memory.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent

ARMS = ("random", "empty", "task", "step", "unguarded", "skills")
MEMORYLESS = frozenset({"random", "empty"})
Row = dict[str, Any]
Report = Callable[[Row], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run. Written beside the results, so that they are never mixed with another plan's."""

    environment: str
    game: str | None
    params: str
    episodes: int
    """Learnt from, per agent seed."""
    checkpoints: tuple[int, ...]
    """Episodes after which the frozen agent is tested."""
    train_seeds: tuple[int, ...]
    eval_fold: str
    eval_seeds: tuple[int, ...]
    arms: tuple[str, ...]
    policy: str
    library: str
    seeds: tuple[int, ...]
    """Agent seeds: each learns for itself, in another order, with other chances."""
    max_steps: int

    def __post_init__(self) -> None:
        for arm in self.arms:
            if arm not in ARMS:
                raise UnknownName.of("arm", arm, ARMS)
        if self.episodes < 0:
            raise ConfigError(f"episodes is {self.episodes}; use 0 or more.")
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ConfigError(f"agent seeds are {list(self.seeds)}; give at least one, each once.")

    def library_path(self, seed: int) -> Path:
        """The library of an agent seed: the path given for the first, named after the seed for the others."""
        path = Path(self.library)
        return path if seed == self.seeds[0] else path.with_name(f"{path.stem}-seed{seed}{path.suffix}")

    def tests(self) -> list[tuple[str, int]]:
        """(arm, checkpoint) of every test; an arm that learns nothing is tested once."""
        return [
            (arm, checkpoint)
            for checkpoint in self.checkpoints
            for arm in self.arms
            if arm not in MEMORYLESS or checkpoint == self.checkpoints[0]
        ]

    def total(self) -> int:
        """Episodes of all kinds, over all agent seeds."""
        return len(self.seeds) * (self.episodes * self.learns + len(self.tests()) * len(self.eval_seeds))

    @property
    def learns(self) -> bool:
        """Whether any arm needs a learnt library."""
        return bool(set(self.arms) - MEMORYLESS)


def run_plan(plan: Plan, out: Path, *, jobs: int | None = None, on_row: Report = lambda row: None) -> list[Row]:
    """Run what is not done yet; returns all rows. Raises what the environment or the library raise."""
    out.mkdir(parents=True, exist_ok=True)
    done = _earlier_rows(plan, out)
    for row in done:
        on_row(row)
    with (out / "episodes.jsonl").open("a", encoding="utf-8") as file:

        def keep(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            done.append(row)
            on_row(row)

        known = frozenset(map(_name, done))
        workers = min(jobs or os.cpu_count() or 1, len(plan.seeds))
        if workers == 1:
            for seed in plan.seeds:
                run_seed(plan, seed, known, keep)
        else:
            _in_processes(plan, known, workers, keep)
    return done


def _in_processes(plan: Plan, known: frozenset[Any], workers: int, keep: Report) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = ProcessPoolExecutor(workers, context, initializer=_join_pool, initargs=(queue,))
    try:
        running: set[Future[None]] = {pool.submit(_run_seed_in_pool, plan, seed, known) for seed in plan.seeds}
        while running:
            finished, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            while not queue.empty():
                keep(queue.get())
            for future in finished:
                future.result()
        while not queue.empty():
            keep(queue.get())
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_queue: Any = None


def _join_pool(queue: Any) -> None:
    """In a worker: Ctrl-C is the parent's business."""
    global _queue
    _queue = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_seed_in_pool(plan: Plan, seed: int, known: frozenset[Any]) -> None:
    run_seed(plan, seed, known, _queue.put)


def _earlier_rows(plan: Plan, out: Path) -> list[Row]:
    """What an earlier, interrupted start of the same plan left; another plan's results are refused."""
    written = json.loads(json.dumps(asdict(plan)))
    config, episodes = out / "plan.json", out / "episodes.jsonl"
    if config.exists() and json.loads(config.read_text(encoding="utf-8")) != written:
        raise ConfigError(f"{out} holds the results of another plan. Give another --out, or remove it.")
    if not config.exists():
        for seed in plan.seeds:
            if plan.library_path(seed).exists() and episodes.exists():
                raise ConfigError(f"{episodes} is of an unknown plan. Give another --out, or remove it.")
        config.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    if not episodes.exists():
        return []
    lines = episodes.read_bytes().split(b"\n")
    whole = [line for line in lines[:-1] if line]
    if lines[-1]:  # cut in the middle of a line by a kill
        episodes.write_bytes(b"\n".join(whole) + (b"\n" if whole else b""))
    return [json.loads(line) for line in whole]


def _name(row: Row) -> tuple[Any, ...]:
    return (row["phase"], row["arm"], row["agent_seed"], row["trained"], row["seed"])


def run_seed(plan: Plan, seed: int, known: frozenset[Any], report: Report) -> None:
    """All that one agent seed does: test, learn up to the next checkpoint, test, ..."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent, as_policy
    from hardwon.runtime.environments import open_environment

    environment = open_environment(plan.environment, game=plan.game, params=plan.params)
    policy = as_policy(plan.policy)
    path = plan.library_path(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExperienceLibrary.open(path if plan.learns else ":memory:") as library:
        learner = Agent(policy, library, environment, arm="step", max_steps=plan.max_steps, seed=seed)
        try:
            order = training_order(plan, seed)
            for checkpoint in plan.checkpoints:
                if plan.learns:
                    _learn(learner, order, library.episodes, checkpoint, seed, report)
                for arm, at in plan.tests():
                    if at == checkpoint:
                        _test(plan, arm, library, environment, checkpoint, seed, known, report)
            if plan.learns:
                library.index()
        finally:
            learner.close()


def training_order(plan: Plan, seed: int) -> list[int]:
    """Which training episode comes when: every seed of the fold once before any comes again."""
    rng = random.Random(f"order:{seed}")
    order: list[int] = []
    while len(order) < plan.episodes:
        order += rng.sample(plan.train_seeds, len(plan.train_seeds))
    return order[: plan.episodes]


def _learn(learner: "Agent", order: list[int], start: int, stop: int, seed: int, report: Report) -> None:
    for episode in range(start, stop):
        began = time.process_time()
        result = learner.run("train", order[episode])
        report(_row("learn", "step", seed, episode, order[episode], result, time.process_time() - began))


def _test(
    plan: Plan,
    arm: str,
    library: "ExperienceLibrary",
    environment: Any,
    checkpoint: int,
    seed: int,
    known: frozenset[Any],
    report: Report,
) -> None:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent, as_policy

    missing = [one for one in plan.eval_seeds if ("test", arm, seed, checkpoint, one) not in known]
    consulted = ExperienceLibrary.open(":memory:") if arm in MEMORYLESS else library
    agent = Agent(
        as_policy("random" if arm == "random" else plan.policy),
        consulted,
        environment.clone(),
        arm="control" if arm in MEMORYLESS else arm,
        level="task" if arm == "task" else "step",
        learn=False,
        guardrails=arm != "unguarded",
        planner="skills" if arm == "skills" else None,
        max_steps=plan.max_steps,
        seed=seed,
    )
    try:
        for one in missing:
            began = time.process_time()
            result = agent.run(plan.eval_fold, one)
            report(_row("test", arm, seed, checkpoint, one, result, time.process_time() - began))
    finally:
        agent.close()
        if consulted is not library:
            consulted.close()


def _row(phase: str, arm: str, agent_seed: int, trained: int, seed: int, result: Any, cpu_s: float) -> Row:
    episode = result.trajectory
    return {
        "phase": phase,
        "arm": arm,
        "agent_seed": agent_seed,
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


def summarise(plan: Plan, rows: Iterable[Row]) -> dict[str, Any]:
    """The figures of every arm, at the last checkpoint it was tested at, and its curve."""
    tests = [row for row in rows if row["phase"] == "test"]
    control = {(row["agent_seed"], row["seed"]): row["success"] for row in tests if row["arm"] == "empty"}
    learning_s = sum(row["cpu_s"] for row in rows if row["phase"] == "learn")
    return {
        arm: _summary(
            plan,
            [row for row in tests if row["arm"] == arm],
            {} if arm in MEMORYLESS else control,
            learning_s * (arm == "step"),
        )
        for arm in plan.arms
    }


def _summary(plan: Plan, rows: list[Row], control: Mapping[Any, Any], learning_s: float) -> dict[str, Any]:
    last = max((row["trained"] for row in rows), default=0)
    final = [row for row in rows if row["trained"] == last and row["success"] is not None]
    per_seed = [_mean(row["success"] for row in final if row["agent_seed"] == seed) for seed in plan.seeds]
    points = sorted({row["trained"] for row in rows})
    curve = [[at, _mean(row["success"] for row in rows if row["trained"] == at)] for at in points]
    if len(curve) == 1 and plan.episodes:  # learns nothing: the same at every point
        curve.append([plan.episodes, curve[0][1]])
    paired = [(control[key], row["success"]) for row in final if (key := (row["agent_seed"], row["seed"])) in control]
    return {
        "success_rate": _mean(row["success"] for row in final),
        "mean_score": _mean(row["score"] for row in final),
        "per_seed": per_seed,
        "ci95": interval(per_seed, len(plan.eval_seeds)),
        "curve": curve,
        "curve_ci95": [[at, *interval(_per_seed(plan, rows, at), len(plan.eval_seeds))] for at in points],
        "steps": _mean(row["steps"] for row in final),
        "blocked": _mean(row["blocked"] for row in final),
        "task_lost": _mean(row["ending"] == "task_lost" for row in final),
        "harm_rate": _mean(bool(before) and not after for before, after in paired) if paired else None,
        "excluded": sum(row["success"] is None for row in rows),
        "tokens": _mean(row["tokens"] for row in final),
        "cpu_s": round(sum(row["cpu_s"] for row in rows) + learning_s, 2),
    }


def _per_seed(plan: Plan, rows: list[Row], at: int) -> list[float]:
    return [
        _mean(r["success"] for r in rows if r["agent_seed"] == seed and r["trained"] == at and r["success"] is not None)
        for seed in plan.seeds
    ]


def _mean(values: Iterable[Any]) -> float:
    known = [float(value) for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else 0.0


def interval(per_seed: list[float], episodes: int) -> list[float]:
    """95% interval of a success rate: Student's t over agent seeds; Wilson's over episodes for one seed."""
    n = len(per_seed)
    mean = sum(per_seed) / n
    if n == 1:
        z, size = 1.96, max(1, episodes)
        centre = (mean + z * z / (2 * size)) / (1 + z * z / size)
        half = z / (1 + z * z / size) * (mean * (1 - mean) / size + z * z / (4 * size * size)) ** 0.5
    else:
        spread = (sum((value - mean) ** 2 for value in per_seed) / (n - 1)) ** 0.5
        centre, half = mean, _T95[min(n - 1, len(_T95)) - 1] * spread / n**0.5
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95% points of Student's t for 1, 2, ... degrees of freedom."""
