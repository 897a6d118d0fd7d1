"""Let an agent learn a text game from its own experience, without a language model.

    pip install '.[games]'
    python examples/quickstart.py

In Pecking Order, the player follows the instructions of several instructors in the right order. The agent starts as a
beginner, plays 30 games and records them in a library. Before and after, it plays 20 evaluation games without
learning. The example takes about 10 seconds on one core and leaves the library in `runs/quickstart.db`.
"""

from pathlib import Path

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, EpisodicPolicy, TextWorldExpress

LIBRARY = Path("runs/quickstart.db")


def count_wins(library: ExperienceLibrary) -> int:
    """Return the number of wins in 20 evaluation games, without learning from them."""
    player = Agent(EpisodicPolicy(), library, TextWorldExpress("peckingorder"), learn=False)
    wins = sum(bool(player.run("dev", seed).success) for seed in range(200, 220))
    player.close()
    return wins


def main() -> None:
    """Evaluate, learn from 30 games, and evaluate again."""
    LIBRARY.parent.mkdir(exist_ok=True)
    LIBRARY.unlink(missing_ok=True)  # start as a beginner in every run
    with ExperienceLibrary.open(LIBRARY) as library:
        before = count_wins(library)
        learner = Agent(EpisodicPolicy(), library, TextWorldExpress("peckingorder"))
        for seed in range(30):
            learner.run("train", seed)
        learner.close()
        after = count_wins(library)
        stats = library.admin.stats()
    print(f"before: {before} of 20 games won")
    print(f"after:  {after} of 20, after learning from {stats['episodes']} episodes ({stats['steps']} steps)")
    print(f"List what it learned: hardwon memory ls {LIBRARY}")


if __name__ == "__main__":
    main()
