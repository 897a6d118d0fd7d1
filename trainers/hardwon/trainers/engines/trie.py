"""A trie of token sequences, which tells which tokens may follow a prefix.

Constrained decoding can only end in one of the sequences. Its probabilities are exact, because each
step is normalized over the tokens that may follow.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hardwon.trainers.algorithms.samples import Ids


@dataclass(slots=True)
class Tree:
    """The part of a trie that a model must read to score every sequence: the tokens that stand before a choice.

    Nodes come after their parents. The node -1 is the root, which stands for everything read before.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    prefixes: list[Ids] = field(default_factory=list)
    """The tokens from the root to the node, the node included."""
    choices: list[tuple[int, Ids]] = field(default_factory=list)
    """The nodes that a choice follows, the root among them, with the tokens that may follow."""


class Trie:
    """The possible answers. None may be a prefix of another, so end each with an end token."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        """Build the trie."""
        following: dict[Ids, set[int]] = {}
        self._ends: set[Ids] = set()
        for sequence in sequences:
            prefix: Ids = ()
            for token in sequence:
                following.setdefault(prefix, set()).add(token)
                prefix = (*prefix, token)
            self._ends.add(prefix)
        if not self._ends or () in self._ends:
            raise ValueError("a trie needs at least one sequence, and no empty one.")
        if prefixes := [end for end in self._ends if end in following]:
            raise ValueError(f"sequence {prefixes[0]} is a prefix of another; end each with an end token.")
        # sorted: a seeded draw picks by position, so the order must not depend on a set
        self._next = {prefix: tuple(sorted(tokens)) for prefix, tokens in following.items()}

    def allowed(self, prefix: Sequence[int]) -> Ids:
        """Return the tokens that may follow `prefix`, in ascending order. Empty if a sequence is complete."""
        return self._next.get(tuple(prefix), ())

    def forced(self, prefix: Sequence[int]) -> Ids:
        """Return the tokens that must follow `prefix`, up to the next real choice."""
        path = tuple(prefix)
        while len(following := self._next.get(path, ())) == 1:
            path = (*path, *following)
        return path[len(prefix) :]

    def tree(self, ids_so_far: Sequence[int]) -> Tree:
        """Return what must be read after `ids_so_far` to score all sequences that begin with it."""
        tree, root = Tree(), tuple(ids_so_far)
        # depth first, without recursion: a sequence can be longer than Python's stack
        pending: list[tuple[Ids, int, list[int]]] = [(root, -1, [])]
        while pending:
            prefix, parent, before = pending.pop()
            following = self._next.get(prefix, ())
            if len(following) > 1:
                # only now is it certain that the tokens before this choice are needed
                for n, token in enumerate(before):
                    tree.tokens.append(token)
                    tree.parents.append(parent)
                    tree.prefixes.append(prefix[len(root) : len(prefix) - len(before) + n + 1])
                    parent = len(tree.tokens) - 1
                tree.choices.append((parent, following))
                before = []
            pending += [((*prefix, token), parent, [*before, token]) for token in reversed(following)]
        return tree

    def sequences(self, prefix: Sequence[int] = ()) -> list[Ids]:
        """Return the sequences that begin with `prefix`, in ascending order."""
        start = tuple(prefix)
        return sorted(end for end in self._ends if end[: len(start)] == start)

    def complete(self, prefix: Sequence[int]) -> bool:
        """Return whether `prefix` is one of the sequences."""
        return tuple(prefix) in self._ends
