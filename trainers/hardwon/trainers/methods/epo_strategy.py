"""EPO (explicit strategies, arXiv:2502.12486)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "EPO (explicit strategies)",
    "arXiv:2502.12486",
    evidence="C",
    needs=("steps",),
    reading="the strategy is what the policy says before each action (`speech`), so one model writes and follows it; "
    "the mean of the group is subtracted, because weights of 0 and more imitate every strategy",
    settings={"roles.policy.settings.speech": "tagged"},
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def epo_strategy(traces: Sequence[Trace], *, discount: float = 0.99) -> Advantages:
    """Compute the return of process scores divided by its largest absolute value, less the group's mean (EPO).

    A turn whose strategy mattered scores 1, the last turn the outcome, and all others 0 (arXiv:2502.12486). A trace
    without any label is left out.

    Args:
        traces: Traces of any number of groups.
        discount: Discount of the scores.
    """
    advantages: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    labels = {trace.id: trace.read_signal("steps") for trace in traces}
    for group in group_siblings(traces):
        returns = {}
        for trace in group:
            if any(label is not None for label in labels[trace.id]):
                scores = [float((label or 0.0) > 0.5) for label in labels[trace.id]]
                returns[trace.id] = discount_scores([*scores[:-1], trace.outcome], discount)
        if len(returns) > 1:
            mean = fmean(fmean(values) for values in returns.values())
            advantages |= {name: [value - mean for value in values] for name, values in returns.items()}
    return advantages


def discount_scores(scores: Sequence[float], discount: float = 0.99) -> list[float]:
    """Return the discounted sums to the end, divided by the largest absolute value; zeros stay zeros.

    Worked example (row 33): scores 0, 1, 0, 0.8 and the discount 0.99 give 1.76624, 1.78408, 0.792, 0.8, and divided by
    1.78408: 0.990, 1, 0.444, 0.448.
    """
    returns, following = [], 0.0
    for score in reversed(scores):
        following = score + discount * following
        returns.append(following)
    largest = max(map(abs, returns), default=0.0)
    return [value / largest if largest else 0.0 for value in reversed(returns)]
