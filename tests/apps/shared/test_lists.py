from dataclasses import replace

from hardwon.apps.render.views import format_estimates
from hardwon.apps.shared import explain, lists
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.learning.rule_mining import strategy_id

GENERAL = "take {1} | tried 0 to unknown | 1:T"
SPECIAL = "take {1} | tried 0 to unknown | 1:T | inventory -"


def test_a_strategy_that_is_part_of_an_estimate_which_chose_an_action_was_used(tmp_path, episode):
    """Once an episode, whatever key the estimate names; a random action, and a key of another action, do not count."""

    def record(library, why):
        run = episode()
        steps = tuple(replace(s, keys=("*", "take {1}", GENERAL, SPECIAL), why=why) for s in run.steps)
        library.record(replace(run, steps=steps))
        return library.episodes.find(limit=1)[0]["id"]

    with ExperienceLibrary.open(tmp_path / "own.db") as library:
        chosen = [record(library, {"key": SPECIAL, "value": 0.5}) for _ in range(3)]
        for why in ({"explored": True}, {"key": "", "value": 0.0}, {}):
            record(library, why)
        steps = tuple(step.id for step in library.episodes.get(chosen[0]).steps if step.id is not None)
        for key in (GENERAL, SPECIAL, "put {1} in {2} | tried 0 to unknown | 1:T"):
            library.add(
                Item(
                    "strategy",
                    f"Prefer {key}",
                    id=strategy_id(key),
                    provenance=steps,
                    source="experience",
                    writer="rules",
                )
            )
        library.add(Item("strategy", "Prefer `open X` when you can", id="st-other", source="experience"))
        found, _ = lists.list_items(library, ["strategy"], sort="used", limit=9)
        used = dict(zip([item.id for item in found], lists.count_uses(library, found), strict=True))
        assert explain.explain_item(library, strategy_id(GENERAL))["estimated"] == 3
    assert used[strategy_id(GENERAL)] == used[strategy_id(SPECIAL)] == 3
    assert sum(used.values()) == 6
    assert {item.id for item in found[:2]} == {strategy_id(GENERAL), strategy_id(SPECIAL)}
    assert format_estimates(3) == "Part of the estimate that chose an action in 3 episodes."


def test_episodes_are_listed_by_the_time_at_which_they_began(library, episode):
    began = ["2026-01-01T10:00:00.500000+00:00", None, "2026-01-01T10:00:00+00:00", "2030-01-01T00:00:00+00:00", 7]
    for n, at in enumerate(began):
        library.record(replace(episode(), id=f"e-{n}", meta={} if at is None else {"started_at": at}))
    rows, total = lists.list_episodes(library, 9)
    assert ([row["id"] for row in rows], total) == (["e-3", "e-4", "e-1", "e-0", "e-2"], 5)
    assert [row["id"] for row in lists.list_episodes(library, 2, 1)[0]] == ["e-4", "e-1"]
    assert [row["id"] for row in lists.list_episodes(library, 3, sort="recorded")[0]] == ["e-4", "e-3", "e-2"]
