"""Estimators by the kind of reasoning of a turn."""

from collections.abc import Sequence

from hardwon.trainers.algorithms.advantages import (
    Advantages,
    Trace,
    center,
    compare_outcomes,
    group_siblings,
    standardize,
)
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "RLVMR",
    "arXiv:2507.22844",
    evidence="C",
    needs=("tags",),
    reading="both terms are centered and added, as in the authors' code; `std` divides by the standard deviations; "
    "the tag is one of four that the policy must choose, so no imitation has to teach it",
    settings={"roles.policy.settings.speech": "tagged"},
)
def rlvmr(traces: Sequence[Trace], *, weight: float = 0.5, std: bool = False, bonus: float = 1.0) -> Advantages:
    """Compute A = c(R) + weight c(r | same tag in the group) (RLVMR, arXiv:2507.22844).

    A tag earns the bonus only if the turn's own action is valid. `planning` earns in a successful episode, `explore`
    if no earlier valid turn took the same action, and `reflection` at the first turn, or after an invalid turn if the
    action changed. Without tags the advantage is c(R). Tags that occur once change nothing.

    Args:
        traces: Traces of any number of groups.
        weight: Weight of the tag term; 0.5 in the authors' configuration, 1.0 in their run scripts.
        std: Divide both terms by their standard deviations.
        bonus: Reward of a turn that meets the rule of its tag.
    """
    relative = standardize if std else center
    advantages = compare_outcomes(traces, relative)
    for group in group_siblings(traces):
        tagged: dict[str, list[tuple[str, int, float]]] = {}
        for trace in group:
            for t, tag in enumerate(trace.tags):
                if tag:
                    tagged.setdefault(tag, []).append((trace.id, t, bonus * _is_tag_earned(trace, t)))
        for turns in tagged.values():
            for (name, t, _), value in zip(turns, relative([reward for *_, reward in turns]), strict=True):
                advantages[name][t] += weight * value if len(group) > 1 else 0.0
    return advantages


def _is_tag_earned(trace: Trace, t: int) -> bool:
    """Return whether a turn meets the rule of its tag."""
    turn, tag = trace.turns[t], trace.tags[t]
    if not turn.valid:
        return False
    if tag == "planning":
        return trace.outcome > 0
    if tag == "explore":
        return all(not earlier.valid or earlier.action != turn.action for earlier in trace.turns[:t])
    if tag != "reflection":
        return False
    return t == 0 or (not trace.turns[t - 1].valid and trace.turns[t - 1].action != turn.action)
