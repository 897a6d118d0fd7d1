"""Redaction: secrets leave a text before it is stored or looked up.

    redact("mail bob@example.com, password: hunter2")
    == "mail [redacted:email], password: [redacted:password]"

Known by their form are keys and tokens of the common vendors, JWTs, authorization headers, private
keys, passwords in URLs, e-mail addresses, and payment card numbers by their check digit; known by
their name are `password=...`, `"api_key": "..."`, `token: ...`. Nothing is guessed from entropy: the
id of a game or of a booking stays. It is no promise: a secret told in prose is not recognised.

Texts are read on every recall, so cheap tests come first, and a pattern runs only where one of them
asks for it. Each pattern takes time linear in the text, whatever the text. What holds no secret
comes back as the same object, texts and records alike.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import is_
from typing import Any, TypeVar

from hardwon.memory.records import Diagnosis, Item, State, Step, Trajectory

from .secret_forms import VENDOR_BEGINNINGS, is_masked, may_hold_forms, redact_forms, redact_vendors, unmask

SHORTEST = 6
"""Characters of the shortest secret known by its form: `a@b.de`."""
RUN = 16
"""Letters, digits, `_` and `-` in a row that every token known by its beginning has."""
CARD = 13
"""Digits of the shortest card number."""
MORE_TIMES = 8
"""How often a text that had secrets is read again at most."""
REMEMBERED = 2048
"""Texts whose redaction is remembered, and eight times as many short ones: actions, facts, keys."""
SHORT = 200
"""Characters of a short text."""

_VENDORS = {
    "sk-": r"(?=[A-Za-z_-]*+[0-9])[\w-]{20,}+",
    "ghp_ gho_ ghu_ ghs_ ghr_ hf_ npm_": r"[A-Za-z0-9]{30,}+",
    "glpat- gldt- glrt- gloas- glcbt- glptt- glft- glsoat- glagent- github_pat_": r"[\w-]{20,}+",
    "xoxa- xoxb- xoxc- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-": r"[\w-]{12,}+",
    "sk_live_ sk_test_ rk_live_ rk_test_ whsec_": r"\w{10,}+",
    "AKIA ASIA ABIA ACCA": r"[A-Z0-9]{16}(?![\w-])",
    "AIza": r"[\w-]{35}(?![\w-])",
    "GOCSPX- gsk_ xai- pplx- r8_ tvly- nvapi- lsv2_pt_ lsv2_sk_ lin_api_ ntn_ sbp_ glsa_ glc_ sntrys_ pscale_tkn_ "
    "PMAK- NRAK- pypi-": r"[\w-]{20,}+",
    "doo_v1_ dop_v1_ dor_v1_": r"[0-9a-f]{40,}+",
    "dapi SK AC key- shpat_ shpca_ shppa_ shpss_": r"[0-9a-f]{32}(?![\w-])",
    "AGE-SECRET-KEY-1": r"\w{40,}+",
}
"""How the tokens of vendors begin, and how they go on."""
_BEGINNINGS = tuple(beginning.encode() for beginning in (*" ".join(_VENDORS).split(), "eyJ", "AA", *VENDOR_BEGINNINGS))
"""The same, with JWTs and the second half of Telegram's tokens."""
_BEFORE = (b"SG.", b"ya29.", b"hvs.", b"hvb.", b"/", b"sl.", b"dp.pt.", b"dp.st.", b"dp.ct.", b"dt0c01.")
"""What stands before the long part of a token that has two, or of a webhook."""

_START = r"(?:(?<![\w-])|(?<=\\[nrt]))"
"""Where a token begins: not amid one, or after a line break as JSON writes it."""
_KEY = re.compile(
    rf"{_START}(?:"
    + "|".join(f"(?:{'|'.join(heads.split())}){rest}" for heads, rest in _VENDORS.items())
    + r"|[0-9]{8,10}:AA[\w-]{33}(?![\w-]))",
    re.A,
)
_JWT = re.compile(rf"{_START}eyJ[\w-]{{10,}}+\.[\w-]{{10,}}+(?:\.[\w-]*+){{0,3}}", re.A)
_DOTTED = re.compile(rf"{_START}(?:SG\.[\w-]{{16,}}+\.[\w-]{{16,}}+|ya29\.[\w-]{{20,}}+|hv[sb]\.[\w-]{{20,}}+)", re.A)
_WEBHOOK = re.compile(r"(?<=hooks\.slack\.com/services/)[\w/]{20,}+", re.A)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]++ )*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]*+(?:-(?!----(?:BEGIN|END))[^-]*+)*+-----END (?:[A-Z0-9]++ )*PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:[\s\\]*+[\w+/=]{16,}+)*+)"
)
_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@\"'<>\[]*+:)(?!\[redacted:)[^\s/@\"'<>]++(?=@)")
_EMAIL = re.compile(
    r"(?:(?<![\w.%+'\\-])|(?<=\\[nrt]))(?!git@)[\w%+'-][\w.%+'-]*+@(?:[\w-]++\.)+[^\W\d_]{2,24}(?![\w-])"
)
_CARD = re.compile(
    r"(?:(?<![\w.])|(?<=\\[nrt]))(?=("
    r"[0-9]{13,19}|[0-9]{4}([ -])(?:[0-9]{4}\2[0-9]{4}\2[0-9]{4}(?:\2[0-9]{3})?|[0-9]{6}\2[0-9]{4,5})"
    r")(?!\w|[.,][0-9]))",
    re.A,
)

_HEADER = re.compile(
    r"(?:authorization[\\\"'`]*+[ \t]*+[:=][ \t]*+[\\\"'`]*+(?P<scheme>(?:basic|bearer|digest|token|apikey)[ \t]++)?"
    r"|\bbearer[ \t]++)(?P<value>[\w.~+/=-]{8,}+)",
    re.I | re.A,
)
_NAME = (
    r"(?<!\[redacted:)(?P<name>passw(?:or)?d|passphrase|passcode|pwd|secret(?:[_-]?access)?(?:[_ -]?key)?|token"
    r"|credentials?|(?:api|access|account|private|auth|encryption|signing)[_ -]?key)"
)
"""What a secret is called, at the end of a longer name or alone."""
_NAMED = re.compile(rf"{_NAME}\Z", re.I | re.A)
_ASSIGNED = re.compile(
    rf"{_NAME}(?:[\\\"'`\]]*+[ \t]*+(?P<sign>=>|:=|==?+|:)[ \t]*+|[ \t]++is[ \t]++)"
    r"(?:(?P<quote>\"|'|`)(?P<quoted>(?:[^\\\n\"'`]|\\.|(?!(?P=quote))[\"'`])++)"
    r"|(?P<escaped>\\++[\"'])(?P<within>(?:[^\\\n]|(?!(?P=escaped))\\)++)"
    r"|(?P<bare>[^\s\"'`,;&<>(){}\[\]\\](?:[^\s\"'`,;&<>\\\[]|\[(?!redacted:))*+))",
    re.I | re.A,
)
_NO_VALUE = re.compile(
    r"(?:\[redacted:|\{|<|\*{3}|\$[{(]|\$\Z|\$[A-Za-z_]\w*\Z|%\(|(?:self|os|process|config|settings|env|args)[.\[]|[\w.]+\("
    r"|(?:a|an|any|are|at|bool|bytes|empty|enter|expired|false|for|in|incorrect|int|invalid|is|it|missing|must|my|no|none"
    r"|not|null|of|optional|or|please|required|secretstr|should|str|string|the|then|this|to|token|true|undefined"
    r"|unknown|valid|with|wrong|yes|you|your|api_?key|passw(?:or)?d|pwd|secret)[.!?]?\Z)",
    re.I | re.A,
)
"""What stands in a value's place: a hole, a variable, a call, a type, the next word of a sentence."""
_GOES_ON = re.compile(r",? [^\W\d_]+\b(?![=:])")
"""What follows the first word of a sentence."""
_STRONG = re.compile(r"pass|pwd|key", re.I | re.A)
"""Names whose value is secret whatever it looks like; a `token` may also be a coin."""
_HINTS = ["passw", "passphrase", "passcode", "pwd", "secret", "token", "credential", "key", "authorization", "bearer"]
"""In lower case; looked for one by one, which is five times as fast as one pattern of them all."""
_LENGTHS = {"2": (16,), "3": (14, 15, 16), "4": (13, 16, 19), "5": (16, 18, 19), "6": (16, 17, 18, 19), "8": (16,)}
"""Digits that the numbers of payment cards have, by the first."""

_RUNS = bytes(97 if chr(code).isalnum() or code in b"_-" else 32 for code in range(128)) + b" " * 128
_DIGITS = bytes(48 if 48 <= code <= 57 else 32 for code in range(256))
_RUN, _CARD_RUN = b"a" * RUN, b"0" * CARD

Span = tuple[int, int, str]
"""From, to, and what is put there instead."""
Record = TypeVar("Record", State, Diagnosis, Step, Trajectory, Item)


# ---- texts


def redact(text: str) -> str:
    """The text with each secret in it as `[redacted:KIND]`; the same object when it holds none.

    Half a surrogate pair, from the name of a file, cannot be stored: it becomes its escape, such as `\\udcff`, here and
    wherever the present is looked up, so that two names stay two.
    """
    if not text.isascii():
        text = _with_halves_escaped(text)
    length = len(text)
    if length < SHORTEST:
        return text
    changed = _redacted_short(text) if length <= SHORT else _redacted_long(text)
    return text if changed is None else changed


def _with_halves_escaped(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _redacted(text: str) -> str | None:
    """The text without its secrets; None when it has none."""
    told = _once(text)
    if told == text:
        return None
    for _ in range(MORE_TIMES):  # a secret that stood against another one shows when that is gone
        before, told = told, _once(told)
        if told == before:
            break
    return told


_redacted_short = lru_cache(maxsize=8 * REMEMBERED)(_redacted)
_redacted_long = lru_cache(maxsize=REMEMBERED)(_redacted)


def may_hold_secrets(text: str) -> bool:
    """Whether a text asks for a pattern. In JSON it asks whenever a text within does: what is looked for is written
    there as it is, but for a control character before it, so whatever has one asks."""
    raw = text.encode("ascii", "replace")
    lowered = text.lower()
    return (
        "@" in text
        or any([hint in lowered for hint in _HINTS])  # noqa: C419 - as in `_once`
        or _begins_a_token(raw)
        or b"-us" in raw
        or "-----BEGIN " in text
        or "\\u00" in text
        or _CARD_RUN in raw.translate(_DIGITS, b" -")
        or may_hold_forms(lowered, raw)
        or is_masked(text)
        or "\\\\u" in text  # half a surrogate pair, as JSON holds it: the record is to say it as well
    )


def _once(text: str) -> str:
    if is_masked(text):
        clear = unmask(text)
        told = _once_plain(clear)
        return text if told == clear else told
    return _once_plain(text)


def _once_plain(text: str) -> str:
    told = text
    if "-----BEGIN " in text:
        told = _PRIVATE_KEY.sub("[redacted:private_key]", told)
    lowered = text.lower()
    if any([hint in lowered for hint in _HINTS]):  # noqa: C419 - a generator costs more than it saves here
        told = _assigned(_HEADER.sub(_header, told))
    if "@" in text:
        told = _EMAIL.sub("[redacted:email]", _URL_PASSWORD.sub(r"\1[redacted:password]", told))
    raw = text.encode("ascii", "replace")
    if _begins_a_token(raw) or b"-us" in raw:
        told = _KEY.sub("[redacted:api_key]", _JWT.sub("[redacted:jwt]", told))
        told = redact_vendors(_WEBHOOK.sub("[redacted:token]", _DOTTED.sub("[redacted:api_key]", told)))
    if _CARD_RUN in raw.translate(_DIGITS, b" -"):
        told = _replaced(told, _CARD, _card)
    return redact_forms(told, lowered, raw)


def _begins_a_token(raw: bytes) -> bool:
    """Whether a long run of letters and digits begins as a vendor's token does."""
    runs = raw.translate(_RUNS)
    at = runs.find(_RUN)
    while at >= 0:
        start = at + 1 if at and raw[at - 1] == 92 else at  # the n of \n belongs to the break
        if raw.startswith(_BEGINNINGS, start) or raw.endswith(_BEFORE, 0, start):
            return True
        end = runs.find(b" ", at)
        if raw.startswith(b".", end) and raw.startswith((b"M", b"N", b"O"), start):  # a bot of Discord's
            return True
        at = runs.find(_RUN, end) if end >= 0 else -1
    return False


def _header(found: re.Match[str]) -> str:
    value = found["value"]
    certain = found["scheme"] or any(map(str.isdigit, value)) or len(value) >= 24
    return found[0].removesuffix(value) + "[redacted:token]" if certain else found[0]


def _replaced(text: str, pattern: re.Pattern[str], judge: Callable[[re.Match[str]], Span | None]) -> str:
    """The text with what the judge says of each match; after a match refused, the search goes on within it."""
    parts: list[str] = []
    done = at = 0
    while found := pattern.search(text, at):
        span = judge(found)
        if span is None:
            at = found.start() + 1
            continue
        start, end, instead = span
        parts += [text[done:start], instead]
        done = at = end
    return "".join([*parts, text[done:]]) if parts else text


def _assigned(text: str) -> str:
    return _replaced(text, _ASSIGNED, _value)


def _value(found: re.Match[str]) -> Span | None:
    """Where the value that is secret by its name stands."""
    group = next(group for group in ("quoted", "within", "bare") if found[group] is not None)
    value, start = found[group], found.start(group)
    if group == "bare":
        value = value.rstrip(")]}.!?:") or value
    prose = found["sign"] is None or (group == "bare" and found["sign"] == ":")
    if prose and value.isalpha() and value.islower() and _GOES_ON.match(found.string, start + len(value)):
        return None  # "access key: needed for door 3"
    if not _is_secret(found["name"], value, prose=prose, told=found["sign"] is None):
        return None
    return start, start + len(value), f"[redacted:{_kind(found['name'])}]"


def _is_secret(name: str, value: str, *, prose: bool = False, told: bool = False) -> bool:
    """Whether what stands where a secret of this name would is one; prose may go on after the name."""
    if _NO_VALUE.match(value) or (name.lower() == "pwd" and value.startswith("/")):
        return False
    digit = any(map(str.isdigit, value))
    if told:
        return digit and len(value) >= 5 and bool(_STRONG.match(name))
    if _STRONG.search(name):
        return len(value) >= 3
    if " " in value or value.isdigit():
        return False
    return len(value) >= (6 if digit or not prose else 16)


@lru_cache(maxsize=REMEMBERED)
def _kind(name: str) -> str:
    name = name.lower()
    return "password" if name.startswith(("pass", "pwd")) else "api_key" if name.endswith("key") else name.rstrip("s")


def _card(found: re.Match[str]) -> Span | None:
    shown, separator = found[1], found[2]
    whole = [shown, shown.rpartition(separator)[0]] if separator else [shown]
    for number in whole:
        if _is_card(number.replace(separator or " ", "")):
            return found.start(), found.start() + len(number), "[redacted:card]"
    return None


def _is_card(digits: str) -> bool:
    """A length and a beginning that are issued, and the right check digit (Luhn)."""
    if len(digits) not in _LENGTHS.get(digits[0], ()):
        return False
    if digits[0] == "2" and not ("2200" <= digits[:4] <= "2204" or "2221" <= digits[:4] <= "2720"):
        return False  # rows of years begin so
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


# ---- records


_last: tuple[State, State] | None = None
"""The state seen last, which most calls ask for again, and what it became."""


def redact_state(state: State) -> State:
    """The state without secrets; its signature stays that of what was seen."""
    global _last
    last = _last
    if last is None or last[0] is not state:
        last = _last = state, _redacted_state(state)
    return last[1]


def _redacted_state(state: State) -> State:
    return _with(
        state,
        observation=redact(state.observation),
        facts=_value_of(state.facts),
        location=redact(state.location),
        task=redact(state.task),
        feedback=redact(state.feedback),
        notes=redact_all(state.notes),
    )


def redact_step(step: Step) -> Step:
    """The step without secrets: both states, the action, what was judged and why."""
    return _step(step, {})


def redact_trajectory(trajectory: Trajectory) -> Trajectory:
    """The episode without secrets; a state that two steps share stays shared."""
    states: dict[int, State] = {}
    steps = tuple(_step(step, states) for step in trajectory.steps)
    return _with(
        trajectory,
        task=redact(trajectory.task),
        steps=trajectory.steps if all(map(is_, steps, trajectory.steps)) else steps,
        ending=redact(trajectory.ending),
        meta=_value_of(trajectory.meta),
    )


def redact_item(item: Item) -> Item:
    """The item without secrets, in words and in conditions."""
    return _with(
        item,
        title=redact(item.title),
        body=redact(item.body),
        when_to_use=redact(item.when_to_use),
        when_not_to_use=redact(item.when_not_to_use),
        condition=_value_of(item.condition),
        forbids=item.forbids and redact(item.forbids),
        steps=redact_all(item.steps),
        verify=_value_of(item.verify),
        locations=redact_all(item.locations),
        tags=redact_all(item.tags),
    )


def redact_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plain values by name, of whatever depth, without secrets; the same object when none is one."""
    told: Mapping[str, Any] = _value_of(values)
    return told


def redact_all(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Each of the texts without secrets; the same object when none holds one."""
    told = tuple(map(redact, texts))
    return texts if all(map(is_, told, texts)) else told


def redact_names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values under names without secrets; the same object when no name holds one."""
    told = _names(tuple(values))
    return values if told is None else dict(zip(told, values.values(), strict=True))


@lru_cache(maxsize=REMEMBERED)
def _names(names: tuple[str, ...]) -> tuple[str, ...] | None:
    told = redact_all(names)
    return None if told is names else told


def _step(step: Step, states: dict[int, State]) -> Step:
    judged = step.diagnosis
    return _with(
        step,
        pre=_shared(step.pre, states),
        action=redact(step.action),
        post=_shared(step.post, states),
        diagnosis=_with(judged, diff=_value_of(judged.diff), evidence=redact(judged.evidence)),
        keys=redact_all(step.keys),
        admissible=redact_all(step.admissible),
        why=_value_of(step.why),
    )


def _shared(state: State, states: dict[int, State]) -> State:
    told = states.get(id(state))
    if told is None:
        told = states[id(state)] = _redacted_state(state)
    return told


def _value_of(value: Any, name: str = "") -> Any:
    """A plain value, of whatever depth, without secrets; one that has a secret's name is one."""
    if not value:
        return value
    if isinstance(value, str):
        known = name and _name_of(name)
        return f"[redacted:{_kind(known)}]" if known and _is_secret(known, value) else redact(value)
    if isinstance(value, Mapping):
        told = {redact(key) if isinstance(key, str) else key: _value_of(one, str(key)) for key, one in value.items()}
        same = len(told) == len(value) and all(map(is_, told, value)) and all(map(is_, told.values(), value.values()))
        return value if same else told
    if isinstance(value, list | tuple):
        parts = [_value_of(one, name) for one in value]
        return value if all(map(is_, parts, value)) else type(value)(parts)
    return value


@lru_cache(maxsize=REMEMBERED)
def _name_of(name: str) -> str:
    """The word in a name by which its value is secret: `db_password`; empty when there is none."""
    found = _NAMED.search(name)
    return found["name"] if found else ""


def _with(record: Record, **values: Any) -> Record:
    """The record with these values; itself when they are what it has."""
    for name, value in values.items():
        if value is not getattr(record, name):
            changed: Record = replace(record, **values)
            return changed
    return record
