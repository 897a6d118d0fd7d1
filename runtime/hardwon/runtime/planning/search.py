"""Tree search over imagined actions: which path from here is worth most, within a bounded number of looks ahead.

    path = Searcher(simulations=40).search(world)

Every simulation goes down from the current state to a node that was not looked at yet, by the rule of PUCT:

    score(child) = Q + c P sqrt(N) / (1 + n)

with the mean return Q of the child (0 before its first visit), its prior P, its visits n, and the visits N of its
parent. The node's state is imagined and judged, and the discounted return is added to all nodes on the path. A node
whose continuations have all ended is closed and not visited again.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.methods import METHODS

from .tuning import TUNING


@dataclass(frozen=True, slots=True)
class PathEnd:
    """What was found at the end of a path."""

    reward: float = 0.0
    """Reward of the last action of the path."""
    value: float = 0.0
    """Worth of what may follow, in [-1, 1]; 1 for a solved task and -1 for one that ended otherwise."""
    done: bool = False
    solved: bool = False
    certainty: float = 1.0
    proposals: tuple[tuple[str, float], ...] = ()
    """Actions to continue with and their priors; none where the episode is over."""


class Simulator(Protocol):
    """The states that a search visits, each named by its path of actions from the current one."""

    def look(self, path: Sequence[str]) -> PathEnd | None:
        """Return what is at the end of a path, or None if nobody can tell; the empty path is the current state."""
        ...


@dataclass(slots=True)
class SearchNode:
    """A state of the tree."""

    path: tuple[str, ...]
    prior: float = 1.0
    visits: int = 0
    total: float = 0.0
    """Sum of the returns of all visits, from the action that leads here on."""
    reward: float = 0.0
    closed: bool = False
    """Whether nothing more can be learned below."""
    solved: bool = False
    children: list["SearchNode"] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Return the mean return; 0 before the first visit."""
        return self.total / self.visits if self.visits else 0.0


def score_child(child: SearchNode, parent_visits: int, exploration: float) -> float:
    """Return the PUCT score of a child.

    Worked example, c = 1: of two children with priors 0.8 and 0.2, visits 3 and 1, and means 0.1 and 0.5, below a
    parent with 4 visits, the first scores 0.1 + 0.8 * 2 / 4 = 0.5, and the second 0.5 + 0.2 * 2 / 2 = 0.7.
    """
    return child.mean + exploration * child.prior * math.sqrt(parent_visits) / (1 + child.visits)


def back_up(nodes: Sequence[SearchNode], value: float, discount: float = TUNING.discount) -> None:
    """Add the return of a simulation to the nodes on its path, the root first."""
    returned = value
    for node in reversed(nodes):
        returned = node.reward + discount * returned
        node.visits += 1
        node.total += returned


@METHODS.add(
    "AlphaMath (search by PUCT)",
    "arXiv:2405.03553",
    evidence="C P",
    reach='`Agent(..., planner="search")`, `hardwon run ... --arms empty,step,search`',
    reading="proposals and values are the library's estimates, and a clone of the environment looks ahead; the "
    "training of the value head on the tree's returns is not implemented",
)
class Searcher:
    """Searches a tree of imagined actions and returns the best path."""

    def __init__(self, *, simulations: int = 40) -> None:
        """Create a searcher."""
        if simulations < 0:
            raise ConfigError(f"simulations is {simulations}; use 0 or more.")
        self._simulations = simulations

    def search(self, world: Simulator) -> SearchNode:
        """Return the root of a searched tree; see `select_path`.

        The search ends early when an exact look shows a solution, or when all that may follow has been seen. With one
        proposal or without simulations nothing is imagined.
        """
        root = SearchNode((), visits=0)
        look = world.look(())
        if look is None or not look.proposals:
            return root
        _open(root, look)
        root.visits = 1
        deadline = time.monotonic() + TUNING.search_s
        for _ in range(self._simulations if len(root.children) > 1 else 0):
            if root.closed or root.solved or time.monotonic() > deadline:
                break
            self._simulate(root, world)
        return root

    def _simulate(self, root: SearchNode, world: Simulator) -> None:
        """Look at one more node, and add its return to those above."""
        nodes = [root]
        while nodes[-1].children:
            parent = nodes[-1]
            nodes.append(
                max(
                    (child for child in parent.children if not child.closed),
                    # Of equal scores the name decides, so that the order of the proposals does not matter.
                    key=lambda child: (score_child(child, parent.visits, TUNING.search_exploration), child.path),
                )
            )
        leaf = nodes[-1]
        look = world.look(leaf.path)
        value = 0.0
        if look is None:  # nobody can tell: what led here earned nothing
            leaf.closed = True
        else:
            value, leaf.reward = look.value, look.reward
            _open(leaf, look)
            leaf.solved = look.solved and look.certainty >= 1.0
            leaf.closed = look.done or not leaf.children or len(leaf.path) >= TUNING.max_path
        back_up(nodes, value)
        for node in reversed(nodes[:-1]):
            node.closed = all(child.closed for child in node.children)
            node.solved = node.solved or any(child.solved for child in node.children)


def _open(node: SearchNode, look: PathEnd) -> None:
    node.children = [SearchNode((*node.path, action), prior) for action, prior in look.proposals]


def select_path(root: SearchNode) -> tuple[str, ...]:
    """Return the actions of the best path: that of a solution, else the most visited children.

    A path goes on only through children with two visits or more, because single visits are in no order. The
    first action is returned in any case: without visits, the one with the highest prior.
    """
    node, path = root, tuple[str, ...]()
    while node.children:
        best = max(
            node.children,
            key=lambda child: (child.solved, child.visits, child.mean, child.prior, child.path),
        )
        if node is not root and best.visits < 2 and not best.solved:
            break
        node, path = best, best.path
    return path


def is_undecided(root: SearchNode) -> bool:
    """Return whether the search found no difference between the actions that it visited."""
    means = [child.mean for child in root.children if child.visits]
    return not root.solved and (not means or max(means) - min(means) < 1e-9)
