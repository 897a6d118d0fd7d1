"""Patterns for secrets in command lines, settings, headers and account numbers.

The patterns recognize a secret by the text around it or by a check digit. `redaction` calls `redact_forms` for every
text. Each pattern has hints: unless one of them occurs, the pattern is not tried. Every pattern is bounded, so its time
is limited for any text.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hardwon.memory.patterns import compile_late

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
_NAME = (
    r"(?:passw(?:or)?ds?|pass[_-]?phrase|requirepass|userpass|dbpass|smtppass|pass(?<![a-z]pass)|passwort|kennwort"
    r"|contrase(?:ñ|n)a|mot de passe|pwd|secrets?(?:[ _-]?access)?(?:[ _-]?key)?|token|auth(?<=_auth)"
    r"|(?:api|access|auth|private|account|encryption)[_-]?key)"
)
_NAME_PARTS = "passw,passp,pass_p,pass-p,pass=,pass:,pass\",pass',pass ,pass\\,de passe,pwd,kennw,contrase"
"""Hints of names such as those ending in `pass`, chosen so that `passenger` has none of them."""
_LISTS = ",".join(
    ("passw", *(f"{name}s{sign}" for name in ("secret", "token", "key") for sign in ('"', "'", ":", "=", " =")))
)
_PROGRAM = r"[^\n|;&]{0,200}?"
_READERS = (
    r"\bsudo\s(?:[^\n|;&]{0,80}?\s)?-S|-stdin\b|\bpasswd\b|\bcryptsetup\b|\bkinit\b|-passphrase-fd|--with-token"
    r"|\bsecrets?\s(?:put|set|add|create|versions)\b|\benv\sadd\s\w|\brunas\b"
    r"|\bluksopen\b|\bsign-?in\b|\bpass\sinsert\b"
)
"""Commands that read a secret from the standard input."""


class Form(NamedTuple):
    """A pattern with a group `value` that is secret, and hints of which the text must contain one."""

    hints: Sequence[str]
    pattern: re.Pattern[str]
    kind: str
    certain: bool = False
    """Whether every value is a secret. Otherwise, ordinary words are kept."""


def make_form(
    hints: str, pattern: str, kind: str = "password", *, certain: bool = False, ascii_only: bool = True
) -> Form:
    """Return a form; `hints` are separated by commas, and an empty one is in every text."""
    flags = re.I | re.A if ascii_only and "ñ" not in pattern else re.I
    return Form(hints.split(","), compile_late(pattern, flags), kind, certain)


_OF_COMMANDS = (
    make_form(
        "-pass,-pwd,-secret,-token,-api,-access,-auth,-private,-client,-key",
        rf"(?<![\w-])--?(?:[a-z]{{1,20}}-){{0,3}}{_NAME}(?:[ \t]{{1,4}}|=){VALUE}",
    ),
    make_form(
        "-password,-passphrase",
        r"(?<![\w-])--?(?:[a-z]{1,20}-){0,3}pass(?:word|phrase)[ =](?P<q>[\"'])"
        r"(?P<value>(?=[^\s\"'$<{%]{0,60}\s)[^\"'\n$<{%]{5,800})(?P=q)",
        certain=True,
    ),
    make_form("mysql,maria", rf"\b(?:mysql|mariadb)[a-z-]{{0,9}}\s{_PROGRAM}\s-p{VALUE}", certain=True),
    make_form("sshpass", rf"\bsshpass\s+-p\s{{0,3}}{VALUE}", certain=True),
    make_form(" -p ", rf"\blogin\s{_PROGRAM}\s-p\s{{1,3}}{VALUE}"),
    make_form("sqlcmd", rf"\bsqlcmd\s{_PROGRAM}\s-P\s{{0,3}}{VALUE}", certain=True),
    make_form("ldap", rf"\bldap[a-z]{{2,10}}\s(?:{_PROGRAM}\s)?-w\s{{1,3}}{VALUE}", certain=True),
    make_form(
        "curl,http",
        rf"\b(?:https?\s-a|curl\s(?:{_PROGRAM}\s)?(?:-u|--(?:proxy-)?user[ =]))\s{{0,3}}[\"']?[^\s:\"']{{1,80}}:(?!//)"
        rf"{VALUE}",
        certain=True,
    ),
    make_form("redis-cli", rf"\bredis-cli\s(?:{_PROGRAM}\s)?-a\s{{1,3}}{VALUE}"),
    make_form(
        " -u, --user,proxy-user, --auth, -a ,creds, login=",
        r"\s(?:-u|--user|--proxy-user|-a|--auth|--?(?:[a-z]{1,9}-)?cred(?:ential)?s|login)"
        rf"[ =]\s{{0,3}}[\"']?[^\s:\"']{{1,80}}:(?!\w{{0,20}}:?//){VALUE}",
    ),
    make_form("-hashes ", r"\s-hashes\s[0-9a-f]{0,32}:(?P<value>[0-9a-f]{32})\b", "hash", certain=True),
    make_form("pass:", rf"\bpass:{VALUE}"),
    make_form("/p:,/pass:,/password:", rf"\s/p(?:ass(?:word)?)?:{VALUE}"),
    make_form("<<<", rf"(?:{_READERS}){_PROGRAM}<<<\s?{VALUE}", certain=True),
    make_form(
        "echo,printf",
        r"\b(?:echo|printf)\s{1,3}(?:-\w{1,3}\s{1,3})?(?P<q>[\"']?)(?P<value>[^\s\"'|]{3,200})(?P=q)\s?"
        rf"\|\s?[^|\n]{{0,80}}?(?:{_READERS})",
        certain=True,
    ),
    make_form(
        "<(echo",
        r"(?:password-file=|(?:private|preshared)-key\s)<\(echo\s(?P<q>[\"']?)(?P<value>[^\s\"'()]{3,200})(?P=q)\)",
        certain=True,
    ),
    make_form(
        "htpasswd",
        rf"\bhtpasswd(?:\s-\w{{1,9}}){{0,6}}?\s-\w{{0,9}}b\w{{0,9}}(?:\s-\w{{1,9}}){{0,6}}\s(?!-)\S{{1,200}}\s\S{{1,80}}\s{VALUE}",
        certain=True,
    ),
    make_form(
        "openssl,gpg",
        rf"\b(?:openssl\s{_PROGRAM}\s-k|gpg2?\s(?:{_PROGRAM}\s)?--passphrase)(?:\s{{1,3}}|=){VALUE}",
        certain=True,
    ),
    make_form(
        "obscure ,bw ", rf"\b(?:rclone\sobscure|bw\s(?:unlock|login\s\S{{1,80}}))\s{{1,3}}(?!-){VALUE}", certain=True
    ),
    make_form("_pw ", rf"\b(?:input|user|owner)_pw\s{{1,3}}{VALUE}", certain=True),
    make_form("net user", rf"\bnet\suser\s\S{{1,80}}\s(?!/){VALUE}\s{{1,3}}/add", certain=True),
    make_form("nmcli", rf"\bnmcli\s{_PROGRAM}\spassword\s{{1,3}}{VALUE}", certain=True),
    make_form("wpa_pass", rf"\bwpa_passphrase\s(?:\"[^\"\n]{{1,64}}\"|\S{{1,64}})\s{{1,3}}{VALUE}", certain=True),
    make_form("wifi:", r"\bwifi:(?:[^;\n]{0,80};){0,4}p:(?P<value>(?:\\.|[^;\\\n]){3,80});", certain=True),
    make_form("snmp", rf"\bsnmp\w{{0,12}}\s{_PROGRAM}(?<=\s)-(?-i:[cAX])\s{{1,3}}{VALUE}"),
    make_form(
        "security ",
        rf"\bsecurity\s(?:add|set|create|unlock)-[\w-]{{1,40}}\s{_PROGRAM}(?<=\s)-[wp]\s{{1,3}}{VALUE}",
    ),
    make_form(
        "veracrypt,psexec,beeline,ipmitool,mongo,xfreerdp,cqlsh,cypher,doveadm,crackmap,nxc,evil-winrm,smbmap,influx,nuget",
        r"\b(?:(?:veracrypt|psexec|beeline|ipmitool|mongo[a-z]{0,8}|xfreerdp|cqlsh|cypher-shell|doveadm|crackmapexec|nxc|evil-winrm"
        rf"|smbmap)\s{_PROGRAM}(?<=\s)-p|(?:influx|nuget)\s{_PROGRAM}(?<=\s)-[ptk])\s{{1,3}}{VALUE}",
        certain=True,
    ),
    make_form(
        "user-secrets", rf"\buser-secrets\sset\s(?:\"[^\"\n]{{1,200}}\"|\S{{1,200}})\s{{1,3}}{VALUE}", certain=True
    ),
    make_form(
        "chpasswd", r"[\"'\s][\w.-]{1,40}:(?P<value>[^\s\"']{3,200})[\"']?\s*\|[^|\n]{0,20}chpasswd", certain=True
    ),
)
_OF_NAMES = (
    make_form(_NAME_PARTS, rf"(?<![a-z]){_NAME}[\"'`]?[ \t]{{0,4}}(?:=|:|=>|：)[ \t]{{0,4}}{VALUE}"),
    make_form(
        f'{_NAME_PARTS},secret:,secret is,token:,token is,secret",token"',
        rf"{_NAME}(?: is)?[\"'`]?[ \t]{{0,4}}[:=][ \t]{{0,4}}(?:[|>][+-]?)?[ \t]{{0,4}}\n\s{{0,40}}"
        rf"{VALUE}[ \t]{{0,4}}(?=\n|\Z)",
    ),
    make_form(
        "pass,secret,token,key",
        rf"<[\w:.-]{{0,40}}{_NAME}>\s{{0,9}}(?P<value>[^<>\s]{{3,400}})\s{{0,9}}</",
        certain=True,
    ),
    make_form(
        "value=,value\",value',value\\",
        rf"\b(?:name|key|id)[\"']?\s?[:=]\s?[\"'][\w.:-]{{0,60}}?{_NAME}[\"'],?\s{{0,9}}[\"']?value[\"']?\s?[:=]\s?"
        r"[\"'](?P<value>[^\"'\n]{3,400})[\"']",
        certain=True,
    ),
    make_form(
        "word(,word\",word',pass\",pass',pass(,pwd\",pwd',pwd(,secret(,secret\",secret',token(,token\",token'",
        rf"{_NAME}[\"']?\s?[(,]\s?[\"'](?P<value>[^\"'\n]{{3,200}})[\"']",
    ),
    make_form(_LISTS, rf"{_NAME}[\"']?\s?[:=]\s?\[\s?[\"'](?P<value>[^\"'\n]{{3,200}})[\"']"),
    make_form(
        "login(,auth(,auth=(,enticate(,credential(,credentials(,basic_auth",
        r"\b(?:\w{0,20}login|(?:set_?)?\w{0,20}auth(?:enticate|=)?|\w{0,30}credentials?)(?:\s?\(|\s)"
        r"(?:[^,()\n]{1,200},\s?){1,3}?(?P<q>[\"'])(?P<value>[^\"'\s]{6,200})(?P=q)",
    ),
    make_form(
        "mysqli",
        r"\bmysqli(?:_(?:real_)?connect)?\s?\((?:[^,()\n]{1,200},\s?){2,3}?[\"'](?P<value>[^\"'\n]{3,200})[\"']",
        certain=True,
    ),
    # the source of data, a user and a password
    make_form(
        "dbi:,mysql:,jdbc:,pgsql:,sqlsrv:,odbc:,oci:",
        r"[\"'](?:jdbc:)?\w{2,12}:[^\"'\n]{1,200}[\"'],\s?[\"'][^\"'\n]{0,80}[\"'],\s?[\"'](?P<value>[^\"'\n]{3,200})[\"']",
        certain=True,
    ),
    make_form(
        "identified",
        r"identified\s(?:with\s\w{1,40}\s)?(?:by|as)\s{1,3}(?:password\s)?[\"'](?P<value>[^\"'\n]{3,200})[\"']",
        certain=True,
    ),
    # a question with a default in brackets, and lines that a tool prints about a key
    make_form("]:", rf"{_NAME} ?\[[^\]\n]{{0,40}}\]:\s{{0,3}}{VALUE}"),
    make_form(
        "seal key,very key,key content,secretid,secret_id",
        r"\b(?:(?:unseal|recovery) key(?: \d)?|key content|secret_?id)[\"']?\s{0,20}[:=]\s{0,20}[\"']?"
        r"(?P<value>[\w+/=-]{8,400})(?![\w./-])",
        "secret",
    ),
    make_form(
        '"username"',
        r"\"username\"\s?:\s?\"[^\"\n]{1,80}\",\s{0,9}\"key\"\s?:\s?\"(?P<value>[^\"\n]{16,400})\"",
        "api_key",
    ),
    make_form(
        '"kty"', r"\"kty\"(?:(?!\"kty\")[^{}]){1,4000}?\"[dk]\"\s?:\s?\"(?P<value>[\w-]{20,1000})\"", "private_key"
    ),
    make_form("password '", r"password\s{1,3}'(?P<value>[^'\n]{3,200})'"),
    make_form("securestring", rf"securestring\s(?:-string\s)?{VALUE}"),
    make_form("securestring", r"securestring\s(?:-string\s)?[\"'](?P<value>[^\"'\n]{3,200})[\"']", certain=True),
    make_form("password", rf"\blogin\s{{1,20}}\S{{1,80}}\s{{1,20}}password\s{{1,20}}{VALUE}"),
    make_form(
        "password,pass for",
        r"\b(?:password|pass for)(?: [\w']{1,20}){0,6} (?:is|was|=) (?P<value>[^\s\"'`]{5,200})",
    ),
    make_form("word for ,phrase for ", rf"\b(?:password|passphrase) for [^:\n]{{1,80}}:\s{{1,3}}{VALUE}"),
    make_form("%3d", rf"{_NAME}%3d(?P<value>(?:(?!%26)[^\s&\"']){{3,200}})"),
)
_OF_HEADERS = (
    make_form(
        "hook",
        r"://[^\s/]{1,80}/[^\s?#]{0,200}?(?<=/)(?P<value>(?:[0-9]{15,21}/)?(?=[\w-]{0,60}?\d)(?=[0-9a-f]{24}|[\w-]{0,60}?(?-i:[A-Z]))[\w-]{24,120})(?=[/?\s\"'`)]|\Z)",
        "token",
    ),
    make_form(
        "code=,?key=,&key=",
        r"[?&](?:code|key)=(?=[^\s&]{0,60}?\d)(?=[^\s&]{0,60}?(?-i:[A-Z]))(?=[^\s&]{0,60}?(?-i:[a-z]))"
        r"(?P<value>[\w%+/=-]{24,400})",
        "token",
    ),
    make_form("cookie,sessionid=,sessid=", r"(?<=[=])(?P<value>[\w%.+/~:-]{16,400})(?=[;\s\"']|\Z)", "token"),
    make_form("csrf,xsrf", r"\b[xc]srf[\w-]{0,20}[\"']?\s?[:=]\s?[\"']?(?P<value>[\w+/=-]{16,200})", "token"),
    make_form("sig=,signature=", r"[?&](?:[\w-]{0,20}-)?sig(?:nature)?=(?P<value>[\w%+/=-]{16,400})", "token"),
    make_form("_auth", r"_auth(?:token)?[\"']?\s?[:=]\s?[\"']?(?P<value>[\w+/=.-]{12,400})", "token"),
    make_form(
        ":5432:,:3306:,:*:",
        r"(?<![\w.:])[\w.*-]{1,80}:(?:\d{2,5}|\*):[\w*-]{1,60}:[\w*-]{1,60}:(?P<value>[^\s:]{3,200})",
    ),
    make_form(
        "value:",
        rf"\bname:\s{{0,3}}[\"']?[\w.-]{{0,60}}?{_NAME}[\"']?[ \t]{{0,3}}\r?\n\s{{0,40}}value:[ \t]{{0,3}}{VALUE}",
    ),
    make_form(
        "private-lines", r"private-lines:\s?\d+\n(?P<value>(?:[\w+/=]{1,80}\n?){1,80})", "private_key", certain=True
    ),
)
_OF_NUMBERS = (
    make_form(
        "pin:,pin=,pin is,pin code,pin num,pin :,pin =,pin\",pin',pin\\",
        r"\bpin(?: code| number)?(?:\\?[\"'])?(?:\s?[:=]|\sis)\s{0,3}(?:\\?[\"'])?(?P<value>\d{4,8})(?![\w.-])",
        "pin",
        certain=True,
    ),
    make_form(
        "codes:",
        r"\b(?:backup|recovery) codes:\s{1,9}(?=[\w-]{0,11}\d)"
        r"(?P<value>[\w-]{6,12}(?:[ ,\n]{1,4}[\w-]{6,12}){0,15})",
        "pin",
        certain=True,
    ),
    make_form(
        "cvv,cvc",
        r"\bcv[vc]2?(?: code| number)?(?:\\?[\"'])?(?: is)?\s?[:=]?\s{0,3}(?:\\?[\"'])?(?P<value>\d{3,4})"
        r"(?![.-]{0,40}\w)",
        "pin",
        certain=True,
    ),
    make_form(
        "otp,2fa,mfa,cvv,cvc,tion code,rity code,time code,gin code,sms code,auth code,-code,passcode",
        r"\b(?:otp|"
        r"(?:verification|security|one-time|login|sms|auth|2fa|mfa|cvv|cvc)[ -](?:pass)?code)(?: is)?\s?[:=]?\s{0,3}"
        r"(?P<value>\d{3,8})(?![\w-])",
        "pin",
        certain=True,
    ),
)
_OF_SEEDS = (
    make_form(
        "seed phrase,recovery phrase,backup phrase,mnemonic",
        r"\b(?:(?:seed|recovery|backup) phrase|mnemonic(?: phrase)?)(?:\\?[\"'])?(?: is)?\s?[:=]\s{0,3}(?:\\?[\"'])?"
        r"(?P<value>(?:(?!(?:the|and|for|are|not|with|your|has|was|which|from)\b)[a-z]{3,8}(?:, ?| )){11,23}"
        r"[a-z]{3,8})\b",
        "secret",
        certain=True,
    ),
)
"""Words that are the key of a wallet."""
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


_COMMAND_HINTS = (
    *(
        " -",
        "<<<",
        "echo ",
        "pass:",
        " /p",
        "chpasswd",
        "net user",
        "user-secrets",
        "nmcli",
        "wpa_pass",
        "wifi:",
        "obscure ",
        "bw ",
        "_pw ",
        "<(",
    ),
)
"""Hints of which every command has one."""
_SIGNS = compile_late(r"[=:<(%'\"：]")
"""Signs of which every form of names and headers has one, unless it is a password in prose."""
_NAME_HINTS = (
    "pass",
    "pwd",
    "secret",
    "token",
    "kennw",
    "contrase",
    "auth",
    "value",
    "</",
    "identified",
    "jdbc:",
    "dbi:",
    "mysql",
    "securestr",
    "login(",
    "seal key",
    "very key",
    "key content",
    '"kty"',
    '"username"',
)
_HEADER_HINTS = tuple(dict.fromkeys(hint for form in _OF_HEADERS for hint in form.hints))


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
