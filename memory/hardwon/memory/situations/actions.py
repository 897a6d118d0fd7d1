"""Parsing of actions: `put dirty dress in basket` becomes put {1} in {2}; also calls and shell commands.

An action is a command (`verb object preposition object`), a call with positional or named arguments, a verb with
arguments in brackets (`click[Buy Now]`), or a shell command. `pattern_of` reduces each argument to its distinguishing
words. `bind` tests whether an action matches a pattern, and returns the values of the pattern's placeholders.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .commands import frame, is_shell_name, is_sql, looks_like_shell
from .phrases import HOLE, head_noun, identity, numbers, words_of
from .tuning import TUNING

_CALL = re.compile(r"\s*([^\W\d][\w.-]*)\((.*)\)\s*", re.DOTALL)
_BRACKETS = re.compile(r"\s*([^\W\d][\w.-]*+)((?:\[[^\[\]]*\]|\"[^\"]*\"|\s)+)", re.DOTALL)
_BRACKETED = re.compile(r"\[([^\[\]]*)\]|\"([^\"]*)\"")
_NAME = re.compile(r"\s*([^\W\d][\w.-]*)\s*=(?!=)\s*")
_TOKEN = re.compile(r"(?<!\S)\"[^\"]*\"(?!\S)|(?<!\S)'[^']*'(?!\S)|\S+")
_WORDS = re.compile(r"\w+")
_OPENERS, _CLOSERS = "([{", ")]}"
_PREPOSITIONS = words_of(
    """
    in into inside on onto off to toward towards from with without at under using for about near behind beside
    between through over against
    """
)


@dataclass(frozen=True, slots=True)
class Part:
    """One argument of a call: its name, and the frame of its value with the slots."""

    name: str
    value: str
    frame: str
    slots: tuple[str, ...]
    heads: tuple[str | None, ...]


# eq=False: actions are parsed once and then looked up by identity, which is faster than by their parts
@dataclass(frozen=True, slots=True, eq=False)
class ParsedAction:
    """A parsed action: `put dirty dress in basket` has template put {1} in {2} and slots (dirty dress, basket)."""

    verb: str
    template: str
    slots: tuple[str, ...]
    heads: tuple[str, ...] = ()
    """Distinguishing part of each argument: (dress, basket); `{1}` for an id or free text."""
    parts: tuple[Part, ...] = ()
    """Arguments of a call; empty for other actions."""


@lru_cache(maxsize=8192)
def parse_action(action: str) -> ParsedAction:
    """Return verb, template and arguments of an action."""
    # the strictest forms first: any text can be read as a command of words
    if call := _CALL.fullmatch(action):
        return _assembled(call[1], "(", ", ", ")", _parts(call[1], call[2]))
    if action.lstrip().startswith("{") and (parsed := _parsed_object(action)):
        return parsed
    if brackets := _BRACKETS.fullmatch(action):
        values = [match[1] if match[1] is not None else match[2] for match in _BRACKETED.finditer(brackets[2])]
        if values:
            verb = brackets[1].lower()
            return _assembled(verb, "[", "] [", "]", tuple(_part("", value, verb) for value in values))
    if looks_like_shell(action):
        part = _part("command", action, "")
        template, slots, heads = _numbered([part])
        return ParsedAction(action.split()[0], template[0], slots, heads)
    return _parsed_command(action)


def _parsed_command(action: str) -> ParsedAction:
    """Parse a command of words, whose arguments are separated by prepositions."""
    words = _TOKEN.findall(action.lower())
    if not words:
        return ParsedAction("", "", ())
    template, slots = [words[0]], []
    slot: list[str] = []
    for word in [*words[1:], None]:
        if word is not None and not _is_preposition(word):
            slot.append(word)
            continue
        if slot:
            slots.append(" ".join(slot))
            template.append(f"{{{len(slots)}}}")
            slot = []
        if word is not None:
            template.append(word)
    heads = tuple(_head(text, number) for number, text in enumerate(slots, 1))
    return ParsedAction(words[0], " ".join(template), tuple(slots), heads)


def _is_preposition(word: str) -> bool:
    """Return whether a word is a preposition, or several of them, such as `in/on`."""
    return word in _PREPOSITIONS or ("/" in word and all(part in _PREPOSITIONS for part in word.split("/")))


def _head(slot: str, number: int) -> str:
    """Return the head of a command's argument. A quoted argument is a label or free text."""
    quoted = len(slot) > 1 and slot[0] == slot[-1] and slot[0] in "\"'"
    head = identity(slot) if quoted else head_noun(slot)
    return f"{{{number}}}" if head is None else head


def _parsed_object(action: str) -> ParsedAction | None:
    """Parse a call in JSON, such as `{"name": "search", "args": {...}}`, or return None."""
    try:
        call = json.loads(action)
        arguments: object = next((call[key] for key in ("args", "arguments") if key in call), {})
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    # RecursionError, because a model may write JSON nested deeper than `json` can parse
    except (ValueError, TypeError, RecursionError):
        return None
    name = call.get("name")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    parts = [part for key, value in arguments.items() for part in _of_value(str(key), value, name, 0)]
    return _assembled(name, "(", ", ", ")", tuple(parts[: TUNING.max_arguments]))


def _parts(tool: str, inside: str) -> tuple[Part, ...]:
    """Return the arguments of a call; nested objects get dotted names."""
    parts: list[Part] = []
    for text in _split(inside):
        match = _NAME.match(text)
        name, value = (match[1], text[match.end() :]) if match else ("", text)
        parts += _of_text(name, value.strip(), tool)
    return tuple(parts[: TUNING.max_arguments])


def _split(inside: str) -> Iterator[str]:
    """Yield the arguments of a call, split at commas outside of quotes and brackets."""
    depth, quote, start, at = 0, "", 0, 0
    begins = True  # a quote only opens a string where a value begins, unlike the apostrophe of `don't`
    while at < len(inside):
        char = inside[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "\"'" and begins:
            quote = char
        elif char in _OPENERS:
            depth += 1
        elif char in _CLOSERS:
            depth -= 1
        elif char == "," and depth <= 0:
            yield inside[start:at]
            # reset the depth: a surplus closing bracket must not affect the following arguments
            start, depth = at + 1, 0
        if not char.isspace():
            begins = char in "=,:([{"
        at += 1
    if inside[start:].strip():
        yield inside[start:]


def _of_text(name: str, value: str, tool: str) -> list[Part]:
    """Return the arguments in the text of a value, which may be a JSON object or list."""
    if value[:1] in ("{", "[") and not HOLE.fullmatch(value):
        try:
            return list(_of_value(name, json.loads(value), tool, 0))
        except (ValueError, RecursionError):
            pass
    return [_part(name, _unquoted(value), tool)]


def _unquoted(value: str) -> str:
    """Return a value without its quotes."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        if value[0] == '"':
            try:
                return str(json.loads(value))
            except ValueError:
                pass
        return value[1:-1]
    return value.strip("\"'")


def _of_value(name: str, value: object, tool: str, depth: int) -> Iterator[Part]:
    """Yield the arguments in a JSON value; nested objects get dotted names."""
    if isinstance(value, dict) and value and depth < TUNING.max_depth:
        for key, member in value.items():
            yield from _of_value(f"{name}.{key}" if name else str(key), member, tool, depth + 1)
        return
    if isinstance(value, str):
        yield _part(name, value, tool)
    elif isinstance(value, list):
        yield _part(name, " ".join(_plain(element) for element in value), tool)
    else:
        yield _part(name, _plain(value), tool)


def _plain(value: object) -> str:
    """Return a JSON value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _part(name: str, value: str, tool: str) -> Part:
    """Return one argument. For a shell command or SQL statement, the frame becomes part of the template."""
    text = " ".join(value.split()) if "\n" not in value else value.strip()
    if HOLE.fullmatch(text):
        return Part(name, text, "{}", (text,), (text,))
    if text and (is_shell_name(name, tool) or is_sql(text, name) or (" " in text and _is_line(text))):
        match = frame(text)
        slots = tuple(operand.lower() for operand in match.operands)
        return Part(name, text.lower(), match.text.lower(), slots, tuple(map(_operand, slots)))
    slot = text.lower()
    head = identity(slot, name)
    ambiguous = not name and head is not None and "=" in head  # a pattern would read it as a named argument
    return Part(name, slot, "{}", (slot,), (None if ambiguous else head,))


def _operand(text: str) -> str | None:
    """Return the distinguishing part of a command's operand, or None if it has several words."""
    return identity(text) if " " not in text else None


def _is_line(text: str) -> bool:
    """Return whether a text is a shell command: a known program with a flag or a pipe."""
    return looks_like_shell(text) and bool(re.search(r"\s--?\w|\s(?:&&|\|)\s", text))


def _assembled(verb: str, opening: str, joint: str, closing: str, parts: tuple[Part, ...]) -> ParsedAction:
    """Return the parsed action of a verb and its arguments."""
    frames, slots, heads = _numbered(parts)
    texts = [f"{part.name}={text}" if part.name else text for part, text in zip(parts, frames, strict=True)]
    return ParsedAction(verb, f"{verb}{opening}{joint.join(texts)}{closing}", slots, heads, parts)


def _numbered(parts: Sequence[Part]) -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    """Return the frames with numbered placeholders, and all slots with their heads."""
    frames, slots, heads = [], [], []
    for part in parts:
        pieces = part.frame.split("{}")
        text = pieces[0]
        for slot, head, after in zip(part.slots, part.heads, pieces[1:], strict=True):
            slots.append(slot)
            heads.append(f"{{{len(slots)}}}" if head is None else head)
            text += f"{{{len(slots)}}}{after}"
        frames.append(text)
    return frames, tuple(slots), tuple(heads)


def fill(template: str, arguments: Sequence[str]) -> str:
    """Return a template with its placeholders filled. Other braces stay."""
    # one pass over the template, so that a placeholder inside an argument is not filled again
    numbered = {f"{{{number}}}": argument for number, argument in enumerate(arguments, 1)}
    return HOLE.sub(lambda hole: numbered.get(hole[0], hole[0]), template)


def put_values(action: str, values: Mapping[str, str]) -> str:
    """Return an action with other values in place of its arguments, in its own order and with its other signs.

    Templates order the flags of a command and drop quotes, so a filled template is not the action that can be run.
    """
    call, parsed = _CALL.fullmatch(action), parse_action(action)
    if call:
        texts = tuple(_split(call[2]))
        # one part each, unless some are objects
        is_flat = len(texts) == len(parsed.parts) < TUNING.max_arguments
        slots = [part.slots for part in parsed.parts] if is_flat else [_list_slots(text, call[1]) for text in texts]
        arguments = (_put_in_argument(text, own, values) for text, own in zip(texts, slots, strict=True))
        start, text = action[: call.start(2)], f"{','.join(arguments)}{action[call.end(2) :]}"
    else:
        start = action[: len(action) - len(action.lstrip().partition(" ")[2])]
        text = _substitute(action[len(start) :], values)
    kept = " ".join((parsed.template, *values.values(), *(slot for slot in parsed.slots if slot not in values)))
    lost = {*_WORDS.findall(" ".join(values).lower())} - {*_WORDS.findall(kept.lower())}
    is_whole = all(new in text for new in values.values())
    return start + text if is_whole and not lost & {*_WORDS.findall(text.lower())} else ""


def keep_arguments(call: str, names: Collection[str]) -> str:
    """Return a call with these arguments alone; the whole call if it has none of them."""
    match, roots = _CALL.fullmatch(call), {name.partition(".")[0] for name in names}
    texts = _split(match[2]) if match else ()
    kept = [text.strip() for text in texts if (name := _NAME.match(text)) and name[1] in roots]
    return f"{match[1]}({', '.join(kept)})" if match and kept else call


def _list_slots(text: str, tool: str) -> tuple[str, ...]:
    """Return the slots of one argument of a call."""
    return tuple(slot for part in _parts(tool, text) for slot in part.slots)


def _put_in_argument(text: str, slots: Sequence[str], values: Mapping[str, str]) -> str:
    """Return the text of one argument of a call with other values; an argument that is one value is replaced whole."""
    changed = {slot: values[slot] for slot in slots if slot in values}
    if not changed:
        return text
    name = _NAME.match(text)
    start = name[0] if name else ""
    old, new = next(iter(changed.items()))
    # most arguments are one value: replaced whole without a pattern of its own, which takes long to compile
    is_value = len(changed) == 1 and text[len(start) :] in (old, f'"{old}"', f"'{old}'")
    if not is_value or old.lower() in start.lower():
        substituted = _substitute(text, changed)
        if all(value in substituted for value in changed.values()):
            return substituted
    return f"{start}{new}"


def _substitute(text: str, values: Mapping[str, str]) -> str:
    """Return a text with other values in place of whole ones, with their quotes; names of arguments stay."""
    for value in sorted(values, key=len, reverse=True):
        words = r"\s+".join(map(re.escape, value.split())) or r"(?!)"
        pattern = rf"(?<![\w{{])(?:([\"']){words}\1|{words})(?![\w}}]|\s*=)"
        text = re.sub(pattern, values[value].replace("\\", r"\\"), text, flags=re.IGNORECASE)
    return text


@lru_cache(maxsize=8192)
def pattern_of(action: str, *, keep_first: bool = False) -> str:
    """Return the action with each argument reduced to its distinguishing words: `put dress in basket`.

    With `keep_first`, the first argument stays a placeholder: `put {1} in basket`.
    """
    parsed = parse_action(action)
    heads = ("{1}", *parsed.heads[1:]) if keep_first and parsed.heads else parsed.heads
    return fill(parsed.template, heads)


def single_arguments(action: str) -> tuple[str, ...]:
    """Return a call with each of its named arguments alone: `pay(to=card, by={2})` and `pay(to={1}, by=mail)`."""
    parsed = parse_action(action)
    holes = [f"{{{number}}}" for number in range(1, len(parsed.slots) + 1)]
    if len(holes) < 2 or not all(part.name for part in parsed.parts):
        return ()
    alone = ([*holes[:at], head, *holes[at + 1 :]] for at, head in enumerate(parsed.heads) if head != holes[at])
    return tuple(fill(parsed.template, heads) for heads in alone) if parsed.parts else ()


@lru_cache(maxsize=65536)
def _bound(wanted: ParsedAction, tried: ParsedAction) -> tuple[tuple[str, str], ...] | None:
    """Return the values of a pattern's placeholders in an action, or None if it does not match."""
    if wanted.verb != tried.verb:
        return None
    if wanted.parts and tried.parts:
        return _bound_parts(wanted.parts, tried.parts)
    # without numbers: a generalized skill numbers its placeholders across steps, an action from 1
    if len(wanted.slots) != len(tried.slots) or HOLE.sub("{}", wanted.template) != HOLE.sub("{}", tried.template):
        return None
    return _bound_slots(wanted.slots, wanted.heads, tried.slots, tried.heads)


def bind(pattern: str, action: str) -> dict[str, str] | None:
    """Return the values of a pattern's placeholders in an action, {"{1}": "red apple"}, or None if it does not match.

    A word in an argument's place matches its kind: `cook {1} in stove` matches `cook carrot in old stove`. A word
    with a number, an id and free text match only themselves.
    """
    values = () if pattern == action else _bound(parse_action(pattern), parse_action(action))
    return None if values is None else dict(values)


def is_of(pattern: str, action: str) -> bool:
    """Return whether an action matches a pattern; see `bind`."""
    # equal texts need neither parsing nor an entry of the cache
    return pattern == action or is_parsed_of(parse_action(pattern), parse_action(action))


def is_parsed_of(pattern: ParsedAction, action: ParsedAction) -> bool:
    """Return whether a parsed action matches a parsed pattern; see `bind`."""
    return pattern is action or _bound(pattern, action) is not None


Bound = tuple[tuple[str, str], ...]


def _bound_parts(wanted: tuple[Part, ...], tried: tuple[Part, ...]) -> Bound | None:
    """Match the arguments of two calls, by name or position."""
    if len(wanted) != len(tried):
        return None
    by_name = {part.name: part for part in tried if part.name}
    bound: list[tuple[str, str]] = []
    for at, part in enumerate(wanted):
        other = by_name.get(part.name) if part.name else tried[at]
        if other is None or bool(other.name) != bool(part.name):
            return None
        if HOLE.fullmatch(part.value):
            bound.append((part.value, other.value))
            continue
        if part.frame != other.frame:
            return None
        slots = _bound_slots(part.slots, part.heads, other.slots, other.heads)
        if slots is None:
            return None
        bound += slots
    return tuple(bound)


Heads = Sequence[str | None]


def _bound_slots(wanted: Sequence[str], heads: Heads, tried: Sequence[str], tried_heads: Heads) -> Bound | None:
    """Match slots one by one."""
    bound: list[tuple[str, str]] = []
    for slot, head, other, other_head in zip(wanted, heads, tried, tried_heads, strict=True):
        if HOLE.fullmatch(slot):
            bound.append((slot, other))
        elif slot != other and not _is_kind(slot, head, other, other_head):
            return None
    return tuple(bound)


def _is_kind(slot: str, head: str | None, other: str, other_head: str | None) -> bool:
    """Return whether an argument is of the kind that a pattern names. Numbers in the pattern must be equal."""
    if head is None or head != other_head or HOLE.fullmatch(head):
        return False
    named = numbers(slot)
    return not named or named == numbers(other)
