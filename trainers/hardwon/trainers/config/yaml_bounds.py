"""Bound what is read as YAML: nested lists and long numbers take the square of their length, aliases stand for more."""

from dataclasses import dataclass
from typing import Any

from hardwon.memory.errors import ConfigError

DEEPEST = 32
"""Levels of lists and mappings in each other, with those that aliases stand for."""
LARGEST = 1_000_000
"""Characters of a text, and of the values in it, with those that aliases stand for."""
_NUMBERS = ("int", "float", "timestamp")


@dataclass
class _Value:
    """A value of which the beginning was read."""

    anchor: str | None
    size: int = 1
    """Characters of its scalars, and one for each value."""
    levels: int = 1
    """Levels of lists and mappings, with its own; 0 for a scalar."""

    def add(self, inner: "_Value") -> None:
        """Add a value that it contains."""
        self.size += inner.size
        self.levels = max(self.levels, inner.levels + 1)


def check_yaml(text: str, name: object, *, first_line: int = 1) -> None:
    """Check the size and the depth, in time linear in the size of the text."""
    import yaml

    if len(text) > LARGEST:
        raise ConfigError(f"{name} has {len(text):,} characters of YAML; at most {LARGEST:,} are read. Shorten it.")
    path, anchors = [_Value(None)], dict[str, _Value]()
    # Event by event, so that the scanner never reads beyond the deepest level.
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + first_line
        value: _Value | None = None
        if isinstance(event, yaml.AliasEvent):
            if (value := anchors.get(event.anchor)) is None:
                raise ConfigError(f"{name}:{line}: the alias *{event.anchor:.60} stands for no value before it.")
        elif isinstance(event, yaml.ScalarEvent):
            value = _Value(event.anchor, 1 + len(event.value), 0)
            if len(event.value) > 100 and _is_number(event):
                raise ConfigError(f"{name}:{line}: a number of {len(event.value):,} characters. Shorten or quote it.")
        elif isinstance(event, yaml.CollectionStartEvent):
            path.append(_Value(event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            value = path.pop()
        else:
            continue
        if value is not None:
            path[-1].add(value)
            if value.anchor is not None:
                anchors[value.anchor] = value
        if len(path) - 2 + path[-1].levels > DEEPEST:
            raise ConfigError(f"{name}:{line}: more than {DEEPEST} levels in each other are not read. Flatten it.")
        if path[-1].size > LARGEST:
            raise ConfigError(f"{name}:{line}: aliases stand for over {LARGEST:,} characters. Use fewer of them.")


def _is_number(event: Any) -> bool:
    """Return whether a scalar would be read as a number or a date."""
    import yaml

    tag = event.tag
    if event.implicit[0]:
        tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, event.value, (True, False))
    return str(tag).rpartition(":")[2] in _NUMBERS


def read_yaml(text: str, name: object, *, first_line: int = 1) -> Any:
    """Return the value of a text within the bounds.

    Raises:
        ConfigError: The text is not YAML, or exceeds a bound. The message names the line, but does not quote the text,
            which may hold secrets.
    """
    import yaml

    try:
        check_yaml(text, name, first_line=first_line)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "it cannot be read"
        line = f" in line {mark.line + first_line}" if mark else ""
        raise ConfigError(f"{name} is not YAML{line}: {problem}. Write `name: value`.") from None
    except ConfigError:
        raise
    except ValueError as error:  # such as a date that does not exist
        raise ConfigError(f"{name} has a value that does not exist ({error}). Write another, or quote it.") from None
