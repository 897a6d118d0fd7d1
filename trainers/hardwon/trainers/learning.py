"""Learning outside of the weights: rollouts go to role buffers and to the library."""

from collections.abc import Sequence

from hardwon.memory import ExperienceLibrary
from hardwon.memory.library import forget_findings

from .algorithms.samples import Rollout
from .session import Session


def distribute(session: Session, rollouts: Sequence[Rollout]) -> None:
    """Pass the rollouts to every role.

    Episodes that a composer began in another way are for the policy alone.
    """
    composed, rollouts = rollouts, [rollout for rollout in rollouts if rollout.is_plain]
    for name, role in session.roles.items():
        role.collect(composed if name == "policy" else rollouts)


async def update_library(session: Session, iteration: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Record the rollouts, collect what the reading roles wrote, and evolve on schedule."""
    config, library, metrics = session.config, session.library, dict[str, float]()
    learns = config.uses_library and config.library.learn
    if learns:
        # before the readers: they look queued episodes up in the library
        library.record_many([rollout.trajectory for rollout in rollouts])
    for name, role in session.roles.items():
        metrics.update({f"{name}/{key}": value for key, value in (await role.written(rollouts)).items()})
    if not learns:
        return metrics
    # A fresh handle makes the result depend on the file alone, so that a resumed run matches exactly.
    if config.library.evolve_every and iteration % config.library.evolve_every == 0:
        with ExperienceLibrary.open(library.path, library.admin.embedder, library.namespace) as fresh:
            fresh.evolve()
    forget_findings(library)  # a resumed run starts with an empty cache, so this one must as well
    return {**metrics, "library/episodes": library.episodes.count(), "library/items": len(library.items.find())}
