"""Secrets that an agent types into a field, or that stand beside their name in an object.

    browser_type(element="Password textbox", ref="e12", text="hunter2")
    page.locator("#password").fill("hunter2")
    {"name": "Password", "type": "textbox", "value": "hunter2"}

The name of a secret is one argument of a call, and its text is another one. They need not be neighbors, so no pattern
for both is used: one pass over the strings and brackets of a text assigns every string to its call or object. The pass
takes time linear in the text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from hardwon.memory.patterns import compile_late

from .tuning import TUNING

IsSecret = Callable[[str, str], bool]
"""Returns whether the text in the second argument is a secret that the first one names."""

_NAME_HINTS = ("passw", "pwd", "passphrase", "passcode", "secret", "token", "credential")
_KEY_HINTS = tuple(f"{of}{sign}key" for of in ("api", "access", "private") for sign in ("", "_", " ", "-"))
_CARRIER_HINTS = ("value", "text", "keys", "input", "fill", "type", "enter")
_CARRIER = compile_late(
    r"(?:value|text|keys|keystrokes|input)(?:\\?[\"'])?\s{0,3}[:=]"
    r"|(?:fill|keys|type|input|enter|value|text|sequentially|fill_in|password|secret|token)\(",
    re.A,
)
"""A typed text, in lower case."""
LABEL = compile_late(
    r"(?P<name>passw(?:or)?d|passphrase|passcode|pwd|(?<![a-z])(?:pw|pin|cvv|cvc)(?![a-z])|(?:secret|token|credentials?)(?-i:(?![a-z]))"
    r"|(?:api|access|private|secret)[_ -]?key)",
    re.I | re.A,
)
"""Names of secrets anywhere in a label."""
_NO_LABEL = compile_late(
    r"forgot|please|must|policy|search|show|hide|error|message|hint|help|link|button|rule|strength|length|score|count|manager"
    r"|query|type_|token_",
    re.I | re.A,
)
"""Words in a label of something other than a field for a secret."""
_LABEL_KEY = compile_late(
    r"(?:element|selector|name|label|field|placeholder|id|into|target|key|locator|xpath|css"
    r"|arialabel|elementid|fieldname)\Z",
    re.I | re.A,
)
_CARRIER_KEY = compile_late(r"(?:text|value|keys|input|input_?text|keystrokes)\Z", re.I | re.A)
_TYPES = compile_late(
    r"(?:fill|type|input|enter|send_?keys|set_?value|input_?text|type_?text|press_?sequentially|fill_in|clear_and_type)\Z",
    re.I | re.A,
)
"""Methods whose texts are typed."""
_STORES = compile_late(
    r"(?:set|put|add|create|store|write|save|update)_?(?P<name>secret|password|token|credential)\Z", re.I
)
_KEYSTROKE = compile_late(
    r"(?:enter|return|tab|escape|esc|backspace|delete|home|end|space|arrow\w+|page\w+|f\d{1,2}"
    r"|(?:control|ctrl|alt|shift|meta|cmd)\+.{1,12})\Z",
    re.I | re.A,
)
PINS = ("pin", "cvv", "cvc")
"""Names of secrets that are short numbers."""

_TOKENS = compile_late(
    r"(?<!\w)\"(?P<double>(?:[^\"\\\n]|\\.)*+)(?P<end1>\"?)|(?<!\w)'(?P<single>(?:[^'\\\n]|\\.)*+)(?P<end2>'?)"
    r"|(?P<open>[({\[])|(?P<close>[)}\]])|(?P<comma>[,;\n])",
    re.A,
)
_ESCAPED_TOKENS = compile_late(
    r"\\\"(?P<double>(?:[^\"\\\n]|\\(?!\"))*+)(?P<end1>(?:\\\")?)|(?!)(?P<single>)(?P<end2>)"
    r"|(?P<open>[({\[])|(?P<close>[)}\]])|(?P<comma>[,;\n])",
    re.A,
)
"""The same in a text of JSON inside of another text."""
_KEY_BEFORE = compile_late(r"\s{0,3}[:=]\s{0,3}(?:[\"']\\?)?(?P<key>\w{0,40}[A-Za-z_])(?!\w)", re.A)
_CALL_BEFORE = compile_late(r"(?P<call>\w{1,40}+)(?P<receiver>[\w$.]{0,80}+)(?P<chain>\s{0,40}\))?", re.A)
"""The key before a string, and the call before a bracket. They match reversed text, so one attempt is enough."""
_KEY_REACH = 60
_CALL_REACH = 160


@dataclass(slots=True)
class _Call:
    """A call, an object or a list: its secret's name, and the spans of its texts."""

    bracket: str = ""
    types: bool = False
    """Whether its strings are typed text."""
    is_place: bool = False
    """Whether it locates a field, such as `By.id(...)`."""
    name: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)


def may_hold_fields(lowered: str) -> bool:
    """Return whether a text has a hint of a field with a secret."""
    if "(" not in lowered and "{" not in lowered:
        return False
    # lists, because generators cost more than they save here; the rarer hints come first
    if not any([hint in lowered for hint in _CARRIER_HINTS]):  # noqa: C419
        return False
    if not any([hint in lowered for hint in _NAME_HINTS]) and (  # noqa: C419
        "key" not in lowered or not any([hint in lowered for hint in _KEY_HINTS])  # noqa: C419
    ):
        return False
    return _CARRIER.search(lowered) is not None


def redact_fields(text: str, judge: IsSecret) -> str:
    """Return the text without the secrets that stand beside their names in a call or an object."""
    text = _without(text, _TOKENS, judge)
    return _without(text, _ESCAPED_TOKENS, judge) if '\\"' in text else text


def label_of(label: str) -> str:
    """Return the name of the secret that a label names, or ""."""
    if not 2 <= len(label) <= 160 or label.count(" ") >= TUNING.max_words:
        return ""
    return _find_label(label)


def names_field(key: str) -> bool:
    """Return whether the value of this key says what a field is."""
    return _LABEL_KEY.match(key) is not None


def carries_text(key: str) -> bool:
    """Return whether the value of this key is the text of a field."""
    return _CARRIER_KEY.match(key) is not None


@lru_cache(maxsize=2048)
def _find_label(label: str) -> str:
    match = LABEL.search(label)
    return match["name"] if match and not _NO_LABEL.search(label) else ""


def is_typed(name: str, value: str, judge: IsSecret) -> bool:
    """Return whether a text that is typed into a field of this name is a secret."""
    if _KEYSTROKE.match(value) or "[redacted:" in value or (" " in value and LABEL.search(value)):
        return False
    name = name.lower()
    if name in PINS:
        return is_pin(value)
    if value.count(" ") >= TUNING.max_words:
        return False
    if (
        name.startswith(("secret", "token", "credential"))
        and not name.endswith("key")
        and not any(map(str.isdigit, value))
    ):
        return False  # a coin, or a door
    return judge("password" if name == "pw" else name, value)


def _without(text: str, tokens: re.Pattern[str], judge: IsSecret) -> str:
    """Return the text without secrets in the strings that these tokens delimit."""
    spans = sorted(set(_spans(text, tokens, judge)))
    if not spans:
        return text
    parts, done = [], 0
    for start, end, name in spans:
        parts += [text[done:start], f"[redacted:{kind_of(name)}]"]
        done = end
    return "".join([*parts, text[done:]])


def is_pin(value: str) -> bool:
    """Return whether a text is a short number, as a PIN is."""
    return value.isdigit() and 3 <= len(value) <= 8


@lru_cache(maxsize=2048)
def kind_of(name: str) -> str:
    """Return the kind of a secret by its name, for the replacement."""
    name = name.lower()
    if name in PINS:
        return "pin"
    if name.startswith(("pass", "pw", "psk")):
        return "password"
    return "api_key" if name.endswith("key") else name.rstrip("s")


def _spans(text: str, tokens: re.Pattern[str], judge: IsSecret) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and name of each secret."""
    stack, last, argument = [_Call()], _Call(), 0
    for token in tokens.finditer(text):
        at = token.start()
        if token["comma"]:
            argument = token.end()
        elif token["open"]:
            if len(stack) == TUNING.max_brackets:
                stack.pop(1)
            stack.append(_open(token["open"], text[max(argument, at - _CALL_REACH, 0) : at], last))
            argument = token.end()
        elif token["close"]:
            argument = token.end() - 1
            if len(stack) > 1:
                last = stack.pop()
                yield from _close(last, stack[-1], text, judge)
        else:
            _note(stack[-1], token, text[max(argument, at - _KEY_REACH, 0) : at])
    while stack:  # a text that was cut off
        yield from _close(stack.pop(), _Call(), text, judge)


def _open(bracket: str, before: str, last: _Call) -> _Call:
    """Return the group that a bracket opens after this text."""
    group = _Call(bracket)
    if bracket == "{" and (key := _key_before(before[-_KEY_REACH:])):
        group.name = label_of(key)
    if bracket == "(" and (call := _CALL_BEFORE.match(before[::-1])):
        name, receiver = call["call"][::-1], call["receiver"][::-1]
        chain = last.name if call["chain"] else ""
        group.types = _TYPES.match(name) is not None
        group.is_place = receiver.lower() == "by."
        stores = _STORES.match(name)
        group.name = stores["name"] if stores else (group.types and label_of(receiver)) or chain
    return group


def _key_before(before: str) -> str:
    """Return the key at the end of a text, before a sign, or ""."""
    match = _KEY_BEFORE.match(before[::-1])
    return match["key"][::-1] if match else ""


def _note(group: _Call, token: re.Match[str], before: str) -> None:
    """Note a string of a group: it names a secret, or may be one."""
    kind = "double" if token["double"] is not None else "single"
    if not token["end1" if kind == "double" else "end2"]:
        return
    key, value = _key_before(before), token[kind]
    is_place = names_field(key) if key else group.bracket == "("
    if is_place and not group.name and (name := label_of(value)):
        group.name = name
    elif (carries_text(key) if key else group.types) and 3 <= len(value) <= 400:
        group.spans.append(token.span(kind))


def _close(group: _Call, parent: _Call, text: str, judge: IsSecret) -> Iterator[tuple[int, int, str]]:
    """Yield the secrets of a group that ends, and tell a call the name in its argument."""
    if not group.name:
        return
    if (group.bracket == "{" or group.is_place) and parent.bracket == "(" and not parent.name:
        parent.name = group.name
    for start, end in group.spans:
        if is_typed(group.name, text[start:end], judge):
            yield start, end, group.name
