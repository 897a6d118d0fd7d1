"""Patterns for injected instructions in other languages than English, without accents.

`instructions` calls this module for each text, with and without accents. A pattern runs only if one of its word stems
occurs, so English text costs almost nothing.
"""

import re

from hardwon.memory.patterns import compile_late, read_table

_TABLE = read_table(__file__, "instruction_languages.toml")


def _compile(language: str, name: str, flags: int = re.I | re.S) -> re.Pattern[str]:
    """Return a form of a language."""
    lines = _TABLE[language][name]
    return compile_late(lines if isinstance(lines, str) else "".join(lines), flags)


_LATIN: list[tuple[tuple[str, ...], str, re.Pattern[str]]] = [
    (tuple(stem.replace("+", " ") for stem in stems.split()), name, _compile(language, name))
    for language in ("german", "french", "spanish")
    for name, stems in _TABLE[f"{language}_stems"].items()
]
_ALL_STEMS = sorted({stem for stems, _, _ in _LATIN for stem in stems})
_CYRILLIC: list[tuple[str, re.Pattern[str]]] = [(name, _compile("russian", name)) for name in _TABLE["russian"]]
_ASIAN: list[tuple[str, re.Pattern[str]]] = [
    (name, _compile("east_asian", name, re.S)) for name in _TABLE["east_asian"]
]
_CYRILLIC_SIGN, _ASIAN_SIGN = compile_late("[\u0400-\u04ff]"), compile_late("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def may_be_foreign(plain: str) -> bool:
    """Return whether an ASCII text has any of the stems. Without one, no part of it matches a pattern."""
    lowered = " ".join(plain.lower().split())
    return any([stem in lowered for stem in _ALL_STEMS])  # noqa: C419 - as below


def foreign_form_in(plain: str) -> str:
    """Return the kind of instruction that a text in another language contains, or an empty string."""
    # stems and forms may span a line break, so every run of blanks becomes one space
    lowered = " ".join(plain.lower().split())
    for stems, name, form in _LATIN:
        if any([stem in lowered for stem in stems]) and form.search(lowered):  # noqa: C419 - faster
            return name
    if plain.isascii():
        return ""
    for sign, forms in ((_CYRILLIC_SIGN, _CYRILLIC), (_ASIAN_SIGN, _ASIAN)):
        if sign.search(plain):
            for name, form in forms:
                if form.search(plain):
                    return name
    return ""
