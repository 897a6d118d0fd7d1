"""Tuned numbers: how much evidence of untrusted writers counts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrustTuning:
    """Numbers that no setting changes."""

    # disguises
    min_decoded: int = 10
    """Minimum length of a decoded text in characters. A shorter one cannot contain an order."""

    # opinions
    opinion_step: float = 0.1  # share of the distance to 1 or 0 by which one opinion moves an item's score
    max_opinion_change: float = 0.15  # largest total change of an item's score by one untrusted writer

    # support
    constant_share: float = 0.9
    """Least share of the requests for a tool that have a word of the step's own request. Other words of it, such as
    names, are what varies between requests, and they are not shown however often one returns."""
    compared_writers: int = 100  # trusted writers that are looked at to tell whether there are several parties
    compared_steps: int = 40
    """Least number of newest steps with the same tool that are compared, and half of the largest number."""
    renewal_share: float = 0.1
    """Share of new uses of a tool after which it is computed again what of a step may be shown."""
    max_message: int = 240  # characters of a message that are shown

    # testimony
    untrusted_steps: int = 4000  # untrusted steps, the newest ones, that are considered
    max_command_words: int = 8  # Most words of an action that is not a call. A longer one is a sentence.


TUNING = TrustTuning()
