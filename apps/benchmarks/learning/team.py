"""`hardwon bench team`: wall time, success and tokens of teams that share nothing, everything, or what they learnt to.

The admission is trained on train tasks and measured on test tasks, which are others; every arm meets the
same test tasks with the same members. Seconds are those of `benchmarks.learning.clock`: the waits for slow calls,
which are most of it, and our own processor time; with `--real` they are waited for and read off the wall. Members
act by rule: what differs between arms is what they are told, and when.
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

from hardwon.apps.shared.common import AsJson, out, say_json, table, tell

from .clock import run_counted

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.teams.sharing_policy import Admission, LogisticAdmission
    from hardwon.runtime.teams.team import TeamResult

TRAINED_WITH = 3
"""Members of the teams that an admission learns from."""
RUNS = 5
"""Runs of one task that are compared with each other in training: G."""
TEST = 5000
"""Test tasks have this number and those after it; training tasks are below."""
RESAMPLES = 2000
"""Of the bootstrap behind an interval."""
ARMS = ("none", "all", "learned")
SHOWN = ("k", "sharing", "success", "wall_s", "saved_%", "calls", "tokens", "admitted_%", "cpu_s")
"""What people are shown of a row; JSON has all of it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One test run."""

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
    """Of the time that the members' steps took, what deciding about sharing took."""


def bench_team(
    errand: Annotated[str, typer.Option(help="archive: a question to slow tools; rooms: a coin in a house.")] = (
        "archive"
    ),
    tasks: Annotated[int, typer.Option(min=1, help="Test tasks.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds: of the members' ways and of the training.")] = 3,
    ks: Annotated[str, typer.Option("--teams", help="Members of a team, separated by commas.")] = "1,3,5",
    rounds: Annotated[int, typer.Option(min=1, help="Updates of the admission, each on four train tasks.")] = 24,
    call_s: Annotated[float, typer.Option(min=0.001, help="Seconds of a slow call in the tests.")] = 0.5,
    real: Annotated[bool, typer.Option("--real", help="Wait for real in the tests, and measure the wall.")] = False,
    save: Annotated[Path | None, typer.Option("--out", help="Folder for admission-SEED.json and runs.jsonl.")] = None,
    as_json: AsJson = False,
) -> None:
    """Teams of K on tasks whose work repeats: sharing nothing, everything, and what an admission learnt to."""
    sizes = [int(part) for part in ks.split(",") if part.strip().isdigit()]
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(f"--teams is {ks!r}; write whole numbers: 1,3,5.")
    rows = measure(errand, tasks, range(seeds), sizes, rounds, call_s, real, tell, save)
    if as_json:
        say_json({"rows": rows})
        return
    cells = [[_cell(row, name) for name in SHOWN] for row in rows]
    out().print(table(*SHOWN, rows=cells, numbers=SHOWN[2:]))


def _cell(row: dict[str, Any], name: str) -> Any:
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
    """A row for every K and arm, over all seeds and test tasks."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.teams.sharing_policy import AdmitAll, AdmitNone

    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    cpu: dict[tuple[int, str], float] = {}
    arms_of = {k: ARMS if k > 1 else ARMS[:1] for k in ks}
    with (
        TemporaryDirectory(prefix="hardwon-bench-") as folder,
        ExperienceLibrary.open(Path(folder) / "bank.db") as library,
    ):
        for seed in seeds:
            tell(f"seed {seed}: training on {4 * rounds} tasks ...")
            learned = trained(errand, seed, rounds, call_s, tell, library)
            if save is not None:
                learned.save(save / f"admission-{seed}.json")
            arms: dict[str, Admission] = {"none": AdmitNone(), "all": AdmitAll(), "learned": learned}
            for k, arm in ((k, arm) for k, mine in arms_of.items() for arm in mine):
                began = time.process_time()
                worlds = range(TEST, TEST + tasks)
                found = [_test(errand, seed, task, k, arm, arms[arm], call_s, real, library) for task in worlds]
                cpu[k, arm] = cpu.get((k, arm), 0.0) + time.process_time() - began
                runs += found
                tell(f"seed {seed}: K={k} {arm}: {fmean(run.seconds for run in found):.2f} s")
    if save is not None:
        lines = [json.dumps(asdict(run)) for run in runs]
        (save / "runs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [row_of(runs, k, arm, cpu[k, arm]) for k, mine in arms_of.items() for arm in mine]


# -- training -------------------------------------------------------------------------------------


def trained(
    errand: str, seed: int, rounds: int, call_s: float, tell: Callable[[str], None], library: "ExperienceLibrary"
) -> "LogisticAdmission":
    """An admission that learnt on train tasks, greedy from now on."""
    from hardwon.runtime.teams.sharing_policy import LogisticAdmission
    from hardwon.trainers.roles.admission_learning import AdmissionTrainer

    admission = LogisticAdmission(chance=random.Random(seed))
    trainer = AdmissionTrainer(admission)
    drawn = random.Random(f"train tasks {seed}").sample(range(TEST if errand == "archive" else 900), 4 * rounds)
    for number in range(rounds):
        chosen = drawn[4 * number : 4 * number + 4]
        groups = [_group(errand, seed, task, admission, call_s, library) for task in chosen]
        told = trainer.update(groups)
        if (number + 1) % 4 == 0:
            words = ", ".join(f"{name} {told[name]:.2f}" for name in ("reward", "admitted", "used", "price"))
            tell(f"  round {number + 1}: {words}")
    return LogisticAdmission(admission.weights)


def _group(
    errand: str, seed: int, task: int, admission: "LogisticAdmission", call_s: float, library: "ExperienceLibrary"
) -> list[Any]:
    """The runs of one train task, as they are learnt from; what is early is told by the slowest."""
    from hardwon.trainers.roles.admission_learning import episode_of

    numbers = [_members(seed + 100 * run, TRAINED_WITH) for run in range(RUNS)]
    results = [run_counted(_run(errand, task, mine, admission, call_s, "train", library)) for mine in numbers]
    limit_s = 1.5 * max(result.seconds for result in results)
    return [episode_of(result, admission, limit_s=limit_s) for result in results]


def _members(seed: int, k: int) -> list[int]:
    """The numbers of a team's members: other ways for every seed."""
    return [1000 * seed + n for n in range(k)]


async def _run(
    errand: str,
    task: int,
    numbers: Sequence[int],
    admission: "Admission",
    call_s: float,
    fold: str,
    library: "ExperienceLibrary",
) -> "TeamResult":
    """One run of a team, whose bank is in the library's file."""
    from hardwon.apps.cli import team_errands
    from hardwon.apps.cli.team_errands import Latency

    latency = Latency().scale(call_s / Latency().call_s)
    seed = task - TEST if errand != "archive" and task >= TEST else task
    with team_errands.open_errand(errand, seed, latency, fold=fold) as asked:
        return await team_errands.create_team(asked, numbers, library, admission).arun(asked.task, asked.seed)


# -- tests ----------------------------------------------------------------------------------------


def _test(
    errand: str,
    seed: int,
    task: int,
    k: int,
    arm: str,
    admission: "Admission",
    call_s: float,
    real: bool,
    library: "ExperienceLibrary",
) -> Run:
    """A test run of one arm."""
    result = (asyncio.run if real else run_counted)(
        _run(errand, task, _members(seed, k), admission, call_s, "dev", library)
    )
    return Run(
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


def row_of(runs: Sequence[Run], k: int, arm: str, cpu_s: float) -> dict[str, Any]:
    """Means over seeds and tasks with 95 % intervals; `saved` is of the wall time of the same runs without sharing."""
    mine = {(run.seed, run.task): run for run in runs if (run.k, run.arm) == (k, arm)}
    alone = {(run.seed, run.task): run for run in runs if (run.k, run.arm) == (k, "none")}
    keys = sorted(mine)
    seconds = [mine[key].seconds for key in keys]
    pairs = [(mine[key].seconds, alone[key].seconds) for key in keys]
    return {
        "k": k,
        "sharing": arm,
        "runs": len(keys),
        "success": round(fmean(mine[key].success for key in keys), 3),
        "wall_s": round(fmean(seconds), 2),
        "wall_s_ci": interval(seconds, fmean),
        "saved_%": round(saved(pairs), 1),
        "saved_%_ci": None if arm == "none" else interval(pairs, saved),
        "calls": round(fmean(mine[key].calls for key in keys), 1),
        "key_tokens": round(fmean(mine[key].key_tokens for key in keys)),
        "value_tokens": round(fmean(mine[key].value_tokens for key in keys)),
        "tokens": round(fmean(mine[key].key_tokens + mine[key].value_tokens for key in keys)),
        "pulls": round(fmean(mine[key].pulls for key in keys), 1),
        "admitted_%": round(100 * fmean(mine[key].admitted for key in keys), 1),
        "deciding_%": round(100 * fmean(mine[key].admission_share for key in keys), 4),
        "cpu_s": round(cpu_s / len(keys), 2),
    }


def saved(pairs: Sequence[tuple[float, float]]) -> float:
    """Per cent of the time without sharing that sharing saved."""
    return 100 * (1 - sum(shared for shared, _ in pairs) / sum(alone for _, alone in pairs))


def interval(values: Sequence[Any], of: Callable[[Sequence[Any]], float]) -> tuple[float, float]:
    """95 % of what `of` gives when the values are drawn anew, with replacement."""
    chance = random.Random(0)
    drawn = sorted(of(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return round(drawn[int(0.025 * RESAMPLES)], 2), round(drawn[int(0.975 * RESAMPLES) - 1], 2)
