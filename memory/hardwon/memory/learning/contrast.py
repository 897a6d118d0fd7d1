"""Contrasts: the fewest words that tell the texts in which an action did well from those in which it did not.

    those     Order 12: bought 3 days ago, parcel: lost           says "order", does not say "delivered"
    contrary  Order 15: bought 9 days ago, parcel: delivered
              Customer: where is my parcel?

The condition of an item holds all structural words of a text, most of which every text has. A reader needs the few that
decide. They come from the steps behind the item, so they say what its evidence says, and no more.
"""

import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hardwon.memory.situations.titles import Difference

from .tuning import TUNING


class SeenStep(NamedTuple):
    """One step of the evidence, as a contrast reads it."""

    action: str
    words: tuple[str, ...]
    """The structural words of the text before the step, in its order, without words such as `the`."""
    value: float
    failed: bool


ReadSteps = Callable[[Sequence[int]], Sequence[SeenStep]]
"""Returns the steps with these ids that are still recorded, oldest first."""


def find_difference(those: Sequence[SeenStep], contrary: Sequence[SeenStep]) -> Difference:
    """Return what all of those texts say or lack, and almost none of the contrary ones.

    Each word is the one that tells most of the remaining texts apart (greedy set cover, Chvatal 1979). Of equal ones,
    what the text says comes before what it lacks, long words, which are rarer (Zipf 1935), before short ones, and those
    of one script before others: in Japanese, a pair such as "をド" reaches from a particle into a word. Texts with the
    same words as one of those are left out, as no word tells them apart. Empty with fewer than
    `contrast_texts` texts on a side, which each word must tell apart as well, or if too many are left.
    """
    ours = [frozenset(step.words) for step in those]
    texts = [text for step in contrary if (text := frozenset(step.words)) not in ours]
    if min(len(ours), len(texts)) < TUNING.contrast_texts:
        return Difference()
    common = list_shared_words(those)
    foreign = sorted(frozenset().union(*texts).difference(*ours))
    says, lacks, left = list[str](), list[str](), texts
    while left and len(says) + len(lacks) < TUNING.contrast_words:
        word = max(common, key=lambda word: (sum(word not in text for text in left), _rank(word)), default="")
        foreigner = max(foreign, key=lambda word: (sum(word in text for text in left), _rank(word)), default="")
        without = [text for text in left if word and word not in text]
        with_it = [text for text in left if foreigner and foreigner in text]
        apart = max(without, with_it, key=len)
        if len(apart) < TUNING.contrast_texts:  # one text may be chance
            break
        if apart is without:
            says.append(word)
        else:
            lacks.append(foreigner)
        left = [text for text in left if text not in apart]
    return Difference(tuple(says), tuple(lacks)) if len(left) <= TUNING.contrast_rest * len(texts) else Difference()


@lru_cache(maxsize=8192)
def _rank(word: str) -> tuple[int, bool]:
    """Return the length of a word, and whether its letters are of one script."""
    return len(word), word.isascii() or len({unicodedata.name(letter, "")[:6] for letter in word}) == 1


def list_shared_words(steps: Sequence[SeenStep]) -> tuple[str, ...]:
    """Return the words that all texts have, in the order of the newest one."""
    texts = [frozenset(step.words) for step in steps]
    return tuple(
        word for word in dict.fromkeys(steps[-1].words if steps else ()) if all(word in text for text in texts)
    )
