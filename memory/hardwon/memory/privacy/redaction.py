"""Redaction of secrets from text and records, before they are stored or looked up.

    redact("mail bob@example.com, password: hunter2")
    == "mail [redacted:email], password: [redacted:password]"

Secrets are recognized by form: keys and tokens of common vendors, JWTs, authorization headers, private keys,
passwords in URLs, e-mail addresses, and payment card numbers with a valid check digit. They are also recognized by
name: `password=...`, `"api_key": "..."`, `token: ...`. Entropy is not used, so ids of games and bookings are kept.
There is no guarantee: a secret in prose is not recognized.

Recall redacts its query, so the functions are fast: cheap tests come first, and a pattern runs only if one of them
succeeds. Every pattern takes time linear in the text. Texts and records without secrets are returned as the same
object.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from operator import is_, ne
from typing import Any, TypeVar

from hardwon.memory.patterns import compile_late
from hardwon.memory.reasons import Reasons
from hardwon.memory.records import Diagnosis, Item, State, Step, Trajectory
from hardwon.memory.signature import HASH_DIGITS

from .secret_fields import PINS, is_pin, is_typed, kind_of, may_hold_fields, redact_fields
from .secret_forms import NAMES, VENDOR_BEGINNINGS, is_masked, redact_forms, redact_vendors, unmask
from .secret_phrases import may_hold_phrases, redact_phrases, unmix
from .secret_places import redact_beside_ids, redact_places
from .secret_tables import redact_tables
from .secret_values import find_named, find_neighbors
from .tuning import TUNING

_VENDORS = {
    "sk-": r"(?=[A-Za-z_-]*+[0-9])[\w-]{20,}+",
    "ghp_ gho_ ghu_ ghs_ ghr_ hf_ npm_": r"[A-Za-z0-9]{30,}+",
    "glpat- gldt- glrt- gloas- glcbt- glptt- glft- glsoat- glagent- github_pat_": r"[\w-]{20,}+",
    "xoxa- xoxb- xoxc- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-": r"[\w-]{12,}+",
    "sk_live_ sk_test_ rk_live_ rk_test_ whsec_": r"\w{10,}+",
    "AKIA ASIA ABIA ACCA": r"[A-Z0-9]{16}(?![\w-])",
    "AIza": r"[\w-]{35}(?![\w-])",
    "GOCSPX- gsk_ xai- pplx- r8_ tvly- nvapi- lsv2_pt_ lsv2_sk_ lin_api_ ntn_ sbp_ glsa_ glc_ sntrys_ pscale_tkn_ "
    "PMAK- NRAK- pypi- sntryu_ fm2_ ATBB CCIPAT_ HRKU- tskey-auth- tskey-api- tskey-client-": r"[\w-]{20,}+",
    "doo_v1_ dop_v1_ dor_v1_": r"[0-9a-f]{40,}+",
    "dapi SK AC key- shpat_ shpca_ shppa_ shpss_": r"[0-9a-f]{32}(?![\w-])",
    "AGE-SECRET-KEY-1": r"\w{40,}+",
}
"""Patterns of vendors' tokens after their prefixes, which are separated by spaces."""
_BEGINNINGS = tuple(beginning.encode() for beginning in (*" ".join(_VENDORS).split(), "eyJ", "AA", *VENDOR_BEGINNINGS))
"""All prefixes, including those of JWTs and of the second half of Telegram tokens."""
_BEFORE = (
    *(b"SG.", b"ya29.", b"hvs.", b"hvb.", b"/", b"sl.", b"dp.pt.", b"dp.st.", b"dp.ct.", b"dt0c01.", b".atlasv1."),
    *(b"v1.", b"SSWS "),
)
"""Text before the long part of a token with two parts, or of a webhook."""

_START = r"(?:(?<![\w-])|(?<=\\[nrt]))"
"""Beginning of a token: not inside another one, or after a line break as JSON escapes it."""
_KEY = compile_late(
    rf"{_START}(?:"
    + "|".join(f"(?:{'|'.join(heads.split())}){rest}" for heads, rest in _VENDORS.items())
    + r"|[0-9]{8,10}:AA[\w-]{33}(?![\w-]))",
    re.A,
)
_PREFIXED = compile_late(
    rf"{_START}(?!sha\d)[a-z][a-z0-9]{{1,11}}(?:[_-][a-z0-9]{{1,8}}){{0,2}}[_-](?P<random>[A-Za-z0-9]{{{TUNING.min_random},}}+)(?![\w-])",
    re.A,
)
"""Tokens of any vendor that names itself at their beginning, as GitHub began to."""
_JWT = compile_late(rf"{_START}eyJ[\w-]{{10,}}+\.[\w-]{{10,}}+(?:\.[\w-]*+){{0,3}}", re.A)
_DOTTED = compile_late(rf"{_START}(?:SG\.[\w-]{{16,}}+\.[\w-]{{16,}}+|ya29\.[\w-]{{20,}}+|hv[sb]\.[\w-]{{20,}}+)", re.A)
_WEBHOOK = compile_late(r"(?<=hooks\.slack\.com/services/)[\w/]{20,}+", re.A)
_KEY_BLOCK = r"(?:[A-Za-z0-9]++ )*(?:PRIVATE KEY(?: BLOCK)?|Static key V1)"
_PRIVATE_KEY = compile_late(
    rf"----[- ]BEGIN {_KEY_BLOCK} ?-----?"
    rf"(?:[^-]*+(?:-(?!---[- ](?:BEGIN|END))[^-]*+)*+----[- ]END {_KEY_BLOCK} ?-----?"
    r"|(?:[\s\\]*+[\w+/=]{16,}+)*+)"
)
_URL_PASSWORD = compile_late(r"(?<=://)([^\s/:@\"'<>\[]*+:)(?!\[redacted:)[^\s/@\"'<>]++(?=@)")
_EMAIL = compile_late(
    r"(?:(?<![\w.%+\\-])(?<![\w.%+-]')|(?<=\\[nrt]))(?!git@)[\w%+-](?:[\w.%+-]++|'(?=[\w.%+-]))*+@(?:[\w-]++\.)+[^\W\d_]{2,24}(?![\w-])"
)
_CARD = compile_late(
    r"(?:(?<![\w.])|(?<=\\[nrt]))(?=("
    r"[0-9]{13,19}|[0-9]{4}([ .-])(?:[0-9]{4}\2[0-9]{4}\2[0-9]{4}(?:\2[0-9]{3})?|[0-9]{6}\2[0-9]{4,5})"
    r")(?!\w|[.,][0-9]))",
    re.A,
)

_HEADER = compile_late(
    r"(?:authorization[\\\"'`]*+[ \t]*+[:=][ \t]*+[\\\"'`]*+"
    r"(?:(?P<scheme>basic|bearer|digest|token|apikey)[ \t]++|[\w-]{2,20}+[ \t]++)?"
    r"|authorization[ \t]++[\"'](?:basic|bearer)[ \t]++|\bbearer[ \t]++)(?P<value>[\w.~+/=-]{8,}+(?::[\w.~+/=-]++)*+)",
    re.I | re.A,
)
_NAMES = (
    r"passw(?:or)?d|passphrase|passcode|pwd|secret(?:[_-]?access)?(?:[_ -]?key(?:_base)?)?|token"
    r"|credentials?|(?:api|access|account|private|auth|encryption|signing|(?:pre-?)?shared)[_ -]?key"
)
_NAME = rf"(?<!\[redacted:)(?P<name>{_NAMES})"
"""Names of secrets, alone or at the end of a longer name."""
_NAMED = compile_late(rf"(?<!\[redacted:)(?P<name>{_NAMES}|(?<![a-z])(?:pw|psk|pin|cvv|cvc))\Z", re.I | re.A)
# The groups of a value stand last, so nothing can backtrack into them. They are not possessive: Python before 3.11.5
# reads a possessive group with alternatives one character too far (python/cpython#106052).
_ASSIGNED, _ASSIGNED_LONG = (
    compile_late(
        rf"{_NAME}(?:[\\\"'`\]]*+[ \t]*+(?P<sign>=>|:=|==?+|:)[ \t]*+|[ \t]++is[ \t]++)"
        rf"(?:[bn]?(?P<quote>\"|'|`)(?P<quoted>(?:[^\\\n\"'`]|\\.|(?!(?P=quote))[\"'`]|(?P=quote){{2}}){{1,{longest}}})"
        rf"|(?P<escaped>\\++[\"'])(?P<within>(?:[^\\\n]|(?!(?P=escaped))\\){{1,{longest}}})"
        rf"|(?P<bare>[^\s\"'`,;&<>(){{}}\[\]\\](?:[^\s\"'`,;&<>\\\[]|\[(?!redacted:)){{0,{longest}}}))",
        re.A,
    )
    for longest in (TUNING.judged_characters, "")
)
"""A name in lower case with its value: as much of it as is judged, and all of it. If every name of a text that consists
of names had all the rest as its value, the time would be quadratic."""
_NO_VALUE = compile_late(
    r"(?:\[redacted:|\{|<|!!|!(?:vault|secret|env|ref|sub)\b|\*{3}|\$[{(]|\$\Z|\$[A-Za-z_]\w*\Z|%\(|(?:self|os|process|config|settings|env|args|var|local|module|data)[.\[]|[\w.]+\("
    r"|your[_-]\w*+\Z"
    r"|(?:a|an|any|are|at|bool|bytes|empty|enter|expired|false|for|in|incorrect|int|invalid|is|it|missing|must|my|no|none"
    r"|not|null|of|optional|or|please|required|secretstr|should|str|string|the|then|this|to|token|true|undefined"
    r"|unknown|valid|with|wrong|yes|you|your|api_?key|passw(?:or)?d|pwd|secret)[.!?]?\Z"
    r"|[a-z_]{2,}+(?:\.[a-z_]++)*+\[)",
    re.I | re.A,
)
"""Text in a value's place that is not a secret: a placeholder, a variable, a call, a type, the next word of a
sentence."""
_GOES_ON = compile_late(r",? [^\W\d_]+\b(?![=:])")
"""Continuation of a sentence after its first word."""
_STRONG = compile_late(r"pass|pwd|key|pw\Z|psk\Z", re.I | re.A)
"""Names whose value is a secret in any form. A `token` may also be a coin in a game."""
_LENGTHS = {"2": (16,), "3": (14, 15, 16), "4": (13, 16, 19), "5": (16, 18, 19), "6": (16, 17, 18, 19), "8": (16,)}
"""Lengths of payment card numbers by their first digit."""

_RUNS = bytes(97 if chr(code).isalnum() or code in b"_-" else 32 for code in range(128)) + b" " * 128
_DIGITS = bytes(48 if 48 <= code <= 57 else 32 for code in range(256))
_RUN, _CARD_RUN = b"a" * TUNING.min_token_run, b"0" * TUNING.min_card_digits

SecretSpan = tuple[int, int, str]
"""Start, end and replacement of a secret."""
RecordType = TypeVar("RecordType", State, Diagnosis, Step, Trajectory, Item)


# ---- texts


def redact(text: str) -> str:
    r"""Return the text with each secret replaced by `[redacted:KIND]`, or the same object if it has none.

    Half of a surrogate pair, as in some file names, cannot be stored. It is replaced by its escape, such as `\udcff`,
    both in stored text and in queries, so that two different names stay different.
    """
    if not text.isascii():
        text = _with_halves_escaped(text)
    length = len(text)
    if length < TUNING.min_secret_length:
        return text
    changed = _redacted_short(text) if length <= TUNING.max_short_text else _redacted_long(text)
    return text if changed is None else changed


def _with_halves_escaped(text: str) -> str:
    """Return the text with unpaired surrogates as escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _redacted(text: str) -> str | None:
    """Return the text without its secrets, or None if it has none."""
    redacted = _once(text)
    if redacted == text:
        return None
    for _ in range(TUNING.more_passes):  # redacting one secret can reveal another next to it
        before, redacted = redacted, _once(redacted)
        if redacted == before:
            break
    return redacted


_redacted_short = lru_cache(maxsize=8 * TUNING.remembered_texts)(_redacted)
_redacted_long = lru_cache(maxsize=TUNING.remembered_texts)(_redacted)


def _once(text: str) -> str:
    """Return the text after one pass of redaction, which also looks behind invisible and full-width characters."""
    if text.isascii():
        return _once_plain(text)
    clear = unmix(unmask(text) if is_masked(text) else text)
    redacted = _once_plain(clear)
    return text if redacted == clear else redacted


def _once_plain(text: str) -> str:
    """Return the text after one pass of all patterns whose cheap test succeeds."""
    redacted = text
    if "BEGIN " in text:
        redacted = _PRIVATE_KEY.sub("[redacted:private_key]", redacted)
    lowered = text.lower()
    is_named = any([name in lowered for name in NAMES])  # noqa: C419 - a generator costs more than it saves here
    if is_named:
        redacted = redact_tables(_assigned(_HEADER.sub(_header, redacted)), lowered)
        if may_hold_fields(lowered):
            redacted = redact_fields(redacted, _is_secret)
    if "@" in text:
        redacted = _EMAIL.sub("[redacted:email]", _URL_PASSWORD.sub(r"\1[redacted:password]", redacted))
    raw = text.encode("ascii", "replace")
    if _begins_a_token(raw) or b"-us" in raw:
        redacted = _KEY.sub("[redacted:api_key]", _JWT.sub("[redacted:jwt]", redacted))
        redacted = redact_beside_ids(_PREFIXED.sub(_prefixed, redacted))
        redacted = redact_vendors(_WEBHOOK.sub("[redacted:token]", _DOTTED.sub("[redacted:api_key]", redacted)))
    digits = raw.translate(_DIGITS).count(b"0")
    if digits >= TUNING.min_card_digits and _may_hold_cards(raw):
        redacted = _replaced(redacted, _CARD, _card, redacted)
    redacted = redact_forms(redacted, lowered, raw)
    redacted = redact_places(redacted, lowered, raw, is_named=is_named)
    # every value in a phrase has a digit
    return (
        redact_phrases(redacted, lowered) if (digits or not text.isascii()) and may_hold_phrases(lowered) else redacted
    )


def _begins_a_token(raw: bytes) -> bool:
    """Return whether a long run of letters and digits begins like a vendor's token."""
    runs = raw.translate(_RUNS)
    at = runs.find(_RUN)
    while at >= 0:
        start = at + 1 if at and raw[at - 1] == 92 else at  # skip the n of an escaped line break
        if raw.startswith(_BEGINNINGS, start) or raw.endswith(_BEFORE, 0, start):
            return True
        if raw.endswith(b".", 0, start) and b"dp.st." in raw[max(0, start - 60) : start]:  # the name of a place between
            return True
        end = runs.find(b" ", at)
        if at and raw[at - 1] == 58 and (end if end >= 0 else len(raw)) - at == 32:  # a line of htdigest
            return True
        if _is_prefixed(raw[start : end if end >= 0 else None]):
            return True
        if raw.startswith(b".", end) and raw.startswith((b"M", b"N", b"O"), start):  # token of a Discord bot
            return True
        at = runs.find(_RUN, end) if end >= 0 else -1
    return False


def _is_prefixed(run: bytes) -> bool:
    """Return whether a run may be random letters and digits after the name of their vendor, such as `nfp_`."""
    return (
        len(run) > TUNING.min_random and run[0] >= 97 and not run.islower() and max(run.find(b"_"), run.find(b"-")) > 0
    )


def _prefixed(match: re.Match[str]) -> str:
    """Return the replacement of a vendor's token; names of functions, digests and ids are kept."""
    text = match["random"]
    kinds = [2 if char.isdigit() else char.isupper() for char in text]
    changes = sum(map(ne, kinds, kinds[1:]))
    is_random = len(set(kinds)) == 3 and kinds.count(2) >= 3 and changes > TUNING.min_changes * len(kinds)
    return "[redacted:api_key]" if is_random else match[0]


def _may_hold_cards(raw: bytes) -> bool:
    """Return whether a text has a run of digits as long as a card number, with one kind of sign between them."""
    return _CARD_RUN in raw.translate(_DIGITS, b" -") or (b"." in raw and _CARD_RUN in raw.translate(_DIGITS, b"."))


def _header(match: re.Match[str]) -> str:
    """Return the replacement of an authorization header; words without digits are kept."""
    value = match["value"]
    certain = match["scheme"] or any(map(str.isdigit, value)) or len(value) >= 24
    return match[0].removesuffix(value) + "[redacted:token]" if certain else match[0]


def _replaced(
    text: str, pattern: re.Pattern[str], judge: Callable[[re.Match[str]], SecretSpan | None], searched: str
) -> str:
    """Replace the spans that `judge` returns for matches in `searched`, which is the text in another case.

    If it rejects a match, continue one character after its start.
    """
    parts: list[str] = []
    done = at = 0
    while match := pattern.search(searched, at):
        span = judge(match)
        if span is None:
            at = match.start() + 1
            continue
        start, end, instead = span
        parts += [text[done:start], instead]
        done = at = end
    return "".join([*parts, text[done:]]) if parts else text


def _assigned(text: str) -> str:
    """Return the text without values that are secret by their name."""
    lowered = text.lower()  # a pattern that ignores the case takes twice the time
    if len(lowered) != len(text):
        lowered = "".join([sign.lower() if sign.isascii() else sign for sign in text])
    return _replaced(text, _ASSIGNED, partial(_value, text), lowered)


def _value(text: str, match: re.Match[str]) -> SecretSpan | None:
    """Return the span of a value that is secret by its name, or None."""
    group = next(group for group in ("quoted", "within", "bare") if match[group] is not None)
    start = match.start(group)
    value = text[start : match.end(group)]
    if group == "bare":
        value = value.rstrip(")]}.!?:") or value
    prose = match["sign"] is None or (group == "bare" and match["sign"] == ":")
    if prose and value.isalpha() and value.islower() and _GOES_ON.match(match.string, start + len(value)):
        return None  # "access key: needed for door 3"
    if match["sign"] == "==" and group == "bare" and value.isidentifier() and value.islower():
        return None  # a comparison of two variables
    if not _is_secret(match["name"], value, prose=prose, stated=match["sign"] is None):
        return None
    if len(match[group]) >= TUNING.judged_characters and (whole := _ASSIGNED_LONG.match(match.string, match.start())):
        value = whole[group].rstrip(")]}.!?:") if group == "bare" else whole[group]
    return start, start + len(value), f"[redacted:{kind_of(match['name'])}]"


def _is_secret(name: str, value: str, *, prose: bool = False, stated: bool = False) -> bool:
    """Return whether a value after a secret's name is a secret."""
    if name.lower() in PINS:
        return is_pin(value)
    if _NO_VALUE.match(value) or (name.lower() == "pwd" and value.startswith("/")):
        return False
    has_digit = any(map(str.isdigit, value))
    if stated:
        return has_digit and len(value) >= 5 and bool(_STRONG.match(name))
    if _STRONG.search(name):
        return len(value) >= 3
    if " " in value or value.isdigit():
        return False
    return len(value) >= (6 if has_digit or not prose else 16)


def _card(match: re.Match[str]) -> SecretSpan | None:
    """Return the span of a payment card number, or None."""
    text, separator = match[1], match[2]
    # the last group may be another number that follows the card's
    candidates = [text, text.rpartition(separator)[0]] if separator else [text]
    for number in candidates:
        if _is_card(number.replace(separator or " ", "")):
            return match.start(), match.start() + len(number), "[redacted:card]"
    return None


def _is_card(digits: str) -> bool:
    """Return whether digits have an issued length and prefix, and the right check digit (Luhn)."""
    if len(digits) not in _LENGTHS.get(digits[0], ()):
        return False
    if digits[0] == "2" and not ("2200" <= digits[:4] <= "2204" or "2221" <= digits[:4] <= "2720"):
        return False  # not issued; lists of years begin like this
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


# ---- records


_last: tuple[State, State] | None = None
"""The last state and its redacted form. Most calls redact the same state again."""


def redact_state(state: State) -> State:
    """Return the state without secrets. A computed signature stays that of the original state."""
    global _last
    last = _last  # one read: another thread may replace the pair
    if last is None or last[0] is not state:
        last = _last = state, _redacted_state(state)
    return last[1]


def _redacted_state(state: State) -> State:
    """Return the state with all its texts redacted."""
    given = state.signature_if_known
    named = (
        {"signature": redact(given)} if len(given) not in (0, HASH_DIGITS) else {}
    )  # a name that the environment chose
    return _with(
        state,
        **named,
        observation=redact(state.observation),
        facts=_value_of(state.facts),
        location=redact(state.location),
        task=redact(state.task),
        feedback=redact(state.feedback),
        notes=redact_all(state.notes),
    )


def redact_step(step: Step, before: State | None = None) -> Step:
    """Return the step without secrets in its states, action, diagnosis and `why`."""
    return _step(step, {} if before is None else {id(step.pre): before})


def redact_trajectory(trajectory: Trajectory) -> Trajectory:
    """Return the episode without secrets. States that steps share stay shared."""
    states: dict[int, State] = {}
    steps = tuple(_step(step, states) for step in trajectory.steps)
    return _with(
        trajectory,
        task=redact(trajectory.task),
        steps=trajectory.steps if all(map(is_, steps, trajectory.steps)) else steps,
        arm=redact(trajectory.arm),
        ending=redact(trajectory.ending),
        meta=_value_of(trajectory.meta),
    )


def redact_item(item: Item) -> Item:
    """Return the item without secrets in its texts and conditions."""
    return _with(
        item,
        title=redact(item.title),
        body=redact(item.body),
        when_to_use=redact(item.when_to_use),
        when_not_to_use=redact(item.when_not_to_use),
        condition=_value_of(item.condition),
        forbids=item.forbids and redact(item.forbids),
        steps=redact_all(item.steps),
        signatures=redact_all(item.signatures),
        verify=_value_of(item.verify),
        locations=redact_all(item.locations),
        tags=redact_all(item.tags),
    )


_PERSONAL = {"email", "card", "iban", "ssn"}
"""Kinds that an id may have: a tenant is often named by an address, and the digits of an id may look like a card."""


def has_secret(name: str) -> bool:
    """Return whether a name, such as an id, contains a key, a token or a password."""
    if len(name) == 32 and not name.strip("0123456789abcdef"):  # the ids that hardwon generates
        return False
    name = name.removeprefix("token:")  # the writer of a server's token is named so
    text = redact(name)
    return text is not name and not _PERSONAL.issuperset(re.findall(r"\[redacted:(\w+)\]", text))


_clean: set[str] = set()
"""Texts of lists without secrets, such as keys and actions: about 13 MB at most."""


def redact_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return nested plain values without secrets, or the same object if there are none."""
    redacted: Mapping[str, Any] = _value_of(values)
    return redacted


def redact_all(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts without secrets, or the same object if there are none."""
    if _clean.issuperset(texts):  # most steps have keys and actions that earlier ones had
        return texts
    redacted = tuple([text if text in _clean else redact(text) for text in texts])
    if not all(map(is_, redacted, texts)):
        return redacted
    if len(_clean) >= 8 * TUNING.remembered_texts:
        _clean.clear()
    _clean.update(text for text in texts if len(text) <= 4 * TUNING.max_short_text)
    return texts


def redact_names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping with secrets in its keys redacted, or the same object if there are none."""
    names = tuple(values)
    redacted = redact_all(names)
    return values if redacted is names else dict(zip(redacted, values.values(), strict=True))


def _step(step: Step, states: dict[int, State]) -> Step:
    """Return the step without secrets; `states` has the redacted states by `id()` of the original."""
    diagnosis = step.diagnosis
    return _with(
        step,
        pre=_shared(step.pre, states),
        action=redact(step.action),
        post=_shared(step.post, states),
        diagnosis=_with(diagnosis, diff=_value_of(diagnosis.diff), evidence=redact(diagnosis.evidence)),
        keys=redact_all(step.keys),
        admissible=redact_all(step.admissible),
        why=_redact_reasons(step.why),
    )


def _redact_reasons(why: Reasons) -> Reasons:
    """Return the reasons without secrets, or the same record if there are none."""
    if not why:
        return why
    values = why.to_dict()
    redacted = _value_of(values)
    return why if redacted is values else Reasons.of(redacted)


def _shared(state: State, states: dict[int, State]) -> State:
    """Return the redacted state, computed once for each original state."""
    redacted = states.get(id(state))
    if redacted is None:
        redacted = states[id(state)] = _redacted_state(state)
    return redacted


def _value_of(value: Any, name: str = "") -> Any:
    """Return a nested plain value without secrets. A text is a secret if its name says so."""
    if not value:
        return value
    if isinstance(value, str):
        secret_name = name and _name_of(name)
        is_secret = secret_name and _is_secret(secret_name, value)
        return f"[redacted:{kind_of(secret_name)}]" if is_secret else redact(value)
    if isinstance(value, Mapping):
        redacted = {
            redact(key) if isinstance(key, str) else key: _value_of(part, str(key)) for key, part in value.items()
        }
        for key, label in find_named(value, name):
            if is_typed(label, value[key], _is_secret):
                redacted[key] = f"[redacted:{kind_of(label)}]"
        # a shorter result: two keys became equal
        same = (
            len(redacted) == len(value)
            and all(map(is_, redacted, value))
            and all(map(is_, redacted.values(), value.values()))
        )
        return value if same else redacted
    if isinstance(value, list | tuple):
        parts = [_value_of(part, name) for part in value]
        for place, label in find_neighbors(value):
            parts[place] = f"[redacted:{kind_of(label)}]"
        return value if all(map(is_, parts, value)) else type(value)(parts)
    return value


@lru_cache(maxsize=TUNING.remembered_texts)
def _name_of(name: str) -> str:
    """Return the part of a name that makes its value a secret, such as "password" of `db_password`, or ""."""
    match = _NAMED.search(name)
    return match["name"] if match else ""


def _with(record: RecordType, **values: Any) -> RecordType:
    """Return the record with these values, or the same object if nothing changes."""
    for name, value in values.items():
        if value is not getattr(record, name):
            changed: RecordType = replace(record, **values)
            return changed
    return record
