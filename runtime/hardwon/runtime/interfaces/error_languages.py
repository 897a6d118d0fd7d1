"""Recognize a short message in another language than English that says that a call failed.

Services answer in the language of their users. What counts are the words of the sentence: one that means failure,
or a negation with one for what was asked. Words that clear the call, such as "fixed", outweigh both. Languages with
spaces share one set of words, without accents and endings; the others have patterns, in which most words for failure
have to end a clause.
"""

import re
import unicodedata

from hardwon.memory.patterns import compile_late, fill_parts, read_table


def _fold(text: str) -> str:
    text = text.lower().replace("ß", "ss")
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if unicodedata.category(letter)[0] != "M")


def _cut(word: str) -> str:
    """Return a word without its inflection."""
    return word[: 6 if len(word) > 7 else 5]


def _stems(words: str) -> frozenset[str]:
    return frozenset(map(_cut, _fold(words).split()))


_TABLE = read_table(__file__, "error_languages.toml")


def _read(group: str, name: str) -> str:
    """Return the lines of an entry of the table: words, or a pattern."""
    lines = _TABLE[group][name]
    return " ".join(lines) if group == "words" else fill_parts("".join(lines), _TABLE["parts"])


_ERRORS = _stems(_read("words", "errors"))
_REPORTED = _stems(_read("words", "reported"))
_FAILED = _stems(_read("words", "failed"))
_NEGATIONS = frozenset(_fold(_read("words", "negations")).split())
_ASKED = _stems(_read("words", "asked"))
_PHRASES = tuple(map(_fold, _TABLE["words"]["phrases"]))
_CLEARED = _stems(_read("words", "cleared"))
_REPORTERS = _stems(_read("words", "reporters"))
_TOLD = _stems(_read("words", "told"))
_ENGLISH = frozenset(["the", "to", "are", "been", "you", "your", "they", "this"])
_COUNT = compile_late(r"[:=]\s*\d+\W*\Z")
_WORD = compile_late(r"[^\W\d_]+|0")
_UNSPACED = compile_late(_read("unspaced", "failed"))
_UNSPACED_CLEARED = compile_late(_read("unspaced", "cleared"))
_IS_UNSPACED = compile_late(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def is_foreign_failure(sentence: str) -> bool:
    """Return whether a sentence in one of these languages says that a call failed."""
    if _IS_UNSPACED.search(sentence):
        return _UNSPACED.search(sentence) is not None and _UNSPACED_CLEARED.search(sentence) is None
    folded = sentence.lower() if sentence.isascii() else _fold(sentence)
    words = _WORD.findall(folded)
    # Without their accents, some words look English.
    if not _ENGLISH.isdisjoint(words if sentence.isascii() else _WORD.findall(sentence.lower())):
        return False
    stems = list(map(_cut, words))
    is_told = not _REPORTERS.isdisjoint(stems) and not _TOLD.isdisjoint(stems)
    if is_told or not _CLEARED.isdisjoint(stems):
        return False
    is_negated = not _NEGATIONS.isdisjoint(words)
    if errors := [word for word, stem in zip(words, stems, strict=True) if stem in _ERRORS]:
        is_english = errors[0] in ("error", "errors")
        if errors[0] in words[:3] and re.search(rf"\b{errors[0]}\s*[:!\d]", folded) and not is_english:
            return True
        is_last = errors[0] == words[-1] and not is_english
        return not is_negated and (is_last or not _REPORTED.isdisjoint(stem for stem in stems if stem != "in"))
    return (
        (not _FAILED.isdisjoint(stems) and _COUNT.search(folded) is None)
        or (is_negated and not _ASKED.isdisjoint(stems))
        or any(phrase in folded for phrase in _PHRASES)
    )
