"""Bound what is read as YAML: a text of nested lists takes the square of its depth, and aliases stand for gigabytes."""

from dataclasses import dataclass

from hardwon.memory.errors import ConfigError

DEEPEST = 32
"""Levels of lists and mappings in each other, with those that aliases stand for."""
LARGEST = 1_000_000
"""Characters of a text, and of the values in it, with those that aliases stand for."""


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
    """Check the size and the depth, in time linear in the size of the text.

    Args:
        text: The text.
        name: Name of the file, for messages.
        first_line: Number of the text's first line in the file.

    Raises:
        ConfigError: The text exceeds a bound. The message names the line.
        yaml.YAMLError: The text is not YAML.
    """
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
