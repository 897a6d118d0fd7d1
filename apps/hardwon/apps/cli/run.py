"""Define `hardwon run`, which trains and tests an agent in an environment and prints a table of the arms."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hardwon.apps.shared.common import library_name, parse_library
from hardwon.apps.shared.trained import HELP, check_policy, tell_unused
from hardwon.memory.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from hardwon.apps.experiment import Plan, Row

TRAIN_SEEDS = "0-449"
EVAL_SEEDS = "100-149"
EVERY_TIMES = 4
"""Number of tests during training, unless `--eval-every` is given."""
EVERY_S = 20.0
"""Seconds between two lines about the running episode, without a terminal."""

EnvironmentName = Annotated[
    str,
    typer.Argument(
        help="textworld, babyai, bfcl, alfworld, scienceworld, miniwob, wiki, or MODULE:CLASS of your own "
        "environment (world:Pantry for world.py in this folder)."
    ),
]
TrainSeeds = Annotated[
    str | None,
    typer.Option(help="Training seeds, from the train fold, as A-B.", show_default="0-449, or all that exist"),
]
EvalSeeds = Annotated[
    str | None,
    typer.Option(help="Test seeds, from --eval-fold, as A-B.", show_default="100-149, or the last 50"),
]
PolicyName = Annotated[
    str,
    typer.Option(
        help="auto, which chooses between episodic and outlook by its own tests of them; episodic; outlook; a chat "
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
        str, typer.Option(help="Test after every N episodes, or after each of a list: 10,25,50,100. Default: N/4.")
    ] = "",
    arms: Annotated[
        str,
        typer.Option(
            help="Arms to compare, of random,empty,task,step,unguarded,skills,demonstrations,search,strategies."
        ),
    ] = ("random,empty,task,step"),
    policy: PolicyName = "episodic",
    roles: RolesFolder = None,
    library: LibraryPath = None,
    beside: OtherLibraries = None,
    strategies: StrategyFile = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", "-s", help="Agent seed; repeat it for several.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the results: episodes.jsonl, curve.png and result.json.")
    ] = Path("runs/run"),
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
    from hardwon.apps.experiment import Plan

    checkpoints = parse_checkpoints(eval_every, episodes)
    train, test = choose_seeds(environment, game, params, train_seeds, eval_fold, eval_seeds)
    plan = Plan(
        environment=environment, game=game, params=params, episodes=episodes, checkpoints=checkpoints,
        train_seeds=train, eval_fold=eval_fold, eval_seeds=test,
        arms=tuple(part.strip() for part in arms.split(",") if part.strip()), policy=policy,
        roles=str(roles or ""), library=str(library or out / "library.db"),
        seeds=(*(seed or [0]), *(more_seeds or ())), max_steps=max_steps, budget=cast(Any, budget),
        beside=tuple(map(str, beside or ())), strategies=str(strategies or ""),
    )  # fmt: skip
    result = execute(plan, out, jobs=jobs)
    if as_json:
        print(json.dumps(result))
    else:
        print_result(result, out)


def execute(plan: "Plan", out: Path, *, jobs: int | None = None) -> dict[str, Any]:
    """Run a plan with a progress bar on stderr, and write result.json and curve.png into `out`.

    Args:
        plan: The experiment.
        out: Folder of the results.
        jobs: Number of agent seeds to run at once; None for one per core.

    Returns:
        The content of result.json: the figures of every arm, the plan, and the paths of the other files. `curve` is
        None without matplotlib: the figures of a long run are worth more than its picture.
    """
    from hardwon.apps.experiment import run_plan, summarise
    from hardwon.runtime.environments import open_environment

    if plan.roles:
        from hardwon.trainers.exports import find_roles, read_manifest

        export = Path(plan.roles)
        tell_unused(export, find_roles(export, read_manifest(export)), ("policy", "guide", "extractor"))
    elif plan.policy:
        check_policy(plan.policy)
    # Fail on a wrong name or a missing package before worker processes start.
    open_environment(plan.environment, game=plan.game, params=plan.params).close()
    began = time.perf_counter()
    try:
        with _Progress(plan) as progress:
            rows = run_plan(plan, out, jobs=jobs, on_row=progress.advance)
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


def _draw_curve(plan: "Plan", arms: dict[str, Any], path: Path) -> str | None:
    """Draw the learning curves to `path` and return it; without matplotlib, name the extra on stderr."""
    from hardwon.apps.render.plot import draw_curve

    try:
        draw_curve(arms, path, f"{plan.game or plan.environment}: success on unseen tasks")
    except MissingExtra as error:
        print(f"The curve was not drawn: {error}", file=sys.stderr)
        return None
    return str(path)


def choose_seeds(
    environment: str, game: str | None, params: str, train: str | None, fold: str, test: str | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the training and test seeds: the given ones, else those that the environment has.

    Args:
        environment: Name of the environment.
        game: A game of the environment.
        params: Parameters of the game.
        train: Training seeds as A-B, or None.
        fold: Name of the test fold.
        test: Test seeds as A-B, or None.
    """
    given = [None if text is None else parse_seeds(text) for text in (train, test)]
    if given[0] is not None and given[1] is not None:
        return given[0], given[1]
    from hardwon.runtime.environments import count_seeds, open_environment

    world = open_environment(environment, game=game, params=params)
    try:
        existing = [given[n] or count_seeds(world, name) for n, name in enumerate(("train", fold))]
    finally:
        world.close()
    learned, tested = parse_seeds(TRAIN_SEEDS), parse_seeds(EVAL_SEEDS)
    if isinstance(existing[0], int):
        learned = learned[: existing[0]]
    # A small fold: test on its last seeds, so that train and test seeds overlap as little as possible.
    if isinstance(existing[1], int) and existing[1] <= tested[-1]:
        tested = tuple(range(max(0, existing[1] - len(tested)), existing[1]))
    return given[0] or learned, given[1] or tested


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a range such as `100-149` or a number such as `7`.

    Raises:
        ConfigError: The text is not a range, or runs backwards.
    """
    first, dash, last = text.strip().partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise ConfigError(f"seeds are {text!r}; write them as A-B, for example 100-149.")
    seeds = tuple(range(int(first), int(last or first) + 1))
    if not seeds:
        raise ConfigError(f"seeds are {text!r}, a range that runs backwards; write the smaller number first.")
    return seeds


def parse_checkpoints(text: str, episodes: int) -> tuple[int, ...]:
    """Return the episode counts at which to test: 0, every N episodes or each of a list, and the last.

    Args:
        text: `--eval-every`: a number, a comma-separated list, or an empty string for the default.
        episodes: Number of training episodes.

    Raises:
        ConfigError: The text is neither a number nor a list of numbers.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(not part.isdigit() for part in parts) or parts == ["0"]:
        raise ConfigError(f"--eval-every is {text!r}; give a number of episodes, or a list such as 10,25,50,100.")
    if len(parts) > 1:
        points = {int(part) for part in parts}
    else:
        points = set(range(0, episodes + 1, int(parts[0]) if parts else max(1, episodes // EVERY_TIMES)))
    return tuple(sorted({0, episodes, *(point for point in points if point <= episodes)}))


class _Progress:
    """Progress bar on stderr with the number of finished episodes and the latest test results."""

    def __init__(self, plan: "Plan") -> None:
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
        self._total, self._done = plan.total(), 0
        self._last_print = time.monotonic()
        self._tests: dict[tuple[str, int], list[bool]] = {}

    def advance(self, row: "Row") -> None:
        """Count one finished episode, or show how far the running one is."""
        if row["phase"] == "decide":
            self._show_step(row)
            return
        self._done += 1
        note = ""
        if row["phase"] == "test" and row["success"] is not None:
            tests = self._tests.setdefault((row["arm"], row["trained"]), [])
            tests.append(row["success"])
            note = f"{row['arm']} after {row['trained']}: {sum(tests)}/{len(tests)}"
        self._note = note or self._note
        self._bar.update(self._task, advance=1, note=self._note)
        # Without a terminal, print a line per tenth: a redrawn bar would fill a log file.
        if self._plain and self._done % max(1, self._total // 10) == 0:
            print(f"{self._done}/{self._total} episodes  {note}", file=sys.stderr, flush=True)

    def _show_step(self, row: "Row") -> None:
        """Show the step of an episode whose policy takes seconds: beside the bar, or as a line now and then."""
        step = f"step {row['step']}, {row['seconds']:.1f} s a decision"
        self._bar.update(self._task, note=f"{self._note}  {step}".strip())
        if self._plain and time.monotonic() - self._last_print >= EVERY_S:
            self._last_print = time.monotonic()
            print(f"{self._done}/{self._total} episodes  {step}", file=sys.stderr, flush=True)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def print_result(result: dict[str, Any], out: Path) -> None:
    """Print the table of arms and the paths of the results."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    last = result["eval"]["seeds"]
    table = Table(
        title=f"{result['environment']} {result['game']}".rstrip()
        + f": {result['eval']['fold']} seeds {last[0]}-{last[1]}, "
        f"agent seeds {', '.join(map(str, result['seeds']))}, after {result['episodes']} episodes",
        title_justify="left",
    )
    for name in ("arm", "success", "95% range", "score", "steps", "blocked", "lost", "harm", "CPU"):
        table.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for name, arm in result["arms"].items():
        low, high = arm["ci95"]
        harm = "-" if arm["harm_rate"] is None else f"{arm['harm_rate']:.0%}"
        table.add_row(
            name,
            f"{arm['success_rate']:.1%}",
            f"{low:.0%} - {high:.0%}",
            f"{arm['mean_score']:.2f}",
            f"{arm['steps']:.1f}",
            f"{arm['blocked']:.1f}",
            f"{arm['task_lost']:.0%}",
            harm,
            f"{arm['cpu_s']:.0f} s",
        )
    console.print(table)
    excluded = sum(arm["excluded"] for arm in result["arms"].values())
    if excluded:
        console.print(f"{excluded} episodes are excluded because the environment failed.")
    curve = [f"curve    {result['curve']}"] if result["curve"] else []
    print("\n".join([*curve, f"episodes {out / 'episodes.jsonl'}"]))
    if result["libraries"]:
        print(f"library  {result['library']}\n\nSee what it learned:  hardwon memory ls {result['library']}")
        print(f"See its reasons:      hardwon memory ls {result['library']} --episodes")
