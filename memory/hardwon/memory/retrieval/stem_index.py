"""Stem index: rank a few thousand short texts by the words of a query, in memory and with Porter stemming."""

import math
import re
import sqlite3
from collections.abc import Sequence

from hardwon.memory.situations.keys import content_words, words

MOST_WORDS = 64
"""Number of words of a query that are looked up."""
_JOINTS = re.compile(r"(?<=[a-z])(?=[A-Z])|_+")
"""Where names of tools and arguments join words, as in `get_user` and `getUser`."""


class StemIndex:
    """Texts that are ranked together; not thread-safe, so callers hold a lock."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Index the texts; their positions are their ids."""
        self._count = len(texts)
        self._texts = sqlite3.connect(":memory:", check_same_thread=False)  # used under the lock of the caller
        self._texts.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
        self._texts.executemany(
            "INSERT INTO texts(rowid, text) VALUES (?, ?)", [(ref, _divide(text)) for ref, text in enumerate(texts)]
        )

    def rank(self, query: str) -> list[tuple[int, float]]:
        """Return the texts that share a word with a query, the best first.

        Rare words weigh more. Words that no text has count as the rarest ones.

        Returns:
            Pairs of a position and the share of the query's weight that the text contains, in (0, 1].
        """
        divided, total = _divide(query), 0.0
        weights: dict[int, float] = {}
        for word in sorted(content_words(divided) or set(words(divided)))[:MOST_WORDS]:
            rows = self._texts.execute("SELECT rowid FROM texts WHERE texts MATCH ?", (f'"{word}"',)).fetchall()
            weight = math.log1p(self._count / max(1, len(rows)))
            total += weight
            for (ref,) in rows:
                weights[ref] = weights.get(ref, 0.0) + weight
        return sorted(((ref, weight / total) for ref, weight in weights.items()), key=lambda pair: (-pair[1], pair[0]))


def _divide(text: str) -> str:
    """Return a text in which joined words are separate."""
    return _JOINTS.sub(" ", text)
