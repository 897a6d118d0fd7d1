"""`hardwon bench transfer`: measure whether the library of one game helps or harms in another.

For every ordered pair of games, an agent learns the first and is tested on the second, frozen and greedy. The same
agent with an empty library plays the same episodes with the same random numbers, so paired episodes differ only in the
library. An interrupted run continues: libraries and finished cells are kept.
"""

import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hardwon.memory.errors import ConfigError, UnknownName

from .learn import CASES, Case

BEGIN, END = "<!-- bench transfer: begin -->", "<!-- bench transfer: end -->"
EMPTY = "empty"
SUCCESSES = " successes"
"""Suffix of the name of a library that holds only the successful episodes of a game."""
GAMES: Mapping[str, Case] = {
    **{name: CASES[name] for name in ("mapreader", "coin", "cookingworld", "twc", "gotolocal")},
    "simonsays": Case("textworld", "simonsays", "", 100, ()),
    "peckingorder": Case("textworld", "peckingorder", "", 100, ()),
    "sorting": Case("textworld", "sorting", "", 100, ()),
    "arithmetic": Case("textworld", "arithmetic", "", 100, ()),
}
"""Games that can be paired, with the parameters of `bench learn`."""
DEFAULT = "mapreader,coin,cookingworld,twc,simonsays"
TRAIN_SEEDS = range(450)
"""Seeds of the train fold; tests use another fold."""

Row = dict[str, Any]
Cell = tuple[str, str, int]
"""Name of the library, game under test, agent seed."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The settings of a run, stored beside the results so that results of different settings are never mixed."""

    games: tuple[str, ...]
    episodes: int
    fold: str
    tests: tuple[int, ...]
    seeds: tuple[int, ...]
    successes: bool = False
    """Whether to also test a library of each game's successful episodes in the same game."""

    def __post_init__(self) -> None:
        for game in self.games:
            if game not in GAMES:
                raise UnknownName.of("game", game, GAMES)
        if len(self.games) < 2 or len(set(self.games)) != len(self.games):
            raise ConfigError(f"games are {list(self.games)}; give at least two, each once.")

    def cells(self) -> list[Cell]:
        """Return every pair of a library and a game, for every agent seed."""
        return [(source, game, seed) for seed in self.seeds for game in self.games for source in self.sources(game)]

    def sources(self, game: str) -> tuple[str, ...]:
        """Return the libraries that are tested on a game."""
        return (EMPTY, *self.games, *([f"{game}{SUCCESSES}"] if self.successes else []))


def transfer(
    games: Annotated[str, typer.Option(help=f"Games to pair, of {', '.join(GAMES)}.")] = DEFAULT,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes that each library learns from.")] = 100,
    tests: Annotated[str, typer.Option(help="Seeds of the dev fold to test on, as A-B.")] = "200-229",
    seeds: Annotated[str, typer.Option(help="Agent seeds, as A-B.")] = "0-2",
    successes: Annotated[
        bool, typer.Option("--successes", help="Also test a library of each game's successful episodes only.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for libraries and results; finished parts are reused.")] = Path(
        "runs/transfer"
    ),
    write: Annotated[Path | None, typer.Option(help="Markdown file whose marked section receives the table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Test the library of each game on every other game, compared with an empty library on the same episodes."""
    from hardwon.apps.experiment.seeds import parse_seeds

    names = tuple(name.strip() for name in games.split(",") if name.strip())
    wanted = Transfer(
        games=names,
        episodes=episodes,
        fold="dev",
        tests=parse_seeds(tests),
        seeds=parse_seeds(seeds),
        successes=successes,
    )
    if write is not None and BEGIN not in write.read_text(encoding="utf-8"):
        raise ConfigError(f"{write} has no line {BEGIN!r}; add it and {END!r} where the table belongs.")
    figures = compare(wanted, run(wanted, out, jobs=jobs))
    lines = format_table(wanted, figures)
    if write is not None:
        head, _, rest = write.read_text(encoding="utf-8").partition(BEGIN)
        _, _, tail = rest.partition(END)
        write.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}", encoding="utf-8")
    print(json.dumps({"rows": figures}) if as_json else "\n".join(lines))


def run(wanted: Transfer, out: Path, *, jobs: int = 1) -> list[Row]:
    """Run the missing learning and test cells and return one row per test episode.

    Raises:
        ConfigError: If `out` holds results of other settings.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = _load_earlier_rows(wanted, out)
    done = {(row["library"], row["game"], row["agent_seed"]) for row in rows}
    cells = [cell for cell in wanted.cells() if cell not in done]
    learnt = dict.fromkeys((source.removesuffix(SUCCESSES), seed) for source, _, seed in cells if source != EMPTY)
    for _ in _run_each(jobs, _learn, [(out, wanted, source, seed) for source, seed in learnt]):
        pass
    with (out / "episodes.jsonl").open("a", encoding="utf-8") as file:
        for new in _run_each(jobs, _test, [(out, wanted, cell) for cell in cells]):
            file.write("".join(json.dumps(row) + "\n" for row in new))
            file.flush()
            rows += new
    return rows


def _run_each(jobs: int, work: Callable[..., list[Row]], tasks: Sequence[tuple[Any, ...]]) -> Iterable[list[Row]]:
    # In this process, errors are easier to trace and tests can replace functions.
    if jobs == 1 or len(tasks) < 2:
        yield from (work(*task) for task in tasks)
        return
    with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(work, *task) for task in tasks]):
            yield future.result()


def _load_earlier_rows(wanted: Transfer, out: Path) -> list[Row]:
    """Return the rows of finished cells.

    Raises:
        ConfigError: If the rows come from a run with other settings.
    """
    settings = {"episodes": wanted.episodes, "fold": wanted.fold, "tests": list(wanted.tests)}
    config, episodes = out / "transfer.json", out / "episodes.jsonl"
    if config.exists() and json.loads(config.read_text(encoding="utf-8")) != settings:
        raise ConfigError(f"{out} holds the results of other settings. Give another --out, or remove it.")
    config.write_text(json.dumps(settings) + "\n", encoding="utf-8")
    if not episodes.exists():
        return []
    lines = episodes.read_text(encoding="utf-8").splitlines(keepends=True)
    # A line without its newline was cut off when the run stopped.
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    cells: dict[Cell, list[Row]] = {}
    for row in rows:
        cells.setdefault((row["library"], row["game"], row["agent_seed"]), []).append(row)
    # A cell with missing episodes is dropped, because cells are run as a unit.
    complete = [row for cell in cells.values() if len(cell) == len(wanted.tests) for row in cell]
    episodes.write_text("".join(json.dumps(row) + "\n" for row in complete), encoding="utf-8")
    return [row for row in complete if row["game"] in wanted.games and row["agent_seed"] in wanted.seeds]


def _library_path(out: Path, source: str, seed: int) -> str:
    return ":memory:" if source == EMPTY else str(out / f"{source.replace(' ', '-')}-seed{seed}.db")


def _learn(out: Path, wanted: Transfer, source: str, seed: int) -> list[Row]:
    """Continue learning a game until its library has the required number of episodes."""
    import random

    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent
    from hardwon.runtime.environments import open_environment
    from hardwon.runtime.policies.episodic import EpisodicPolicy

    case = GAMES[source]
    order = random.Random(f"order:{seed}").sample(TRAIN_SEEDS, min(len(TRAIN_SEEDS), wanted.episodes))
    environment = open_environment(case.environment, game=case.game, params=case.params)
    with ExperienceLibrary.open(_library_path(out, source, seed)) as library:
        agent = Agent(EpisodicPolicy(), library, environment, arm="step", max_steps=case.max_steps, seed=seed)
        try:
            for number in range(library.episodes, wanted.episodes):
                agent.run("train", order[number % len(order)])
            library.index()
        finally:
            agent.close()
    return []


def _keep_successes(out: Path, source: str, seed: int) -> None:
    """Copy the successful episodes of a game's library into a separate library."""
    from hardwon.memory import ExperienceLibrary

    game = source.removesuffix(SUCCESSES)
    with (
        ExperienceLibrary.open(_library_path(out, game, seed), read_only=True) as full,
        ExperienceLibrary.open(_library_path(out, source, seed)) as successes,
    ):
        # `trajectories` lists the newest first; evolution depends on the order of recording.
        for row in reversed(full.trajectories()):
            if row["success"]:
                successes.record(full.trajectory(row["id"]))
                successes.evolve()


def _test(out: Path, wanted: Transfer, cell: Cell) -> list[Row]:
    """Play the test episodes of one cell, frozen and greedy."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.agent import Agent
    from hardwon.runtime.environments import open_environment
    from hardwon.runtime.policies.episodic import EpisodicPolicy

    source, game, seed = cell
    case = GAMES[game]
    environment = open_environment(case.environment, game=case.game, params=case.params)
    rows = []
    if source.endswith(SUCCESSES):
        _keep_successes(out, source, seed)
    with ExperienceLibrary.open(_library_path(out, source, seed)) as library:
        agent = Agent(
            EpisodicPolicy(), library, environment, arm="step", max_steps=case.max_steps, seed=seed, learn=False
        )
        try:
            for test_seed in wanted.tests:
                episode = agent.run(wanted.fold, test_seed).trajectory
                rows.append(
                    {
                        "library": source,
                        "game": game,
                        "agent_seed": seed,
                        "seed": test_seed,
                        "success": bool(episode.success),
                        "score": round(episode.score, 4),
                        "steps": len(episode.steps),
                        "loops": sum(step.diagnosis.loop for step in episode.steps),
                        "blocked": sum(len(step.why.blocked or ()) for step in episode.steps),
                    }
                )
        finally:
            agent.close()
    return rows


def compare(wanted: Transfer, rows: Sequence[Row]) -> list[Row]:
    """Return the figures of every pair: successes and the paired difference to an empty library."""
    won = {(row["library"], row["game"], row["agent_seed"], row["seed"]): row for row in rows}
    figures = []
    for game in wanted.games:
        for source in wanted.sources(game):
            cells = [
                [(won[source, game, seed, test_seed], won[EMPTY, game, seed, test_seed]) for test_seed in wanted.tests]
                for seed in wanted.seeds
            ]
            pairs = [pair for cell in cells for pair in cell]
            means = [sum(a["success"] - b["success"] for a, b in cell) / len(cell) for cell in cells]
            low, high = compute_paired_interval([[a["success"] - b["success"] for a, b in cell] for cell in cells])
            figures.append(
                {
                    "library": source,
                    "game": game,
                    "of": len(wanted.tests),
                    "successes": [sum(a["success"] for a, _ in cell) for cell in cells],
                    "difference": sum(means) / len(means),
                    "low": low,
                    "high": high,
                    "score": sum(a["score"] for a, _ in pairs) / len(pairs),
                    "steps": sum(a["steps"] for a, _ in pairs) / len(pairs),
                    "loops": sum(a["loops"] for a, _ in pairs) / len(pairs),
                    "worse": high < 0,
                }
            )
    return figures


def compute_paired_interval(seeds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95% interval of the mean paired difference, over all episodes of all agent seeds.

    Paired episodes share the game, the episode and the random numbers. Differences between agent seeds are part of the
    variance.
    """
    values = [value for seed in seeds for value in seed]
    n, mean = len(values), sum(values) / len(values)
    half = 1.96 * (sum((value - mean) ** 2 for value in values) / max(1, n - 1) / n) ** 0.5
    return mean - half, mean + half


def format_table(wanted: Transfer, figures: Sequence[Row]) -> list[str]:
    """Return a Markdown table with a line per library and a column per game.

    `**` marks a cell that is significantly worse than an empty library.
    """
    by_cell = {(row["library"], row["game"]): row for row in figures}
    lines = [f"| library of | {' | '.join(wanted.games)} |", f"|---|{'---|' * len(wanted.games)}"]
    for source in (EMPTY, *wanted.games):
        cells = " | ".join(_format_cell(by_cell[source, game]) for game in wanted.games)
        lines.append(f"| {source} | {cells} |")
    if wanted.successes:
        cells = " | ".join(_format_cell(by_cell[f"{game}{SUCCESSES}", game]) for game in wanted.games)
        lines.append(f"| the same game, successes alone | {cells} |")
    return lines


def _format_cell(row: Row) -> str:
    mean = sum(row["successes"]) / len(row["successes"])
    if row["library"] == EMPTY:
        return f"{mean:.1f} {row['successes']}"
    of = row["of"]
    text = f"{mean:.1f} ({of * row['low']:+.1f} to {of * row['high']:+.1f})"
    return f"**{text}**" if row["worse"] else text
