"""Extra examples: demonstrations beside the rollouts of a group from which nothing can be learned otherwise."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hardwon.memory import Trajectory
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.imitation import clean_trajectory
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, Sample, pack_samples

Demonstrate = Callable[[str, int], Trajectory | None]
"""Returns a success of a task instance, by split and seed, or None."""


RenderEpisode = Callable[[Trajectory], Sequence[Sample]]
"""Returns the samples of a trajectory as the policy would see them."""


@PARTS.add(
    "extra",
    "HPT (unified view)",
    "arXiv:2509.04419",
    evidence="C",
    name="gate",
    method="hpt",
    demonstrations=True,
    acted="sft_share",
    reading="the demonstration is the explored success of the task instance, with the loss kind imitation for both",
    settings={"roles.policy.loss.kind": "imitation"},
    example={"explore.tries": 4, "roles.policy.extra.gate.successes": 0},
)
def gate_groups(
    rollouts: Sequence[Rollout],
    advantages: Mapping[str, Sequence[float]],
    demonstrate: Demonstrate,
    render: RenderEpisode,
    *,
    successes: int = 0,
    weight: float = 1.0,
) -> tuple[dict[str, list[float]], list[PackedSequence], dict[str, float]]:
    """Replace the advantages of a group with few successes by one demonstration to imitate (HPT, arXiv:2509.04419).

    A group of one task instance and arm is trained either by its advantages or by the demonstration, never by both.
    Without a demonstration it keeps its advantages.

    Args:
        rollouts: Rollouts of any number of groups.
        advantages: One advantage per turn, by trace id.
        demonstrate: Returns a success of a task instance.
        render: Returns the samples of a demonstration.
        successes: Successes of a group up to which it is replaced; 2 for a weak base in the authors' settings.
        weight: Coefficient of the imitation; 0.3 for their smallest model.

    Returns:
        The advantages, the sequences to imitate, and metrics.
    """
    groups: dict[tuple[str, str, str], list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group, rollout.trajectory.arm, rollout.root].append(rollout)
    changed = {name: list(values) for name, values in advantages.items()}
    extra: list[PackedSequence] = []
    replaced = 0
    for (name, arm, _), group in groups.items():
        if sum((rollout.outcome or 0.0) > 0 for rollout in group) > successes:
            continue
        task, _, seed = name.rpartition("#")
        best = demonstrate(task, int(seed))
        path = None if best is None else clean_trajectory(best)
        if path is None or not path.steps:
            continue
        replaced += 1
        for rollout in group:
            changed[rollout.trajectory.id] = [0.0] * len(changed[rollout.trajectory.id])
        trace = f"demonstration/{name}/{arm}"
        rows = [replace(row, trace=trace) for row in render(path)]
        extra += pack_samples(rows, {trace: [weight] * len(rows)})
    return changed, extra, {"sft_share": replaced / max(1, len(groups))}
