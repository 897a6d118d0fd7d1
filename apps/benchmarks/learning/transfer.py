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

from benchmarks.harness.intervals import compute_paired_interval
from benchmarks.harness.results import Results
from benchmarks.harness.tables import Place, Row
from hardwon.memory.errors import ConfigError, UnknownName

from .learn import CASES, Case

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
    place = Place(write, "transfer") if write else None
    figures = compare(wanted, run(wanted, out, jobs=jobs))
    lines = format_table(wanted, figures)
    if place:
        place.fill("\n".join(lines))
    print(json.dumps({"rows": figures}) if as_json else "\n".join(lines))


def run(wanted: Transfer, out: Path, *, jobs: int = 1) -> list[Row]:
    """Run the missing learning and test cells and return one row per test episode.

    Raises:
        ConfigError: If `out` holds results of other settings.
    """
    setup = {"episodes": wanted.episodes, "fold": wanted.fold, "tests": wanted.tests}
    results = Results(out / "episodes.jsonl", setup)

    def list_rows(cell: Cell) -> list[Row]:
        source, game, seed = cell
        return results.find(library=source, game=game, agent_seed=seed)

    # A cell of which the end is missing is played again, because cells are run as a unit; its new rows count.
    cells = [cell for cell in wanted.cells() if len(list_rows(cell)) < len(wanted.tests)]
    learnt = dict.fromkeys((source.removesuffix(SUCCESSES), seed) for source, _, seed in cells if source != EMPTY)
    for _ in _run_each(jobs, _learn, [(out, wanted, source, seed) for source, seed in learnt]):
        pass
    for new in _run_each(jobs, _test, [(out, wanted, cell) for cell in cells]):
        results.add(*new)
    return [row for cell in wanted.cells() for row in list_rows(cell)[-len(wanted.tests) :]]


def _run_each(jobs: int, work: Callable[..., list[Row]], tasks: Sequence[tuple[Any, ...]]) -> Iterable[list[Row]]:
    # In this process, errors are easier to trace and tests can replace functions.
    if jobs == 1 or len(tasks) < 2:
        yield from (work(*task) for task in tasks)
        return
    with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(work, *task) for task in tasks]):
            yield future.result()


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
            for number in range(library.episodes.count(), wanted.episodes):
                agent.run("train", order[number % len(order)])
            library.admin.index()
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
        for row in reversed(full.episodes.find()):
            if row["success"]:
                successes.record(full.episodes.get(row["id"]))
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
            low, high = compute_paired_interval([a["success"] - b["success"] for a, b in pairs])
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
