"""The seeds and checkpoints of an experiment, as a person types them or as they are by default."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hardwon.apps.shared.trained import RULES
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.validation import parse_range, read_whole

if TYPE_CHECKING:
    from hardwon.runtime import Environment

FOLDS = ("train", "dev", "test")
TRAIN_SEEDS = "0-449"
EVAL_SEEDS = "100-149"
AGENT_SEEDS = (0, 1, 2)
"""Agent seeds by default: one agent says little, because agents of other seeds differ."""


def asks_model(policy: str, roles: object) -> bool:
    """Return whether a language model decides, which makes an episode expensive."""
    return bool(roles) or policy not in RULES


def choose_agent_seeds(typed: Sequence[int], is_model: bool) -> tuple[int, ...]:
    """Return the agent seeds: the given ones, else three, or one if a language model decides."""
    return tuple(typed) or (AGENT_SEEDS[:1] if is_model else AGENT_SEEDS)


def choose_seeds(
    open_world: "Callable[[], Environment]",
    train: str | None,
    fold: str,
    test: str | None,
    is_model: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the training and test seeds: the given ones, else those that the environment has."""
    if fold not in FOLDS:
        raise UnknownName.of("fold", fold, FOLDS)
    given = [None if text is None else tuple(parse_range(text)) for text in (train, test)]
    if given[0] is not None and given[1] is not None:
        return given[0], given[1]
    from hardwon.runtime.environments import count_seeds

    world = open_world()
    try:
        existing = [given[n] or count_seeds(world, name) for n, name in enumerate(("train", fold))]
    finally:
        world.close()
    learned, tested = tuple(parse_range(TRAIN_SEEDS)), tuple(parse_range(EVAL_SEEDS))
    if isinstance(existing[0], int):
        learned = learned[: existing[0]]
    # A small fold: test on its last seeds, so that train and test seeds overlap as little as possible.
    if isinstance(existing[1], int) and existing[1] <= tested[-1]:
        tested = tuple(range(max(0, existing[1] - len(tested)), existing[1]))
    return given[0] or learned, given[1] or (tested[:10] if is_model else tested)


def parse_checkpoints(text: str, episodes: int, is_model: bool = False) -> tuple[int, ...]:
    """Return the episode counts at which to test: 0, every N episodes or each of a list, and the last."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    counts = [read_whole(part) for part in parts]
    if None in counts or counts == [0]:
        raise ConfigError(f"--eval-every is {text!r}; give a number of episodes, or a list such as 10,25,50,100.")
    if len(parts) > 1:
        points = {int(part) for part in parts}
    else:
        points = set(range(0, episodes + 1, int(parts[0]) if parts else max(1, episodes // (1 if is_model else 4))))
    return tuple(sorted({0, episodes, *(point for point in points if point <= episodes)}))
