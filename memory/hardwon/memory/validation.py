"""Input validation: check the records and arguments of callers before anything is stored.

Every check raises `ConfigError` (an invalid value) or `WrongType` (a value of the wrong type). The message names the
field, the value and a valid alternative. Values that pass can be stored, read back, filed, verified, exported and
imported. The checks run for every recorded step, so the common types pass without a function call.
"""

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from numbers import Real
from operator import ge, le
from os import PathLike
from typing import Any

from .errors import ConfigError, WrongType
from .privacy.redaction import has_secret
from .reasons import ITEM_KEYS
from .records import KINDS, Diagnosis, Failure, Item, State, Step, Trajectory
from .records.episodes import with_worth

MAX_ID = 512
"""Maximum length of an id or namespace in characters."""
MAX_TEXT = 10_000_000
"""Maximum length of one text in characters."""
MAX_EPISODE = 250_000_000
"""Maximum length of the stored form of one episode in characters."""
MAX_DEPTH = 32
"""Maximum nesting depth of lists and objects in metadata, facts and reasons."""
MAX_K = 1_000_000
"""Maximum number of hits of one query."""
LARGEST = 1e100
"""Largest absolute reward or score. Sums of many rewards stay finite."""
_WHOLE = 2**63
MOST_SEEDS = 1_000_000
"""Numbers that a range of seeds may name."""
# no file name contains a NUL, and a lone surrogate has no UTF-8 form
_NOT_IN_IDS = re.compile("[\x00\ud800-\udfff]")
# control characters could also change the terminal that shows an id
_NOT_IN_NEW_IDS = re.compile("[\x00-\x1f\x7f-\x9f]")
_NO_IDS = (".", "..")
"""Texts that a URL and a folder read as a place."""
_NO_VALUES: dict[str, Any] = {}
_TEXT = {str}
_SHOWN = 60


def check_episodes(episodes: Iterable[Trajectory]) -> list[Trajectory]:
    """Return the episodes of a batch, each checked, and a success without any reward with its worth."""
    if isinstance(episodes, str | bytes | Mapping) or not isinstance(episodes, Iterable):
        raise WrongType(f"episodes is {describe_value(episodes)}; give a list of Trajectory.")
    checked = []
    # check the whole batch before the first write, so that a bad episode leaves nothing behind
    for index, episode in enumerate(episodes):
        try:
            check_episode(episode)
            check_new_id("episode id", episode.id)
            check_no_secret("episode writer", _strip_kind(episode.writer))
        except ConfigError as error:
            if index == 0 and isinstance(episodes, Sequence) and len(episodes) == 1:  # `record`: no index to report
                raise
            raise type(error)(f"episode {index} of the batch: {error} No episode of the batch was written.") from error
        checked.append(with_worth(episode) if episode.success else episode)
    return checked


def check_episode(episode: Trajectory) -> None:
    """Raise an error if an episode cannot be stored, or would differ after it is read back."""
    if not isinstance(episode, Trajectory):
        raise WrongType(f"an episode is {describe_value(episode)}; give a Trajectory.")
    # the exact types are tested first: the checks below are called only for the rare other values
    for name in ("task", "arm", "ending"):
        if type(value := getattr(episode, name)) is not str:
            check_text(f"episode {name}", value)
    if episode.id != "":
        check_id("episode id", episode.id)
    if episode.success is not None and episode.success is not True and episode.success is not False:
        _check_flag("episode success", episode.success)
    check_number("episode score", episode.score)
    check_whole("episode seed", episode.seed)
    if not _is_object(episode.meta):
        check_object("episode meta", episode.meta)
    if episode.meta:
        _check_skills(episode.meta.get("skills"))
    seen: set[int] = set()  # consecutive steps share their states, so each is checked once
    for t, step in enumerate(episode.steps):
        _check_step(step, t, seen)


def _check_step(step: Step, t: int, seen: set[int]) -> None:
    """Check one step and its states, except for states whose `id()` is in `seen`."""
    if not isinstance(step, Step):
        raise WrongType(f"step {t} is {describe_value(step)}; give a Step.")
    for state in (step.pre, step.post):
        if id(state) not in seen:
            seen.add(id(state))
            check_state(state, t)
    if type(step.action) is not str:
        check_text(f"step {t}: action", step.action)
    why = step.why.to_dict() if step.why else _NO_VALUES
    if not _is_object(why):
        check_object(f"step {t}: why", why)
    if type(step.reward) is not float or not -LARGEST <= step.reward <= LARGEST:
        check_number(f"step {t}: reward", step.reward)
    if step.keys and set(map(type, step.keys)) != {str}:
        check_texts(f"step {t}: keys", step.keys)
    if step.admissible and set(map(type, step.admissible)) != {str}:
        check_texts(f"step {t}: admissible", step.admissible)
    if why and (extra := step.why.extra) and not ITEM_KEYS.keys().isdisjoint(extra):
        # values that `Reasons.of` could not read as ids
        for name in sorted(ITEM_KEYS.keys() & extra.keys()):
            if extra[name] is not None and not isinstance(extra[name], str):
                check_texts(f"step {t}: why[{name!r}]", extra[name])
    _check_diagnosis(step.diagnosis, t)


def _check_diagnosis(diagnosis: Diagnosis, t: int) -> None:
    """Check the types and values of a diagnosis."""
    if not isinstance(diagnosis, Diagnosis):
        raise WrongType(f"step {t}: diagnosis is {describe_value(diagnosis)}; give a Diagnosis.")
    if type(diagnosis.failure) is not Failure:
        raise WrongType(f"step {t}: failure is {describe_value(diagnosis.failure)}; give a value of Failure.")
    if {type(diagnosis.success), type(diagnosis.stagnant), type(diagnosis.loop)} != {bool}:
        for name in ("success", "stagnant", "loop"):
            _check_flag(f"step {t}: diagnosis {name}", getattr(diagnosis, name))
    if type(diagnosis.progress) is not float or not -LARGEST <= diagnosis.progress <= LARGEST:
        check_number(f"step {t}: progress", diagnosis.progress)
    if not _is_object(diagnosis.diff):
        check_object(f"step {t}: diff", diagnosis.diff)
    if type(diagnosis.evidence) is not str:
        check_text(f"step {t}: evidence", diagnosis.evidence)


def check_state(state: State, t: int | None = None) -> None:
    """Raise an error if a state cannot be stored or looked up. `t` is the index of its step, for messages."""
    where = _At(t)
    if not isinstance(state, State):
        raise WrongType(f"{where}a state is {describe_value(state)}; give a State.")
    if {type(state.observation), type(state.location), type(state.task), type(state.feedback)} != {str}:
        for name in ("observation", "location", "task", "feedback"):
            check_text(f"{where}state {name}", getattr(state, name))
    if type(signature := state.signature_if_known) is not str:
        check_text(f"{where}state signature", signature)
    if state.notes and set(map(type, state.notes)) != {str}:
        check_texts(f"{where}state notes", state.notes)
    if not _is_object(state.facts):
        check_object(f"{where}state facts", state.facts)


def check_size(episode: Trajectory, packed: str) -> None:
    """Raise ConfigError if an episode, or one of its texts, is too long. `packed` is its stored form."""
    if len(packed) <= MAX_TEXT:  # then each of its texts is shorter, too
        return
    if len(packed) > MAX_EPISODE:
        raise ConfigError(f"an episode has {len(packed):,} characters; the limit is {MAX_EPISODE:,}. Split it.")
    for step in episode.steps:
        for state in (step.pre, step.post):
            for name in ("observation", "location", "task", "feedback"):
                check_text(f"state {name}", getattr(state, name))
        check_text("action", step.action)
        check_text("evidence", step.diagnosis.evidence)


def check_items(items: Iterable[Item]) -> list[Item]:
    """Return the items of a batch, each checked."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise WrongType(f"items is {describe_value(items)}; give a list of Item.")
    checked = list(items)
    for item in checked:
        check_item(item)
        check_new_id("item id", item.id)
        check_no_secret("item writer", _strip_kind(item.writer))
    return checked


def check_item(item: Item) -> None:
    """Raise an error if an item would differ after it is stored and read back."""
    if not isinstance(item, Item):
        raise WrongType(f"an item is {describe_value(item)}; give an Item.")
    for name in ("title", "body", "when_to_use", "when_not_to_use", "repairs", "source", "writer"):
        check_text(f"item {name}", getattr(item, name))
    if item.id != "":
        check_id("item id", item.id)
    if item.forbids is not None:
        check_text("item forbids", item.forbids)
    for name in ("steps", "signatures", "locations", "tags"):
        check_texts(f"item {name}", getattr(item, name))
    for ref in item.provenance:
        check_whole("item provenance", ref)
    for name in ("condition", "verify"):
        if getattr(item, name) is not None:
            check_object(f"item {name}", getattr(item, name))
    for name in ("score", "confidence"):
        check_number(f"item {name}", getattr(item, name))
    _check_flag("item pinned", item.pinned)
    check_whole("item version", item.version)
    check_whole("item episodes", item.episodes)
    check_choice("item status", item.status, ("active", "quarantined", "retired"))
    if item.ttl is not None:
        check_whole("item ttl", item.ttl)


# -- single values --------------------------------------------------------------------------------


def check_library(library: object) -> None:
    """Refuse what is no open library, such as its path."""
    if not hasattr(library, "episodes"):
        raise WrongType(f"library is {describe_value(library)}; give an open one: ExperienceLibrary.open(PATH).")


def check_text(name: str, value: object) -> None:
    """Raise an error unless a value is text of at most `MAX_TEXT` characters."""
    if not isinstance(value, str):
        raise WrongType(f"{name} is {describe_value(value)}; give text.")
    if len(value) > MAX_TEXT:
        raise ConfigError(f"{name} has {len(value):,} characters; the limit is {MAX_TEXT:,}. Give a shorter text.")


def check_texts(name: str, values: object) -> None:
    """Raise an error unless a value is a list or tuple of texts."""
    if not isinstance(values, list | tuple):
        raise WrongType(f"{name} is {describe_value(values)}; give a list of texts.")
    for value in values:
        check_text(name, value)


def check_id(name: str, value: object) -> None:
    """Raise an error unless a value can be an id or a namespace: text that fits into a file and a URL."""
    if not isinstance(value, str):
        raise WrongType(f"{name} is {describe_value(value)}; give text.")
    if len(value) > MAX_ID:
        raise ConfigError(f"{name} has {len(value):,} characters; give at most {MAX_ID}.")
    _refuse(name, value, _NOT_IN_IDS)


def check_new_id(name: str, value: str) -> None:
    """Raise an error if a checked id may not be given anew; an empty one is left to the library.

    Ids that an earlier version stored are still found, exported, imported and forgotten.
    """
    if value in _NO_IDS or (value and not value.strip()):
        raise ConfigError(f"{name} is {describe_value(value)}, which names nothing. Give a name.")
    _refuse(name, value, _NOT_IN_NEW_IDS)
    check_no_secret(name, value)


def _strip_kind(writer: str) -> str:
    """Return the name of a writer without its kind: `token:ci-7` is a name and no token."""
    return writer.partition(":")[2] or writer


def check_no_secret(name: str, value: str) -> None:
    """Raise an error if a name contains a secret. It is not redacted, because two names would become one."""
    if has_secret(value):
        raise ConfigError(f"{name} {value[:4]!r}... contains a secret, such as a key or a password. Give another name.")


def _refuse(name: str, value: str, refused: re.Pattern[str]) -> None:
    """Raise an error if an id contains a character that is refused."""
    if not value.isprintable() and (odd := refused.search(value)):
        raise ConfigError(f"{name} {describe_value(value)} contains {odd[0]!r}, which ids must not. Remove it.")


def check_path(value: object) -> None:
    """Raise an error unless a value can be the path of a library: `str(None)` would name a file, too."""
    if not isinstance(value, str | PathLike):
        raise WrongType(f"path is {describe_value(value)}; give the path of a file, or ':memory:'.")
    if not str(value).strip() or not _can_name_file(value):
        raise ConfigError(
            f"path is {describe_value(str(value))}, which no file can have. Give the path of a file, or ':memory:'."
        )


def _can_name_file(path: str | PathLike[str]) -> bool:
    """Return whether a file system can have a path."""
    try:
        os.lstat(path)
    except ValueError:  # a null byte, or half of a character; a name in another encoding is no error here
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def check_number(name: str, value: object) -> None:
    """Raise an error unless a value is a finite number between -`LARGEST` and `LARGEST`."""
    number: Any = value
    if isinstance(number, int | float | Real):  # numpy's floats and integers register themselves
        # NaN fails both comparisons
        if ge(number, -LARGEST) and le(number, LARGEST):
            return
        # Python refuses to print integers of more than 4300 digits
        text = f"{number}" if not isinstance(number, int) or number.bit_length() < 512 else "a huge integer"
        raise ConfigError(f"{name} is {text}; give a number of at most {LARGEST:g}.")
    raise WrongType(f"{name} is {describe_value(value)}; give a number.")


def check_whole(name: str, value: object) -> None:
    """Raise an error unless a value is a 64-bit integer."""
    if not isinstance(value, int):
        raise WrongType(f"{name} is {describe_value(value)}; give a whole number.")
    if not -_WHOLE <= value < _WHOLE:
        raise ConfigError(f"{name} is beyond 64 bits; give a smaller one.")


def read_whole(text: str) -> int | None:
    """Return the number that decimal digits write; None if other signs do, or it is beyond 64 bits.

    `int` refuses thousands of digits, and superscripts, which are digits but not decimal.
    """
    return int(text) if text.isdecimal() and len(text) <= len(str(_WHOLE)) - 1 else None


def parse_range(text: str) -> range:
    """Return the seeds of a range such as `100-149`, or of a number such as `7`.

    Raises:
        ConfigError: The text is not a range, runs backwards, or has too many numbers.
    """
    start, dash, end = text.strip().partition("-")
    first, last = read_whole(start), read_whole(end if dash else start)
    if first is None or last is None:
        raise ConfigError(f"seeds are {text[:80]!r}; write them as A-B, for example 100-149.")
    if last < first:
        raise ConfigError(f"seeds are {text!r}, a range that runs backwards; write the smaller number first.")
    if last - first >= MOST_SEEDS:  # listed, and drawn from, as a whole
        raise ConfigError(f"seeds are {text!r}; name at most {MOST_SEEDS:,} of them.")
    return range(first, last + 1)


def check_count(name: str, value: object) -> None:
    """Raise an error unless a value is an integer from 0 to `MAX_K`, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongType(f"{name} is {describe_value(value)}; give a whole number.")
    if not 0 <= value <= MAX_K:
        text = value if abs(value) < _WHOLE else "beyond 64 bits"
        raise ConfigError(f"{name} is {text}; give a number from 0 to {MAX_K:,}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise an error unless a value is one of the given words."""
    if not isinstance(value, str):
        raise WrongType(f"{name} is {describe_value(value)}; use one of {', '.join(choices)}.")
    if value not in choices:
        raise ConfigError(f"{name} is {describe_value(value)}; use one of {', '.join(choices)}.")


def check_kinds(kinds: object) -> None:
    """Raise an error unless a value is None or a list of item kinds."""
    if kinds is None:
        return
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise WrongType(f"kinds is {describe_value(kinds)}; give a list, such as ['skill'].")
    for kind in kinds:
        check_choice("kind of item", kind, KINDS)


def is_flag(value: object) -> bool:
    """Return whether a value is a bool, 0, 1, or a bool of numpy."""
    # by name, because importing numpy for this test alone would be slow
    is_numpy = type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    return is_numpy or (isinstance(value, int) and value in (0, 1))


def _check_flag(name: str, value: object) -> None:
    """Raise WrongType unless a value is a flag."""
    if is_flag(value):
        return
    raise WrongType(f"{name} is {describe_value(value)}; give True or False.")


def _check_skills(skills: object) -> None:
    """Check the results of an episode's skills: a number or bool by skill id, or None."""
    if skills is None:
        return
    if not isinstance(skills, Mapping):
        raise WrongType(
            f"episode meta['skills'] is {describe_value(skills)}; give a dict from skill ids to True or False."
        )
    for verified in skills.values():
        check_number("episode meta['skills']", verified)


def check_object(name: str, value: object) -> None:
    """Raise an error unless a value is an object of plain JSON values with at most `MAX_DEPTH` levels."""
    if not isinstance(value, Mapping):
        raise WrongType(f"{name} is {describe_value(value)}; give a dict.")
    for key, part in value.items():
        if type(key) is not str and not isinstance(key, str):
            raise WrongType(f"{name} has the key {describe_value(key)}; give text.")
        if type(part) is not str:
            _check_plain(f"{name}[{key!r}]", part, MAX_DEPTH)


def _is_object(value: object) -> bool:
    """Return whether a value is a dict of plain JSON, by exact types. Otherwise, `check_object` decides."""
    return type(value) is dict and _is_plain(value, MAX_DEPTH + 1)


def _is_plain(value: Any, levels: int) -> bool:
    """Return whether a value is plain JSON of exact types, without building a message."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_WHOLE <= value < _WHOLE)
    if kind is float:
        return isfinite(value)
    if not levels:
        return False
    if kind is list or kind is tuple:  # a set of types is the fastest test of a list of strings
        return set(map(type, value)) <= _TEXT or all([_is_plain(element, levels - 1) for element in value])  # noqa: C419
    if kind is not dict or not set(map(type, value)) <= _TEXT:
        return False
    parts = value.values()
    return set(map(type, parts)) <= _TEXT or all([_is_plain(part, levels - 1) for part in parts])  # noqa: C419


class _At:
    """Prefix of a message with the index of a step, formatted only when the message is printed."""

    def __init__(self, t: int | None) -> None:
        self._t = t

    def __str__(self) -> str:
        return "" if self._t is None else f"step {self._t}: "


def _check_plain(name: str, value: object, levels: int) -> None:
    """Check one plain JSON value. Tuples pass, and are read back as lists."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if isinstance(value, int):
        check_whole(name, value)
    elif isinstance(value, float):
        if not isfinite(value):
            raise ConfigError(f"{name} is {value}; give a finite number, or None.")
    elif isinstance(value, list | tuple):
        _check_levels(name, levels)
        if value and set(map(type, value)) != {str}:
            for part in value:
                _check_plain(name, part, levels - 1)
    elif isinstance(value, dict):
        _check_levels(name, levels)
        for key, part in value.items():
            if not isinstance(key, str):
                raise WrongType(f"{name} has the key {describe_value(key)}; give text.")
            _check_plain(name, part, levels - 1)
    elif not isinstance(value, str):
        raise WrongType(
            f"{name} is {describe_value(value)}; give plain JSON: text, numbers, True, False, None, lists, dicts."
        )


def _check_levels(name: str, levels: int) -> None:
    """Raise ConfigError if no level of nesting is left."""
    if not levels:
        raise ConfigError(f"{name} is nested deeper than {MAX_DEPTH} levels, or contains itself. Flatten it.")


def describe_value(value: object) -> str:
    """Return a short form of any value, for a message."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "an integer beyond 64 bits"
    try:
        # not repr: a lone surrogate in the message could not be printed
        text = ascii(value)
    except Exception:
        text = "?"  # a __repr__ that raises or recurses
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"{text} ({type(value).__name__})"
