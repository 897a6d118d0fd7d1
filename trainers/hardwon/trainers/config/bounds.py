"""The bounds of every number of the settings, in one table.

A number outside of them is a slip of the pen, such as a learning rate of 300 or a negative discount. A section checks
in `__post_init__` only where a bound depends on other settings. A test walks all sections, and fails for a number that
is not here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hardwon.memory.errors import ConfigError

from .parsing import as_dict
from .schema import TrainConfig

Bounds = tuple[float, float]
"""Least and largest value, both allowed."""

SHARE: Bounds = (0, 1)
FACTOR: Bounds = (0, 100)
"""Of weights, exponents and temperatures: a negative one would turn the sign of its term."""
COUNT: Bounds = (0, 1_000_000_000)
NUMBER: Bounds = (1, 1_000_000_000)
SIZE: Bounds = (1, 1_000_000)
OUTCOME: Bounds = (-1_000_000, 1_000_000)

_NAMES: dict[Bounds, str] = {
    SHARE: """
        lr distil_lr discount lam_turn lam_segment tau decay memory_share renamed target
        probability bound rate advance old saturated spread mean share keep most eta grounding start
        scope.balance share.step
    """,
    FACTOR: """
        temperature low high entropy kl omega alpha beta weight scale k future zeta xi whole process bonus format
        episode kappa sensitivity factor first_weight usage_weight hot cold smooth largest boost self_boost
        dcpo.target gap price
    """,
    COUNT: """
        density.k warmup every rerolls history iterations evolve_every workers max_lag
        distil cooldown falling successes longest hinted.start
    """,
    NUMBER: """
        learner.decay steps tries max_steps budget epochs constant updates batch copies phase save_every kept ready
        length capacity episodes max_tokens speech_tokens context recall least over horizon instructions.every size
        first rounds candidates patience max_turns limit visits tokens pairs settings.history
    """,
    SIZE: """
        arms hidden layers heads kv_heads intermediate adapter width minibatches threads groups votes
        beam depth nearest buffer distil_batch executions samples worlds at_once run.keep
    """,
    OUTCOME: "broken",
    (0, 10): "cost malformed",
    (0, 65_535): "port",
    (2, 1_000_000): "attempts extractor.settings.samples teams runs repair.copies",
    (1e-3, 1_000_000): "max_mismatch timeout_s",
    (1e-3, 100): "run.temperature revise.temperature instructions.temperature",
    (1e-9, 1): "learning.lr lp-reg.share lp-reg.keep prefixed.groups begun floor informative.rate",
    (0, 0.5): "share.start",
    (0, 0.999): "instructions.decay",
    (0, 2**32 - 1): "seed",
}
"""Names of settings by their bounds. A name that means something else in a section has that section before it."""
BOUNDS: Mapping[str, Bounds] = {name: bounds for bounds, names in _NAMES.items() for name in names.split()}


def check_bounds(config: TrainConfig) -> None:
    """Check that every number of the settings is within its bounds."""
    for path, value in list_numbers(as_dict(config)):
        bounds = find_bounds(path)
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise ConfigError(f"{path} is {value:g}; use a number from {bounds[0]:g} to {bounds[1]:g}.")


def list_numbers(settings: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of nested settings with their paths; a schedule's values have the path of what they change."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if path == "schedule" and isinstance(value, list):
                yield from list_numbers([entry[-1] for entry in value if isinstance(entry, list) and entry], name)
            else:
                yield from list_numbers(value, f"{path}.{name}" if path else name)
    elif isinstance(settings, list):
        for value in settings:
            yield from list_numbers(value, path)
    elif isinstance(settings, int | float) and not isinstance(settings, bool):
        yield path, settings


def find_bounds(path: str) -> Bounds | None:
    """Return the bounds of a setting by its path: those of the longest end of the path that has any.

    The settings of another program, and those of your own class, have none.
    """
    if path.startswith("engine.settings.") or ":" in path:
        return None
    if path.startswith("arms."):
        return BOUNDS["arms"]
    parts = path.split(".")
    ends = (".".join(parts[at:]) for at in range(len(parts)))
    return next((BOUNDS[end] for end in ends if end in BOUNDS), None)
