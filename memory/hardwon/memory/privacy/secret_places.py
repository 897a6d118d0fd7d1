"""Secrets in the places where systems keep them: hashes of passwords, key files in base64, and arguments of tools.

Each form stands for a kind, not for one product: a hash in the modular crypt format wherever it occurs, the secret that
follows the id of a key, the password after the slash of a database's user.
"""

import re

from hardwon.memory.patterns import compile_late, read_table

from .secret_forms import is_value, read_forms, replace_forms

_HASH = compile_late(
    r"\$krb5\w{1,12}\$[^\s\"']{20,4000}|SCRAM-SHA-\d{1,3}\$\d{1,9}:[\w+/=$:]{40,300}|"
    # $6$rounds=5000$salt$hash and its relatives, with the names that crypt, PHP and Python's passlib use
    r"\$(?:[1567]|2[abxy]?|y|gy|apr1|sha1|md5|P|H|scrypt|bcrypt(?:-sha256)?|argon2(?:id|i|d)|pbkdf2[\w-]{0,12})"
    r"\$(?:[\w./+=,-]{1,60}\$){0,4}[\w./+=-]{20,120}(?![\w./+])"
    r"|\b(?:pbkdf2|bcrypt|scrypt|argon2)(?:_\w{1,12})?\$(?:[\w./+=,-]{1,60}\$){1,4}[\w./+=-]{20,120}"
    r"|\{(?:S?SHA\d{0,3}|S?MD5|CRYPT|PBKDF2[\w-]{0,12})\}[\w./+=$-]{16,200}",
    re.A,
)
_ENCODED_KEY = compile_late(r"LS0tLS1CRUdJTiB(?!Q0VSV|UFVC)[\w+/]{24,}={0,2}", re.A)
"""Base64 of `-----BEGIN `, unless a certificate or a public key follows."""
_BESIDE_ID = compile_late(
    r"(\[redacted:api_key\][\s\"',;:/|=]{1,8})(?:[A-Za-z0-9+/]{40}|[0-9a-f]{32})(?![\w+/=])", re.A
)
"""What follows the id of a key in a table, a call or an address."""
_TABLE = read_table(__file__, "secret_places.toml")
_NAMED = read_forms(_TABLE, "named")
"""Forms with one of the names that are looked for first, by a further text that each of them contains."""
_FORMS = read_forms(_TABLE, "forms")
"""Other forms in the same order. Most texts contain few of these, so the hints of few forms are tested. A sign is found
in a fraction of the time of a word. The JSON of a text has the same hints."""
_ENCODED_HINT = "ls0tls1crudjti"
_IN_WORDS = bytes(97 if 97 <= code <= 122 or code == 32 else 46 for code in range(256))
_SEED_RUN = b"a" * (12 * 4 - 1)
_RUN_OF_WORDS = compile_late(rb"[a-z ]{47,}")
_PROSE = frozenset(b"a an and are at be but by for from has in is it not of on or the to was were with".split())
"""Words of every sentence, of which the list of words for keys has none."""


def find_seeds(raw: bytes) -> list[bytes]:
    """Return the runs of words that are the key of a wallet, such as 12 words of BIP 39 on a line of their own."""
    if len(raw) < len(_SEED_RUN) or _SEED_RUN not in raw.translate(_IN_WORDS):
        return []
    return [run.strip() for run in _RUN_OF_WORDS.findall(raw) if _is_seed(run.split())]


def _is_seed(words: list[bytes]) -> bool:
    return (
        len(words) in (12, 15, 18, 21, 24)
        and _PROSE.isdisjoint(words)
        and len({*words}) > 9
        and all(3 <= len(word) <= 8 for word in words)
    )


def _may_hold_hash(lowered: str) -> bool:
    """Return whether a text has the signs of a hash with its scheme."""
    return lowered.count("$") > 1 or (
        "}" in lowered and ("sha" in lowered or "md5}" in lowered or "crypt}" in lowered or "{pbkdf2" in lowered)
    )


def redact_places(text: str, lowered: str, raw: bytes, *, is_named: bool) -> str:
    """Return the text without the secrets that stand in these places."""
    if _may_hold_hash(lowered):
        text = _HASH.sub("[redacted:hash]", text)
    if _ENCODED_HINT in lowered:
        text = _ENCODED_KEY.sub("[redacted:private_key]", text)
    for seed in find_seeds(raw):
        text = text.replace(seed.decode(), "[redacted:secret]")
    for root in [root for root in _FORMS if root in lowered]:
        text = replace_forms(text, lowered, _FORMS[root], is_value)
    if is_named:
        for root in [root for root in _NAMED if root in lowered]:
            text = replace_forms(text, lowered, _NAMED[root], is_value)
    return text


def redact_beside_ids(text: str) -> str:
    """Return the text without the secrets that follow the id of a key."""
    return _BESIDE_ID.sub(r"\1[redacted:api_key]", text)
