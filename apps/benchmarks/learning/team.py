"""`hardwon bench team`: compare teams that share nothing, everything, or what a learned policy admits.

The admission policy is trained on training tasks and measured on separate test tasks. All arms run the same test tasks
with the same members. Seconds come from the virtual clock of `benchmarks.learning.clock`: mostly waits for slow calls,
plus CPU time. With `--real` the waits are real and wall-clock time is measured. Members follow rules, so the arms
differ only in the information that members receive and when they receive it.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.harness.intervals import bootstrap
from hardwon.apps.shared.common import AsJson, print_figures, say_json, table, tell

from .clock import run_counted

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.teams.sharing_policy import LogisticAdmission, SharingPolicy
    from hardwon.runtime.teams.team import TeamResult

TRAINED_WITH = 3
"""Team size during training of an admission policy."""
RUNS = 5
"""Runs of one task that training compares with each other (group size G)."""
TEST = 5000
"""First task number of the tests; training tasks have lower numbers."""
ARMS = ("none", "all", "learned")
COLUMNS = ("k", "sharing", "success", "wall_s", "saved_%", "calls", "tokens", "admitted_%", "cpu_s")
"""Columns of the printed table; JSON has all figures."""


@dataclass(frozen=True, slots=True)
class TeamRun:
    """The figures of one test run."""

    errand: str
    seed: int
    task: int
    k: int
    arm: str
    success: bool
    seconds: float
    calls: int
    key_tokens: int
    value_tokens: int
    pulls: int
    admitted: float
    admission_share: float
    """Share of the members' step time that sharing decisions took."""


def bench_team(
    errand: Annotated[str, typer.Option(help="archive: a question to slow tools; rooms: a coin in a house.")] = (
        "archive"
    ),
    tasks: Annotated[int, typer.Option(min=1, help="Test tasks.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for members and training.")] = 3,
    ks: Annotated[str, typer.Option("--teams", help="Team sizes, separated by commas.")] = "1,3,5",
    rounds: Annotated[
        int, typer.Option(min=1, help="Updates of the admission policy, each on four training tasks.")
    ] = 24,
    call_s: Annotated[float, typer.Option(min=0.001, help="Duration of a slow call in the tests, in seconds.")] = 0.5,
    real: Annotated[bool, typer.Option("--real", help="Really wait in the tests and measure wall-clock time.")] = False,
    save: Annotated[Path | None, typer.Option("--out", help="Folder for admission-SEED.json and runs.jsonl.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare teams of K on repetitive tasks: share nothing, share everything, or use a learned admission policy."""
    sizes = [int(part) for part in ks.split(",") if part.strip().isdigit()]
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(f"--teams is {ks!r}; write whole numbers: 1,3,5.")
    rows = measure(errand, tasks, range(seeds), sizes, rounds, call_s, real, tell, save)
    if as_json:
        say_json({"rows": rows})
        return
    cells = [[_format_cell(row, name) for name in COLUMNS] for row in rows]
    print_figures(table(*COLUMNS, rows=cells, numbers=COLUMNS[2:]))


def _format_cell(row: dict[str, Any], name: str) -> Any:
    if name == "saved_%" and row["saved_%_ci"] is not None:
        low, high = row["saved_%_ci"]
        return f"{row[name]:.0f} ({low:.0f} to {high:.0f})"
    return row[name]


def measure(
    errand: str,
    tasks: int,
    seeds: Sequence[int],
    ks: Sequence[int],
    rounds: int,
    call_s: float,
    real: bool,
    tell: Callable[[str], None],
    save: Path | None = None,
) -> list[dict[str, Any]]:
    """Return a row for every team size and arm, over all seeds and test tasks.

    Args:
        errand: Kind of task, "archive" or "rooms".
        tasks: Number of test tasks.
        seeds: Seeds of members and training.
        ks: Team sizes.
        rounds: Updates of the admission policy.
        call_s: Seconds of a slow call.
        real: Whether to wait in real time.
        tell: Receives progress messages.
        save: Folder for the trained policies and all runs.
    """
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.teams.sharing_policy import AdmitAll, AdmitNone

    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    runs: list[TeamRun] = []
    cpu: dict[tuple[int, str], float] = {}
    arms_of = {k: ARMS if k > 1 else ARMS[:1] for k in ks}
    with (
        TemporaryDirectory(prefix="hardwon-bench-") as folder,
        ExperienceLibrary.open(Path(folder) / "bank.db") as library,
    ):
        for seed in seeds:
            tell(f"seed {seed}: training on {4 * rounds} tasks ...")
            learned = train_admission(errand, seed, rounds, call_s, tell, library)
            if save is not None:
                learned.save(save / f"admission-{seed}.json")
            arms: dict[str, SharingPolicy] = {"none": AdmitNone(), "all": AdmitAll(), "learned": learned}
            for k, arm in ((k, arm) for k, arms_of_k in arms_of.items() for arm in arms_of_k):
                began = time.process_time()
                worlds = range(TEST, TEST + tasks)
                arm_runs = [_test(errand, seed, task, k, arm, arms[arm], call_s, real, library) for task in worlds]
                cpu[k, arm] = cpu.get((k, arm), 0.0) + time.process_time() - began
                runs += arm_runs
                tell(f"seed {seed}: K={k} {arm}: {fmean(run.seconds for run in arm_runs):.2f} s")
    if save is not None:
        lines = [json.dumps(asdict(run)) for run in runs]
        (save / "runs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [summarize_arm(runs, k, arm, cpu[k, arm]) for k, arms_of_k in arms_of.items() for arm in arms_of_k]


# -- training -------------------------------------------------------------------------------------


def train_admission(
    errand: str, seed: int, rounds: int, call_s: float, tell: Callable[[str], None], library: "ExperienceLibrary"
) -> "LogisticAdmission":
    """Train an admission policy on training tasks and return it in greedy mode."""
    from hardwon.runtime.teams.sharing_policy import LogisticAdmission
    from hardwon.trainers.roles.admission_learning import AdmissionTrainer

    admission = LogisticAdmission(chance=random.Random(seed))
    trainer = AdmissionTrainer(admission)
    drawn = random.Random(f"train tasks {seed}").sample(range(TEST if errand == "archive" else 900), 4 * rounds)
    for number in range(rounds):
        chosen = drawn[4 * number : 4 * number + 4]
        groups = [_run_group(errand, seed, task, admission, call_s, library) for task in chosen]
        metrics = trainer.update(groups)
        if (number + 1) % 4 == 0:
            words = ", ".join(f"{name} {metrics[name]:.2f}" for name in ("reward", "admitted", "used", "price"))
            tell(f"  round {number + 1}: {words}")
    # Without a random source the copy decides greedily.
    return LogisticAdmission(admission.weights)


def _run_group(
    errand: str, seed: int, task: int, admission: "LogisticAdmission", call_s: float, library: "ExperienceLibrary"
) -> list[Any]:
    """Run one training task several times and return the episodes, with rewards scaled by the slowest run."""
    from hardwon.trainers.roles.admission_learning import episode_of

    numbers = [_number_members(seed + 100 * run, TRAINED_WITH) for run in range(RUNS)]
    results = [run_counted(_run(errand, task, members, admission, call_s, "train", library)) for members in numbers]
    # The slowest run sets the time scale of the reward for the whole group.
    limit_s = 1.5 * max(result.seconds for result in results)
    return [episode_of(result, admission, limit_s=limit_s) for result in results]


def _number_members(seed: int, k: int) -> list[int]:
    """Return the member numbers of a team; they differ for every seed."""
    return [1000 * seed + n for n in range(k)]


async def _run(
    errand: str,
    task: int,
    numbers: Sequence[int],
    admission: "SharingPolicy",
    call_s: float,
    fold: str,
    library: "ExperienceLibrary",
) -> "TeamResult":
    """Run a team whose bank is in the library's file."""
    from hardwon.apps.cli import team_errands
    from hardwon.apps.cli.team_errands import Latency

    latency = Latency().scale(call_s / Latency().call_s)
    # The rooms game numbers its test seeds from 0.
    seed = task - TEST if errand != "archive" and task >= TEST else task
    with team_errands.open_errand(errand, seed, latency, fold=fold) as task_errand:
        return await team_errands.create_team(task_errand, numbers, library, admission).arun(
            task_errand.task, task_errand.seed
        )


# -- tests ----------------------------------------------------------------------------------------


def _test(
    errand: str,
    seed: int,
    task: int,
    k: int,
    arm: str,
    admission: "SharingPolicy",
    call_s: float,
    real: bool,
    library: "ExperienceLibrary",
) -> TeamRun:
    """Run one test task in one arm."""
    result = (asyncio.run if real else run_counted)(
        _run(errand, task, _number_members(seed, k), admission, call_s, "dev", library)
    )
    return TeamRun(
        errand,
        seed,
        task,
        k,
        arm,
        result.success,
        result.seconds,
        result.calls,
        result.key_tokens,
        result.value_tokens,
        len(result.pulls),
        result.admitted,
        result.admission_s / max(1e-9, sum(finish.seconds for finish in result.finishes)),
    )


def summarize_arm(runs: Sequence[TeamRun], k: int, arm: str, cpu_s: float) -> dict[str, Any]:
    """Return the means over seeds and tasks, with 95% intervals.

    `saved_%` is the reduction in wall time compared with the same runs without sharing.
    """
    own = {(run.seed, run.task): run for run in runs if (run.k, run.arm) == (k, arm)}
    alone = {(run.seed, run.task): run for run in runs if (run.k, run.arm) == (k, "none")}
    keys = sorted(own)
    seconds = [own[key].seconds for key in keys]
    pairs = [(own[key].seconds, alone[key].seconds) for key in keys]
    return {
        "k": k,
        "sharing": arm,
        "runs": len(keys),
        "success": round(fmean(own[key].success for key in keys), 3),
        "wall_s": round(fmean(seconds), 2),
        "wall_s_ci": _round(bootstrap(seconds)),
        "saved_%": round(compute_saved(pairs), 1),
        "saved_%_ci": None if arm == "none" else _round(bootstrap(pairs, compute_saved)),
        "calls": round(fmean(own[key].calls for key in keys), 1),
        "key_tokens": round(fmean(own[key].key_tokens for key in keys)),
        "value_tokens": round(fmean(own[key].value_tokens for key in keys)),
        "tokens": round(fmean(own[key].key_tokens + own[key].value_tokens for key in keys)),
        "pulls": round(fmean(own[key].pulls for key in keys), 1),
        "admitted_%": round(100 * fmean(own[key].admitted for key in keys), 1),
        "deciding_%": round(100 * fmean(own[key].admission_share for key in keys), 4),
        "cpu_s": round(cpu_s / len(keys), 2),
    }


def compute_saved(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the percentage of the time without sharing that sharing saved."""
    return 100 * (1 - sum(shared for shared, _ in pairs) / sum(alone for _, alone in pairs))


def _round(bounds: tuple[float, float]) -> tuple[float, float]:
    return round(bounds[0], 2), round(bounds[1], 2)
