"""A trie of token sequences: which token may follow what was said so far.

Decoding that walks it can only end in one of the sequences, and its probabilities are exact: each
step's are taken among the tokens that may follow.
"""

from collections.abc import Iterable, Sequence

Ids = tuple[int, ...]


class Trie:
    """The sequences that may be said, none of which may begin another (end each with an end token)."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        """Raises ValueError when there is no sequence, or one begins another."""
        following: dict[Ids, set[int]] = {}
        self._ends: set[Ids] = set()
        for sequence in sequences:
            said: Ids = ()
            for token in sequence:
                following.setdefault(said, set()).add(token)
                said = (*said, token)
            self._ends.add(said)
        if not self._ends or () in self._ends:
            raise ValueError("a trie needs at least one sequence, and no empty one.")
        if begun := [end for end in self._ends if end in following]:
            raise ValueError(f"sequence {begun[0]} begins another one: end each with an end token.")
        self._next = {said: tuple(sorted(tokens)) for said, tokens in following.items()}

    def allowed(self, said: Sequence[int]) -> Ids:
        """The tokens that may follow, in a fixed order; none when a sequence is complete."""
        return self._next.get(tuple(said), ())

    def forced(self, said: Sequence[int]) -> Ids:
        """The tokens that must follow, as far as there is only one way to go on."""
        path = tuple(said)
        while len(following := self._next.get(path, ())) == 1:
            path = (*path, *following)
        return path[len(said) :]

    def complete(self, said: Sequence[int]) -> bool:
        """Whether this is one of the sequences."""
        return tuple(said) in self._ends
