"""Define `hardwon run`, which trains and tests an agent in an environment and prints a table of the arms."""

import json
import re
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hardwon.apps.experiment.seeds import asks_model, choose_agent_seeds, choose_seeds, parse_checkpoints
from hardwon.apps.shared.common import library_name, parse_library, print_figures, table, tell
from hardwon.apps.shared.trained import HELP, check_policy, tell_unused
from hardwon.memory.errors import MissingExtra

if TYPE_CHECKING:
    from hardwon.apps.experiment import ExperimentPlan, ResultRow

EVERY_S = 20.0
"""Seconds between two lines about the running episode, without a terminal."""

EnvironmentName = Annotated[
    str,
    typer.Argument(
        help="textworld, babyai, bfcl, alfworld, scienceworld, miniwob, wiki, or MODULE:CLASS of your own "
        "environment (world:Corridor for world.py in this folder)."
    ),
]
TrainSeeds = Annotated[
    str | None,
    typer.Option(help="Training seeds, from the train fold, as A-B.", show_default="0-449, or all that exist"),
]
EvalSeeds = Annotated[
    str | None,
    typer.Option(
        help="Test seeds, from --eval-fold, as A-B.",
        show_default="100-149, or the last 50; 10 of them if a model decides",
    ),
]
PolicyName = Annotated[
    str,
    typer.Option(
        help="auto, which chooses between episodic and lookahead by its own tests of them; episodic; lookahead; a chat "
        "model such as openai:gpt-5; or folder:PATH, a chat model that runs in this process: no key, server or GPU; "
        "see `hardwon model`. ranked:NAME asks it several times and takes the action "
        "that the library's estimates like best; ranked@EXPORT:NAME, the one that a trained ranker likes best."
    ),
]
RolesFolder = Annotated[
    Path | None,
    typer.Option(
        help=f"{HELP} The policy replaces --policy; guide and extractor serve the arms that recall.",
        show_default=False,
    ),
]
LibraryPath = Annotated[
    Path | None,
    typer.Option(
        metavar="LIBRARY",
        help="The library to learn into, a file or postgresql://USER@HOST/DB.",
        show_default="OUT/library.db",
        parser=parse_library,
    ),
]
OtherLibraries = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="LIBRARY",
        help="Another library to recall from as well, while that improves outcomes; repeat it for several.",
        parser=parse_library,
    ),
]
StrategyFile = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with a table of settings for each strategy; the learner and the arm strategies choose one "
        "for every episode by its successes and its cost.",
    ),
]


def run(
    environment: EnvironmentName,
    game: Annotated[str | None, typer.Option(help="A game of the environment: mapreader, coin, GoToLocal, ...")] = None,
    params: Annotated[str, typer.Option(help="Parameters of the game, as NAME=NUMBER, NAME=NUMBER.")] = "",
    episodes: Annotated[int, typer.Option(help="Episodes to learn from, per agent seed.")] = 100,
    train_seeds: TrainSeeds = None,
    eval_fold: Annotated[str, typer.Option(help="Fold to test on: train, dev or test.")] = "dev",
    eval_seeds: EvalSeeds = None,
    eval_every: Annotated[
        str,
        typer.Option(
            help="Test after every N episodes, or after each of a list: 10,25,50,100. Default: N/4, or only at both "
            "ends if a model decides."
        ),
    ] = "",
    arms: Annotated[
        str,
        typer.Option(
            help="Arms to compare, of random,empty,task,step,unguarded,skills,demonstrations,search,strategies."
        ),
    ] = ("random,empty,task,step"),
    policy: PolicyName = "episodic",
    roles: RolesFolder = None,
    device: Annotated[str, typer.Option(help="Device of --roles: cpu, cuda, or auto: a GPU if any.")] = "auto",
    library: LibraryPath = None,
    beside: OtherLibraries = None,
    strategies: StrategyFile = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            "--seed", "-s", help="Agent seed; repeat it for several.", show_default="0 1 2; 0 if a model decides"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results: episodes.jsonl, curve.png and result.json.",
            show_default="runs/ENVIRONMENT-GAME",
        ),
    ] = None,
    max_steps: Annotated[int, typer.Option(min=1, help="Largest number of steps of an episode.")] = 50,
    budget: Annotated[
        str, typer.Option(help="fixed: --max-steps ends an episode; learned: also the lengths of earlier successes do.")
    ] = "fixed",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Agent seeds to run in parallel. Default: one per core.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    more_seeds: Annotated[
        list[int] | None, typer.Argument(help="More agent seeds, after --seed.", show_default=False)
    ] = None,
) -> None:
    """Let an agent learn in ENVIRONMENT and compare it with agents that do not use its experience."""
    from hardwon.apps.experiment import ExperimentPlan
    from hardwon.runtime.environments import open_environment

    is_model = asks_model(policy, roles)
    open_world = partial(open_environment, environment, game=game, params=params)
    train, test = choose_seeds(open_world, train_seeds, eval_fold, eval_seeds, is_model)
    folder = out or Path("runs") / re.sub(r"[^\w.]+", "-", f"{environment} {game or ''}".strip())
    plan = ExperimentPlan(
        environment=environment, game=game, params=params, episodes=episodes,
        checkpoints=parse_checkpoints(eval_every, episodes, is_model), train_seeds=train, eval_fold=eval_fold,
        eval_seeds=test, arms=tuple(part.strip() for part in arms.split(",") if part.strip()), policy=policy,
        roles=str(roles or ""), device=device, library=str(library or folder / "library.db"),
        seeds=choose_agent_seeds([*(seed or ()), *(more_seeds or ())], is_model), max_steps=max_steps,
        budget=cast(Any, budget), beside=tuple(map(str, beside or ())), strategies=str(strategies or ""),
    )  # fmt: skip
    result = execute(plan, folder, jobs=jobs)
    if as_json:
        print(json.dumps(result))
    else:
        print_result(result, folder)


def check_env(
    environment: EnvironmentName,
    game: Annotated[str | None, typer.Option(help="A game of the environment.")] = None,
    params: Annotated[str, typer.Option(help="Parameters of the game, as NAME=NUMBER, NAME=NUMBER.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Play ENVIRONMENT at random and say what an agent could not learn in it; the exit code is then 1."""
    from hardwon.apps.experiment.environment_check import EPISODES, check_environment
    from hardwon.runtime.environments import open_environment

    world = open_environment(environment, game=game, params=params)
    try:
        findings = check_environment(world)
    finally:
        world.close()
    if as_json:
        print(json.dumps({"learnable": not findings, "findings": [asdict(finding) for finding in findings]}))
    for finding in () if as_json else findings:
        print(f"{finding.problem}\n    {finding.remedy}")
    if not as_json and not findings:
        print(f"{EPISODES} episodes were played, and nothing stands in the way of learning. Next:")
        print(f"  hardwon run {environment}{f' --game {game}' if game else ''} --episodes 40")
    if findings:
        raise typer.Exit(1)


def execute(plan: "ExperimentPlan", out: Path, *, jobs: int | None = None) -> dict[str, Any]:
    """Run a plan with a progress bar on stderr, and write result.json and curve.png into `out`."""
    from hardwon.apps.experiment import run_plan, summarise

    if plan.roles:
        from hardwon.trainers.exports import find_roles, read_manifest

        export = Path(plan.roles)
        tell_unused(export, find_roles(export, read_manifest(export)), ("policy", "guide", "extractor"))
    elif plan.policy:
        check_policy(plan.policy)
    tell(describe_cost(plan))
    began = time.perf_counter()
    try:
        with _Progress(plan) as progress:
            rows = run_plan(plan, out, jobs=jobs, on_row=progress.advance, on_resume=partial(progress.resume, out))
    except KeyboardInterrupt:
        print(
            f"\nstopped. Finished episodes are in {library_name(plan.library)}; run the same command to continue.",
            file=sys.stderr,
        )
        raise
    result: dict[str, Any] = {
        "arms": summarise(plan, rows),
        "library": library_name(plan.library),
        "libraries": plan.list_libraries() if plan.learns else [],
        "environment": plan.environment,
        "game": plan.game,
        "params": plan.params,
        "episodes": plan.episodes,
        "eval": {"fold": plan.eval_fold, "seeds": [plan.eval_seeds[0], plan.eval_seeds[-1]]},
        "seeds": list(plan.seeds),
        "policy": plan.policy,
        **({"roles": plan.roles} if plan.roles else {}),
        "wall_s": round(time.perf_counter() - began, 1),
        "curve": None,
        "rows": str(out / "episodes.jsonl"),
    }
    result["curve"] = _draw_curve(plan, result["arms"], out / "curve.png")
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def describe_cost(plan: "ExperimentPlan") -> str:
    """Return what an experiment is going to play."""
    tests = plan.total() // len(plan.seeds) - plan.episodes * plan.learns
    learning = f"{plan.episodes} to learn from and " if plan.learns else ""
    seeds = "1 agent seed" if len(plan.seeds) == 1 else f"each of {len(plan.seeds)} agent seeds"
    text = f"{plan.total()} episodes of at most {plan.max_steps} steps: {learning}{tests} to test for {seeds}."
    if not asks_model(plan.policy, plan.roles):
        return text
    return f"{text} A model decides up to {plan.total() * plan.max_steps} times."


def _draw_curve(plan: "ExperimentPlan", arms: dict[str, Any], path: Path) -> str | None:
    """Draw the learning curves to `path` and return it; without matplotlib, name the extra on stderr."""
    from hardwon.apps.render.plot import draw_curve

    try:
        draw_curve(arms, path, f"{plan.game or plan.environment}: success on unseen tasks")
    except MissingExtra as error:
        print(f"The curve was not drawn: {error}", file=sys.stderr)
        return None
    return str(path)


class _Progress:
    """Progress bar on stderr with the number of finished episodes and the latest test results."""

    def __init__(self, plan: "ExperimentPlan") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("episodes", total=plan.total(), note="")
        self._note = ""
        self._plain = not console.is_terminal
        self._total, self._done, self._earlier = plan.total(), 0, 0
        self._began = self._last_print = time.monotonic()
        self._tests: dict[tuple[str, int], list[bool]] = {}

    def resume(self, out: Path, rows: "list[ResultRow]") -> None:
        """Count the episodes of an earlier run, and say what happens with them."""
        self._done = self._earlier = len(rows)
        for row in rows:
            self._note_test(row)
        self._bar.reset(self._task, completed=self._done, note=self._note)
        if self._done < self._total:
            tell(f"{self._done} of {self._total} episodes are in {out}, and the others are played now.")
        else:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime((out / "episodes.jsonl").stat().st_mtime))
            tell(f"Nothing is played: {out} has all results, of {when}. To start anew: rm -r {out}")

    def advance(self, row: "ResultRow") -> None:
        """Count one finished episode, or show how far the running one is."""
        if row["phase"] == "decide":
            self._show_step(row)
            return
        self._done += 1
        note = self._note_test(row)
        self._bar.update(self._task, advance=1, note=self._note)
        # Without a terminal, print a line per tenth: a redrawn bar would fill a log file.
        if self._plain and self._done % max(1, self._total // 10) == 0:
            self._print(note)

    def _note_test(self, row: "ResultRow") -> str:
        """Count the outcome of a test; return the rate of its arm, or nothing for another episode."""
        if row["phase"] != "test" or row["success"] is None:
            return ""
        tests = self._tests.setdefault((row["arm"], row["trained"]), [])
        tests.append(row["success"])
        self._note = f"{row['arm']} after {row['trained']}: {sum(tests)}/{len(tests)}"
        return self._note

    def _print(self, note: str) -> None:
        """Print a line with the time that is left at the pace so far."""
        self._last_print = time.monotonic()
        count = self._done - self._earlier
        rest_s = (self._last_print - self._began) / max(1, count) * (self._total - self._done)
        pace = f"{rest_s:.0f} s left" if rest_s < 120 else f"{rest_s / 60:.0f} min left"
        parts = (f"{self._done}/{self._total} episodes", pace if count and rest_s >= 1 else "", note)
        tell("  ".join(part for part in parts if part))

    def _show_step(self, row: "ResultRow") -> None:
        """Show the step of an episode whose policy takes seconds: beside the bar, or as a line now and then."""
        step = f"step {row['step']}, {row['seconds']:.1f} s a decision"
        self._bar.update(self._task, note=f"{self._note}  {step}".strip())
        if self._plain and time.monotonic() - self._last_print >= EVERY_S:
            self._print(step)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


ARMS = {
    "random": "acts at random",
    "empty": "has no library",
    "task": "asks it once per episode",
    "step": "asks before every action",
}
"""By arm, what its agent does, as the result explains it."""


def _format_arm(arm: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an arm."""
    low, high = arm["ci95"]
    harm = "-" if arm["harm_rate"] is None else f"{arm['harm_rate']:.0%}"
    figures = (f"{arm['mean_score']:.2f}", f"{arm['steps']:.1f}", f"{arm['blocked']:.1f}", f"{arm['task_lost']:.0%}")
    return f"{arm['success_rate']:.1%}", f"{low:.0%} - {high:.0%}", *figures, harm, f"{arm['cpu_s']:.0f} s"


def print_result(result: dict[str, Any], out: Path) -> None:
    """Print the table of arms and the paths of the results."""
    last = result["eval"]["seeds"]
    print(
        f"{result['environment']} {result['game'] or ''}".rstrip()
        + f": {result['eval']['fold']} seeds {last[0]}-{last[1]}, "
        f"agent seeds {', '.join(map(str, result['seeds']))}, after {result['episodes']} episodes"
    )
    columns = ("arm", "success", "95% range", "score", "steps", "blocked", "lost", "harm", "CPU")
    rows = [(name, *_format_arm(arm)) for name, arm in result["arms"].items()]
    print_figures(table(*columns, rows=rows, numbers=columns[1:], whole=("arm",)))
    if words := [f"{arm}: {ARMS[arm]}" for arm in result["arms"] if arm in ARMS]:
        print("; ".join(words) + "\nharm: share of tasks that empty solved and this arm did not")
    if len(result["seeds"]) == 1:
        print("The range covers the tasks of one agent seed. Agents of other seeds differ; add: --seed 0 1 2")
    excluded = sum(arm["excluded"] for arm in result["arms"].values())
    if excluded:
        print(f"{excluded} episodes are excluded because the environment failed.")
    curve = [f"curve    {result['curve']}"] if result["curve"] else []
    print("\n".join([*curve, f"episodes {out / 'episodes.jsonl'}"]))
    if result["libraries"]:
        print(f"library  {result['library']}\n\nSee what it learned:  hardwon memory ls {result['library']}")
        print(f"See its reasons:      hardwon memory ls {result['library']} --episodes")
