"""Rounds: a composer's episodes are played one round after another, within its budget."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from hardwon.trainers.algorithms.composers import Composer, EndedEpisode
from hardwon.trainers.algorithms.samples import Rollout

from .rollout import Spec

Collect = Callable[[Sequence[Spec]], Awaitable[list[Rollout]]]
"""Plays episodes and returns their rollouts in order."""
Read = Callable[[list[Rollout]], Awaitable[list[Rollout]]]
"""Adds to rollouts the signals that a composer needs."""


async def play_rounds(
    composer: Composer, specs: Sequence[Spec], collect: Collect, read: Read, *, iteration: int = 0
) -> list[Rollout]:
    """Play the episodes that a composer asks for, and return the rollouts that the run goes on with."""
    left = {
        key: int(composer.budget * number + 0.5)
        for key, number in Counter((spec.group, spec.arm) for spec in specs).items()
    }
    done: list[EndedEpisode] = []
    following = composer.begin(specs, iteration)
    while following := _take_within(following, left):
        rollouts = await read(await collect(following))
        done += [EndedEpisode(spec, rollout) for spec, rollout in zip(following, rollouts, strict=True)]
        composer.counts["episodes"] += len(following)
        following = composer.more(done)
    return composer.finish(done)


def _take_within(specs: Sequence[Spec], left: dict[tuple[str, str], int]) -> list[Spec]:
    """Return the episodes for which the budget of their task instance and arm has room, and use it up."""
    chosen = []
    for spec in specs:
        key = spec.group, spec.arm
        if left.get(key, 0) > 0:
            left[key] -= 1
            chosen.append(spec)
    return chosen
