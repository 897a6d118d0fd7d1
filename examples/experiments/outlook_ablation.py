"""Take the parts of `OutlookPolicy` away, one at a time, and measure how much each one carries.

    python examples/experiments/outlook_ablation.py runs/ablation --seeds 0,1,2 --episodes 150
    python examples/experiments/outlook_ablation.py runs/frozen --learned runs/ablation/nothing --seeds 0,1,2

Every agent learns from scratch without the part, in cookingworld with three rooms, and is tested frozen on seeds of
dev that no constant was chosen on. With --learned, all parts are tested with the libraries of the full rule, so that
they differ in nothing but their decisions. An unfinished run continues in its folder. The parts:

    nothing    the full rule, for comparison
    novelty    steps that show something new earn nothing for it
    told       no key says how the notes speak of the arguments with the verb left out
    unlock     an action is worth its own gain and risk, not what it makes possible
    elsewhere  actions at other locations do not compete with those here
    promise    untried actions, and the way to them, have no bonus while learning
    fresh      a stuck agent does not try what the last paid step made possible
    returns    estimated returns do not decide where no outlook is promising
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hardwon.apps.experiment import Plan, Row, interval, run_plan
from hardwon.apps.experiment.seeds import TRAIN_SEEDS, parse_seeds
from hardwon.memory.situations import outlook_keys
from hardwon.memory.values import outlook, outlook_episodes, prospects
from hardwon.runtime.policies import outlook as policy
from hardwon.trainers.checkpoint import copy_library

PARAMS = "numLocations=3, numIngredients=2, numDistractorItems=5, includeDoors=1, limitInventorySize=0"
VERB_FREE = outlook_keys.TOLD - 1
"""Column of the key that leaves the verb out; the keys about single words of the notes follow it."""


@contextmanager
def _without_verb_free_key() -> Iterator[None]:
    compute = outlook_keys.compute_outlook_keys

    def compute_others(*given: Any, **named: Any) -> tuple[str, ...]:
        keys = compute(*given, **named)
        return (*keys[:VERB_FREE], "", *keys[VERB_FREE + 1 :])

    with patch.object(outlook_keys, "compute_outlook_keys", compute_others):
        yield


PARTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "novelty": lambda: patch.object(outlook_episodes, "NOVELTY", 0.0),
    "told": _without_verb_free_key,
    # The policy discounts the way to other locations with its own copy, so distances still count.
    "unlock": lambda: patch.object(outlook, "DISCOUNT", 0.0),
    "elsewhere": lambda: patch.object(prospects, "_look_elsewhere", lambda *given: iter(())),
    "promise": lambda: patch.object(policy, "HOPE", 0.0),
    "fresh": lambda: patch.object(policy, "SLIGHT", math.inf),
    "returns": lambda: patch.object(policy, "RETURNS", 0.0),
}


def build_plan(folder: Path, seeds: tuple[int, ...], checkpoints: tuple[int, ...], tests: str) -> Plan:
    """Return the experiment of one part: the same seeds and tasks as for all others."""
    return Plan(
        environment="textworld",
        game="cookingworld",
        params=PARAMS,
        episodes=max(checkpoints),
        checkpoints=checkpoints,
        train_seeds=parse_seeds(TRAIN_SEEDS),
        eval_fold="dev",
        eval_seeds=parse_seeds(tests),
        arms=("step",),
        policy="outlook",
        library=str(folder / "library.db"),
        seeds=seeds,
        max_steps=50,
    )


def copy_libraries(source: Path, plan: Plan) -> None:
    """Copy the library of each agent seed of an earlier run, without the tables that it keeps beside it."""
    for number, seed in enumerate(plan.seeds):
        place = plan.library_path(seed)
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        names = [f"library-seed{seed}.db", *(["library.db"] if number == 0 else [])]
        copy_library(next(source / name for name in names if (source / name).exists()), place)


def summarize(part: str, plan: Plan, rows: list[Row]) -> list[dict[str, Any]]:
    """Return the figures of one part at each checkpoint: per agent seed, and their means."""
    figures = []
    for at in plan.checkpoints:
        tests = [row for row in rows if row["phase"] == "test" and row["trained"] == at]
        cells = [[row for row in tests if row["agent_seed"] == seed] for seed in plan.seeds]
        played = [row for cell in cells for row in cell if row["success"] is not None]
        if any(len(cell) < len(plan.eval_seeds) for cell in cells) or not played:
            continue
        solved = [sum(bool(row["success"]) for row in cell) for cell in cells]
        of = len(plan.eval_seeds)
        figures.append(
            {
                "without": part,
                "episodes": at,
                "solved": solved,
                "of": of,
                "mean": round(sum(solved) / len(solved), 1),
                "ci95": [round(of * bound, 1) for bound in interval([count / of for count in solved], of)],
                "score": round(sum(row["score"] for row in played) / len(played), 3),
                "lost": [sum(row["ending"] == "task_lost" for row in cell) for cell in cells],
            }
        )
    return figures


def format_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Return the figures as a Markdown table."""
    lines = [
        "| without | episodes | solved, mean (95 %) | by agent seed | mean score | lost |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["ci95"]
        lines.append(
            f"| {row['without']} | {row['episodes']} | {row['mean']} of {row['of']} ({low:.0f} to {high:.0f}) "
            f"| {', '.join(map(str, row['solved']))} | {row['score']} | {', '.join(map(str, row['lost']))} |"
        )
    return lines


def main() -> None:
    """Run the parts one after the other and print a table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the results; each part has its own folder in it")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to take away, one run each")
    parser.add_argument("--seeds", default="0,1,2", help="agent seeds")
    parser.add_argument("--episodes", type=int, default=150)
    parser.add_argument("--learned", type=Path, help="folder of a run whose libraries are tested; nothing is learned")
    parser.add_argument("--checkpoints", help="episodes after which the agent is tested; --episodes alone by default")
    parser.add_argument("--tests", default="50-79", help="test seeds of dev; constants were chosen on 0-49")
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--parts names {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    learned = "0" if given.learned else given.checkpoints or str(given.episodes)
    checkpoints = tuple(map(int, learned.split(",")))
    rows: list[dict[str, Any]] = []
    for part in parts:
        plan = build_plan(given.out / part, tuple(map(int, given.seeds.split(","))), checkpoints, given.tests)
        if given.learned:
            copy_libraries(given.learned, plan)
        with PARTS[part]():
            rows += summarize(part, plan, run_plan(plan, given.out / part, jobs=1))
        print("\n".join(format_rows(rows)), flush=True)
    (given.out / "figures.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
