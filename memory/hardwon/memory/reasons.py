"""Reasons of a step: why the policy chose its action, and which items, steps and guardrails took part.

A step carries one `Reasons` record. Its JSON form is an object with one key per field that is set, and the keys of the
caller beside them: `{"recalled": ["it-1"], "value": 0.4, "my key": 1}`. `Reasons.of` reads that form and `to_dict`
writes it, so files, the HTTP interface and checkpoints of other versions stay readable.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .errors import WrongType

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

ADVICE = "advice"
"""Stands for all advice together where items are named: it is shown or withheld as a whole."""


def _parse_one(*kinds: type) -> Callable[[object], Any]:
    """Return what reads one value of exactly these types, or None for another value.

    True is an int, and a numpy float is a float, but neither is read back as it was written.
    """
    return lambda value: value if type(value) in kinds else None


def _parse_several(kind: type) -> Callable[[object], Any]:
    """Return what reads a list of values of exactly this type as a tuple, or None for another value."""

    def parse(value: object) -> Any:
        # a set of types is the fastest test of a list of texts
        return tuple(value) if isinstance(value, list | tuple) and set(map(type, value)) <= {kind} else None

    return parse


_parse_texts, _parse_numbers = _parse_several(str), _parse_several(int)
_parse_text, _parse_flag, _parse_count = _parse_one(str), _parse_one(bool), _parse_one(int)
_parse_number = _parse_one(float, int)


def _parse_ids(value: object) -> tuple[str, ...] | None:
    """Return one id or several ids as a tuple, or None for another value."""
    return (value,) if type(value) is str else _parse_texts(value)


def _parse_object(value: object) -> Mapping[str, Any] | None:
    """Return a mapping, or None for another value."""
    return value if isinstance(value, Mapping) else None


def _reason(key: str, parse: Callable[[object], Any]) -> Any:
    """Return an optional field with its JSON key, and the function that reads its JSON value."""
    return field(default=None, metadata={"key": key, "parse": parse})


@dataclass(frozen=True, eq=False, repr=False)
class Reasons:
    """Why the policy chose an action. A field that is None is absent from the JSON form.

    Without slots: the fields that `of` does not set cost nothing, and most steps have only a few.

    Raises:
        WrongType: A field has a value of the wrong type.
    """

    recalled: tuple[str, ...] | None = _reason("recalled", _parse_ids)
    """Ids of the items that the hint was based on; None if there was no hint."""
    withheld: tuple[str, ...] | None = _reason("withheld", _parse_ids)
    """Ids of the items that were withheld at random, for comparison."""
    masked: tuple[str, ...] | None = _reason("masked", _parse_ids)
    """Ids of the items, shown or withheld, that hurt in this world so far, and are withheld in nine of ten episodes."""
    advice: str | None = _reason("advice", _parse_text)
    """`shown` or `withheld`: whether the episode took part in the measurement of all advice, and how."""
    blocked: tuple[str, ...] | None = _reason("blocked", _parse_ids)
    """Ids of the guardrails that refused actions at this step."""
    overridden: tuple[str, ...] | None = _reason("overrode", _parse_ids)
    """Ids of the guardrails that forbid the action, which ran anyway. JSON key: `overrode`."""
    trial: tuple[str, ...] | None = _reason("trial", _parse_ids)
    """Ids of the guardrails on probation for which the action ran as a trial."""
    skills: tuple[str, ...] | None = _reason("skill", _parse_ids)
    """Ids of the skills or remedies that the action follows, usually one. JSON key: `skill`."""
    similar: tuple[int, ...] | None = _reason("like", _parse_numbers)
    """Ids of the past steps that the hint or the estimate was based on. JSON key: `like`."""
    place: str | None = _reason("place", _parse_text)
    """Where the hint stood: "message" before the request, "system", or "result" below the last answer."""
    guidance: Mapping[str, Any] | None = _reason("guidance", _parse_object)
    """Record of the guidance that ran at this step: the occasion, the result and the cost."""
    memory: str | None = _reason("memory", _parse_text)
    """Text of the hint as a trained policy read it."""
    tokens: tuple[int, ...] | None = _reason("said", _parse_numbers)
    """Tokens of the action as a trained policy sampled them. JSON key: `said`."""
    value: float | None = _reason("value", _parse_number)
    """Estimated return of the action."""
    count: int | None = _reason("n", _parse_count)
    """Number of past steps behind the estimate. JSON key: `n`."""
    key: str | None = _reason("key", _parse_text)
    """Key of the past steps behind the estimate."""
    explored: bool | None = _reason("explored", _parse_flag)
    """Whether the action was drawn at random."""
    planned: bool | None = _reason("planned", _parse_flag)
    """Whether the action follows the plan."""
    untrusted: bool | None = _reason("untrusted", _parse_flag)
    """Whether the step stands for steps of untrusted writers; see `trust.testimony`."""
    episodes: int | None = _reason("episodes", _parse_count)
    """Number of untrusted episodes that the step stands for."""
    failed: int | None = _reason("failed", _parse_count)
    """Number of these episodes in which the action failed. Of steps in one line, those of failed tasks."""
    writers: int | None = _reason("writers", _parse_count)
    """Number of the writers of these episodes."""
    supported: tuple[str, ...] | None = _reason("supported", _parse_texts)
    """Values of the action that independent requests gave, set when the step is recalled; see `trust.support`."""
    copied: tuple[str, ...] | None = _reason("copied", _parse_texts)
    """Ids and addresses in the action that the agent read in a result before; see `trust.support`."""
    trajectory: str | None = _reason("trajectory", _parse_text)
    """Id of the episode of the step, set when the step is read from the library."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further plain JSON values by key: those of a caller's own policy."""

    def __post_init__(self) -> None:
        for name in _KEY_OF:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _parse(name, value))
        if not isinstance(self.extra, Mapping):
            raise WrongType(f"Reasons extra is {self.extra!r:.60}; give a dict.")
        object.__setattr__(self, "extra", _drop_keys(self.extra, (n for n in _KEY_OF if getattr(self, n) is not None)))

    @classmethod
    def of(cls, values: "Mapping[str, Any] | Reasons") -> "Reasons":
        """Return the record of a JSON object.

        Every object is accepted, because libraries contain what callers once wrote: a value that does not fit its field
        stays in `extra` under its key. `library.record` refuses values that would change the credit of items.

        Args:
            values: The JSON object, or a record, which is returned unchanged.

        Raises:
            WrongType: The value is not a mapping.
        """
        if isinstance(values, Reasons):
            return values
        if not isinstance(values, Mapping):
            raise WrongType(f"why is {values!r:.60}; give Reasons or a dict.")
        if not values:
            return NO_REASONS
        attributes, extra = dict[str, Any](), dict[str, Any]()
        for key, value in values.items():
            name, parse = _BY_KEY.get(key, _NO_FIELD)
            if (parsed := parse(value)) is None:
                extra[key] = value
                continue
            attributes[name] = parsed
            # One id may stand without a list, and one skill usually does. Keep the other form, so that it is written
            # as it was read.
            if parse is _parse_ids and isinstance(value, str) is not (key == "skill" and len(parsed) == 1):
                extra[key] = value
        return _create(attributes, extra)

    def to_dict(self, *, with_trajectory: bool = True) -> dict[str, Any]:
        """Return the JSON object of the record, with sorted keys; `trajectory` is last.

        Args:
            with_trajectory: Include the id of the episode, which is not part of the stored form.
        """
        values = dict(self._values)
        if with_trajectory and self.trajectory is not None:
            values["trajectory"] = self.trajectory
        return values

    def updated(self, **changes: Any) -> "Reasons":
        """Return the record with some fields replaced.

        Raises:
            WrongType: A value has the wrong type, or there is no such field.
        """
        if not changes:  # most steps are updated with nothing
            return self
        attributes = _collect_fields(self)
        for name, value in changes.items():
            if name not in _KEY_OF:
                raise WrongType(f"Reasons has no field {name!r}; use one of {', '.join(_KEY_OF)}.")
            attributes[name] = None if value is None else _parse(name, value)
        return _create(attributes, _drop_keys(self.extra, changes))

    def merged(self, other: "Reasons") -> "Reasons":
        """Return the record with the fields and extra keys of another one, which take precedence."""
        if other is NO_REASONS or not other:
            return self
        if self is NO_REASONS or not self:
            return other
        attributes, changes = _collect_fields(self), _collect_fields(other)
        return _create({**attributes, **changes}, {**_drop_keys(self.extra, changes), **other.extra})

    @cached_property
    def _values(self) -> dict[str, Any]:
        """The JSON object without the episode's id. Computed once, because recording reads it in several places."""
        values = dict[str, Any]()
        for name, value in vars(self).copy().items():
            if value is None or name == "trajectory" or name == "extra":
                continue
            if type(value) is tuple:
                value = value[0] if name == "skills" and len(value) == 1 else list(value)
            values[_KEY_OF[name]] = value
        values.update(self.extra)
        return {key: values[key] for key in sorted(values)}

    def __bool__(self) -> bool:
        return self is not NO_REASONS and (bool(self.extra) or bool(_collect_fields(self)))

    def __repr__(self) -> str:
        values = {**_collect_fields(self), **({"extra": self.extra} if self.extra else {})}
        return f"Reasons({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return self.to_dict() == Reasons.of(other).to_dict()
        return self.to_dict() == other.to_dict() if isinstance(other, Reasons) else NotImplemented

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Return the schema with which pydantic reads and writes the record as its JSON object."""
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: value.to_dict() if isinstance(value, Reasons) else value,
            core_schema.no_info_after_validator_function(cls.of, handler.generate_schema(Mapping[str, Any])),
            serialization=core_schema.plain_serializer_function_ser_schema(
                cls.to_dict, return_schema=core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
            ),
        )


def _create(attributes: Mapping[str, Any], extra: Mapping[str, Any]) -> Reasons:
    """Return a record of values that were checked already.

    `__init__` would set and check every field, and this runs for every step that is read. The fields that are left out
    are None as attributes of the class.
    """
    record = object.__new__(Reasons)
    vars(record).update(attributes, extra=extra)
    return record


def _parse(name: str, value: object) -> Any:
    """Return the value of a field."""
    _, parse = _BY_KEY[_KEY_OF[name]]
    # one id in place of several is read, for records of callers, but not set by code
    if (parse is _parse_ids and isinstance(value, str)) or (parsed := parse(value)) is None:
        raise WrongType(f"Reasons {name} is {value!r:.60}; give {_WANTED[parse]}.")
    return parsed


def _collect_fields(record: Reasons) -> dict[str, Any]:
    """Return the fields that are set, by name, without `extra`."""
    # a copy, because another thread may compute the cached property of a record that they share
    return {name: value for name, value in vars(record).copy().items() if value is not None and name in _KEY_OF}


def _drop_keys(extra: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """Return the extra keys without the original forms of fields that have a new value; see `Reasons.of`."""
    if not extra or _BY_KEY.keys().isdisjoint(extra):
        return extra
    replaced = {_KEY_OF[name] for name in names}
    return {key: value for key, value in extra.items() if key not in replaced}


_BY_KEY: Mapping[str, tuple[str, Callable[[object], Any]]] = {
    entry.metadata["key"]: (entry.name, entry.metadata["parse"]) for entry in fields(Reasons) if entry.metadata
}
"""Field and reading function of each JSON key."""
_KEY_OF: Mapping[str, str] = {name: key for key, (name, _) in _BY_KEY.items()}
_NO_FIELD: tuple[str, Callable[[object], Any]] = ("", lambda value: None)
_WANTED: Mapping[Callable[[object], Any], str] = {
    _parse_ids: "a list of ids",
    _parse_texts: "a list of texts",
    _parse_numbers: "a list of whole numbers",
    _parse_text: "text",
    _parse_count: "a whole number",
    _parse_number: "a number",
    _parse_flag: "True or False",
    _parse_object: "a dict",
}
ITEM_KEYS: Mapping[str, str] = MappingProxyType(
    {key: name for key, (name, parse) in _BY_KEY.items() if parse is _parse_ids}
)
"""Field of each JSON key that contains the ids of items."""
NO_REASONS = Reasons()
"""The empty record."""
