"""The games of `hardwon bench alfworld`: where they are, how they are split, and what is recorded of them."""

import json
import random
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from hardwon.apps.shared.common import tell
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime import Agent, Decision
from hardwon.runtime.environments.alfworld import HOME, AlfWorld

PINNED = "0.4.2"
"""The version of the alfworld package with which all figures are measured: its grammar words the observations."""
THIRDS = 3
OFFICIAL = {"learn": "train", "test": "valid_unseen"}
"""ALFWorld's own folders for the split `official`."""
GAME = "game.tw-pddl"


def check_version() -> str:
    """Return the installed version of alfworld.

    Raises:
        MissingExtra: It is not installed.
        ConfigError: It is another version than the pinned one.
    """
    try:
        installed = version("alfworld")
    except PackageNotFoundError as error:
        raise MissingExtra.of("alfworld", "alfworld") from error
    if installed != PINNED:
        raise ConfigError(
            f"alfworld {installed} is installed; the figures are measured with {PINNED}. "
            f"Run: pip install alfworld=={PINNED}"
        )
    return installed


def find_folder(data: Path | None, unpacked: Path) -> Path:
    """Return the folder of the games; an archive in the given folder is unpacked first.

    Args:
        data: The folder that the user named, with games or with a `.tar.xz` or `.tar.gz` of them.
        unpacked: Where to unpack an archive.

    Raises:
        ConfigError: There is neither a game nor an archive.
    """
    if data is None or not data.is_dir():
        raise ConfigError(f"--data is {data}, not a folder. Give the folder of ALFWorld's games, or set {HOME}.")
    if next(data.rglob(GAME), None) is not None:
        return data
    archives = sorted([*data.glob("*.tar.xz"), *data.glob("*.tar.gz")])
    if not archives:
        raise ConfigError(f"{data} contains no {GAME} and no archive of them. Run alfworld-download, or give another.")
    done = unpacked / "done"
    if not done.exists():
        for archive in archives:
            with tarfile.open(archive) as file:
                # Python before 3.11.4 has no filters, and refuses the argument.
                safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                file.extractall(unpacked, **safe)
        done.touch()
    return unpacked


def split_games(folder: Path, split: str, fold: int) -> dict[str, tuple[str, ...]]:
    """Return the files to learn from and the files to test on.

    Args:
        folder: The folder of the games.
        split: `thirds` holds out every third of the sorted floor plans of all games, so no room of a test was ever
            seen; `official` learns from `train` and tests on `valid_unseen`.
        fold: The third that is held out, from 0.

    Raises:
        UnknownName: The split does not exist.
        ConfigError: A part is empty.
    """
    if split == "thirds":
        files = sorted(map(str, folder.rglob(GAME)))
        plans = sorted({find_floor_plan(file) for file in files})
        held_out = {plan for n, plan in enumerate(plans) if n % THIRDS == fold}
        parts = {
            "learn": tuple(file for file in files if find_floor_plan(file) not in held_out),
            "test": tuple(file for file in files if find_floor_plan(file) in held_out),
        }
    elif split == "official":
        parts = {part: tuple(sorted(map(str, (folder / name).rglob(GAME)))) for part, name in OFFICIAL.items()}
    else:
        raise UnknownName.of("split", split, ("thirds", "official"))
    for part, files_of_part in parts.items():
        if not files_of_part:
            raise ConfigError(f"{folder} has no game to {part} with the split {split!r}, fold {fold}.")
    # A fixed shuffle: whatever part of the games has been played is a fair sample of all kinds.
    return {part: tuple(random.Random("alfworld").sample(files, len(files))) for part, files in parts.items()}


def find_floor_plan(file: str) -> int:
    """Return the number of the floor plan of a game, the last part of its task's folder."""
    last = Path(file).parent.parent.name.rpartition("-")[2]
    return int(last) if last.isdigit() else -1


class Walkthrough:
    """A policy that repeats the recorded solution of each game."""

    name = "walkthrough"
    reads: Literal["values", "text"] = "values"

    def __init__(self) -> None:
        self.actions: Sequence[str] = ()

    def read(self, file: str) -> None:
        """Take the solution of a game from its file."""
        self.actions = json.loads(Path(file).read_text(encoding="utf-8"))["walkthrough"]

    def decide(self, context: Any) -> Decision:
        """Return the next action of the solution; a solution that does not fit the game ends with its last action."""
        return Decision(self.actions[min(len(context.history), len(self.actions) - 1)])

    async def adecide(self, context: Any) -> Decision:
        """Return the next action; nothing is awaited."""
        return self.decide(context)


def _learn(
    agent: Agent, library: ExperienceLibrary, fold: str, games: int, prepare: Callable[[int], object] = lambda n: None
) -> None:
    """Play the games that are not recorded yet; say after every tenth how long the rest takes."""
    first, began = library.admin.stats()["episodes"], time.monotonic()
    with closing(agent):
        for number in range(first, games):
            prepare(number)
            agent.run(fold, number)
            if (number + 1) % max(1, games // 10) == 0:
                minutes = (time.monotonic() - began) / (number + 1 - first) * (games - number - 1) / 60
                tell(f"learned from {number + 1} of {games} games; about {minutes:.0f} min left")


def learn_walkthroughs(library: ExperienceLibrary, folds: Mapping[str, Sequence[str]], max_steps: int) -> None:
    """Record the solutions of all games to learn from, those that are recorded already excepted."""
    policy, files = Walkthrough(), folds["learn"]
    agent = Agent(policy, library, AlfWorld(folds=folds), guardrails=False, max_steps=max_steps)
    _learn(agent, library, "learn", len(files), lambda number: policy.read(files[number]))


def learn_alone(library: ExperienceLibrary, folds: Mapping[str, Sequence[str]], max_steps: int, seed: int) -> None:
    """Let the agent play all games to learn from once, without any solution."""
    agent = Agent("episodic", library, AlfWorld(folds=folds), planner="demonstrations", max_steps=max_steps, seed=seed)
    _learn(agent, library, "learn", len(folds["learn"]))


def shuffle_library(source: ExperienceLibrary, target: ExperienceLibrary, seed: int) -> None:
    """Record every episode of a library under the task of another one; all else stays the same."""
    episodes = [source.episodes.get(row["id"]) for row in reversed(source.episodes.find())]
    # Each takes the task of the next one of a random circle, so none keeps its own.
    order = random.Random(f"shuffle:{seed}").sample(range(len(episodes)), len(episodes))
    tasks = {at: episodes[order[n - 1]].task for n, at in enumerate(order)}
    for at, episode in enumerate(episodes):
        steps = tuple(
            replace(step, pre=replace(step.pre, task=tasks[at]), post=replace(step.post, task=tasks[at]), keys=())
            for step in episode.steps
        )
        target.record(replace(episode, task=tasks[at], steps=steps, id=""))
        target.evolve()


def learn_other_game(library: ExperienceLibrary, episodes: int, seed: int) -> None:
    """Let an agent learn another game about a house, in which things are taken and put away."""
    from hardwon.runtime import TextWorldExpress

    _learn(Agent("episodic", library, TextWorldExpress("twc"), seed=seed), library, "train", episodes)
