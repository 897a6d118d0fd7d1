"""Words of scripts that have no spaces between them, in a form that every splitter of words can read.

Chinese, Japanese and Thai do not separate words. There, every two neighboring characters stand for a word (four in
Thai, Lao, Khmer and Myanmar, whose letters are few), as in the n-grams of search engines: a part of a sentence has most
of its n-grams, and a sentence about something else has few of them. An ASCII text only becomes lower case.
"""

import re
import unicodedata

from hardwon.memory.patterns import compile_late

_PAIRED = (
    "\u1100-\u11ff\ua000-\ua48c\u3005\u3007\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Han, kana, Hangul and Yi."""
_LONGER = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaa7f"
"""Thai, Lao, Khmer, Myanmar, Balinese and Javanese."""
_EMOJI = (
    "\u231a\u231b\u23e9-\u23fa\u25fd\u25fe\u2600-\u27bf\u2b1b\u2b1c\u2b50\u2b55"
    "\U0001f000-\U0001f3fa\U0001f400-\U0001faff"  # without the tones of skin
)
_DENSE = compile_late(f"([{_PAIRED}]+)|([{_LONGER}]+)|([\U0001f1e6-\U0001f1ff]{{2}}|[{_EMOJI}])")
_INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff"
_OPTIONAL = compile_late(
    f"[{_INVISIBLE}\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u065f\u0670]|(?<=i)\u0307"
)
"""Marks that most texts leave out: soft hyphens, joiners and other characters that cannot be seen, vowels of Hebrew and
Arabic, and the dot that the capital i of Turkish keeps."""
_INNER = compile_late(
    f"[{''.join(map(chr, (c for c in range(0x900, 0xE00) if unicodedata.category(chr(c))[0] == 'M')))}]+"
)
"""Vowel signs of the scripts of India, at which a splitter of words would break a word."""
_VARIANTS = dict(zip("ıأإآٱةىیک’ёάέήίϊΐόύϋΰώ", "iااااهييك'еαεηιιιουυυω", strict=True))
"""Letters that are written in several ways: `IŞIK` is `ışık` in Turkish, and capitals of Greek have no accents. Some
scripts have their own digits."""
_VARIANTS |= {chr(ord(zero) + digit): str(digit) for zero in "٠۰०০๐" for digit in range(10)}
_VARIANT = compile_late(f"[{''.join(_VARIANTS)}]")
FULL_STOPS = "。！？｡।॥؟۔።။"
"""Ends of a sentence in other scripts; many of them have no space after it."""
_LATER = compile_late("[\u13a0-\u13f5\u1c90-\u1cbf\U000104b0-\U0001e921]")
"""Capitals, such as those of Georgian, that Unicode has had for fewer years than SQLite's index of words."""
_ONE = compile_late(f"[{_PAIRED}]")
_FOUR = compile_late(f"[{_LONGER}]")
_WORD = compile_late(r"\w+")
_BESIDE = "\n\x1f"
"""Separates a text from its words in an index, which reads both."""


def normalize(text: str) -> str:
    """Return a text in lower case, with one form of each letter and apostrophe, so that equal words compare equal."""
    if text.isascii():
        return text.lower()
    # full-width letters and ligatures, too; before the case, because some of them stand for capitals
    plain = _OPTIONAL.sub("", unicodedata.normalize("NFKC", text).casefold())
    return _VARIANT.sub(lambda letter: _VARIANTS[letter[0]], plain)


def separate(text: str) -> str:
    """Return a normalized text with spaces between its words, or what stands for them, in scripts without spaces."""
    return text.lower() if text.isascii() else _DENSE.sub(_spaced, _INNER.sub("", normalize(text)))


def _spaced(match: re.Match[str]) -> str:
    """Return a run of characters as n-grams, or an emoji as a word."""
    paired, longer, emoji = match.groups()
    if emoji:
        return f" {''.join(f'u{ord(char):x}' for char in emoji)} "
    # marks above and below letters are no letters of a word for most splitters
    run, size = (paired, 2) if paired else ("".join(filter(str.isalnum, longer)), 4)
    grams = map("".join, zip(*(run[at:] for at in range(size)), strict=False))
    return f" {' '.join(grams) or run} "


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, or the n-grams that stand for them."""
    all_words: list[str] = _WORD.findall(separate(text))
    return all_words


def index_text(text: str) -> str:
    """Return a text for a word index: with the words beside it that the index would not find in it."""
    if text.isascii():
        return text
    own, separated = set(_WORD.findall(text if _LATER.search(text) else text.lower())), separate(text)
    all_words = dict.fromkeys(_WORD.findall(separated))
    # a query may be shorter than what stands for words: one character, or three
    all_words.update(dict.fromkeys(filter(_ONE.match, dict.fromkeys(separated))))
    grams = [word for word in all_words if _FOUR.match(word)]
    all_words.update(dict.fromkeys(gram[at : at + n] for gram in grams for n in (1, 2, 3) for at in range(len(gram))))
    further = [word for word in all_words if word not in own]
    return f"{text}{_BESIDE}{' '.join(further)}" if further else text
