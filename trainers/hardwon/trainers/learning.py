"""Learning outside of the weights: rollouts go to role buffers, the gate's records, the library."""

import json
from collections import Counter
from collections.abc import Sequence

from hardwon.memory import ExperienceLibrary

from .algorithms.samples import Rollout
from .gating.diversity import merge_pass
from .roles.base import Reader
from .roles.item_reward import unaided, uses_of
from .session import Session

GATE_LOG = "gate.jsonl"
"""File in a run's folder: the gate's answers."""


def list_readers(session: Session) -> list[Reader]:
    """Return the roles that read in the background while episodes are played."""
    return [role for role in session.roles.values() if isinstance(role, Reader)]


def distribute(session: Session, rollouts: Sequence[Rollout]) -> None:
    """Pass the rollouts to every role; pass the outcomes without guidance and the item effects to the gate.

    Episodes that a composer began in another way are for the policy alone.
    """
    session.diversity.settle()
    composed, rollouts = rollouts, [rollout for rollout in rollouts if rollout.is_plain]
    for name, role in session.roles.items():
        role.collect(composed if name == "policy" else rollouts)
    if session.gate is None:
        return
    for rollout in unaided(rollouts):
        session.gate.record_scores(rollout.trajectory.steps[0].pre.task, [rollout.outcome or 0.0])
    for _, item, use in uses_of(rollouts):
        if use.control:
            session.gate.record_differences(item, use.differences)


def log_gate(session: Session, iteration: int, kind: str = "train") -> dict[str, float]:
    """Return the counts of the gate's answers since the last call, and append each answer to the log file."""
    if session.gate is None:
        return {}
    answers = session.gate.drain()
    with (session.out / GATE_LOG).open("a", encoding="utf-8") as file:
        file.writelines(
            # sorted: answers arrive in the order of scheduling, which must not show in the file
            sorted(json.dumps({"iteration": iteration, "kind": kind, **answer}) + "\n" for answer in answers)
        )
    counts = Counter({"accept": 0, "refine": 0, "reject": 0})
    for answer in answers:
        counts[answer["answer"]] += answer["times"]
    return {f"gate/{name}": float(number) for name, number in counts.items()}


async def update_library(session: Session, iteration: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Record the rollouts, collect what the reading roles wrote, and evolve and merge on schedule."""
    config, library, metrics = session.config, session.library, dict[str, float]()
    learns = config.uses_library and config.library.learn
    if learns:
        # before the readers: they look queued episodes up in the library
        library.record_many([rollout.trajectory for rollout in rollouts])
    for name, role in session.roles.items():
        if isinstance(role, Reader):
            metrics.update({f"{name}/{key}": value for key, value in (await role.written(rollouts)).items()})
    if not learns:
        return metrics
    # A fresh handle makes the result depend on the file alone, so that a resumed run matches exactly.
    with ExperienceLibrary.open(library.path, library.embedder, library.namespace) as fresh:
        if config.library.evolve_every and iteration % config.library.evolve_every == 0:
            fresh.evolve()
        if config.library.merge_every and iteration % config.library.merge_every == 0:
            metrics["library/merged"] = merge_pass(fresh)
    library.forget_findings()  # a resumed run starts with an empty cache, so this one must as well
    return {**metrics, "library/episodes": library.episodes, "library/items": len(library.items())}
