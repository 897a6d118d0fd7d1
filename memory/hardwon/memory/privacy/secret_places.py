"""Secrets in the places where systems keep them: hashes of passwords, key files in base64, and arguments of tools.

Each form stands for a kind, not for one product: a hash in the modular crypt format wherever it occurs, the secret that
follows the id of a key, the password after the slash of a database's user.
"""

import re

from .secret_forms import VALUE, is_value, make_form, replace_forms

_HASH = re.compile(
    # $6$rounds=5000$salt$hash and its relatives, with the names that crypt, PHP and Python's passlib use
    r"\$(?:[1567]|2[abxy]?|y|gy|apr1|sha1|md5|P|H|scrypt|bcrypt(?:-sha256)?|argon2(?:id|i|d)|pbkdf2[\w-]{0,12})"
    r"\$(?:[\w./+=,-]{1,60}\$){0,4}[\w./+=-]{20,120}(?![\w./+])"
    r"|\b(?:pbkdf2|bcrypt|scrypt|argon2)(?:_\w{1,12})?\$(?:[\w./+=,-]{1,60}\$){1,4}[\w./+=-]{20,120}"
    r"|\{(?:S?SHA\d{0,3}|S?MD5|CRYPT|PBKDF2[\w-]{0,12})\}[\w./+=$-]{16,200}",
    re.A,
)
_ENCODED_KEY = re.compile(r"LS0tLS1CRUdJTiB(?!Q0VSV|UFVC)[\w+/]{24,}={0,2}", re.A)
"""Base64 of `-----BEGIN `, unless a certificate or a public key follows."""
_BESIDE_ID = re.compile(r"(\[redacted:api_key\][\s\"',;:/|=]{1,8})(?:[A-Za-z0-9+/]{40}|[0-9a-f]{32})(?![\w+/=])", re.A)
"""What follows the id of a key in a table, a call or an address."""
_PROGRAM = r"[^\n|;&]{0,200}?"
_FORMS = (
    make_form("\"auth\"", r"\"auth\"\s?:\s?\"(?P<value>[\w+/=]{16,400})\"", "token", certain=True),
    make_form("auth sha,auth md5", rf"\bauth\s(?:sha|md5)\s(?:\d{{3}}\s)?{VALUE}"),
    make_form("psk \"", r"\bpsk\s\"(?P<value>[^\"\n]{6,200})\"", certain=True),
    make_form("shared", rf"\b(?:pre-?)?shared_?-?key[\"']?\s?[:=]\s?{VALUE}"),
    make_form("key_base", rf"\bsecret_key_base[\"']?\s?[:=]\s?{VALUE}", "api_key"),
    make_form("base64:", r"key[\"']?\s?[:=]\s?[\"']?(?P<value>base64:[\w+/=]{20,400})", "api_key", certain=True),
    make_form(
        "_key',_key\"",
        r"\b[a-z0-9_]{0,40}_(?:key|salt)[\"'],\s?(?P<q>[\"'])(?P<value>[^\s\"']{20,200})(?P=q)",
        "api_key",
    ),
    make_form(
        "variable",
        r"\bvariable\s\"[\w-]{0,60}(?:password|secret|token|key)\"\s?\{[^}]{0,300}?\bdefault\s{1,20}=\s?\"(?P<value>[^\"\n]{6,200})\"",
    ),
    make_form("requirepass,masterauth", rf"\b(?:requirepass|masterauth)\s{{1,3}}{VALUE}"),
    make_form("secret ,password ", rf"\b(?:secret|password)\s[0578]\s{VALUE}"),
    make_form(
        "sqlplus,rman,expdp,impdp,sqlldr",
        rf"\b(?:sqlplus|rman|expdp|impdp|sqlldr)\s(?:{_PROGRAM}[\s\"'])?[\w$#]{{1,40}}/(?P<value>[^\s\"'@/]{{3,100}})(?=@)",
        certain=True,
    ),
    make_form(
        "net use",
        rf"\bnet\s{{1,9}}use\s{{1,9}}(?:[a-z*]:?\s{{1,9}})?\\\\\S{{1,200}}\s{{1,9}}(?![/*]){VALUE}",
        certain=True,
    ),
    make_form("/rp", rf"\s/rp\s{{1,3}}{VALUE}", certain=True),
    make_form(
        "psexec,beeline,ipmitool,mongo,xfreerdp,cqlsh,influx",
        rf"\b(?:psexec|beeline|ipmitool|mongo[a-z]{{0,8}}|xfreerdp|cqlsh|influx)\s{_PROGRAM}(?<=\s)-p\s{{1,3}}{VALUE}",
        certain=True,
    ),
    make_form("ftp -u", rf"\bl?ftp\s-u\s{{1,3}}[^\s,]{{1,80}},{VALUE}", certain=True),
    make_form(
        "assword",
        r"assword:?\s?[\"']?\s?\{?\s?send\s(?:--\s)?[\"'](?P<value>[^\s\"'\\]{3,100})",
        certain=True,
    ),
)  # fmt: skip
_ENCODED_HINT = "ls0tls1crudjti"
_ROOTS = ("$", "sha}", "ls0tls", "auth", "psk", "key", "secret ", "pass", "assw", "@", " -", "/rp", "net use")
"""Parts of hints of which every form has one. Most texts have few of them."""


def may_hold_places(lowered: str) -> bool:
    """Return whether a text may have a secret in one of these places."""
    return any([root in lowered for root in _ROOTS])  # noqa: C419 - a generator costs more than it saves here


def redact_places(text: str, lowered: str) -> str:
    """Return the text without the secrets that stand in these places.

    Args:
        text: The text to redact; ids of keys are already redacted.
        lowered: The original text in lower case.
    """
    if "$" in text or "}" in text:
        text = _HASH.sub("[redacted:hash]", text)
    if _ENCODED_HINT in lowered:
        text = _ENCODED_KEY.sub("[redacted:private_key]", text)
    return replace_forms(text, lowered, _FORMS, is_value)


def redact_beside_ids(text: str) -> str:
    """Return the text without the secrets that follow the id of a key."""
    return _BESIDE_ID.sub(r"\1[redacted:api_key]", text)
