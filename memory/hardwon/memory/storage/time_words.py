"""Times in words and in the orders of countries, as mail, web servers, browsers and spreadsheets write them.

    spell_time("Sun, 29 Nov 2026 11:30:00 +0200")  # "2026-11-29T11:30:00+02:00"
    spell_time("11/29/2026, 11:30:00 AM")          # "2026-11-29T11:30:00"
    spell_time("05/06/2026 11:30")                 # "": the fifth of June or the sixth of May

A day is found anywhere in the text. What is left must be a clock, a zone and the name of a weekday.
"""

import re

from hardwon.memory.patterns import compile_late

_LONGEST = 100
"""No time has more characters."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAME = rf"({'|'.join(_MONTHS)})[a-z]{{0,6}}"
_DAYS = [
    (compile_late(pattern, re.IGNORECASE), order)
    for pattern, order in (
        (r"(?<!\d)(\d{4})[-/.年] ?(\d\d?)[-/.月] ?(\d\d?)(?!\d)日?", "ymd"),
        (r"(?<!\d)(\d\d?)\. ?(\d\d?)\. ?(\d{4})(?!\d)", "dmy"),
        (r"(?<!\d)(\d\d?)[-/](\d\d?)[-/](\d{4})(?!\d)", ""),
        (rf"(?<!\d)(\d\d?)(?:st|nd|rd|th|\.)?[-/ ]{_NAME}[-/., ]{{1,2}}(\d{{4}}|\d\d(?= ))(?!\d)", "dmy"),
        (rf"\b{_NAME}[-/. ]{{1,2}}(\d\d?)(?:st|nd|rd|th)?[-/, ]{{1,2}}(\d{{4}})(?!\d)", "mdy"),
    )
]
_YEAR_LAST = compile_late(rf"\b{_NAME} (\d\d?)( .{{5,60}}) (\d{{4}})\Z", re.IGNORECASE)
"""As `date` and C write it: Sun Nov 29 11:30:00 UTC 2026."""
_REST = compile_late(
    r"[ ,:]*+(?:T(?=\d))?(?i:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}[ .,]*+)?(?:at )?"
    r"(?:(\d\d?)[:.時](\d\d)分?(?::?(\d\d)(?!\d)秒?)?(?:[.,](\d{1,12}))? ?(?:([AaPp])\.?[Mm]\b\.?)?)?"
    r" ?(?:UTC?|GMT|Z)? ?([+-]\d\d:?(?:\d\d)?)? ?([A-Z]{3,4}\b)?"
    r"(?: m=[+-][\d.]{1,30})?(?: ?\([^()]{1,60}\)| ?\[[\w/+-]{1,60}\])?"
)
"""A clock and a zone, with the comment of a browser, of Java or of Go."""
_HOURS = {"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "CET": 1, "CEST": 2}
"""Zones of RFC 2822, and the one of Europe; any other name is read as UTC."""


def spell_time(text: str) -> str:
    """Return a time in ISO 8601; empty if it is none, or can be read in two ways."""
    if len(text) > _LONGEST:
        return ""
    text = _YEAR_LAST.sub(r"\1 \2 \4\3", " ".join(text.split()))
    for pattern, order in _DAYS:
        if match := pattern.search(text):
            rest = _REST.fullmatch(" ".join(f"{text[: match.start()]} {text[match.end() :]}".split()))
            if rest is None:
                return ""
            day = _spell_day(match.groups(), order or _find_order(match[1], match[2], is_american=bool(rest[5])))
            return day and f"{day}T{_spell_clock(*rest.groups())}"
    return ""


def _find_order(first: str, second: str, *, is_american: bool) -> str:
    """Return the order of a day with slashes or dashes; empty if it may be either."""
    if int(first) > 12 or first == second:
        return "dmy"
    return "mdy" if int(second) > 12 or is_american else ""


def _spell_day(parts: tuple[str, ...], order: str) -> str:
    values = dict(zip(order, parts, strict=False))
    if not values:
        return ""
    year, month = values["y"], values["m"]
    if len(year) == 2:
        year = f"{20 if int(year) < 70 else 19}{year}"
    number = int(month) if month.isdecimal() else _MONTHS.index(month.lower()) + 1
    return f"{int(year):04}-{number:02}-{int(values['d']):02}"


def _spell_clock(*parts: str | None) -> str:
    hour, minute, second, fraction, half, offset, zone = (part or "" for part in parts)
    hours = int(hour or 0) % 12 + 12 * (half in "pP") if half else int(hour or 0)
    if not offset and (name := zone.upper()) in _HOURS:
        offset = f"{_HOURS[name]:+03}:00"
    return f"{hours:02}:{int(minute or 0):02}:{int(second or 0):02}.{fraction or '0'}{offset}"
