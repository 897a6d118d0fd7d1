"""Patterns for secrets told in passing: in sentences, tables and forms, in other languages, and in rarer commands.

`secret_forms` recognizes a secret by the signs around it. Here there often is only a word beside it, so a value counts
only if it looks like a password by itself: long, with a digit, and of mixed letters. `redaction` calls `redact_phrases`
for every text that has one of the hints.
"""

import re
from collections.abc import Sequence

from hardwon.memory.patterns import compile_late, read_table

from .secret_forms import Form, is_value, read_forms, replace_forms

_ASCII_NAMES = ("senha", "clave", "wachtwoord", "haslo", "sifre", "parola", "heslo", "salasana", "passord", "losenord")
"""Words for a password in other languages, as they are written without accents."""
_OTHER_NAMES = (
    *("hasło", "şifre", "parolă", "lösenord", "jelszó", "mật khẩu", "пароль", "密码", "密碼", "口令", "パスワード"),
    *("비밀번호", "암호", "كلمة المرور", "كلمة السر", "पासवर्ड", "κωδικός", "סיסמה"),
)
_TABLE = read_table(__file__, "secret_phrases.toml")
_OF_WORDS, _OF_LANGUAGES, _OF_MARKUP, _OF_COMMANDS, _OF_TOOLS = (
    read_forms(_TABLE, group)[""] for group in ("words", "languages", "markup", "commands", "tools")
)
"""The last are commands whose option is a password and nothing else: a digit and a letter are enough."""
_OF_PEOPLE = compile_late(
    r"\b(?:ssn|itin|social security(?: number| no\.?)?)\b\D{0,15}(\d{3}[ -]?\d{2}[ -]?\d{4})(?![\d-])", re.I
)
_HOMOGLYPHS = str.maketrans("аеорсухіѕԁјһԛԝкмтвнАЕОРСТХМВНКοαρνικτ", "aeopcyxisdjhqwkmtbhAEOPCTXMBHKoapvikt")
_MIXED = compile_late("[a-zA-Z][\u0370-\u052f]|[\u0370-\u052f][a-zA-Z]")
_LETTERS = compile_late("[a-zA-Z\u0370-\u052f]+")

_ROOTS = ("pass", "session", "secret", "login", "cred", "pw", "key", "psk", "token", "@", "values", "form-data")
"""Parts of words of which every form of words has one. Most texts have few, and are tested for their hints alone."""


def _of_root(root: str) -> tuple[str, ...]:
    """Return the hints of words that contain this root, and no earlier one."""
    hints = dict.fromkeys(hint for form in _OF_WORDS for hint in form.hints)
    # `type=` is the hint of an attribute with the value `password`
    root_of = {hint: next((part for part in _ROOTS if part in hint), _ROOTS[0]) for hint in hints}
    return tuple(hint for hint in hints if root_of[hint] == root)


_WORD_HINTS = [(root, _of_root(root)) for root in _ROOTS]
_COMMAND_HINTS = tuple(dict.fromkeys(hint for form in (*_OF_COMMANDS, *_OF_TOOLS) for hint in form.hints))
_MARKUP_HINTS = ("pass", "secret")
_FOREIGN_HINTS = (*_ASCII_NAMES, "passwor", "kennwor", "de passe", "de_passe", "contrase")


def unmix(text: str) -> str:
    """Return a text in which Cyrillic and Greek letters inside of Latin words are the Latin ones they look like."""
    return _LETTERS.sub(lambda word: word[0].translate(_HOMOGLYPHS) if _MIXED.search(word[0]) else word[0], text)


def may_hold_phrases(lowered: str) -> bool:
    """Return whether a text has a hint of any of these patterns."""
    for root, hints in _WORD_HINTS:
        if root in lowered:
            for hint in hints:
                if hint in lowered:
                    return True
    # a list, because a generator costs more than it saves here
    if " -" in lowered and any([hint in lowered for hint in _COMMAND_HINTS]):  # noqa: C419
        return True
    return _is_foreign(lowered) or _has_markup(lowered) or _names_a_person(lowered)


def redact_phrases(text: str, lowered: str) -> str:
    """Return the text without the secrets that are told in passing."""
    if not any(map(str.isdigit, text)):
        return text  # every value has a digit
    text = _apply(text, lowered, _OF_WORDS)
    if " -" in lowered:
        text = _apply(text, lowered, _OF_COMMANDS)
        text = replace_forms(text, lowered, _OF_TOOLS, is_value)
    if _has_markup(lowered):
        text = _apply(text, lowered, _OF_MARKUP)
    if _is_foreign(lowered):
        text = replace_forms(text, lowered, _OF_LANGUAGES, is_value)
    if _names_a_person(lowered):
        text = _OF_PEOPLE.sub(lambda match: match[0].removesuffix(match[1]) + "[redacted:ssn]", text)
    return text


def _names_a_person(lowered: str) -> bool:
    return "ssn" in lowered or "itin" in lowered or "social sec" in lowered


def _has_markup(lowered: str) -> bool:
    return ("<" in lowered or "&gt;" in lowered or "3d" in lowered) and any(hint in lowered for hint in _MARKUP_HINTS)


def _is_foreign(lowered: str) -> bool:
    if any([hint in lowered for hint in _FOREIGN_HINTS]):  # noqa: C419 - a generator costs more than it saves here
        return True
    return not lowered.isascii() and any(name in lowered for name in _OTHER_NAMES)


def _apply(text: str, lowered: str, forms: Sequence[Form]) -> str:
    return replace_forms(text, lowered, forms, is_strong)


_INNER_CAPITAL = compile_late(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]|[A-Z]\d.{0,400}[a-z]")
_CODE = compile_late(r"[(){}<]|==(?!\Z)|::|->")
_SIGN = compile_late(r"[!@#$%^&*+=?~]")


def is_strong(value: str) -> bool:
    """Return whether a text looks like a password or token by itself: long, with a digit, and of mixed characters."""
    if len(value) < 8 or value.startswith(("$", "{", "/", "./", "http")) or _CODE.search(value):
        return False
    if not (any(map(str.isdigit, value)) and any(map(str.isalpha, value))):
        return False
    return bool(_INNER_CAPITAL.search(value) or _SIGN.search(value[:-1]) or (len(value) >= 24 and value.isalnum()))
