"""Secrets in the places where systems keep them: hashes of passwords, key files in base64, and arguments of tools.

Each form stands for a kind, not for one product: a hash in the modular crypt format wherever it occurs, the secret that
follows the id of a key, the password after the slash of a database's user.
"""

import re

from hardwon.memory.patterns import compile_late

from .secret_forms import VALUE, Form, is_value, make_form, replace_forms

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
_PROGRAM = r"[^\n|;&]{0,200}?"
_PRINTED = (
    r"(?m)^(?:[$#>%] ?)?(?:(?:go)?pass (?:show|otp)|op read|bw get password|security find-[\w-]{1,20}-password|"
    r"vault kv get (?:\S{1,80} )?-field)\b[^\n]{0,200}\n(?P<value>\S{4,400})\s?$"
)
"""The output of a command that prints one secret."""
_TOOL = r"[\w./-]{2,40} (?:[\w-]{2,30} )?"
_LONG = r"(?=[\w+/=-]{0,60}?\d)[\w+=-]{20,400}"
_NAMED: dict[str, tuple[Form, ...]] = {
    "op read": (make_form("", _PRINTED, certain=True),),
    "vault kv get": (make_form("", _PRINTED, certain=True),),
    "setup key": (make_form("", r"\bsetup key[^\n:]{0,20}:\s?(?P<value>[A-Z2-7 ]{16,64})", "secret", certain=True),),
    "0x": (make_form("private key", r"\bprivate key:? (?P<value>0x[0-9a-f]{64})\b", "private_key", certain=True),),
    "base64:": (
        make_form("key", r"key[\"']?\s?[:=]\s?[\"']?(?P<value>base64:[\w+/=]{20,400})", "api_key", certain=True),
    ),
    "variable": (
        make_form(
            "default",
            r"\bvariable\s\"[\w-]{0,60}(?:pass|password|secret|token|key)\"\s?\{[^}]{0,300}?\bdefault\s{1,20}=\s?"
            r"\"(?P<value>[^\"\n]{6,200})\"",
        ),
    ),
    "secret ": (make_form("", rf"\bsecret\s[0578]\s{VALUE}"),),
    "password": (make_form("password ", rf"\bpassword\s[0578]\s{VALUE}"),),
}
"""Forms with one of the names that are looked for first, by a further text that each of them contains."""
_FORMS: dict[str, tuple[Form, ...]] = {
    "auth": (
        make_form('"auth","auth\\', r"\"auth\"\s?:\s?\"(?P<value>[\w+/=]{16,400})\"", "token", certain=True),
        make_form("auth sha,auth md5", rf"\bauth\s(?:sha|md5)\s(?:\d{{3}}\s)?{VALUE}"),
        make_form("masterauth", rf"\bmasterauth\s{{1,3}}{VALUE}"),
        make_form("334 ugfzc3dvcmq6", r"334 UGFzc3dvcmQ6\s{1,9}(?P<value>[\w+/=]{4,200})", certain=True),
        make_form("auth-pass ", rf"\bauth-pass\s\S{{1,80}}\s{VALUE}"),
        make_form("auth ", rf"(?m)(?:^|[>:] ?)(?-i:AUTH) (?:[\w-]{{1,40}} )?{VALUE}\s?$"),
        make_form(
            "auth ,authtoken ",
            rf"(?m)^(?:[$#>%] ?)?{_TOOL}(?:add-)?auth(?:token|orize)? (?P<value>{_LONG})\s?$",
            "token",
        ),
        make_form("authtok", rf"authtok\s?[:=]\s?{VALUE}"),
        make_form("auth-user-pass>", rf"<auth-user-pass>\s{{1,9}}\S{{1,100}}\s{{1,9}}{VALUE}"),
    ),
    "psk": (
        make_form('psk ",psk \\', r"\bpsk\s\"(?P<value>[^\"\n]{6,200})\"", certain=True),
        make_form("-psk ", rf"\bwpa-psk\s(?:ascii|hex)\s\d\s{{1,3}}{VALUE}"),
    ),
    "(": (
        make_form(
            "define(",
            r"\bdefine\(\s?[\"']\w{0,40}_(?:key|salt)[\"'],\s{0,9}(?P<q>[\"'])(?P<value>[^\s\"']{20,200})(?P=q)",
            "api_key",
        ),
        make_form(
            "ftp,.connect(",
            r"\b(?:ftp(?:_tls)?|\w{0,20}(?:db|sql|oracle)\.connect)\((?:[^,()\n]{1,200},\s?){2}"
            r"(?P<q>[\"'])(?P<value>[^\"'\s]{4,200})(?P=q)",
            certain=True,
        ),
    ),
    "pass": (
        make_form("pass show,pass otp,gopass,-password,get password", _PRINTED, certain=True),
        make_form("passwd ,password ", rf"(?m)(?:^|[\s-])passw(?:or)?d (?:ENC )?{VALUE}\s?$"),
        make_form("requirepass", rf"\brequirepass\s{{1,3}}{VALUE}"),
        make_form(
            'pass=,pass =,pass:,pass"',
            rf"(?-i:(?<![A-Za-z])[a-z]{{1,20}}Pass|(?<![A-Za-z])(?!BY|COM)[A-Z]{{1,20}}PASS)[\"']?\s?[:=]\s?{VALUE}",
        ),
        make_form(
            "quote pass,: pass ,> pass ,\npass ,\\npass ",
            rf"(?m)^(?:[\w.-]{{0,20}}[>:] ?)?(?:quote )?(?-i:PASS) {VALUE}\s?$",
        ),
    ),
    "pw": (make_form("bindpw,rootpw", rf"\b(?:bind|root)pw(?:\s?[:=]\s?|\s{{1,9}}){VALUE}"),),
    "ftp": (
        make_form(" -u ", rf"\bl?ftp\s-u\s{{1,3}}[^\s,]{{1,80}},{VALUE}", certain=True),
        make_form("\nuser ,\\nuser ", rf"\nuser \S{{1,80}} {VALUE}\s?(?=\n|\Z)"),
    ),
    "login ": (
        make_form("", rf"(?m)(?:^|[>:] ?)\w{{1,10}} (?-i:LOGIN) \S{{1,80}} {VALUE}\s?$"),
        make_form("", rf"(?m)^(?:[$#>%] ?)?{_TOOL}login (?P<value>{_LONG})\s?$", "token"),
    ),
    "md5": (make_form("", r"\b(?P<value>md5[0-9a-f]{32})\b", "hash", certain=True),),
    "::": (
        make_form("add-mask::", rf"::add-mask::{VALUE}", certain=True),
        make_form(":::", r":[0-9a-f]{32}:(?P<value>[0-9a-f]{32}):::", "hash", certain=True),
        make_form("", r"::[\w.-]{1,40}:[0-9a-f]{16}:(?P<value>[0-9a-f]{32}:[0-9a-f]{1,800})", "hash", certain=True),
    ),
    "community": (make_form("", rf"\b(?:ro|rw|snmp-server )community6?\s{{1,3}}{VALUE}"),),
    "assword": (
        make_form(
            "send",
            r"assword:?\s?[\"']?\s?\{?\s?send\s(?:--\s)?[\"'](?P<value>[^\s\"'\\]{3,100})",
            certain=True,
        ),
    ),
    "@": (
        make_form("", r"\[redacted:email\]:(?P<value>[^\s\"'<>\[\]]{6,100})(?=[\s,;\"']|\Z)"),
        make_form(
            ",".join(f"@{digit}" for digit in "123456789"),
            r"(?<![\w/:])[\w.\\/-]{1,80}:(?P<value>[^\s:/@\"'<>]{6,100})(?=@\d{1,3}\.\d{1,3}\.)",
        ),
        make_form(
            "sqlplus,rman,expdp,impdp,sqlldr",
            rf"\b(?:sqlplus|rman|expdp|impdp|sqlldr)\s(?:{_PROGRAM}[\s\"'])?[\w$#]{{1,40}}/"
            r"(?P<value>[^\s\"'@/]{3,100})(?=@)",
            certain=True,
        ),
        make_form(
            ":thin:,:oci",
            r":(?:thin|oci8?):[\w$#]{1,40}/(?P<value>[^\s\"'@/]{3,100})(?=@)",
            certain=True,
        ),
    ),
    ">": (
        make_form(
            "</",
            rf"(?:password|secret|token|(?:api|access)_?key)(?:[\"']>|(?:</[\w:]{{1,40}})?>\s{{0,40}}<[\w:]{{1,40}}>)"
            rf"{VALUE}(?=</)",
        ),
        # what Maven and Jenkins encrypt with a key that lies beside it
        make_form("}<", r">\{(?=AQAA|[\w+/]{0,400}[=+])(?P<value>[\w+/=]{20,400})(?=\}<)", "token", certain=True),
        make_form(
            "echo ",
            rf"\becho\s(?:-n\s)?{VALUE}\s?>{{1,2}}\s?[^\s;|&]{{0,200}}(?:key|secret|passw|token|cred)",
        ),
    ),
    "\\": (
        make_form(
            "net use",
            rf"\bnet\s{{1,9}}use\s{{1,9}}(?:[a-z*]:?\s{{1,9}})?\\\\\S{{1,200}}\s{{1,9}}(?![/*]){VALUE}",
            certain=True,
        ),
    ),
    "saml": (
        make_form("", r"saml(?:request|response)(?:=|\"\s+value=\")(?P<value>[\w+/=%-]{40,})", "token", certain=True),
    ),
    "/": (make_form(" /rp ", rf"\s/rp\s{{1,3}}{VALUE}", certain=True),),
}
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
