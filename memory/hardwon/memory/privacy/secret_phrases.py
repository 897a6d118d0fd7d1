"""Patterns for secrets told in passing: in sentences, tables and forms, in other languages, and in rarer commands.

`secret_forms` recognizes a secret by the signs around it. Here there often is only a word beside it, so a value counts
only if it looks like a password by itself: long, with a digit, and of mixed letters. `redaction` calls `redact_phrases`
for every text that has one of the hints.
"""

import re
from collections.abc import Sequence

from hardwon.memory.patterns import compile_late

from .secret_forms import VALUE, Form, is_value, make_form, replace_forms

_ASCII_NAMES = ("senha", "clave", "wachtwoord", "haslo", "sifre", "parola", "heslo", "salasana", "passord", "losenord")
"""Words for a password in other languages, as they are written without accents."""
_OTHER_NAMES = (
    *("hasło", "şifre", "parolă", "lösenord", "jelszó", "mật khẩu", "пароль", "密码", "密碼", "口令", "パスワード"),
    *("비밀번호", "암호", "كلمة المرور", "كلمة السر", "पासवर्ड", "κωδικός", "סיסמה"),
)
_FOREIGN = "|".join((*_ASCII_NAMES, *_OTHER_NAMES, "passwort", "kennwort", "mot[ _]de[ _]passe", r"contrase(?:ñ|n)a"))
_IS = r"(?:is|ist|lautet|est|es|è|é|jest|är|er|on|это|为|是|は|は、)"
_NAME = r"(?:passw(?:or)?ds?|passphrase|secret|pass)"
_KEYED = r"(?:[a-z0-9]{1,20}_){1,4}(?:key|token|secret|pass(?:word)?)"

_OF_WORDS = (
    make_form("password", rf"\bpasswords? (?:[\w']{{1,20}} ){{0,6}}to {VALUE}"),
    make_form(
        "password ,passphrase ,secret ,pass ,pwd ,pass is",
        rf"(?<![\w-])(?:{_NAME}|pwd)(?: is)?(?: \d)?[ \t]{{1,4}}{VALUE}(?=[\s;,.)]|\Z)",
    ),
    make_form("as the pass,as my pass,as your pass,as pass", rf"{VALUE} as (?:(?:the|my|your) )?(?:new )?password"),
    make_form(
        "passw",
        r"(?P<q>[\"'])(?P<value>[^\s\"']{8,200})(?P=q) (?:into|in|as|for) (?:the )?[\w #]{0,20}password",
    ),
    make_form("passw", rf"[\[(] ?[\"']?#?[\w.-]{{0,20}}password[\"']?\s?,\s?(?!\w{{1,40}}=){VALUE}"),
    make_form("pw:,pw=,pw is,pw :", rf"\bpw(?: is|\s?[:=])\s{{1,3}}(?=[^\s\"']{{0,80}}\d){VALUE}", certain=True),
    make_form(
        "login,credential,creds",
        rf"\b(?:login|credentials?|creds)\b[:=]?\s?[^\s/|,]{{1,80}}\s?[/|,]\s{{0,3}}{VALUE}",
    ),
    make_form(
        "password |,passwd |,secret |,key |,token |,word  ,passwd  ,secret  ,key  ,token  ",
        r"(?<![a-z])(?:[a-z0-9]{1,20}[ _-]){0,2}(?:password|passwd|secret|token"
        rf"|(?:secret[ _-]?access|secret|api|access)[ _-]?key)\s{{0,40}}\|\s?{VALUE}\s{{0,200}}\|",
    ),
    make_form(
        "password,passphrase,passcode,api key,secret key,access token,secret\n",
        r"(?m)^[ \t]{0,40}(?:(?:enter|your|new|current|the) ){0,2}"
        r"(?:(?:[a-z0-9]{1,20} ){0,2}(?:password|passphrase|passcode)|api key|(?:client )?secret(?: key)?|access token)"
        rf"[ \t\r]{{0,4}}\n[ \t]{{0,40}}{VALUE}(?=[ \t\r]{{0,4}}(?:\n|\Z))",
    ),
    make_form("values", rf"[,(]\s?[\"'`]?password[\"'`]?\s?\)\s{{0,9}}values\s?\([^()\n]{{0,300}}[,(]\s?{VALUE}\s?\)"),
    make_form("form-data", rf"name=\"[\w.-]{{0,20}}(?:password|secret|token)\"(?:\r?\n){{2}}{VALUE}"),
    make_form("credential", rf"credentials?\(\s?[\"'][^\"'\n]{{1,80}}[\"'],\s?{VALUE}"),
    make_form("passwords:,secrets:", rf"\b(?:passwords|secrets):\s{{0,3}}\n\s{{0,40}}-\s{{1,3}}{VALUE}"),
    make_form("password: !,password: &", rf"password: (?:!!\w{{1,20}}|&\w{{1,20}}) {VALUE}"),
    make_form(
        "pass",
        rf"\bpass(?:word|phrase|code)\b[^\n]{{0,80}}:\s?\n\s{{0,40}}{VALUE}\s?(?=\n|\Z)",
    ),
    make_form(
        "key:,key is", rf"\b(?:api|access|secret|private)[ _-]key(?: is)?:?\s{{0,3}}\n\s{{0,40}}{VALUE}(?=\s|\Z)"
    ),
    make_form(
        "_key ,_token ,_secret ,_pass",
        r"(?:\b(?:ENV|SetEnv|setx|setenv|set -g?x)|#define)"
        rf"\s{{1,3}}{_KEYED}[ \t]{{1,4}}(?=[^\s\"']{{0,80}}\d){VALUE}(?=\s|\Z)",
        certain=True,
    ),
    make_form("_key ,_token ,_secret ,_pass", rf"(?<![\w-]){_KEYED}[ \t]{{1,4}}{VALUE}(?=\s|\Z)"),
    make_form(
        "_key=,_key:,_key =,_session=",
        r"(?<![\w-])(?:[a-z0-9]{1,20}_){1,4}(?:key|session)\s?[=:]\s?[\"']?(?P<value>[\w+/=-]{20,400})",
    ),
    make_form("type=", rf"type=[\"']?password[\"']?\s[^<>]{{0,200}}?value={VALUE}"),
    make_form("tion-key,tions-key", rf"\b[a-z-]{{0,30}}(?:subscription|functions)-key: {VALUE}"),
    make_form("@", r"(?<![\w/:])[\w.\\/-]{1,80}:(?P<value>[^\s:/@\"'<>]{8,100})(?=@[\w.-])"),
    make_form(
        "pw=,pw:,pw\",pw',pw\\,psk",
        r"(?<![a-z])(?:pw|psk)(?:\\?[\"'])?\s?[:=]\s?(?:\\?[\"'](?P<value>[^\"'\n\\]{4,200})(?=\\?[\"']))",
        certain=True,
    ),
    make_form(
        "pw=,psk=",
        r"(?<![a-z])(?:pw|psk)=(?=[^\s\"'&;]{0,80}\d)(?=[^\s\"'&;]{0,80}[a-z])(?P<value>[^\s\"'`&;<>()\[\]{}]{6,200})",
        certain=True,
    ),
    make_form(
        "word is:,phrase is:,code is:,pwd is:,word is :",
        r"\b(?:password|passphrase|passcode|pwd) is\s?:\s{1,3}[\"'`]?(?=[^\s\"']{0,80}\d)(?=[^\s\"']{0,80}[a-z])"
        r"(?P<value>[^\s\"'`&<>()\[\]{}]{6,200})",
        certain=True,
    ),
    make_form(
        "password (,passwd (,pwd (",
        r"\b(?:password|passwd|pwd) \((?!argon|sha|md5|base|utf|bcrypt|scrypt|pbkdf|min|max|at|see|step)"
        r"(?=[^\s()]{0,80}\d)(?=[^\s()]{0,80}(?-i:[a-z]))(?=[^\s()]{0,80}(?-i:[A-Z]))(?P<value>[^\s()\[\]]{6,200})\)",
        certain=True,
    ),
    make_form("psk", rf"\bpsk\s?[=:]\s?{VALUE}"),
    make_form("sshpass=", rf"\bsshpass={VALUE}"),
)
_OF_LANGUAGES = (
    make_form(
        "", rf"(?:{_FOREIGN})[\"']?(?:\s?[:=：]| ?{_IS} ?:?)\s{{0,20}}{VALUE}(?=[\s,;.!。)\"']|\Z)", ascii_only=False
    ),
    make_form("", rf"\bpassword {_IS} {VALUE}", ascii_only=False),
)
_OF_MARKUP = (
    make_form(
        "<",
        rf"<[\w:.-]{{0,40}}{_NAME}(?:\s[^<>]{{0,200}})?>\s{{0,9}}(?:<!\[CDATA\[)?(?P<value>[^<>\s\[\]]{{3,400}})",
    ),
    make_form("&gt;", rf"{_NAME}&gt;\s{{0,9}}(?P<value>[^&\s]{{3,400}})&lt;"),
    make_form("%253d,%3d", rf"(?:{_NAME}|pass%77ord|p%61ssword)%(?:25)?3d(?P<value>[^\s&\"'%]{{3,200}})"),
)
_PROGRAM = r"[^\n|;&]{0,200}?"
_OF_COMMANDS = (
    make_form(" -u", rf"\s-U\s{{0,3}}[\"']?[^\s%\"']{{1,80}}%{VALUE}"),
    make_form("ftp", rf"\bl?ftp{_PROGRAM}\s-u\s{{0,3}}[^\s,]{{1,80}},{VALUE}"),
    make_form(" -u", rf"\s-u[\"']?[^\s:\"'-][^\s:\"']{{0,80}}:(?!\w{{0,20}}:?//){VALUE}"),
    make_form("-auth ", rf"\s-auth\s{{1,3}}[^\s:]{{1,80}}:{VALUE}"),
    make_form("net user", rf"\bnet\s+user\s+\S{{1,80}}\s+{VALUE}"),
    make_form(
        "-b ,--cookie",
        rf"\bcurl\s{_PROGRAM}(?:-b|--cookie)\s{{1,3}}[\"']?[\w.-]{{1,60}}=(?P<value>[\w%+/=.-]{{16,400}})",
    ),
)
_OF_TOOLS = (
    make_form(
        " -p",
        rf"\s(?:-[uld]|--?user(?:name)?|--login)[ =]\s{{0,3}}[^\s-]\S{{0,80}}\s{_PROGRAM}(?-i:-P\s{{0,3}}|-p\s{{1,3}})"
        rf"(?!\d{{1,5}}[:/]|\d{{1,3}}\.\d){VALUE}",
    ),
    make_form(
        " -u ",
        rf"\s-p\s{{1,3}}(?!\d{{1,5}}[:/]|\d{{1,3}}\.\d){VALUE}(?=\s(?:[^\n|;&]{{0,200}}?\s)?-u\s)",
    ),
    make_form("zip", rf"\b(?:un)?zip\s{_PROGRAM}-P\s{{0,3}}{VALUE}"),
    make_form("7z,rar", rf"\b(?:7z[az]?|rar|unrar)\s{_PROGRAM}\s-h?p{VALUE}"),
    make_form("ldap", rf"\bldap[a-z]{{3,10}}\s{_PROGRAM}-w\s{{0,3}}{VALUE}"),
    make_form("storepass,keypass", rf"\s-(?:[a-z]{{1,8}})?(?:store|key)pass[ =]\s{{0,3}}{VALUE}"),
    make_form("gh secret", rf"\bgh\s+secret\s+set\s{_PROGRAM}(?<=\s)(?:-b|--body)[ =]\s{{0,3}}{VALUE}"),
    make_form(
        "--value,--secret-string",
        r"\b(?:secrets?|secretsmanager|keyvault|put-parameter)\s"
        rf"{_PROGRAM}--(?:value|secret-string)[ =]\s{{0,3}}{VALUE}",
    ),
    make_form("oathtool", rf"\boathtool\s{_PROGRAM}(?<=\s)(?:-b|--base32)\s(?:-\S{{1,20}}\s){{0,3}}{VALUE}"),
    make_form("smb,rpcclient", rf"\b(?:smb[a-z]{{3,10}}|rpcclient)\s{_PROGRAM}-U\s{{0,3}}[^\s%]{{1,80}}%{VALUE}"),
)
"""Commands whose option is a password and nothing else: a digit and a letter are enough."""
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
    if (" -" in lowered or "net user" in lowered) and any([hint in lowered for hint in _COMMAND_HINTS]):  # noqa: C419
        return True
    return _is_foreign(lowered) or _has_markup(lowered) or _names_a_person(lowered)


def redact_phrases(text: str, lowered: str) -> str:
    """Return the text without the secrets that are told in passing."""
    if not any(map(str.isdigit, text)):
        return text  # every value has a digit
    text = _apply(text, lowered, _OF_WORDS)
    if " -" in lowered or "net user" in lowered:
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
