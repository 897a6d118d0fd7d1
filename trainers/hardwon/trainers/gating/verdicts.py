"""Credit of verdicts: a decision between two words is trained on the word that turned out to be better.

    yes, no = decider.build_words(decision, "a name")
    weights = weigh(yes, no, gain)          # one of them is 0

The gradient of a decision's expected reward is p_yes p_no (r_yes - r_no). Both probabilities are known, so nothing
needs to be sampled for it. But it vanishes where the decision is certain, and a pretrained base is certain before it
has learned anything: it says the same word whatever it reads, and the first updates of a small batch push it further.
Such a decision is never left again. So the better word is trained, and its probability counts as `min_probability` at
least:

    |r_yes - r_no| max(p_better, min_probability) (1 - p_better)

Between `min_probability` and 1 less it this is the exact gradient of the expected reward. Beyond, it has the same sign
and does not vanish where the decision is certain and wrong. Where the difference is noise around 0, the decision moves
to 1/2.
"""

import math

from hardwon.trainers.algorithms.samples import Sample

from .tuning import TUNING


def weigh(yes: Sample, no: Sample, gain: float) -> tuple[float, float]:
    """Return the weights of the two words of a decision. The worse word has 0."""
    if gain >= 0:
        return gain * max(_get_probability(yes), TUNING.min_probability), 0.0
    return 0.0, -gain * max(_get_probability(no), TUNING.min_probability)


def weigh_sampled(sample: Sample, other: Sample, advantage: float) -> tuple[float, float]:
    """Return the weights of the sampled word and of the other one, where only the first has an advantage.

    A word with a negative advantage trains the other word. The expected gradient is that of the policy gradient,
    except where the other word is less probable than `min_probability`.
    """
    if advantage >= 0:
        return advantage, 0.0
    return 0.0, -advantage * max(_get_probability(other), TUNING.min_probability) / _get_probability(sample)


def _get_probability(row: Sample) -> float:
    """Return the probability of a word when the decision was made."""
    return math.exp(row.logprobs[0])
