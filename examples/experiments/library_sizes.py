"""Grow libraries of several sizes, and one that is wrong, to evaluate a trained policy with each of them.

    python examples/experiments/library_sizes.py runs/sizes --fold test --sizes 8,32,128,512
    hardwon eval runs/train_smollm2_policy --library runs/sizes/32.db --fold test --seeds 0-29 --temperature 0

The agent without a model plays the instances of a fold one after the other and learns as it goes; `32.db` is its
library after 32 episodes. In `wrong.db`, the episodes of the largest library are about other things: coats and pans
have each other's names in all of them, so the lessons are false. Do not evaluate with a seed that was played.
"""

import argparse
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hardwon.memory import ExperienceLibrary, State, Step, Trajectory
from hardwon.runtime import Agent, open_environment
from hardwon.trainers.checkpoint import copy_library
from hardwon.trainers.rollouts.renaming import Names, Rename

ONE_THING = "numLocations=1, numItemsToPutAway=1, includeDoors=0, limitInventorySize=0"


def rename_episode(episode: Trajectory, rename: Rename) -> Trajectory:
    """Return the episode about other things, as a new record."""
    steps = tuple(
        Step(
            _rename_state(step.pre, rename),
            rename(step.action),
            _rename_state(step.post, rename),
            step.diagnosis,
            step.reward,
            step.t,
            admissible=tuple(map(rename, step.admissible)),
        )
        for step in episode.steps
    )
    return replace(episode, steps=steps, id="")


def _rename_state(state: State, rename: Rename) -> State:
    return State(
        rename(state.observation),
        location=rename(state.location),
        task=rename(state.task),
        feedback=rename(state.feedback),
        notes=tuple(map(rename, state.notes)),
    )


def grow(out: Path, fold: str, first: int, sizes: Sequence[int], params: str) -> list[Trajectory]:
    """Play instances of a fold, keep a copy of the library at every size, and return the episodes."""
    environment = open_environment("textworld", game="twc", params=params)
    episodes: list[Trajectory] = []
    with (
        ExperienceLibrary.open(out / "growing.db") as library,
        closing(Agent("episodic", library, environment, arm="step", max_steps=20)) as agent,
    ):
        for number in range(1, max(sizes) + 1):
            episodes.append(agent.run(fold, first + number - 1).trajectory)
            if number in sizes:
                copy_library(library.path, out / f"{number}.db")
                print(f"{number} episodes, {sum(bool(e.success) for e in episodes)} solved", flush=True)
    return episodes


def main() -> None:
    """Write the libraries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="new folder for the libraries")
    parser.add_argument("--params", default=ONE_THING)
    parser.add_argument("--fold", default="test")
    parser.add_argument("--first", type=int, default=200, help="first seed that is played")
    parser.add_argument("--sizes", default="8,32,128,512")
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    sizes = [int(size) for size in given.sizes.split(",")]
    episodes = grow(given.out, given.fold, given.first, sizes, given.params)
    names = Names({action for episode in episodes for step in episode.steps for action in step.admissible})
    rename = names.shuffle(random.Random(0))
    with ExperienceLibrary.open(given.out / "wrong.db") as library:
        library.record_many([rename_episode(episode, rename) for episode in episodes])
        library.evolve()
    print(f"{len(episodes)} episodes about other things")


if __name__ == "__main__":
    main()
