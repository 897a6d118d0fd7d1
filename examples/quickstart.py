"""An agent learns a text game from its own experience, without a language model.

    pip install '.[textworld]'
    python examples/quickstart.py

Pecking Order: do what the instructor says, in the order that the game wants. The agent plays 30 games,
starting as a beginner, and keeps a library of what it did. Before and after, it plays 20 games that
it does not learn from. About 10 seconds on one core; the library is left in `runs/quickstart.db`.
"""

from pathlib import Path

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, EpisodicPolicy, TextWorldExpress

LIBRARY = Path("runs/quickstart.db")


def solved(library: ExperienceLibrary) -> int:
    """Of 20 games that nobody learns from, those won."""
    player = Agent(EpisodicPolicy(), library, TextWorldExpress("peckingorder"), learn=False)
    wins = sum(bool(player.run("dev", seed).success) for seed in range(200, 220))
    player.close()
    return wins


def main() -> None:
    """Play, learn, play again."""
    LIBRARY.parent.mkdir(exist_ok=True)
    LIBRARY.unlink(missing_ok=True)
    with ExperienceLibrary.open(LIBRARY) as library:
        before = solved(library)
        learner = Agent(EpisodicPolicy(), library, TextWorldExpress("peckingorder"))
        for seed in range(30):
            learner.run("train", seed)
        learner.close()
        after = solved(library)
        figures = library.stats()
    print(f"before: {before} of 20 games won")
    print(f"after:  {after} of 20, having learnt from {figures['episodes']} episodes of {figures['steps']} steps")
    print(f"See what it knows: hardwon memory ls {LIBRARY}")


if __name__ == "__main__":
    main()
