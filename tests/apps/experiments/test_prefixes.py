from pathlib import Path

from examples.experiments.prefixes import SHARES, ShareCounts, count_mixed, format_counts

from hardwon.trainers.config.schema import load

EXAMPLE = Path(__file__).parents[3] / "examples" / "algorithms" / "prefixed.yaml"


def test_a_group_is_mixed_if_some_episodes_solve_the_task_and_some_do_not():
    """Of four groups one is mixed; a partial outcome counts as a success, and an episode that broke counts nowhere."""
    groups: list[list[float | None]] = [[1.0, 0.0, 0.0], [0.0, 0.0, None], [1.0, None], [0.5, 1.0]]
    assert count_mixed(groups) == ShareCounts(mixed=1, groups=4, wins=4, episodes=8)


def test_a_table_has_a_row_per_share_and_an_interval():
    counts = {share: ShareCounts(3, 4, 5, 10) for share in SHARES}
    lines = format_counts({"start": counts}).splitlines()
    assert lines[0] == "| f | start: groups with both outcomes | successes (95 %) |"
    assert lines[-1] == "| 0.9 | 3 of 4 | 5 of 10 (0.24 to 0.76) |"
    assert len(lines) == 2 + len(SHARES)


def test_the_example_begins_with_parts_of_the_environments_own_solution():
    config = load(EXAMPLE)
    assert config.tasks.demonstrations == ("gold",)
    assert [*config.tasks.compose] == ["prefixed"]
    assert not set(config.tasks.train.all) & set(config.tasks.eval.all)
