"""Bound what is read as YAML: a text of nested lists takes the square of its depth, and aliases stand for gigabytes."""

from hardwon.memory.errors import ConfigError

DEEPEST = 32
"""Levels of lists and mappings in each other."""
LARGEST = 1_000_000
"""Characters of a text."""


def check_yaml(text: str, name: object, *, first_line: int = 1) -> None:
    """Check the size, the depth and the absence of aliases, in time linear in the size.

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
    begins = (
        *(yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken),
        *(yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken),
    )
    ends = (yaml.BlockEndToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)
    depth = 0
    # Token by token, so that the scanner never reads beyond the deepest level.
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        line = token.start_mark.line + first_line
        depth += isinstance(token, begins) - isinstance(token, ends)
        if depth > DEEPEST:
            raise ConfigError(f"{name}:{line}: more than {DEEPEST} levels in each other are not read. Flatten it.")
        if isinstance(token, yaml.AliasToken):
            raise ConfigError(f"{name}:{line}: aliases such as *name are not read. Repeat it.")
