from dataclasses import replace

from hardwon.apps import lists
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.evolution import strategy_id

KEY = "take {1} | tried 0 to unknown | 1:T | inventory -"


def test_a_strategy_whose_estimate_chose_an_action_was_used(tmp_path, episode):
    """Once an episode; other kinds and other keys are not."""
    with ExperienceLibrary.open(tmp_path / "own.db") as library:
        library.add(Item("strategy", "Prefer `take X`", id=strategy_id(KEY), source="experience", writer="rules"))
        library.add(Item("strategy", "Prefer `open X` when you can", id="st-other", source="experience"))
        for _ in range(3):
            run = episode()
            library.record(replace(run, steps=tuple(replace(s, why={"key": KEY, "value": 0.5}) for s in run.steps)))
        library.record(episode())
        found = library.items(["strategy"])
        used = dict(zip([item.id for item in found], lists.uses(library, found), strict=True))
    assert used == {strategy_id(KEY): 3, "st-other": 0}
