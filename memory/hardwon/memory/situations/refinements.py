"""Refinements: keys that describe a step more closely than the keys that an estimate backs off to.

The other keys of a situation reduce an argument to its head noun and leave out the task, so that what was learned of
one drawer, or for one request, counts for the next. A refinement adds what these drop: the full names of the things,
the task, all that the text shows, or what stands in one place of it. It counts as far as it has predicted later steps
better; see `values.gains`.

    =name take left door | ...          the full names, in the state that the key before it describes
    =goal take left door | leave house  the task as well
    =slot:bought# refund | bought: from 40               a number after a word, by its first digit: 40 to 49
    =case:bought# refund | final no | bought: from 40    the same with all that the text shows
    =best take {1} | leave {1} | door left; room         the form of the task, and what each sentence shows

The last one counts otherwise: its steps say what was tried for such a task, and the best return what was quickest.
"""

import re
from collections.abc import Iterable, Set as AbstractSet
from functools import lru_cache

from hardwon.memory.reasons import Reasons

from .actions import fill, parse_action, pattern_of
from .phrases import FUNCTION_WORDS, HOLE, MAY_BE_ID, full_name, words
from .tuning import TUNING

REFINED = "="
"""Prefix of the key of a refinement. Its kind follows, and then a space."""
FULL_NAME = "=name "
"""Prefix of a key with full names. It follows the key of all things of the kind."""


SLOT = "=slot:"
"""Prefix of the key of a slot; the word beside it follows, with `#` for a number, as each has gains of its own."""
CASE = "=case:"
"""Prefix of the key of a slot with all that the text shows."""
BEST = "=best "
"""Prefix of the key, the last one of an action, of which the best return counts."""
MORE_OFTEN = ("+", "++")
"""Marks behind structural words that occur twice and four times as often as such words must."""
MAY_CHANGE = "~"
"""Mark behind words of which it may soon change, or has just changed, whether they are structural."""
_FROM = "from "
_NUMBER = re.compile(r"(?<![a-zA-Z0-9_.,:/-])[-−]?\d{1,15}(?:[.,]\d{3})*(?:[.,]\d{1,15})?(?![.,:/-]?\w*\d)")


@lru_cache(maxsize=8192)
def name_in_full(action: str) -> str:
    """Return the action with each argument's full name, `take left door`; "" if that is no more than its pattern."""
    parsed = parse_action(action)
    pairs = zip(parsed.slots, parsed.heads, strict=True)
    names = tuple(head if HOLE.fullmatch(head) else full_name(slot) for slot, head in pairs)
    return fill(parsed.template, names) if names != parsed.heads else ""


def split_refinement(key: str) -> tuple[str, str]:
    """Return the kind of a refinement, "" for another key, and the rest of the key."""
    if not key.startswith(REFINED):
        return "", key
    kind, _, rest = key.partition(" ")
    return kind, rest


def select_filed(keys: tuple[str, ...], why: Reasons) -> tuple[str, ...]:
    """Return the keys under which a step is filed: that of the quickest way is for an agent's own choices.

    They follow the values of the library, or are random. Whoever demonstrates a task knows the way, so that what was
    done says more than how long it took.
    """
    is_own = why.value is not None or why.explored
    return keys if is_own else tuple(key for key in keys if not key.startswith(BEST))


def names_all_things(key: str, action: str) -> bool:
    """Return whether a key is about all things that an action names: `put coat in rack`, but not `put {1} in rack`."""
    named = split_refinement(key)[1].partition(" | ")[0]
    return named in (pattern_of(action), name_in_full(action))


def list_slots(sentences: Iterable[str], structural: AbstractSet[str]) -> dict[str, str]:
    """Return what differs between texts of one form, by the word beside it.

    The form of a sentence is its most frequent words. A slot is what stands between them: up to
    `TUNING.max_slot_words` words, or the size of a number.
    """
    slots: dict[str, str] = {}
    for sentence in sentences:
        if len(slots) > TUNING.max_slots:  # they do not count
            break
        tokens = _read_tokens(sentence)
        ranks = [rank_word(token, structural) for token in tokens]
        most, before, run = max(ranks, default=0), "", list[str]()
        for token, rank in zip((*tokens, ""), (*ranks, most), strict=True):
            is_size = token.startswith(_FROM)
            is_form = rank == most and not is_size
            if run and (is_form or is_size or run[0].startswith(_FROM)):
                beside = (before or token if is_form else before) + "#" * run[0].startswith(_FROM)
                if beside and len(run) <= TUNING.max_slot_words:
                    slots.setdefault(beside, " ".join(run))
                run = []
            if is_form:
                before = token
            else:
                run.append(token)
    return slots


def rank_word(word: str, structural: AbstractSet[str]) -> int:
    """Return how often a word occurs: 0 if it is not structural, and one more for each mark."""
    if word not in structural:
        return 0
    twice, often = MORE_OFTEN
    return 1 + (word + twice in structural) + (word + often in structural)


@lru_cache(maxsize=8192)  # many texts share sentences
def _read_tokens(sentence: str) -> tuple[str, ...]:
    """Return the words of a sentence without function words and ids, and the sizes of numbers in their places."""
    at, tokens = 0, list[str]()
    for match in [*_NUMBER.finditer(sentence), None]:
        between = words(sentence[at : match.start() if match else None])
        tokens += [word for word in between if word not in FUNCTION_WORDS and not MAY_BE_ID.search(word)]
        if match:
            at = match.end()
            tokens.append(measure_size(match[0]))
    return tuple(tokens)


def measure_size(number: str) -> str:
    """Return from where on numbers have the same first digit, magnitude and sign.

    People choose round limits, so the first digit and the magnitude tell on which side of one a number is.

    >>> measure_size("129"), measure_size("1,250.50"), measure_size("0.07")
    ('from 100', 'from 1000', 'from 0.07')
    """
    digits = re.sub(r"[.,](?=\d{3}(?!\d))", "", number).replace(",", ".").replace("−", "-")
    first, _, magnitude = f"{float(digits):e}".partition("e")
    return f"from {float(f'{first.partition(chr(46))[0]}e{magnitude}'):g}"
