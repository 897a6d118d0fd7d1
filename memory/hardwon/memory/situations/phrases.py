"""Words of a text, and what a phrase names: the head noun of `old stove`, the identity of `user_id=mia_li_3668`.

Two phrases with the same head are of one kind, such as `drawer 1` and `drawer 7`. If a rule cannot decide whether a
word distinguishes things, it keeps the word. Keys back off to more general ones, but two things under one key cannot
be separated again.
"""

import re
import unicodedata
from functools import cache, lru_cache

from .scripts import normalize, separate
from .tuning import TUNING


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text that separates them by spaces."""
    return frozenset(text.split())


_WORD = re.compile(r"[a-z0-9]+(?:['-]+[a-z0-9]+)*")
FUNCTION_WORDS = words_of(
    """
    a an and any are as be been but by can could do does for from have her him his i if in is it its let let's
    may my not of off on once or our out she should so some that the their them then there these they this those
    to up was we were what when where which who will with would you your yours one into onto at he here how
    """
)
ARTICLES = words_of(
    """
    a an the this that these those some my your his her its our their
    """
)
_NUMBER_WORDS = {
    **{"one": "1", "two": "2", "three": "3", "four": "4", "five": "5"},
    **{"six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"},
}
_MARKERS = words_of(
    """
    no nr num number n° nro núm № #
    """
)
"""Words that announce a number: `drawer no. 7`."""
_UNITS = words_of(
    """
    mm cm dm m km inch inches ft foot feet yd mi mile miles meter meters metre metres
    mg g kg t lb lbs oz gram grams kilogram kilograms pound pounds ounce ounces ton tons
    ml cl dl l liter liters litre litres gal gallon gallons pt qt
    ms s sec min h hr hrs second seconds minute minutes hour hours
    kb mb gb tb hz khz mhz ghz w kw v kv amp mah k c f °c °f pa bar psi cal kcal px % percent
    """
)
"""Words that only measure if they follow a number: `2 l of water`, `ruler 20 cm`."""
_ROMAN = words_of(
    """
    ii iii iv vi vii viii ix xi xii xiii xiv xv
    """
)
_LONG_NUMBER = re.compile(rf"\d{{{TUNING.max_choice_digits + 1}}}")

HOLE = re.compile(r"\{\d+\}")
MAY_BE_ID = re.compile(r"\d{3}")
_QUOTES = "\"'`“”‘’«»„"
_AROUND = _QUOTES + "()[]<>{},;:!?"
_NUMERIC = re.compile(
    r"(?:(?:no|nr|num|n°)[.:]?|[#№])?[+−-]?v?\d+(?:[.,:/⁄x-]\d+)*(?:[a-z°]{1,3}|[-/][a-z]{1,2}|[.%])?"
)

"""A number with its marker, its sign, and its unit or letter: `7`, `no.7`, `20cm`, `4-b`, `3rd`, `-1`."""
_MARKER = re.compile(r"\A(?:(?:no|nr|num|n°)[.:]?|[#№])(?=[+−-]?v?\d)")
"""The marker at the beginning of a number."""
_LABEL = re.compile(r"[a-z]-?\d{1,3}")
"""A letter with a number, which tells things of one kind apart if it follows their noun: `gate b12`."""
_NUMBERED = re.compile(r"([^\W\d_][\w'-]*[^\W\d_])(?:[_#-]\d+|(?<=[^\W\d_]{4})\d{1,3})")
_ASIDE = re.compile(r"(?<=\S)\s+[(\[<][^()\[\]<>]*[)\]>]\s*\Z")
_UNSAFE = re.compile(r"[,(){}\[\]\"]+")
"""Characters that have a meaning in patterns, which are parsed like actions."""
REDACTED = re.compile(r"\[redacted:\w+\]")
"""A mark in the place of a secret or an address; no call can be made with it."""
_WHOLE = re.compile(r"[./\\@:]")
"""Characters in paths, addresses, versions and file names, which stay whole."""

_FREE_TEXT = re.compile(
    r"(?:.*[._])?(?:query|queries|q|text|message|msg|body|content|contents|prompt|question|description|comment|notes?"
    r"|reason|summary|title|subject|search|keywords?|thought|thoughts|answer|reply|response|code|patch|diff|new_str|old_str"
    r"|explanation|instructions?|caption|tweet|post)"
)
_OF_ID = re.compile(
    r"(?:.*[._-])?(?:id|ids|uuid|guid|number|no|num|ref|reference|code|key|token|order|reservation|booking|ticket|account"
    r"|customer|user|username|invoice|phone|zip|card|pnr|sku|asin|isbn|session|cursor|hash|sha|commit)|\w+(?:Id|ID)"
)
_ID = re.compile(
    r"#?(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a uuid
    # hexadecimal with at least one digit, so that no plain word counts as an id
    r"|(?=[a-f]*\d)[0-9a-f]{8,}"
    r"|(?=\D*\d)(?=\d*[^\W\d_])(?=[\w-]*?\d{4})[\w-]*+"  # letters and a long number: mia_li_3668
    r"|(?=[\w-]{6,}\Z)\d+[^\W\d_]+\d\w*|(?=[\w-]{6,}\Z)[^\W\d_]+\d+[^\W\d_]+\d\w*)"  # 4wq150, b07xy1
)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?(?:[t ].*)?|\d\d?[/.]\d\d?[/.]\d{2,4}|\d\d?:\d\d(?::\d\d)?(?: ?[ap]m)?")
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//([^/?#\s]*+)([^?#\s]*+)\S*")
_PATH = re.compile(r"[^\s/\\]*[/\\]\S*|[\w-]+\.[a-z]\w{0,4}")


@cache
def _any_script() -> re.Pattern[str]:
    """Return the pattern of words in any script: letters and digits, each with its combining marks."""
    # built on first use: the scan covers 64,000 characters, and many libraries have only ASCII text
    marks = "".join(re.escape(chr(code)) for code in range(0x300, 0xFFFF) if unicodedata.category(chr(code))[0] == "M")
    letter = rf"[^\W_][{marks}]*"
    return re.compile(rf"(?:{letter})+(?:['-]+(?:{letter})+)*")


@lru_cache(maxsize=8192)
def words(text: str) -> tuple[str, ...]:
    """Return the lower-case words of a text in order, without surrounding quotes."""
    return tuple(_split(text))


def vocabulary(text: str) -> frozenset[str]:
    """Return the distinct words of a text, for document frequencies."""
    return frozenset(_split(text))


def _split(text: str) -> list[str]:
    """Return the lower-case words of a text as a list."""
    lowered = text.lower()
    if lowered.isascii():
        split_words: list[str] = _WORD.findall(lowered)
    else:
        split_words = _any_script().findall(separate(text))
    return split_words


@lru_cache(maxsize=1024)
def content_words(text: str) -> frozenset[str]:
    """Return the words of a text without function words."""
    return frozenset(words(text)) - FUNCTION_WORDS


@lru_cache(maxsize=8192)
def head_noun(phrase: str) -> str:
    """Return the noun that a phrase names, without numbers, quotes and attributes.

    `a dirty dress` -> dress, `sinkbasin 1` -> sinkbasin, `chef's knife` -> knife, `cup of green tea` -> `cup of tea`.
    Units and markers belong to their numbers: `ruler 20 cm` -> ruler, `2 l of water` -> water, `box no. 7` -> box.
    Paths, addresses and versions stay whole. A phrase that consists of numbers keeps all of them.
    """
    if HOLE.fullmatch(phrase):
        return phrase
    tokens = _tokens(phrase)
    before, is_divided, after = _divided(tokens)
    # an amount of something is that thing: `2 l of water`
    if is_divided and not (before[-1] in _UNITS and all(_find_numbers(before))):
        return f"{_last(before)} of {_last(after)}"
    return _last(after if is_divided else tokens)


@lru_cache(maxsize=8192)
def full_name(phrase: str) -> str:
    """Return the words of a phrase without articles, with the attributes and numbers that its head leaves out.

    `the left door` -> `left door`, `key no. 3` -> `key 3`. Free text and a phrase with an id have only their head.
    """
    tokens = _tokens(phrase)
    kept = [
        _UNSAFE.sub("", _MARKER.sub("", token))
        for token, is_numeric in zip(tokens, _find_numbers(tokens), strict=True)
        if not (is_numeric and token in _MARKERS)
    ]
    name = " ".join(filter(None, kept)) or head_noun(phrase)
    is_abstract = name.count(" ") >= TUNING.max_label_words or _LONG_NUMBER.search(name) or REDACTED.search(phrase)
    return head_noun(phrase) if is_abstract or HOLE.fullmatch(phrase) else name


def _tokens(phrase: str, *, with_aside: bool = False) -> list[str]:
    """Return the words of a phrase without articles and surrounding punctuation."""
    lowered = normalize(phrase) if with_aside else _ASIDE.sub("", normalize(phrase))
    stripped = [_bare(token) for token in lowered.split()]
    tokens = [token for token in stripped if token]
    content = [token for token in tokens if token not in ARTICLES]
    return content or tokens or [token for token in lowered.split() if token][:1]


def _bare(token: str) -> str:
    """Return a token without surrounding punctuation, but with leading dots: `..`, `./run`, `.env`."""
    if redacted := REDACTED.search(token):
        return redacted[0]
    bare = token.strip(_AROUND)
    return bare.rstrip(".").rstrip(_AROUND) if bare.strip(".") else bare


def _divided(tokens: list[str]) -> tuple[list[str], bool, list[str]]:
    """Split tokens at "of"; the flag says whether there is one."""
    at = tokens.index("of") if "of" in tokens[1:-1] else 0
    return tokens[:at], bool(at), tokens[at + 1 :]


def _find_numbers(tokens: list[str]) -> list[bool]:
    """Return for each token whether it is a number, or the marker or unit of a neighboring one."""
    digits = [_NUMERIC.fullmatch(token) is not None for token in tokens]
    digits_found = list(digits)
    for at, token in enumerate(tokens):
        if token in _MARKERS:
            digits_found[at] = at + 1 < len(tokens) and (digits[at + 1] or tokens[at + 1] in _NUMBER_WORDS)
        elif token in _UNITS:
            digits_found[at] = at > 0 and digits[at - 1]
    return digits_found


def _last(tokens: list[str]) -> str:
    """Return the last token that is not a number, without a number at its end, or the numbers if there is no other."""
    numeric = _find_numbers(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        token = tokens[at]
        if numeric[at] or (_is_label(token) and not all(numeric[:at])):
            continue
        # a single word is a noun, whatever it looks like
        if token in _NUMBER_WORDS and len(tokens) > 1:
            continue
        if _WHOLE.search(token):
            return token
        numbered = _NUMBERED.fullmatch(token)
        return numbered[1] if numbered else token
    return " ".join([_MARKER.sub("", token) for token in tokens if token not in _MARKERS] or tokens)


def _is_label(token: str) -> bool:
    """Return whether a token that follows a noun only tells things of its kind apart: `gate b12`, `chapter iv`."""
    return token in _ROMAN or _LABEL.fullmatch(token) is not None


def numbers(phrase: str) -> tuple[str, ...]:
    """Return the numbers in a phrase, which its head leaves out: they identify one of several drawers.

    Letters that belong to a number stay: `room 4-B` is not `room 4-C`.
    """
    tokens = _tokens(phrase, with_aside=True)
    values: list[str] = []
    for token, is_numeric in zip(tokens, _find_numbers(tokens), strict=True):
        if token in _NUMBER_WORDS:
            values.append(_NUMBER_WORDS[token])
        elif is_numeric and token in _UNITS:
            values[-1] += token  # `20 cm` is `20cm`
        elif is_numeric and token not in _MARKERS:
            values.append(re.sub(r"[./-](?=[a-z]*\Z)", "", _MARKER.sub("", token)))
        elif _is_label(token):
            values.append(token.replace("-", ""))
        else:
            values += re.findall(r"\d+", token)
    return tuple(values)


@lru_cache(maxsize=8192)
def identity(value: str, name: str = "") -> str | None:
    """Return the distinguishing part of a call's argument, or None for an id, free text, an amount or a date.

    A single word stays as it is. A label keeps all words but its numbers: `buy now`, `sinkbasin` of `sinkbasin 1`. A
    URL keeps host and path, with `*` for ids.
    """
    if HOLE.fullmatch(value.strip()):
        return value.strip()
    # one mark stands for any number of secrets, so it distinguishes nothing
    if REDACTED.search(value):
        return None
    text = " ".join(filter(None, (_UNSAFE.sub("", _bare(token)) for token in normalize(value).split())))
    if not text:
        return ""
    # only constants in lower case: the camel case of `userId` marks it as an id
    if _is_abstract(text, name.lower() if name.isupper() else name):
        return None
    if link := _URL.fullmatch(text):
        return _place_of(link[1], link[2])
    if " " not in text:
        return text
    tokens = text.split()
    kept = [token for token, is_numeric in zip(tokens, _find_numbers(tokens), strict=True) if not is_numeric]
    kept = kept[1:] if kept[1:] and kept[0] == "of" != tokens[0] else kept  # the water of `2 l of water`
    return " ".join(kept or tokens) if len(kept) <= TUNING.max_label_words else None


def _is_abstract(text: str, name: str) -> bool:
    """Return whether an argument is free text, an id, an amount or a date."""
    if _FREE_TEXT.fullmatch(name.lower()):
        return True
    if not any(map(str.isdigit, text)):  # a cheap test first: every id, amount and date has a digit
        return False
    if _OF_ID.fullmatch(name) and " " not in text:
        return True
    if text.lstrip("-").isdigit():
        return len(text.lstrip("-")) > TUNING.max_choice_digits
    is_amount = re.fullmatch(r"[-+$€£]*\d[\d,]*\.\d+[%€$]?|[$€£]\d[\d,.]*", text)
    return bool(is_amount or _DATE.fullmatch(text) or (_ID.fullmatch(text) and not _PATH.fullmatch(text)))


def _place_of(host: str, path: str) -> str:
    """Return host and path of a URL, with `*` for ids."""
    parts = ["*" if re.fullmatch(r"\d+", part) or _ID.fullmatch(part) else part for part in path.split("/") if part]
    # without the user name and password that a URL may have before its host
    return "//" + "/".join([host.rpartition("@")[2], *parts])
