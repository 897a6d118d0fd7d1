"""Patterns for secrets in command lines, settings, headers and account numbers, and the table of most of them.

The patterns recognize a secret by the text around it or by a check digit. `redaction` calls `redact_forms` for every
text. Each pattern has hints: unless one of them occurs, the pattern is not tried. Every pattern is bounded, so its time
is limited for any text.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hardwon.memory.patterns import compile_late, fill_parts, read_table

_FORMS = bytes(
    48 if 48 <= code <= 57 else 65 if 65 <= code <= 90 else 45 if code == 45 else 97 if 97 <= code <= 122 else 32
    for code in range(256)
)
"""Translation table: digits become 0, capitals A, small letters a; hyphens stay."""
_SSN_FORM, _IBAN_FORM, _SMALL_IBAN_FORM = b"000-00-0000", b" AA00", b" aa00"
INVISIBLE = compile_late(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]"
)
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_STYLED = compile_late("[\u24b6-\u24e9\uff01-\uff5e\U0001d400-\U0001d7ff]+")
"""Circled, full-width and mathematical letters, which read like plain ones."""

NAMES = ("passw", "passphrase", "passcode", "pwd", "secret", "token", "credential", "key", "authorization", "bearer")
"""Names of secrets in lower case. Testing them one by one is five times as fast as one pattern with all of them."""
VALUE = r"(?P<q>[\"'`]?)(?P<value>[^\s\"'`<>\[\]]{3,400})(?P=q)"


class Form(NamedTuple):
    """A pattern with a group `value` that is secret, and hints of which the text must contain one."""

    hints: Sequence[str]
    pattern: re.Pattern[str]
    kind: str
    certain: bool = False
    """Whether every value is a secret. Otherwise, ordinary words are kept."""


def read_forms(table: Mapping[str, Any], group: str) -> dict[str, tuple[Form, ...]]:
    """Return the forms of a group of a table by their roots, which most do not have."""
    forms: dict[str, tuple[Form, ...]] = {}
    for row in table[group]:
        root = row.get("root", "")
        forms[root] = (*forms.get(root, ()), _make_form(row, {"VALUE": VALUE, **table["parts"]}))
    return forms


def _make_form(row: Mapping[str, Any], parts: Mapping[str, str]) -> Form:
    pattern = fill_parts(row["pattern"], parts)
    flags = re.I if "unicode" in row or "ñ" in pattern else re.I | re.A
    return Form(row["hints"], compile_late(pattern, flags), row.get("kind", "password"), row.get("certain", False))


_TABLE = read_table(__file__, "secret_forms.toml")
_OF_COMMANDS, _OF_NAMES, _OF_HEADERS, _OF_NUMBERS, _OF_SEEDS = (
    read_forms(_TABLE, group)[""] for group in ("commands", "names", "headers", "numbers", "seeds")
)
_COMMAND_HINTS, _NAME_HINTS = _TABLE["hints"]["commands"], _TABLE["hints"]["names"]
_HEADER_HINTS = tuple(dict.fromkeys(hint for form in _OF_HEADERS for hint in form.hints))
_VENDORS = compile_late(
    r"(?<![\w-])(?:sq0[a-z]{3}-[\w-]{20,60}|sl\.[A-Z][\w-]{40,200}|pat[A-Za-z0-9]{14}\.[0-9a-f]{64}|EAA[A-Za-z0-9]{60,300}"
    r"|[0-9a-f]{32}-us[0-9]{1,2}|[MNO][\w-]{22,27}\.[\w-]{6,7}\.[\w-]{27,45}|bot[0-9]{8,10}:AA[\w-]{32,35}|LTAI[A-Za-z0-9]{20}"
    r"|dckr_[a-z]{2,4}_[\w-]{20,60}|figd_[\w-]{30,60}|rubygems_[0-9a-f]{40,60}|xkeysib-[\w-]{40,120}|CFPAT-[\w-]{40,60}"
    r"|xprv[1-9A-HJ-NP-Za-km-z]{100,112}|(?:5[HJK]|K[w-z]|L[1-5])[1-9A-HJ-NP-Za-km-z]{49,50}|S[UAONCX][A-Z2-7]{56}"
    r"|(?:sdk|mob)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|npg_\w{10,40}"
    r"|tgp_v1_[\w-]{24,60}|pul-[0-9a-f]{40}|\w{14}\.atlasv1\.[\w-]{60,80}|AKCp[A-Za-z0-9]{60,80}"
    r"|AT[AC]TT3[\w=-]{50,300}|dp\.(?:pt|st|ct)\.[\w.-]{40,80}|(?<=SSWS )00[\w-]{38,44}"
    r"|dt0c01\.\w{24}\.\w{64}|ph[cx]_\w{40,60}|secret_[A-Za-z0-9]{43}"
    r"|v1\.0-[0-9a-f]{24}-[0-9a-f]{146})"
    r"(?![\w-])",
    re.A,
)
_HTDIGEST = compile_late(r"^([^\s:]{1,60}:[^:\n]{1,60}:)[0-9a-f]{32}$", re.A | re.M)
VENDOR_BEGINNINGS = (
    *("sq0", "pat", "EAA", "LTAI", "dckr_", "figd_", "rubygems_", "xkeysib-", "CFPAT-", "ATATT3", "ATCTT3"),
    *("phc_", "phx_", "secret_", "bot", "tgp_v1_", "pul-", "AKCp", "xprv", "sdk-", "mob-", "npg_"),
    *(f"5{sign}" for sign in "HJK"),
    *(f"K{sign}" for sign in "wxyz"),
    *(f"L{sign}" for sign in "12345"),
    *(f"S{sign}" for sign in "UAONCX"),
)
"""Prefixes of these tokens, except for those with a dot near their beginning."""
_SSN = compile_late(r"(?<![\w.-])(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}(?![\w-])", re.A)
_IBAN = compile_late(
    r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?(?![A-Za-z0-9])", re.A | re.I
)
_IBAN_LENGTHS = range(15, 35)

_PLACEHOLDER = compile_late(
    r"\(|\$(?:[A-Za-z_]\w*|[({].*)\Z|%\w+%?\Z|\{|<|\*{3}|\[redacted:|(?:self|os|process|config|settings|env|args|req|form)[.\[]"
    r"|[\w.]+\(|[A-Z][A-Z_]{2,}\Z"
)
_FILE = compile_late(r"~?(?:/[\w.-]+){2,}/?")
_MARKS = compile_late(r"[^\w.,;:()]")


def unmask(text: str) -> str:
    """Return a text without invisible characters, and with full-width and other styled letters as plain ones."""
    return _STYLED.sub(_plain, INVISIBLE.sub("", text).translate(_WIDE))


def _plain(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", match[0])


def is_masked(text: str) -> bool:
    """Return whether a text has invisible or styled characters, which hide a secret from a pattern."""
    return not text.isascii() and (INVISIBLE.search(text) is not None or _STYLED.search(text) is not None)


def _has_iban_form(forms: bytes) -> bool:
    return _IBAN_FORM in forms or _SMALL_IBAN_FORM in forms


def redact_forms(text: str, lowered: str, raw: bytes) -> str:
    """Return the text without the secrets that a form matches."""
    redacted = text
    has_signs = _SIGNS.search(text) is not None
    if lowered[:2] == "--" or any([hint in lowered for hint in _COMMAND_HINTS]):  # noqa: C419 - a generator costs more than it saves here
        redacted = _redact(redacted, lowered, _OF_COMMANDS)
    if (has_signs or "passw" in lowered) and any([hint in lowered for hint in _NAME_HINTS]):  # noqa: C419 - as above
        redacted = _redact(redacted, lowered, _OF_NAMES)
    if has_signs and any([hint in lowered for hint in _HEADER_HINTS]):  # noqa: C419 - as above
        redacted = _redact(redacted, lowered, _OF_HEADERS)
    if "phrase" in lowered or "mnemonic" in lowered:
        redacted = _redact(redacted, lowered, _OF_SEEDS)
    forms = (b" " + raw).translate(_FORMS)
    if b"000" in forms:
        redacted = _redact(redacted, lowered, _OF_NUMBERS)
        if _SSN_FORM in forms:
            redacted = _SSN.sub("[redacted:ssn]", redacted)
    if _has_iban_form(forms):
        redacted = _IBAN.sub(_iban, redacted)
    return redacted


_SIGNS = compile_late(r"[=:<(%'\"：]")
"""Signs of which every form of names and headers has one, unless it is a password in prose."""


def redact_vendors(text: str) -> str:
    """Return the text without tokens of vendors that `redaction` does not cover."""
    return _HTDIGEST.sub(r"\1[redacted:hash]", _VENDORS.sub("[redacted:api_key]", text))


def _redact(text: str, lowered: str, forms: Sequence[Form]) -> str:
    """Return the text after applying each form that has a hint in it."""
    return replace_forms(text, lowered, forms, is_value)


def replace_forms(text: str, lowered: str, forms: Sequence[Form], judge: Callable[[str], bool]) -> str:
    """Return the text without the values of these forms that are certain, or secrets for `judge`."""
    for form in forms:
        for hint in form.hints:  # a loop: it ends at the first hint, and a list for each form costs more
            if hint in lowered:
                text = form.pattern.sub(_instead(form, judge), text)
                break
    return text


def _instead(form: Form, judge: Callable[[str], bool]) -> Callable[[re.Match[str]], str]:
    """Return the replacement function of a form, for `re.sub`."""

    def replace(match: re.Match[str]) -> str:
        value = match["value"]
        kept = value.rstrip(").,;:!?") or value
        is_secret = is_value(kept, certain=True) if form.certain else judge(kept)
        # a login is often an address
        if "[redacted:" in match[0].replace("[redacted:email]", "") or not is_secret:
            return match[0]
        start = match.start("value") - match.start()
        return f"{match[0][:start]}[redacted:{form.kind}]{match[0][start + len(kept) :]}"

    return replace


def is_value(value: str, *, certain: bool = False) -> bool:
    """Return whether a text in the place of a secret is one, and not a variable, a placeholder or an ordinary word."""
    if len(value) < 3 or _PLACEHOLDER.match(value):
        return False
    if certain:
        return True
    if _FILE.fullmatch(value):  # PWD=/srv/app/releases/42
        return False
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    mixed = value.lower() != value and not value.istitle() and not value.isupper()
    return (has_digit and (has_letter or bool(_MARKS.search(value)))) or (
        bool(_MARKS.search(value.strip("-/"))) and mixed and len(value) >= 8
    )


def _iban(match: re.Match[str]) -> str:
    """Return the replacement of an IBAN with valid check digits; other matches are kept."""
    number = match[0].replace(" ", "").replace("-", "").upper()
    # Account numbers of the countries with two of these letters have no others: this is a digest, or a UUID.
    if not number.strip("0123456789ABCDEF") and not number[2:].isdigit():
        return match[0]
    digits = "".join(str(int(char, 36)) for char in number[4:] + number[:4])  # ISO 7064: A is 10, remainder 1
    return "[redacted:iban]" if len(number) in _IBAN_LENGTHS and int(digits) % 97 == 1 else match[0]
