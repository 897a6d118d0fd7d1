"""GiGPO (arXiv:2505.10978)."""

from collections.abc import Callable, Iterable, Sequence

from hardwon.trainers.algorithms.advantages import (
    Advantages,
    Trace,
    center,
    compare_outcomes,
    group_siblings,
    standardize,
)
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add("estimator", "GiGPO", "arXiv:2505.10978", evidence="C")
def gigpo(traces: Sequence[Trace], *, discount: float = 0.95, omega: float = 1.0, std: bool = False) -> Advantages:
    """Compute A = A_E + omega A_S (Feng et al. 2025, GiGPO, arXiv:2505.10978).

    A_E compares the outcomes of the group and counts each trajectory once. The released code weights a
    trajectory by its number of steps. A_S compares the discounted returns of turns with the same anchor.
    It is 0 for a turn that is alone at its anchor.

    Args:
        traces: Traces of any number of groups.
        discount: Discount of the step returns.
        omega: Weight of the step advantage A_S.
        std: Divide both advantages by their std.
    """
    relative = standardize if std else center
    episode = compare_outcomes(traces, relative)
    step = compare_at_anchors(traces, discount, relative, lambda trace, t: trace.turns[t].anchor)
    return {name: [e + omega * s for e, s in zip(episode[name], step[name], strict=True)] for name in episode}


def compare_at_anchors(
    traces: Iterable[Trace],
    discount: float,
    relative: Callable[[list[float]], list[float]],
    anchor: Callable[[Trace, int], object],
) -> Advantages:
    """Compare the return of each turn with those of all sibling turns that have the same anchor."""
    advantages: Advantages = {}
    for group in group_siblings(traces):
        places: dict[object, list[tuple[str, int]]] = {}
        returns = {trace.id: trace.returns(discount) for trace in group}
        for trace in group:
            advantages[trace.id] = [0.0] * len(trace.turns)
            for t in range(len(trace.turns)):
                places.setdefault(anchor(trace, t), []).append((trace.id, t))
        for turns in places.values():
            for (name, t), value in zip(turns, relative([returns[n][t] for n, t in turns]), strict=True):
                advantages[name][t] = value
    return advantages
