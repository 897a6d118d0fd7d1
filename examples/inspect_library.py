"""Open a library, search it, and explain the actions of the last episode.

    python examples/quickstart.py                      creates runs/quickstart.db
    python examples/inspect_library.py [LIBRARY]

The command line has the same functions: hardwon memory ls, hardwon memory search, hardwon memory show.
"""

import sys
from pathlib import Path
from textwrap import shorten

from hardwon.memory import ExperienceLibrary, Step


def print_items(library: ExperienceLibrary) -> None:
    """Print the most useful items that the library has learned."""
    for item in library.items.find(limit=5):
        print(f"  {item.kind}: {item.title}\n    {item.body}; supported by {len(item.provenance)} steps")


def print_matches(library: ExperienceLibrary, text: str) -> None:
    """Print the steps and items that match a text by words or by meaning, each with the reason."""
    for hit in library.search(text, k=3):
        match = hit.what
        if isinstance(match, Step):
            print(f"  step: {match.action}, when the agent saw: {shorten(match.pre.observation, 80)}")
        else:
            print(f"  {match.kind}: {match.title}")
        print(f"    similarity {hit.similarity:.2f}; {hit.why}")


def explain_actions(library: ExperienceLibrary) -> None:
    """Print the first actions of the last episode, with each estimate and the earlier steps behind it."""
    episode = library.episodes.get(library.episodes.find(limit=1)[0]["id"])
    print(f"  {episode.task}")
    for step in episode.steps[:5]:
        why = step.why
        if why.value is None:  # no estimate: the action was unknown in this situation
            print(f"  {step.action}\n    exploration" if why.explored else f"  {step.action}")
            continue
        print(f"  {step.action}\n    a return of {why.value:.2f} was expected, from {why.count} steps such as:")
        for earlier in library.episodes.steps(why.similar or ())[-2:]:
            result = shorten(earlier.post.feedback or earlier.post.observation, 60)
            print(f"      {earlier.action} -> {result} (return {earlier.return_to_go:.2f})")


def main() -> None:
    """Print the items, a search result and an explanation."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart.db")
    if not path.exists():
        sys.exit(f"There is no library at {path}; run examples/quickstart.py to create one.")
    with ExperienceLibrary.open(path, read_only=True) as library:
        print("Most useful items:")
        print_items(library)
        print('\nMatches for the query "read the instructions book":')
        print_matches(library, "read the instructions book")
        print("\nWhy the agent chose the first actions of its last episode:")
        explain_actions(library)


if __name__ == "__main__":
    main()
