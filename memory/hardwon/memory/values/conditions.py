"""Words of the notes that are conditions of an action (decision 030).

The words that go with a reward are not all its reason: something that is told to be cut and fried is rewarded for frying
because of the word `fry`. Told only to be cut, it must not be fried.
"""

from hardwon.memory.situations.keys import TOLD

from .cells import MEMORY, Cell, compute_precision

CONDITION = (3, 0.75, 0.4)
"""When a word that notes tell of a thing is a condition of an action: the least number of good steps with the word,
their least share of all good steps, and the least share of bad steps among those without the word."""


def find_told_action(key: str) -> str:
    """Return the action of a key of a word that notes told of it, such as `cook {1} | 1 dice`; "" for other keys."""
    action, _, word = key.rpartition(" | ")
    return action if word[:1].isdigit() and ":" not in word else ""


def is_about_notes(key: str) -> bool:
    """Return whether a key is that of a word that notes told, or the common key of these."""
    return key.endswith(TOLD) or bool(find_told_action(key))


def complete_told(keys: list[str]) -> list[str]:
    """Return keys of a step with the common key of what notes told, which keys before version 6 lack."""
    if any(key.endswith(TOLD) for key in keys):
        return keys
    return [*keys, *dict.fromkeys(action + TOLD for key in keys if (action := find_told_action(key)))]


def leave_out(of_action: Cell, word: Cell) -> Cell | None:
    """Return the steps without a word if it is a condition of the action; see `CONDITION`.

    Args:
        of_action: All steps with the action of which notes told something.
        word: Those of which they told the word.
    """
    least, share, missing = CONDITION
    if word.n - word.bad < max(least, share * (of_action.n - of_action.bad)):
        return None
    rest, bad = of_action.n - word.n, of_action.bad - word.bad
    if rest <= 0 or bad < missing * rest:
        return None
    # The moving means of two keys are about different steps, so only sums can be subtracted.
    mean = (of_action.total - word.total) / rest
    variance = max(0.0, (of_action.squares - word.squares) / rest - mean * mean)
    precision = compute_precision(min(rest, MEMORY), variance)
    steps = [step for step in of_action.steps if step not in word.steps]
    lost = of_action.lost - word.lost
    return Cell(rest, min(mean, of_action.mean), precision=precision, bad=bad, lost=lost, steps=steps)


def rank_rest(rest: Cell) -> tuple[float, ...]:
    """Return the rank of steps without a word, the same in every process, whatever the order of a set is there."""
    return rest.bad / rest.n, -rest.n, rest.mean, rest.lost
