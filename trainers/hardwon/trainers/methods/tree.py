"""TreePS-RAG (arXiv:2601.06922)."""

import math
import random
from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import ComposerParts, EndedEpisode
from hardwon.trainers.algorithms.composers.spec import Spec

from .blocks.branching import Branching, list_steps
from .blocks.trees import Node, group_trees


def list_path(trace: Trace) -> Node:
    """Return all actions of a trace, those it began with included."""
    return (*trace.path, *(turn.action for turn in trace.turns))


@PARTS.add(
    "estimator",
    "TreePS-RAG",
    "arXiv:2601.06922",
    evidence="N A",
    tree=True,
    unseen="how local and global parts are combined: V(n) - V(parent), with V(n) - V(root) as an option",
    settings={"tasks.compose.tree": {}},
    example={"tasks.compose.tree.begun": 0.34},
)
def tree(traces: Sequence[Trace], *, globally: bool = False, root: bool = False) -> Advantages:
    """Compute A(n) = V(n) - V(parent of n), with V the mean outcome of the leaves below (TreePS-RAG, arXiv:2601.06922).

    A node is a sequence of actions, so siblings with equal actions are one child. The sum along a path is R - V(root).

    Args:
        traces: Traces of any number of groups.
        globally: Add V(n) - V(root).
        root: Divide by the square root of the number of leaves below n.
    """
    advantages: Advantages = {}
    for group in group_trees(traces):
        leaves: dict[Node, list[float]] = {}
        for trace in group:
            path = list_path(trace)
            for depth in range(len(path) + 1):
                leaves.setdefault(path[:depth], []).append(trace.outcome)
        values = {node: fmean(outcomes) for node, outcomes in leaves.items()}
        for trace in group:
            path, own = list_path(trace), list[float]()
            for t in range(len(trace.turns)):
                node = path[: trace.start + t + 1]
                value = values[node] - values[node[:-1]] + (values[node] - values[()] if globally else 0.0)
                own.append(value / math.sqrt(len(leaves[node])) if root else value)
            advantages[trace.id] = own
    return advantages


@PARTS.add(
    "composer",
    "TreePS-RAG (tree)",
    "arXiv:2601.06922",
    evidence="N A",
    name="tree",
    tree=True,
    reading="siblings with equal actions are one child, in place of pruning by similarity; branch points are uniform",
)
class TreeComposer(Branching):
    """Grows a tree: in every round, each leaf gets one sibling at a random turn (TreePS-RAG, arXiv:2601.06922)."""

    def __init__(self, parts: ComposerParts, *, begun: float = 0.34, depth: int = 2) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            begun: Share of a group that begins at the start.
            depth: Most branches between a leaf and its root.
        """
        super().__init__(parts, begun=begun, beam=1)
        self._depth = depth
        self._depths: dict[str, int] = {}

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the roots."""
        self._depths.clear()
        return super().begin(specs, iteration)

    def choose_points(self, parent: EndedEpisode) -> list[int]:
        """Return one random turn of the episode after its own start, as long as the tree is not too deep."""
        depth = self._depths.get(parent.spec.parent, 0) + bool(parent.spec.parent)
        self._depths[parent.spec.session] = depth
        steps = list_steps(parent.rollout)
        if depth >= self._depth or not steps:
            return []
        chance = random.Random(f"{self.parts.seed}/{parent.spec.session}/tree")
        return [chance.choice(steps)]
