"""Decoding of disguised text: encodings and spellings that hide words from a pattern but not from a model.

Every decoder has a cheap test first, because most texts are not disguised. The decoded texts are passed to
`instructions`; nothing is changed or shown.
"""

import base64
import binascii
import codecs
import html
import re
import string
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote_plus

from hardwon.memory.patterns import compile_late

from .tuning import TUNING

_BLOCK = compile_late(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}(?:[\r\n]{1,2}[A-Za-z0-9+/_-]{4,})*={0,2}")
_HEX = compile_late(r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}[\s:]?){12,}|(?:\\x[0-9A-Fa-f]{2}){8,}")
_ESCAPED = compile_late(r"\\u\{?00([0-9A-Fa-f]{2})\}?")
_BITS = compile_late(r"(?:\b[01]{8}\b\s*){8,}")
_LEET = str.maketrans(
    {"0": "o", "3": "e", "4": "a", "5": "s", "7": "t", "8": "b", "9": "g", "@": "a", "$": "s", "€": "e", "+": "t"}
)
_MIXED = compile_late(
    r"(?<![A-Za-z01345789@$!|€+])(?=[A-Za-z]*[01345789@$!|€+])(?=[01345789@$!|€+]*[A-Za-z])[A-Za-z01345789@$!|€+]{2,}"
)
"""Words of both letters and signs that look like letters."""
_ORDERS = compile_late(
    r"\W*(?:ign?o|disr|forg|over|bypa|instr|prev|prio|rule|syst|prom|assi|pass|secr|tran|refu|send|user|call|exec|reve|cust)",
    re.I,
)
"""Beginnings of words that occur in orders. Lookalike digits are only decoded if a word begins like this."""
_IN_URL = compile_late(r"%[0-9A-Fa-f]{2}|\w\+\w+\+\w")
_SPELLED = compile_late(r"(?<![^\W_])[^\W_](?:[ \t.\-_*|/]{1,2}[^\W_](?![^\W_])){5,}")
_GAP = compile_late(r"[ \t]{2,}|\s/\s|\n")
_SIGNS = compile_late(r"[\s.\-_*|/]")
_INVISIBLE = compile_late(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0]+"
)
_MOST_BLOCKS, _LONGEST_BLOCK = 64, 8_000
_ROT13 = ("vtaber", "qvfertneq", "vafgehpgvba", "cebzcg", "flfgrz")
"""Parts of words that occur in orders, in ROT13."""
_HAS_UNSEEN = ("<!--", "](", "]:", "display", "hidden", "font-size", "opacity")
_REVERSED = ("erongi", "drager", "snoitcurtsni", "tpmorp metsys")


def _table(**kinds: str) -> bytes:
    """Return a translation table for bytes that maps each character of a kind to the last letter of the kind's name."""
    table = bytearray(b"." * 256)
    for kind, characters in kinds.items():
        for character in characters:
            table[ord(character)] = ord(kind[-1])
    return bytes(table)


_SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
_ALNUM = string.ascii_letters + string.digits
_IN_BLOCKS = _table(a=_ALNUM + "+/_-")
_IN_HEX = _table(a=string.hexdigits)
_IN_LEET = _table(a=string.ascii_letters, l="01345789@$!|+", s=_SPACES)
_NEITHER = bytes(code for code in range(256) if _IN_LEET[code] == ord("."))
_IN_SPELLED = _table(a=_ALNUM, s=" \t.-_*|/")
_PARTS = ("%", "+", "&", "\\u", "\\x", *_HAS_UNSEEN)
_WRITTEN = (*_ROT13, *_REVERSED)


def may_be_disguised(text: str) -> bool:
    """Return whether an ASCII text, or any part of it, may have disguised or invisible text.

    The test works on translated bytes, because it runs on every text. It looks for a long block, many hexadecimal
    digits, letters and digits in one word, single letters in a row, or a mark of an encoding.
    """
    # must hold for every text that `readings` or `unseen_in` decodes: recall trusts all others unread
    raw = text.encode("ascii", "replace")
    if any([part in text for part in _PARTS]):  # noqa: C419 - a generator costs more than it saves here
        return True
    leet, spelled = raw.translate(_IN_LEET, _NEITHER), raw.translate(_IN_SPELLED)
    if b"al" in leet or b"la" in leet or b"sasas" in spelled or b"sassas" in spelled:
        return True
    if b"a" * 16 in raw.translate(_IN_BLOCKS) or b"a" * 24 in raw.translate(_IN_HEX, _SPACES.encode() + b":"):
        return True
    lowered = text.lower()
    return any([sign in lowered for sign in _WRITTEN])  # noqa: C419


def readings(text: str) -> Iterator[str]:
    """Yield the decoded forms of a text; none for most texts."""
    if len(text) < TUNING.min_decoded:
        return
    yield from _decoded(text)
    if ("%" in text or "+" in text) and _IN_URL.search(text):
        yield unquote_plus(text, errors="replace")
    if "&" in text and ";" in text and (plain := html.unescape(text)) != text:
        yield plain
    if "\\u" in text and (plain := _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)) != text:
        yield plain
    lowered = text.lower()
    if any([sign in lowered for sign in _ROT13]):  # noqa: C419 - a generator costs more than it saves here
        yield codecs.decode(text, "rot13")
    if any([sign in lowered for sign in _REVERSED]):  # noqa: C419
        yield text[::-1]
    yield from _respelled(text)


def _decoded(text: str) -> Iterator[str]:
    """Yield the text in blocks of base64, hexadecimal or binary digits."""
    for number, block in enumerate(_BLOCK.finditer(text)):
        if number >= _MOST_BLOCKS:  # the text comes from an attacker: bound the work
            break
        joined = re.sub(r"\s", "", block[0])[:_LONGEST_BLOCK].rstrip("=").replace("-", "+").replace("_", "/")
        decoded = _base64(joined)
        if decoded:
            yield decoded
            # encoded twice
            if (again := _base64(decoded.strip().rstrip("="))) and len(decoded.split()) == 1:
                yield again
    for block in _HEX.finditer(text):
        digits = re.sub(r"\\x|[\s:]", "", block[0])[:_LONGEST_BLOCK]
        with_text = _as_text(bytes.fromhex(digits[: len(digits) // 2 * 2]))
        if with_text:
            yield with_text
    for block in _BITS.finditer(text):
        if with_text := _as_text(bytes(int(bits, 2) for bits in block[0].split())):
            yield with_text


def _base64(block: str) -> str:
    """Return the text in a block of base64, or an empty string."""
    # base64 never has 4n + 1 digits, so the last one is not part of it
    whole = block[: len(block) // 4 * 4] if len(block) % 4 == 1 else block
    try:
        return _as_text(base64.b64decode(whole + "=" * (-len(whole) % 4), validate=True))
    except (binascii.Error, ValueError):
        return ""


def _as_text(raw: bytes) -> str:
    """Return decoded bytes, or an empty string unless they are mostly letters and spaces."""
    # English in UTF-16 has a zero in every second byte
    for encoding in ("utf-8", "utf-16-le") if b"\x00" in raw else ("utf-8",):
        text = raw.decode(encoding, errors="ignore")
        letters = sum(char.isalpha() or char in " \n.,'" for char in text)
        if len(text) >= TUNING.min_decoded and letters >= 0.85 * len(text):
            return text
    return ""


def _respelled(text: str) -> Iterator[str]:
    """Yield the text with lookalike digits decoded, without invisible characters, and with spelled words joined."""
    if any(_ORDERS.match(_letters(word, "i")) or _ORDERS.match(_letters(word, "l")) for word in _MIXED.findall(text)):
        # both readings of "1", because it stands for either letter
        yield _MIXED.sub(lambda matches: _letters(matches[0], "i"), text)
        yield _MIXED.sub(lambda matches: _letters(matches[0], "l"), text)
    if not text.isascii():
        apart = _INVISIBLE.sub(" ", text)  # an invisible character may also separate words
        if apart != text:
            yield unicodedata.normalize("NFKC", apart)
    if matches := list(_SPELLED.finditer(text)):
        yield "\n".join(_joined(match[0]) for match in matches)


def _letters(word: str, spelled: str) -> str:
    """Return a word with lookalike digits and signs as letters; `spelled` is the letter for "1" and "|"."""
    return word.translate(_LEET).replace("1", spelled).replace("!", "i").replace("|", spelled)


def _joined(spelled: str) -> str:
    """Return text that was spelled letter by letter as words; wider gaps separate words."""
    return " ".join(_SIGNS.sub("", word) for word in _GAP.split(spelled))


# ---- invisible text

_UNSEEN = compile_late(
    r"<!--(.*?)(?:-->|\Z)"
    r"|\]\(\s{0,9}<?[^)\s>]{0,1000}>?\s{1,9}[\"'(]([^\"')]{0,1000})[\"')]\s{0,9}\)"
    r"|^[^\S\n]{0,3}\[[^\]]{0,200}\]:\s{0,9}<?#?>?\s{0,9}[\"'(](.{0,1000}?)[\"')]\s{0,9}$"
    r"|<[^<>]*(?:display\s{0,9}:\s{0,9}none|visibility\s{0,9}:\s{0,9}hidden|font-size\s{0,9}:\s{0,9}0|opacity\s{0,9}:\s{0,9}0\b"
    r"|\bhidden\b)[^>]{0,1000}>([^<]*)",
    re.I | re.S | re.M,
)
_SENDS = compile_late(
    r"\]\(\s{0,9}<?https?://[^)\s?&#/=]{0,300}[?&#/=][^)\s]{0,1000}?"
    r"(?:\{[^)\s{}]{0,300}\}|\[[A-Za-z _-]{1,60}\]|<[A-Za-z _-]{1,60}>|%7B|\$[A-Za-z{]"
    r"|\b(?:YOUR|INSERT|ALL|THE)_[A-Z_]+)",
    re.S,
)
"""A link or image whose address has a placeholder. A model that fills it in sends the reader's data to the address."""


def unseen_in(text: str) -> list[str]:
    """Return the parts of a text that are invisible when it is rendered: comments, link titles, hidden elements."""
    if not any([sign in text for sign in _HAS_UNSEEN]):  # noqa: C419
        return []
    return [part for match in _UNSEEN.finditer(text) for part in match.groups() if part and part.strip()]


def sends_what_is_filled_in(text: str) -> bool:
    """Return whether a Markdown link or image has an address with a placeholder for the reader's data."""
    return "](" in text and _SENDS.search(text) is not None
