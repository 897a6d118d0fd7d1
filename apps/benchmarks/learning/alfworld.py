"""`hardwon bench alfworld`: what experience is worth in household tasks, by a protocol that strangers can repeat.

    none       the same agent with an empty library
    steps      raw recalled steps alone: no items, no plan, no guardrails
    own        the library of the games to learn from, with plans bound from its successes
    other      the library of another game about a house
    shuffled   the own library, in which every solution has the task of another game

Every game of the test part is played once by every arm and agent seed, without a language model. Split, versions and
options are in the first line of the one file of results; the other lines are one episode each. The run stops with an
error if a library is empty, if the arms `steps` and `own` show nothing of it, or if anything recalled was recorded in
the game that is played. An interrupted run continues.
"""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from benchmarks.harness.results import Results
from benchmarks.harness.tables import Row
from hardwon.apps.shared.common import AsJson, out as console, print_figures, say_json, table, tell
from hardwon.memory.errors import ConfigError, HardwonError, UnknownName

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime import Agent

ARMS = ("none", "steps", "own", "other", "shuffled")
SPEAKING = ("steps", "own")
"""Arms whose library is about this game, so that a run in which nothing of it is shown is broken."""
OTHER_EPISODES = 100


class Leaked(HardwonError, RuntimeError):
    """Something recalled was recorded in the game that is being played."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The options that decide the figures, as the first line of the results has them."""

    split: str
    fold: int
    source: str
    seeds: int
    max_steps: int
    most: int
    learn_games: int
    test_games: int
    alfworld: str
    textworld: str
    python: str


def alfworld(
    data: Annotated[
        Path | None, typer.Option(envvar="ALFWORLD_DATA", help="Folder of games, or of an archive of games.")
    ] = None,
    split: Annotated[str, typer.Option(help="thirds: a third of the floor plans is held out; official.")] = "thirds",
    fold: Annotated[int, typer.Option(min=0, max=2, help="The third that is held out.")] = 0,
    source: Annotated[str, typer.Option(help="What the own library learns from: walkthroughs, or own play.")] = (
        "walkthroughs"
    ),
    arms: Annotated[str, typer.Option(help=f"Arms to play, of {','.join(ARMS)}.")] = ",".join(ARMS),
    seeds: Annotated[int, typer.Option(min=1, help="Number of agent seeds: 0, 1, ...")] = 1,
    max_steps: Annotated[int, typer.Option(min=1, help="Largest number of steps of an episode.")] = 50,
    most: Annotated[int, typer.Option(min=0, help="Play only so many games of each part, for a trial; 0 for all.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of libraries and results; an unfinished run continues.")] = Path(
        "runs/alfworld"
    ),
    report: Annotated[
        bool, typer.Option("--report", help="Print the table of the episodes so far, play none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what experience is worth in ALFWorld's games, in rooms that it was not recorded in."""
    from .alfworld_games import check_version, find_folder, split_games

    names = tuple(part.strip() for part in arms.split(",") if part.strip())
    for name in names:
        if name not in ARMS:
            raise UnknownName.of("arm", name, ARMS)
    if source not in ("walkthroughs", "own"):
        raise UnknownName.of("source", source, ("walkthroughs", "own"))
    installed = check_version()
    folds = split_games(find_folder(data, out / "games"), split, fold)
    if most:
        folds = {part: files[:most] for part, files in folds.items()}
    setup = Setup(
        split=split, fold=fold, source=source, seeds=seeds, max_steps=max_steps, most=most,
        learn_games=len(folds["learn"]), test_games=len(folds["test"]),
        alfworld=installed, textworld=version("textworld"), python=platform.python_version(),
    )  # fmt: skip
    tell(json.dumps(asdict(setup)))
    rows = Results(out / "results.jsonl", asdict(setup))
    for seed in range(0 if report else seeds):
        play_seed(setup, folds, names, seed, out, rows)
    summary = {"setup": asdict(setup), "arms": summarise(rows.rows, names, setup)}
    if as_json:
        say_json(summary)
    else:
        print_summary(summary)


def play_seed(
    setup: Setup, folds: Mapping[str, Sequence[str]], arms: Sequence[str], seed: int, folder: Path, results: Results
) -> None:
    """Play all games with all arms; all arms play a game before the next one begins."""
    with ExitStack() as stack:
        players = {arm: stack.enter_context(_open_arm(arm, setup, folds, seed, folder)) for arm in arms}
        for number, file in enumerate(folds["test"]):
            game = name_game(file)
            for arm, player in players.items():
                if not results.find(arm=arm, seed=seed, game=game):
                    results.add(player.play(number, game, seed))
            if (number + 1) % max(1, len(folds["test"]) // 10) == 0:
                tell(f"seed {seed}: {number + 1} of {len(folds['test'])} games")
        for arm, player in players.items():
            shown = sum(len(row["shown"]) for row in results.find(arm=arm, seed=seed))
            tell(f"{arm}, seed {seed}: items loaded {player.loaded}, shown {shown}")
            if arm in SPEAKING and not shown:
                raise ConfigError(f"The arm {arm!r} showed nothing of {player.loaded} items; its figure means nothing.")


class _Player:
    """One arm: an agent with its library, and the game of every recorded episode."""

    def __init__(self, arm: str, agent: "Agent", library: "ExperienceLibrary", learned: Sequence[str]) -> None:
        self._arm, self._agent, self._library = arm, agent, library
        figures = library.admin.stats()
        self.loaded = figures["steps"] + sum(figures["items"].values())
        self._games = {
            row["id"]: name_game(learned[int(row["seed"])]) if row["meta"].get("environment") == "alfworld/all" else ""
            for row in library.episodes.find()
        }

    def play(self, number: int, game: str, seed: int) -> Row:
        """Play a game and return its row.

        Raises:
            Leaked: Something recalled was recorded in this game.
        """
        episode = self._agent.run("test", number).trajectory
        shown = self._list_shown(episode)
        if game in {self._games.get(source, "") for source in shown.values()}:
            raise Leaked(f"The arm {self._arm!r} recalled experience of {game} while it played {game}.")
        return {
            "arm": self._arm, "seed": seed, "game": game, "success": episode.success, "steps": len(episode.steps),
            "ending": str(episode.ending), "loaded": self.loaded, "shown": sorted(shown),
        }  # fmt: skip

    def _list_shown(self, episode: Any) -> dict[str, str]:
        """Return the ids of the steps, items and demonstrations behind the decisions, each with its episode."""
        steps, shown = set[int](), dict[str, str]()
        for step in episode.steps:
            steps |= set(step.why.similar or ())
            for ref in {*(step.why.recalled or ()), *(step.why.skills or ()), *(step.why.blocked or ())}:
                shown[f"item:{ref}"] = ""
                steps |= set(self._library.items.get(ref).provenance)
            if source := str(step.why.extra.get("demonstration", "")):
                shown[source] = source.removeprefix("episode:")
        for number, found in zip(sorted(steps), self._library.episodes.steps(sorted(steps)), strict=True):
            shown[f"step:{number}"] = found.why.trajectory or ""
        return shown


@contextmanager
def _open_arm(arm: str, setup: Setup, folds: Mapping[str, Sequence[str]], seed: int, folder: Path) -> Iterator[_Player]:
    """Open the library of an arm, which is learned first if it is not there, and an agent that only reads it."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime import Agent
    from hardwon.runtime.environments.alfworld import AlfWorld

    _prepare_library(arm, setup, folds, seed, folder)
    with ExperienceLibrary.open(_find_library(arm, seed, folder)) as library:
        figures = library.admin.stats()
        if arm != "none" and not figures["steps"]:
            raise ConfigError(f"The arm {arm!r} loaded 0 items. Remove {folder} and start again.")
        planner: Literal["demonstrations"] | None = None if arm == "steps" else "demonstrations"
        agent = Agent(
            "episodic", library, AlfWorld(folds=folds), arm="control" if arm == "none" else arm, learn=False,
            guardrails=arm != "steps", planner=planner, max_steps=setup.max_steps, seed=seed,
        )  # fmt: skip
        try:
            yield _Player(arm, agent, library, folds["learn"])
        finally:
            agent.close()


def _find_library(arm: str, seed: int, folder: Path) -> str:
    name = "own" if arm == "steps" else arm
    return ":memory:" if arm == "none" else str(folder / f"{name}-{seed}.db")


def _prepare_library(arm: str, setup: Setup, folds: Mapping[str, Sequence[str]], seed: int, folder: Path) -> None:
    """Learn the library of an arm; what an interrupted run recorded is kept."""
    from hardwon.memory import ExperienceLibrary

    from .alfworld_games import learn_alone, learn_other_game, learn_walkthroughs, shuffle_library

    done = folder / f"{arm}-{seed}.learned"
    if arm == "none" or done.exists():
        return
    if arm == "shuffled":
        _prepare_library("own", setup, folds, seed, folder)
        path = Path(_find_library(arm, seed, folder))
        for leftover in path.parent.glob(f"{path.name}*"):  # it is written anew, because its order matters
            if leftover.is_file():
                leftover.unlink()
    tell(f"{arm}, seed {seed}: learning")
    with ExperienceLibrary.open(_find_library(arm, seed, folder)) as library:
        if arm == "shuffled":
            with ExperienceLibrary.open(_find_library("own", seed, folder)) as own:
                shuffle_library(own, library, seed)
        elif arm == "other":
            learn_other_game(library, min(OTHER_EPISODES, setup.learn_games), seed)
        elif setup.source == "own":
            learn_alone(library, folds, setup.max_steps, seed)
        else:
            learn_walkthroughs(library, folds, setup.max_steps)
    done.touch()


def name_game(file: str) -> str:
    """Return the name of a game: the folders of its task and its trial."""
    return "/".join(Path(file).parts[-3:-1])


def summarise(rows: Sequence[Row], arms: Sequence[str], setup: Setup) -> list[Row]:
    """Return the figures of every arm over all seeds: rate, interval, by seed and by kind."""
    from hardwon.apps.experiment import interval

    lines = []
    for arm in arms:
        played = [row for row in rows if row["arm"] == arm and row["success"] is not None]
        per_seed = [[row for row in played if row["seed"] == seed] for seed in range(setup.seeds)]
        rates = [sum(row["success"] for row in of_seed) / len(of_seed) for of_seed in per_seed if of_seed]
        kinds: dict[str, list[bool]] = {}
        for row in played:
            kinds.setdefault(row["game"].partition("-")[0], []).append(row["success"])
        lines.append({
            "arm": arm, "success": round(sum(rates) / len(rates), 4) if rates else 0.0,
            "ci95": interval(rates, len(per_seed[0])) if rates else [0.0, 1.0],
            "solved": [sum(row["success"] for row in of_seed) for of_seed in per_seed],
            "of": [len(of_seed) for of_seed in per_seed],
            "loaded": max((row["loaded"] for row in played), default=0),
            "shown": sum(len(row["shown"]) for row in played),
            "steps": round(sum(row["steps"] for row in played) / len(played), 1) if played else 0.0,
            "excluded": sum(row["arm"] == arm and row["success"] is None for row in rows),
            "kinds": {kind: [sum(won), len(won)] for kind, won in sorted(kinds.items())},
        })  # fmt: skip
    return lines


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the setup and the tables of arms and kinds."""
    setup, arms = summary["setup"], summary["arms"]
    console().print(
        f"alfworld {setup['alfworld']}, textworld {setup['textworld']}, split {setup['split']}, fold {setup['fold']}, "
        f"{setup['test_games']} games in rooms that the {setup['learn_games']} games to learn from do not have, "
        f"learned from {setup['source']}"
    )
    cells = [
        [row["arm"], f"{row['success']:.1%}", f"{row['ci95'][0]:.0%} - {row['ci95'][1]:.0%}",
         ", ".join(f"{won} of {of}" for won, of in zip(row["solved"], row["of"], strict=True)),
         f"{row['steps']:.1f}", str(row["loaded"]), str(row["shown"]), str(row["excluded"])]
        for row in arms
    ]  # fmt: skip
    heads = ("arm", "success", "95% range", "solved by seed", "steps", "items loaded", "shown", "excluded")
    print_figures(table(*heads, rows=cells, numbers=[]))
    kinds = sorted({kind for row in arms for kind in row["kinds"]})
    by_kind = [[kind, *("{} of {}".format(*row["kinds"].get(kind, (0, 0))) for row in arms)] for kind in kinds]
    print_figures(table("kind of task", *(row["arm"] for row in arms), rows=by_kind, numbers=[]))
