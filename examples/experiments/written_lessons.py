"""Follow lessons from their episodes to the tasks that need them: which are kept, and which are recalled.

    python examples/experiments/written_lessons.py runs/sizes/32.db
    python examples/experiments/written_lessons.py runs/sizes/32.db --write runs/all-lessons.db
    python examples/experiments/written_lessons.py runs/sizes/32.db --read runs/lessons.db --fold test --tasks 30

The first command offers every rewarded lesson of the episodes of a library to the curator of a copy, and counts its
answers. `--write` keeps the copy: the library of an extractor that keeps exactly the rewarded lessons. With `--read`, a
library that an extractor has read (`hardwon memory evolve`), the last one also recalls in the tasks of twc, at their
start and once the thing is in the inventory. It counts the tasks in which a recalled lesson says where their own thing
belongs, and names the lesson that is recalled most often.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.records import Add
from hardwon.runtime import open_environment
from hardwon.trainers.checkpoint import copy_library
from hardwon.trainers.roles.note_generators import item_of, lessons, text_of

ONE_THING = "numLocations=1, numItemsToPutAway=1, includeDoors=0, limitInventorySize=0"
MOST = 10_000


def count_answers(path: Path, out: Path | None) -> Counter[str]:
    """Offer every rewarded lesson of a library's episodes to the curator, oldest first, and count its answers."""
    answers: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = out or Path(folder) / "copy.db"
        copy_library(path, copy)
        with ExperienceLibrary.open(copy) as library:
            for row in reversed(library.trajectories(limit=MOST)):
                episode = library.trajectory(row["id"])
                for lesson in lessons(episode):
                    if not lesson.text.endswith("rewarded"):
                        continue
                    item = item_of(lesson.text, episode, lesson.steps, "extractor", 0)
                    (answer,) = library.apply([Add(item)], episode, [])
                    kept = text_of(library.get(answer.item_id)) if answer.item_id else ""
                    changed = answer.status == "merged" and kept != lesson.text
                    answers[f"{answer.status} into other words" if changed else answer.status] += 1
    return answers


def count_recalled(path: Path, fold: str, tasks: int, k: int) -> tuple[Counter[str], tuple[str, int]]:
    """Recall at the start of tasks; return the counts, and the lesson that is recalled most often, with how often."""
    counts: Counter[str] = Counter()
    recalled: Counter[str] = Counter()
    environment = open_environment("textworld", game="twc", params=ONE_THING)
    try:
        with ExperienceLibrary.open(path, read_only=True) as library:
            counts["lessons of a model"] = sum(item.source == "model" for item in library.items())
            for seed in range(tasks):
                state = environment.reset(fold, seed)
                actions = environment.admissible(state)
                thing = next(action for action in actions if action.startswith("take ")).removeprefix("take ")
                counts["tasks"] += 1
                for moment in ("at the start", "with the thing in the inventory"):
                    hits = library.recall(state, k=k, level="step", actions=dict.fromkeys(actions, "")).items
                    texts = [text_of(hit.what) for hit in hits if isinstance(hit.what, Item)]
                    recalled.update({*texts})
                    counts[f"a lesson about it {moment}"] += any(f"put {thing} in " in text for text in texts)
                    state, *_ = environment.step(f"take {thing}")
                    actions = environment.admissible(state)
    finally:
        environment.close()
    return counts, recalled.most_common(1)[0] if recalled else ("", 0)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="a library with recorded episodes")
    parser.add_argument("--write", type=Path, help="new file for the copy with the rewarded lessons")
    parser.add_argument("--read", type=Path, help="a library that an extractor has read")
    parser.add_argument("--fold", default="test")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--recall", type=int, default=3)
    given = parser.parse_args()
    print("offered to the curator:", dict(count_answers(given.library, given.write)))
    if given.read is not None:
        counts, (lesson, times) = count_recalled(given.read, given.fold, given.tasks, given.recall)
        print("recalled:", dict(counts))
        print(f"most often: {lesson!r} in {times} of {2 * given.tasks} situations")


if __name__ == "__main__":
    main()
