"""APPO (arXiv:2606.12384)."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from hardwon.trainers.algorithms.advantages import EPSILON, Advantages, Trace, center
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import EndedEpisode

from .blocks.branching import Branching, list_turns
from .blocks.trees import group_trees


@PARTS.add(
    "estimator",
    "APPO (credit)",
    "arXiv:2606.12384",
    evidence="C",
    tree=True,
    reading="O is 1 with one update per batch, so the factor 1 + b O is left out; branches themselves are not trained",
    settings={"tasks.compose.appo": {}},
)
def appo(traces: Sequence[Trace]) -> Advantages:
    """Add to a begun trace's z, up to each split, the mean z of the branches at the split (APPO, arXiv:2606.12384).

    z is taken in the group of begun traces, and for branches over all branches of the task instance, both with the
    population's standard deviation. Branches have advantage 0: they only tell what their prefix is worth.
    """
    advantages: Advantages = {}
    for group in group_trees(traces):
        begun = [trace for trace in group if not trace.parent]
        branches = [trace for trace in group if trace.parent]
        own = dict(zip((trace.id for trace in begun), _normalize([t.outcome for t in begun]), strict=True))
        below = dict(zip((trace.id for trace in branches), _normalize([t.outcome for t in branches]), strict=True))
        for trace in branches:
            advantages[trace.id] = [0.0] * len(trace.turns)
        for trace in begun:
            splits: dict[int, list[float]] = {}
            for branch in branches:
                if branch.parent == trace.id:
                    splits.setdefault(branch.start, []).append(below[branch.id])
            means = {start: fmean(values) for start, values in splits.items()}
            advantages[trace.id] = [
                own[trace.id] + sum(mean for start, mean in means.items() if turn.step < start) for turn in trace.turns
            ]
    return advantages


def _normalize(values: list[float]) -> list[float]:
    """Return (x - mean) / population standard deviation; fewer than two values, or equal ones, become 0."""
    if len(values) < 2:
        return [0.0] * len(values)
    spread = pstdev(values) + EPSILON
    return [value / spread for value in center(values)]


@PARTS.add(
    "composer",
    "APPO (branching)",
    "arXiv:2606.12384",
    evidence="C",
    name="appo",
    needs=("entropy",),
    tree=True,
    reading="with one update per batch the likelihood gain is 1, so the score is the entropy alone; at turns",
)
class Appo(Branching):
    """Branches at the turns with the highest score of an episode (APPO, arXiv:2606.12384).

    The score is z(H) z(O). O, the likelihood gain of what follows, is 1 where the policy that branches is the one that
    played, as here, so the turns with z(H) > 0 are ranked by entropy. The whole trace is read: branch points are chosen
    with hindsight. The first turn counts too.
    """

    def choose_points(self, parent: EndedEpisode) -> list[int]:
        """Return the steps with the highest entropies above the mean."""
        turns = list_turns(parent.rollout)
        values = [turn.entropy for turn in turns]
        if len(turns) < 2 or pstdev(values) == 0:
            return []
        above = [turn for turn in turns if turn.entropy > fmean(values)]
        return [turn.step for turn in sorted(above, key=lambda turn: (-turn.entropy, turn.step))]
