"""Prefilter for the patterns of `instructions`: words that a text must contain for a pattern to match.

Most recorded text contains none of these words, and a pattern takes a hundred times as long as a set lookup. The table
says what a sign is.

If a text has no sign of a pattern, the pattern cannot match; the opposite does not hold. A sign of a part of a text is
also a sign of the whole text, so several texts can be tested at once by joining them.
"""

import re
from typing import NamedTuple

from hardwon.memory.patterns import fill_parts, read_table

_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])")
_FOLDED = {0x130: "i", 0x131: "i", 0x345: " "}
"""Characters for which `re.I` and `casefold` disagree: dotted and dotless i match an ASCII i, U+0345 folds to a
letter."""
# bytes.translate maps a whole text in one C call: to lower-case letters here, to the case of each letter below
_LETTERS = bytes(ord(chr(code).lower()) if chr(code).isalpha() else 32 for code in range(128)) + b" " * 128
_CASES = bytes(97 if chr(code).islower() else 65 if chr(code).isupper() else 32 for code in range(128)) + b" " * 128


class _Group(NamedTuple):
    """Alternative words; a sign needs one of them."""

    words: frozenset[bytes]
    parts: tuple[str, ...]


def _group(listed: str) -> _Group:
    """Return the group of a list of words separated by spaces."""
    words = listed.split()
    return _Group(
        frozenset(word.encode() for word in words if not word.endswith("*")),
        tuple(word[:-1].casefold() for word in words if word.endswith("*")),
    )


_TABLE = read_table(__file__, "instruction_signs.toml")
_SIGNS = {
    name: [tuple(map(_group, fill_parts(sign, _TABLE["parts"]).split(" & "))) for sign in signs]
    for name, signs in _TABLE["signs"].items()
}
_ALL = frozenset(word for signs in _SIGNS.values() for sign in signs for group in sign for word in group.words)


def signed_forms(text: str) -> list[str]:
    """Return the names of the patterns that may match a text, in the order in which they are tried."""
    folded = text.lower() if text.isascii() else text.translate(_FOLDED).casefold()
    words = _ALL.intersection(folded.encode("ascii", "replace").translate(_LETTERS).split())
    raw = text.encode("ascii", "replace")
    if b"aA" in raw.translate(_CASES):  # camel case: sendMoney also counts as two words
        cut = _JOINT.sub(" ", text).encode("ascii", "replace")
        words |= _ALL.intersection(cut.translate(_LETTERS).split())
    return [name for name, signs in _SIGNS.items() if _has_any(signs, words, folded)]


def _has_any(signs: list[tuple[_Group, ...]], words: frozenset[bytes], folded: str) -> bool:
    """Return whether a text has one of the signs. Plain loops, because this runs on every text."""
    for sign in signs:
        for alternatives, parts in sign:
            if alternatives.isdisjoint(words):
                for part in parts:
                    if part in folded:
                        break
                else:  # no word of this group: the sign is absent
                    break
        else:  # every group has a word
            return True
    return False
