"""Orders of the updates within a training step."""

from .turns import list_parts as list_parts, move_factors as move_factors
