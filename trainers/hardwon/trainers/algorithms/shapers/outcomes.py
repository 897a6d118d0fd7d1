"""Shapers of the outcome: by quality, rank, checklist, rubric, stages and pseudo-labels."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Literal

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.judging.checklists import read_checklist

from .base import SHAPERS, is_readable, read_score


@SHAPERS.add(
    "Posterior-GRPO",
    "arXiv:2508.05170",
    evidence="N",
    needs=("quality",),
    reading="formula from a reimplementation; f is whether every answer was an action",
    example={"roles.policy.sources.score.judge": "examples.methods.judge:RuleJudge"},
)
def posterior(siblings: Sequence[Trace], *, format: float = 1.0) -> list[Trace]:
    """Set R = format f + o + o q, with the outcome o and the quality q of the reasoning (arXiv:2508.05170).

    The quality of failures does nothing. Where all failed and f is equal, nothing is taught.
    """
    return [
        replace(
            trace,
            outcome=format * is_readable(trace) + trace.outcome + trace.outcome * read_score(trace, "quality"),
        )
        for trace in siblings
    ]


@SHAPERS.add(
    "LongTraceRL",
    "arXiv:2605.31584",
    evidence="C",
    needs=("entities",),
    reading="the largest share is taken over successes, so the text of a failure changes nobody's reward (own)",
)
def rubric(siblings: Sequence[Trace], *, eta: float = 0.3, maximum: Literal["wins", "all"] = "wins") -> list[Trace]:
    """Set R = (1 - eta) o + eta r / r_max where o > 0 (LongTraceRL, arXiv:2605.31584).

    r is the share of the task's entities that occur in what the trace said. Without entities, R = o.

    Args:
        siblings: Traces of one group.
        eta: Weight of the rubric.
        maximum: Traces whose largest share is r_max: those that succeeded, or all as in the authors' code.
    """
    shares = {trace.id: read_score(trace, "entities") for trace in siblings}
    counted = [shares[trace.id] for trace in siblings if maximum == "all" or trace.outcome > 0]
    most = max(counted, default=0.0)
    return [
        replace(trace, outcome=(1 - eta) * trace.outcome + eta * shares[trace.id] / most)
        if trace.outcome > 0 and most > 0
        else trace
        for trace in siblings
    ]


@SHAPERS.add(
    "PRS",
    "arXiv:2512.07478",
    evidence="N",
    reading="quality is the outcome, or the score of a judge if a source gives one",
    unseen="the weights of the stages (format 0.2) and the form of the length-aware BLEU (left out)",
    method="stages",
    example={"roles.policy.shape.stages.format": 0.2},
)
def stages(siblings: Sequence[Trace], *, format: float = 0.2) -> list[Trace]:
    """Set R = 0 if any answer was no action, else format + (1 - format) q (PRS, arXiv:2512.07478).

    q is the score of a judge if a source gives one, and otherwise the outcome.
    """
    return [
        replace(
            trace,
            outcome=format + (1 - format) * trace.scores.get("score", trace.outcome) if is_readable(trace) else 0.0,
        )
        for trace in siblings
    ]


@SHAPERS.add(
    "ExpRL (outcome)",
    "ExpRL: verification against a hidden reference",
    evidence="N C",
    needs=("score",),
    name="exprl",
    method="exprl-outcome",
    settings={"roles.policy.loss.high": 0.28},
    example={"roles.policy.sources.score.judge": "examples.methods.judge:RuleJudge"},
)
def score_by_judge(siblings: Sequence[Trace]) -> list[Trace]:
    """Set the outcome to the judge's score of the whole trace, in [0, 1]; it sees a hidden reference (ExpRL).

    A trace whose score was unreadable keeps its outcome.
    """
    shaped = []
    for trace in siblings:
        score = trace.read_signal("score")[-1] if trace.turns else None
        shaped.append(trace if score is None else replace(trace, outcome=score))
    return shaped


@SHAPERS.add(
    "SPARK (verdict, augmented)",
    "SPARK: step-level process rewards by a generative verifier",
    evidence="N",
    needs=("steps", "verdict"),
    name="spark",
    method="spark-augmented",
    settings={"roles.policy.shape.spark.mode": "augmented", "roles.policy.sources.steps.rule": "majority"},
    example={
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
        "roles.policy.sources.verdict.judge": "examples.methods.judge:RuleJudge",
    },
)
def verify(siblings: Sequence[Trace], *, mode: Literal["verdict", "augmented"] = "verdict") -> list[Trace]:
    """Set the outcome to the verdict y, or to 0.4 k / n + 0.6 y with k of n turns right (SPARK).

    Either is 0 if an answer was no action. Use it only where the world has no outcome of its own.
    """
    shaped = []
    for trace in siblings:
        verdict = read_score(trace, "verdict")
        labels = [label for label in trace.read_signal("steps") if label is not None]
        share = sum(label > 0.5 for label in labels) / max(1, len(labels))
        value = verdict if mode == "verdict" else 0.4 * share + 0.6 * verdict
        shaped.append(replace(trace, outcome=value * is_readable(trace)))
    return shaped


@SHAPERS.add(
    "CM2",
    "arXiv:2602.12268",
    evidence="P C",
    needs=("items",),
    name="checklist",
    example={
        "roles.policy.sources.items.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.items.file": "examples/methods/checklist.json",
    },
)
def pay_checklist(siblings: Sequence[Trace]) -> list[Trace]:
    """Set the outcome to the sum of the weights of the items that were paid (CM2, arXiv:2602.12268, trace level).

    An item is paid at a turn if it becomes satisfied there and its dependencies were satisfied before. Use an
    estimator that does not divide by the standard deviation, and large groups. A task without a checklist is not
    shaped.
    """
    checked = [(trace, read_checklist(trace)) for trace in siblings]
    return [trace if own is None else replace(trace, outcome=own.reward) for trace, own in checked]


@SHAPERS.add(
    "ArenaRL",
    "arXiv:2601.06487",
    evidence="C",
    needs=("arena",),
    reading="standardized once by the estimator; ties at the end of a round share the mean rank (own)",
    example={"roles.policy.sources.arena.judge": "examples.methods.judge:RuleJudge"},
)
def arena(siblings: Sequence[Trace]) -> list[Trace]:
    """Set the outcome to 1 - rank / (n - 1), the rank in a tournament of siblings (arXiv:2601.06487)."""
    return [replace(trace, outcome=read_score(trace, "arena")) for trace in siblings]


@SHAPERS.add(
    "Role-Agent (prediction)",
    "Role-Agent: prediction of observations and a failure curriculum",
    evidence="C N",
    needs=("prediction",),
    reading="R (1 + weight s), the form of the authors' code; their document has R sigmoid(s)",
    name="prediction",
    settings={"roles.policy.settings.speech": "predicted", "roles.policy.settings.speech_tokens": 8},
    example={"roles.policy.shape.prediction.weight": 0.2},
)
def reward_prediction(siblings: Sequence[Trace], *, weight: float = 0.2) -> list[Trace]:
    """Set R' = R (1 + weight s), with s the likeness of predicted and seen observations (Role-Agent).

    A trace without a prediction is unchanged, and so is a failure: R = 0 stays 0.
    """
    return [
        replace(trace, outcome=trace.outcome * (1 + weight * trace.scores.get("prediction", 0.0))) for trace in siblings
    ]


@SHAPERS.add(
    "HAR (judge's share)",
    "arXiv:2511.09127",
    evidence="C N",
    needs=("lookback",),
    name="lookback",
    method="har-judge",
    reading="added to the outcome; the thought is what the policy says before an action",
    unseen="the weight of the judge's share: 0.2, so that no failure is worth more than a success",
    settings={
        "roles.policy.settings.speech": "predicted",
        "roles.policy.settings.speech_tokens": 8,
        "tasks.compose.reflected": {},
    },
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "tasks.compose.reflected.rounds": 10,
        "arms.control": 3,
        "roles.policy.sources.lookback.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.shape.lookback.weight": 0.2,
        "run.groups": 8,
    },
)
def reward_lookback(siblings: Sequence[Trace], *, weight: float = 0.2) -> list[Trace]:
    """Set R' = R + weight h, with h the share of thoughts that use what earlier turns showed (HAR, arXiv:2511.09127).

    A trace without a judged thought is unchanged. Equal shares in a group change nothing of a centered comparison.

    Args:
        siblings: Traces of one group.
        weight: Weight of the share.
    """
    if weight < 0:
        raise ConfigError(f"lookback weight is {weight}; use 0 or more.")
    return [replace(trace, outcome=trace.outcome + weight * trace.scores.get("lookback", 0.0)) for trace in siblings]


@SHAPERS.add(
    "SCOPE (beyond majority voting)",
    "SCOPE: confidence-weighted pseudo-labels in subgroups",
    evidence="C",
    needs=("answers",),
    reading="confidence is exp(mean log p) where an engine gives no top-k; unreadable answers do not vote",
    example={"roles.policy.shape.scope.votes": 4},
)
def scope(siblings: Sequence[Trace], *, votes: int = 32, balance: float = 0.7, seed: int = 0) -> list[Trace]:
    """Set the outcome to whether a trace's answer is the pseudo-label of its subgroup (SCOPE).

    A subgroup's label is the answer with the largest summed confidence among `votes` traces drawn from all. The size
    of subgroups is chosen from 1, 2, 4, ... n: dominated ones (share of reward, number of labels) are dropped, then the
    least distance sqrt(balance (1 - r')^2 + (1 - balance) (1 - d')^2) of the min-max values wins. Only for worlds with
    an answer and no outcome. A trace without a readable answer keeps its outcome.

    Args:
        siblings: Traces of one group.
        votes: Traces that vote for a label, at most.
        balance: Weight of the share of reward against the number of labels.
        seed: Seed of the draws.
    """
    voters = [
        (trace, str(trace.facts["answer"]), trace.scores.get("confidence", 1.0))
        for trace in siblings
        if trace.facts.get("answer")
    ]
    if not any("answer" in trace.facts for trace in siblings):
        siblings[0].read_signal("answers")  # raises: no source gives answers
    if not voters:
        return list(siblings)
    pairs = [(answer, confidence) for _, answer, confidence in voters]
    sizes = [2**n for n in range(len(voters).bit_length()) if 2**n <= len(voters)]
    labels = {size: label_subgroups(pairs, size, votes, seed) for size in sizes}
    figures = {
        size: (sum(a == b for (a, _), b in zip(pairs, own, strict=True)) / len(own), len({*own}))
        for size, own in labels.items()
    }
    chosen = labels[choose_size(figures, balance)]
    rewarded = {trace.id: float(answer == label) for (trace, answer, _), label in zip(voters, chosen, strict=True)}
    return [replace(trace, outcome=rewarded.get(trace.id, trace.outcome)) for trace in siblings]


def label_subgroups(pairs: Sequence[tuple[str, float]], size: int, votes: int, seed: int) -> list[str]:
    """Return the pseudo-label of every answer: that of its subgroup of a size, by summed confidence."""
    labels: list[str] = []
    for start in range(0, len(pairs), size):
        chance = random.Random(f"{seed}:{size}:{start}")
        drawn = chance.sample(list(pairs), min(votes, len(pairs)))
        sums: dict[str, float] = defaultdict(float)
        for answer, confidence in drawn:
            sums[answer] += confidence
        best = max(sorted(sums), key=lambda answer: sums[answer])
        labels += [best] * min(size, len(pairs) - start)
    return labels


def choose_size(figures: dict[int, tuple[float, int]], balance: float) -> int:
    """Return the size of subgroups with the best compromise of the share of reward and the number of labels."""
    kept = {
        size: own
        for size, own in figures.items()
        if not any(other[0] >= own[0] and other[1] >= own[1] and other != own for other in figures.values())
    }
    shares, labels = [own[0] for own in kept.values()], [own[1] for own in kept.values()]

    def measure(size: int) -> float:
        share = (kept[size][0] - min(shares)) / ((max(shares) - min(shares)) or 1)
        count = (kept[size][1] - min(labels)) / ((max(labels) - min(labels)) or 1)
        return sqrt(balance * (1 - share) ** 2 + (1 - balance) * (1 - count) ** 2)

    return min(kept, key=lambda size: (measure(size), size))
