"""Estimators by the verdicts of a judge about single turns; see `hardwon.trainers.sources.judged`."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

from hardwon.trainers.algorithms.advantages import (
    EPSILON,
    ESTIMATORS,
    Advantages,
    Trace,
    group_siblings,
    grpo,
    standardize,
)
from hardwon.trainers.algorithms.judging.checklists import read_checklist

from .levels import combine_levels, scale_turns

RIGHT = 0.5
"""A verdict above this says that the turn is right."""


@ESTIMATORS.add(
    "CAPO",
    "arXiv:2508.02298",
    evidence="N",
    needs=("steps",),
    reading="verdicts of several critiques are combined by the source; the weights 2 and 1 are the notes' best",
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def capo(traces: Sequence[Trace], *, whole: float = 2.0, process: float = 1.0) -> Advantages:
    """Compute z over all turns of the group of R_t = whole o - process [turn t is wrong] (CAPO, arXiv:2508.02298).

    No return to go is taken. Keep process below whole. Without a wrong turn it is GRPO with turns in the mean. A turn
    without a verdict moves no mean; it counts as right for its own advantage.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        verdicts = {trace.id: trace.read_signal("steps") for trace in group}
        rewards = {
            trace.id: [
                whole * trace.outcome - process * (verdict is not None and verdict <= RIGHT)
                for verdict in verdicts[trace.id]
            ]
            for trace in group
        }
        counted = [
            reward
            for name, own in rewards.items()
            for reward, verdict in zip(own, verdicts[name], strict=True)
            if verdict is not None
        ] or [reward for own in rewards.values() for reward in own]
        mean = fmean(counted) if counted else 0.0
        spread = stdev(counted) + EPSILON if len(counted) > 1 else 1.0
        for name, own in rewards.items():
            advantages[name] = [(reward - mean) / spread if len(group) > 1 else 0.0 for reward in own]
    return advantages


@ESTIMATORS.add(
    "SPARK (selective, global)",
    "SPARK: step-level process rewards by a generative verifier",
    evidence="N",
    needs=("steps",),
    reading="the step term of `global` is the label itself, 1 or 0; a tie of votes is wrong (both own)",
    settings={"roles.policy.sources.steps.rule": "majority"},
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def spark(traces: Sequence[Trace], *, mode: Literal["selective", "global"] = "selective") -> Advantages:
    """Compute the selective or the global advantage of SPARK.

    selective keeps A = z(y) on turns whose label agrees with its sign (A >= 0 and right, A < 0 and wrong) and is 0
    elsewhere; it was the best in the method's own comparison. global is 0.8 z(y) + 0.2 step. The outcome y is the
    verdict: add the shaper `spark` where the world has no outcome of its own.
    """
    if mode == "global":
        combined = combine_levels(traces, "steps", weight=0.2, step="raw")
        outcome = grpo(traces)
        return {name: [c - 0.2 * a for c, a in zip(own, outcome[name], strict=True)] for name, own in combined.items()}
    advantages = grpo(traces)
    for group in group_siblings(traces):
        for trace in group:
            verdicts = trace.read_signal("steps")
            advantages[trace.id] = [
                a if v is not None and (a >= 0) == (v > RIGHT) else 0.0
                for a, v in zip(advantages[trace.id], verdicts, strict=True)
            ]
    return advantages


@ESTIMATORS.add(
    "ExpRL (process)",
    "ExpRL: verification against a hidden reference",
    evidence="N C",
    needs=("score",),
    reading="a trace with an unreadable score is left out: its advantages are 0",
    example={"roles.policy.sources.score.judge": "examples.methods.judge:RuleJudge"},
)
def exprl(traces: Sequence[Trace]) -> Advantages:
    """Compute A_t = s_t - s_{t-1} and A_1 = s_1 - s_T, with the prefix scores s in [0, 1] of a judge (ExpRL).

    The judge sees a reference that the policy never sees. There is no comparison in the group: the advantages of a
    trace sum to 0, and a constant added to all its scores changes nothing. A trace of one turn gets 0.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        for trace in group:
            scores = [s for s in trace.read_signal("score") if s is not None]
            if len(scores) < len(trace.turns) or not scores:
                advantages[trace.id] = [0.0] * len(trace.turns)
                continue
            advantages[trace.id] = [s - scores[t - 1] for t, s in enumerate(scores)]  # t - 1 = -1 is the last one
    return advantages


@ESTIMATORS.add(
    "TP-GRPO",
    "arXiv:2507.23317",
    evidence="N",
    needs=("steps",),
    unseen="alpha: 1",
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
def tp_grpo(traces: Sequence[Trace], *, alpha: float = 1.0) -> Advantages:
    """Compute the advantages of TP-GRPO ("Good Learners Think Their Thinking", arXiv:2507.23317).

    With o = z of +1 for a right trace and -1 for a wrong one, and r_c = alpha x the group's accuracy: a right trace
    gets o for right thoughts and o - r_c for wrong ones; a wrong trace gets o for thoughts that its wrong answer rests
    on (label 1) and 0 for the others. A thought is a run of equal labels, so splitting a step into two with the same
    label changes nothing. A turn without a label counts as a right thought of a right trace, and gets 0 in a wrong one.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        right = [trace.outcome > 0 for trace in group]
        scaled = standardize([1.0 if flag else -1.0 for flag in right])
        penalty = alpha * fmean(right) if len(group) > 1 else 0.0
        for trace, is_right, own in zip(group, right, scaled, strict=True):
            labels = trace.read_signal("steps")
            if is_right:
                advantages[trace.id] = [own - penalty * (v is not None and v <= RIGHT) for v in labels]
            else:
                advantages[trace.id] = [own * (v is not None and v > RIGHT) for v in labels]
    return advantages


@ESTIMATORS.add(
    "ProRAG",
    "arXiv:2601.21912",
    evidence="C",
    needs=("prm",),
    reading="normalized over turns, not tokens; without tree search, pairs at shared anchors train the model (own)",
)
def prorag(traces: Sequence[Trace], *, beta: float = 0.5) -> Advantages:
    """Compute A = z(R) + beta (s - mean) / std with the step scores s of a process reward model (ProRAG, 2601.21912).

    With constant scores it is GRPO; scaling or shifting all scores changes nothing.
    """
    return combine_levels(traces, "prm", weight=beta)


@ESTIMATORS.add(
    "ArCHer",
    "arXiv:2402.19446",
    evidence="C",
    needs=("critic",),
    reading="the policy learns from the turns that were played; A is scaled by the critic's explained variance (own)",
)
def archer(traces: Sequence[Trace]) -> Advantages:
    """Return A = min(Q1, Q2) - min(V1, V2) of every turn, as the critic gives it (ArCHer, arXiv:2402.19446).

    It does not compare siblings, so one copy per world is enough. Before the critic's warm-up its signal is 0, and no
    policy step is made. A constant added to Q and V changes nothing.
    """
    return {
        trace.id: [0.0 if value is None else value for value in trace.read_signal("critic")]
        for group in group_siblings(traces)
        for trace in group
    }


@ESTIMATORS.add(
    "CM2 (steps)",
    "arXiv:2602.12268",
    evidence="P C",
    needs=("items",),
    method="checklist-steps",
    reading="the default of the paper is the trace level, the shaper `checklist`; finer credit collapsed earlier",
    example={
        "roles.policy.sources.items.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.items.file": "examples/methods/checklist.json",
    },
)
def checklist(traces: Sequence[Trace], *, std: bool = False) -> Advantages:
    """Compute A_t = weighted mean over the open items c of r~_{c,t} - b_c (CM2, arXiv:2602.12268, step variant).

    An item is open at a turn if it is not satisfied yet and its dependencies were satisfied before the turn. r~ is 1
    if it is paid at this turn or later, and b_c is the share of siblings in which it is ever paid. A turn without an
    open item gets 0. The order of the items does not matter.
    """
    advantages: Advantages = {}
    for group in group_siblings(traces):
        lists = {trace.id: read_checklist(trace) for trace in group}
        shares: Mapping[str, float] = {
            item.name: fmean(item.name in own.paid for own in lists.values() if own is not None)
            for flag in lists.values()
            if flag is not None
            for item in flag.items
        }
        values: dict[str, list[float | None]] = {}
        for trace in group:
            own = lists[trace.id]
            if own is None or len(group) < 2:
                values[trace.id] = [None] * len(trace.turns)
                continue
            gains = {item.name: (item.name in own.paid) - shares[item.name] for item in own.items}
            values[trace.id] = [own.average_open(t, gains) for t in range(len(trace.turns))]
        scaled = scale_turns(values, "z") if std else values
        for name, per_turn in scaled.items():
            advantages[name] = [0.0 if value is None else value for value in per_turn]
    return advantages


def compare_verdicts(traces: Sequence[Trace]) -> dict[str, float]:
    """Return how well a judge's verdicts agree with the outcomes.

    Returns:
        `clean_wins`, the share of successes without a wrong turn, and `marked_losses`, the share of failures with one.
        A judge that is no better than the policy is near chance in both.
    """
    wins: list[bool] = []
    losses: list[bool] = []
    for trace in traces:
        verdicts = [v for v in trace.signals.get("steps", ()) if v is not None]
        if verdicts:
            is_clean = all(v > RIGHT for v in verdicts)
            (wins if trace.outcome > 0 else losses).append(is_clean)
    rates = {}
    if wins:
        rates["clean_wins"] = fmean(wins)
    if losses:
        rates["marked_losses"] = 1 - fmean(losses)
    return rates
