"""Open a library and ask it what it knows, and why the agent did what it did.

    python examples/quickstart.py                      makes runs/quickstart.db
    python examples/inspect_library.py [LIBRARY]

The same on the command line: hardwon memory ls, hardwon memory search, hardwon memory show.
"""

import sys
from pathlib import Path
from textwrap import shorten

from hardwon.memory import ExperienceLibrary, Step


def what_it_knows(library: ExperienceLibrary) -> None:
    """The items that were distilled from experience, the most useful first."""
    for item in library.items(limit=5):
        print(f"  {item.kind}: {item.title}\n    {item.body}; on the evidence of {len(item.provenance)} steps")


def what_speaks_of(library: ExperienceLibrary, text: str) -> None:
    """Steps and items found by words and by meaning, each with the reason."""
    for hit in library.search(text, k=3):
        found = hit.what
        if isinstance(found, Step):
            print(f"  step: {found.action}, where this was seen: {shorten(found.pre.observation, 80)}")
        else:
            print(f"  {found.kind}: {found.title}")
        print(f"    near by {hit.similarity:.2f}; {hit.why}")


def why_it_did_that(library: ExperienceLibrary) -> None:
    """The last episode's actions, each with the estimate and the earlier steps it rests on."""
    episode = library.trajectory(library.trajectories(limit=1)[0]["id"])
    print(f"  {episode.task}")
    for step in episode.steps[:5]:
        if "value" not in step.why:
            print(f"  {step.action}\n    to try something" if step.why.get("explored") else f"  {step.action}")
            continue
        value, steps = step.why["value"], step.why["n"]
        print(f"  {step.action}\n    a return of {value:.2f} was expected, from {steps} steps such as:")
        for before in library.steps(step.why["like"])[-2:]:
            happened = shorten(before.post.feedback or before.post.observation, 60)
            print(f"      {before.action} -> {happened} (return {before.return_to_go:.2f})")


def main() -> None:
    """Three questions to one library."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart.db")
    if not path.exists():
        sys.exit(f"There is no library at {path}; examples/quickstart.py makes one.")
    with ExperienceLibrary.open(path, read_only=True) as library:
        print("What it knows:")
        what_it_knows(library)
        print("\nWhat speaks of the instructions:")
        what_speaks_of(library, "read the instructions book")
        print("\nWhy it did what it did in its last episode, the first steps:")
        why_it_did_that(library)


if __name__ == "__main__":
    main()
