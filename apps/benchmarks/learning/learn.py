"""`hardwon bench learn`: measure what a policy without a language model learns, per game and arm.

Every case learns on the train fold from its own random start. It is tested frozen and greedy on unseen seeds. These
seeds were not used for tuning, which used dev seeds 0 to 49.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.harness.tables import Place
from hardwon.memory.errors import UnknownName
from hardwon.memory.validation import parse_range

if TYPE_CHECKING:
    from hardwon.apps.experiment import ExperimentPlan

POLICIES = ("episodic", "lookahead", "auto")


@dataclass(frozen=True)
class Case:
    """One game with its learning settings and tests."""

    environment: str
    game: str
    params: str
    episodes: int
    checkpoints: tuple[int, ...]
    max_steps: int = 50
    arms: tuple[str, ...] = ("random", "empty", "task", "step")
    tests: tuple[tuple[str, str], ...] = (("dev", "100-149"),)
    """Pairs of a fold and test seeds; only the first gets a learning curve."""
    other: str = ""
    """Other parameters for the regimes; empty where the game has none."""


CASES: dict[str, Case] = {
    "mapreader": Case(
        "textworld",
        "mapreader",
        "numLocations=8, maxDistanceApart=3, maxDistractorItemsPerLocation=0, includeDoors=0",
        100,
        (0, 10, 25, 50, 100),
        other="numLocations=12, maxDistanceApart=4, maxDistractorItemsPerLocation=0, includeDoors=0",
    ),
    "coin": Case(
        "textworld",
        "coin",
        "numLocations=6, includeDoors=1, numDistractorItems=0",
        200,
        (0, 25, 50, 100, 200),
        other="numLocations=10, includeDoors=1, numDistractorItems=0",
    ),
    "cookingworld": Case(
        "textworld",
        "cookingworld",
        "numLocations=1, numIngredients=1, numDistractorItems=2, includeDoors=0, limitInventorySize=0",
        200,
        (0, 25, 50, 100, 200),
        arms=("random", "empty", "task", "step", "unguarded"),
        other="numLocations=1, numIngredients=2, numDistractorItems=2, includeDoors=0, limitInventorySize=0",
    ),
    "twc": Case(
        "textworld",
        "twc",
        "numLocations=2, numItemsToPutAway=2, includeDoors=0",
        200,
        (0, 25, 50, 100, 200),
        tests=(("dev", "100-149"), ("train", "500-549")),
        other="numLocations=3, numItemsToPutAway=3, includeDoors=0",
    ),
    "gotolocal": Case("babyai", "GoToLocal", "", 300, (0, 50, 100, 300), 64),
    "pickuploc": Case("babyai", "PickupLoc", "", 300, (0, 50, 100, 300), 64),
    "cookingworld-3-rooms": Case(
        "textworld",
        "cookingworld",
        "numLocations=3, numIngredients=2, numDistractorItems=5, includeDoors=1, limitInventorySize=0",
        300,
        (0, 300),
        arms=("random", "empty", "step"),
    ),
}


def learn(
    cases: Annotated[str, typer.Option(help=f"Cases to run, of {', '.join(CASES)}; all by default.")] = "",
    policy: Annotated[
        str, typer.Option(help=f"Policy that learns and is tested, of {', '.join(POLICIES)}.")
    ] = "episodic",
    seeds: Annotated[int, typer.Option(min=1, help="Number of agent seeds: 0, 1, ...")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the runs; an unfinished run continues.")] = Path("runs/learn"),
    write: Annotated[
        Path | None, typer.Option(help="Markdown file whose marked section receives the table; pictures go beside it.")
    ] = None,
    regimes: Annotated[
        bool, typer.Option(help="Also test each library with other parameters, and in the next of the cases.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure what an agent learns from its own experience, compared with the same agent without memory."""
    names = [name.strip() for name in cases.split(",") if name.strip()] or list(CASES)
    for name in names:
        if name not in CASES:
            raise UnknownName.of("case", name, CASES)
    if policy not in POLICIES:
        raise UnknownName.of("policy", policy, POLICIES)
    place = Place(write, "learn") if write else None
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += run_case(name, CASES[name], seeds, out, policy)
        if place:  # after every case, so that an interrupted run leaves a valid table
            fill_place(place, rows, out)
    if regimes:
        for label, plan, folder, episodes in build_regimes(names, seeds, out, policy):
            rows += run_plan(label, plan, folder, episodes)
            if place:
                fill_place(place, rows, out)
    if as_json:
        print(json.dumps({"rows": rows}))
    else:
        print("\n".join(format_table(rows)))


def run_case(name: str, case: Case, seeds: int, out: Path, policy: str = "episodic") -> list[dict[str, Any]]:
    """Return one row per arm and test; further tests of a case reuse the library that the first test built."""
    plans = build_plans(name, case, seeds, out, policy)
    return [row for plan, folder in plans for row in run_plan(name, plan, folder, case.episodes)]


def run_plan(label: str, plan: "ExperimentPlan", folder: Path, episodes: int) -> list[dict[str, Any]]:
    """Return one row per arm of a plan, whose library learns or has learned from so many episodes."""
    # Imported late, because `hardwon bench --help` must stay fast.
    from hardwon.apps.cli.run import execute
    from hardwon.apps.shared.common import tell

    tell(f"{label}, {plan.eval_fold} {plan.eval_seeds[0]}-{plan.eval_seeds[-1]}")
    result = execute(plan, folder)
    return [
        {
            "case": label,
            "test": f"{plan.eval_fold} {plan.eval_seeds[0]}-{plan.eval_seeds[-1]}",
            "episodes": episodes,
            "arm": arm,
            "of": len(plan.eval_seeds),
            "picture": result["curve"] if len(plan.checkpoints) > 1 else None,
            **figures,
        }
        for arm, figures in result["arms"].items()
    ]


def build_regimes(
    names: Sequence[str], seeds: int, out: Path, policy: str = "episodic"
) -> Iterator[tuple[str, "ExperimentPlan", Path, int]]:
    """Yield a label, a plan, a folder and the learning episodes for each test outside the conditions of learning.

    The first regime, other seeds of the same game, is the first test of every case. Here the same libraries are tested
    frozen in two more: with other parameters of the game, and in another game, the next one of the cases.

    Args:
        names: The cases, whose libraries were learned before.
        seeds: Number of agent seeds.
        out: Folder for the runs.
        policy: The policy that learned.
    """
    for at, name in enumerate(names):
        learned, _ = next(build_plans(name, CASES[name], seeds, out, policy))
        learned = replace(learned, episodes=0, checkpoints=(0,), arms=("empty", "step"))
        if other := CASES[name].other:
            changed = replace(learned, params=other)
            yield f"{name}, other parameters", changed, out / f"{name}-parameters", CASES[name].episodes
        following = names[(at + 1) % len(names)]
        if following != name:
            case = CASES[following]
            plan = replace(
                learned, environment=case.environment, game=case.game, params=case.params, max_steps=case.max_steps
            )
            yield f"{following}, library of {name}", plan, out / f"{following}-by-{name}", CASES[name].episodes


def build_plans(
    name: str, case: Case, seeds: int, out: Path, policy: str = "episodic"
) -> Iterator[tuple["ExperimentPlan", Path]]:
    """Yield the experiment plan and the output folder of each test of a case.

    Lookahead values are read at every step, so `LookaheadPolicy` has no arm that reads the library once per episode.
    """
    from hardwon.apps.experiment import ExperimentPlan
    from hardwon.apps.experiment.seeds import TRAIN_SEEDS

    for number, (fold, test_seeds) in enumerate(case.tests):
        plan = ExperimentPlan(
            environment=case.environment,
            game=case.game,
            params=case.params,
            episodes=case.episodes,
            checkpoints=case.checkpoints,
            train_seeds=tuple(parse_range(TRAIN_SEEDS)),
            eval_fold=fold,
            eval_seeds=tuple(parse_range(test_seeds)),
            arms=tuple(arm for arm in case.arms if (policy, arm) != ("lookahead", "task")),
            policy=policy,
            library=str(out / name / "library.db"),
            seeds=tuple(range(seeds)),
            max_steps=case.max_steps,
        )
        # Later tests read the library of the first one.
        yield (
            replace(plan, episodes=0, checkpoints=(0,)) if number else plan,
            out / name if not number else out / f"{name}-{fold}",
        )


def format_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown table with a line per case and test, and a column per arm.

    A cell has the mean number of successes, its 95% interval, and the successes of each seed.
    """
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    lines = [
        f"| case (episodes), test | {' | '.join(arms)} |",
        f"|---|{'---|' * len(arms)}",
    ]
    for case, test in dict.fromkeys((row["case"], row["test"]) for row in rows):
        by_arm = {row["arm"]: row for row in rows if (row["case"], row["test"]) == (case, test)}
        episodes = next(iter(by_arm.values()))["episodes"]
        cells = " | ".join(_format_cell(by_arm[arm]) if arm in by_arm else "" for arm in arms)
        lines.append(f"| {case} ({episodes}), {test} | {cells} |")
    return lines


def _format_cell(row: dict[str, Any]) -> str:
    of = row["of"]
    low, high = (of * bound for bound in row["ci95"])
    seeds = ", ".join(f"{of * rate:.0f}" for rate in row["per_seed"])
    lost = f"; lost {of * row['task_lost']:.1f}" if row["task_lost"] else ""
    return f"{of * row['success_rate']:.1f} ({low:.0f} to {high:.0f}) [{seeds}]{lost}"


def fill_place(place: Place, rows: list[dict[str, Any]], out: Path) -> None:
    """Write the table into a page; pictures go into `images` beside it."""
    images = place.page.parent / "images"
    images.mkdir(exist_ok=True)
    lines = [*format_table(rows), ""]
    for name in dict.fromkeys(row["case"] for row in rows if row["picture"]):
        picture = images / f"learn-{name}.png"
        picture.write_bytes((out / name / "curve.png").read_bytes())
        lines.append(f"![Success over episodes, {name}](images/{picture.name})")
    place.fill("\n".join(lines))
