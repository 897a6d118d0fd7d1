"""Preferences between whole traces as advantages."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.preference import pair_by_quality, weigh_tokens


@PARTS.add(
    "estimator",
    "StepORLM",
    "arXiv:2509.22558",
    evidence="N",
    needs=("steps",),
    exact=True,
    reading="the judge itself is not trained",
    unseen="beta (0.1), and whether there is a reference (none, as in the notes)",
    settings={
        "roles.policy.learner.denominator": "constant",
        "roles.policy.learner.constant": 1,
        "roles.policy.loss.kind": "imitation",
    },
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def preference(traces: Sequence[Trace], *, beta: float = 0.1) -> Advantages:
    """Compute token weights of -w log sigmoid(beta (log pi(+) - log pi(-))) over pairs of siblings (arXiv:2509.22558).

    With different outcomes, the right trace wins with w = 1. With equal ones, the larger share of right steps wins with
    the difference as w. Without a pair everything is 0. Use it with `loss: {kind: imitation}` and `learner:
    {denominator: constant, constant: 1}`, one update a step: then the gradient is exactly that of the preference loss.
    """
    batch = [trace for group in group_siblings(traces) for trace in group]
    labels = {trace.id: [label for label in trace.read_signal("steps") if label is not None] for trace in batch}
    quality = {name: fmean(label > 0.5 for label in own) for name, own in labels.items() if own}
    sums = {trace.id: sum(turn.logprob for turn in trace.turns) for trace in batch}
    weights = weigh_tokens(pair_by_quality(batch, quality), sums, beta=beta)
    # the learner divides by the number of traces, and the weights hold the mean over pairs already
    return {trace.id: [len(batch) * weights.get(trace.id, 0.0)] * len(trace.turns) for trace in batch}
