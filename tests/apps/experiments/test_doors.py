from pathlib import Path

from examples.experiments.doors import Reached, format_costs, format_table

from hardwon.trainers.config.schema import load

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_doors.yaml"


def reached(worlds: dict[str, float]) -> Reached:
    return Reached(worlds, cpu_s=1500.4, weights=2_310_000)


def test_a_run_tells_what_it_took():
    assert format_costs({0: {"slea": reached({})}}) == "slea, seed 0: 1,500 CPU-s, 2.31 M weights"


def test_a_difference_is_paired_by_world_and_the_mean_is_of_the_seeds_in_each_world():
    start, better = reached({"a": 0.0, "b": 0.5}), reached({"a": 0.5, "b": 0.5})
    shown = format_table(
        {0: {"start": start, "grpo": better, "slea": start}, 1: {"start": start, "grpo": start, "slea": start}}
    )
    assert shown.splitlines()[2:] == [
        "| start | 0.250 | 0.250 | 0.250 |",
        "| grpo | 0.500 (+0.250 ± 0.250) | 0.250 (+0.000 ± 0.000) | 0.375 (+0.125 ± 0.125) |",
        "| slea | 0.250 (+0.000 ± 0.000) | 0.250 (+0.000 ± 0.000) | 0.250 (+0.000 ± 0.000) |",
        "| slea beside grpo | -0.250 ± 0.250 | +0.000 ± 0.000 | -0.125 ± 0.125 |",
    ]


def test_the_example_is_a_run():
    config = load(EXAMPLE)
    assert config.roles["policy"].credit.name == "slea"
    assert not set(config.tasks.train.all) & set(config.tasks.eval.all)
