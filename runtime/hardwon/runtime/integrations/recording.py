"""Begin runs and record them as episodes, for integrations that carry out an agent's calls themselves."""

import random
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardwon.memory import ExperienceLibrary
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.records import Trust
from hardwon.runtime.guidance.base import Guidance, RetrievalGuidance
from hardwon.runtime.loop.advisor import Advisor
from hardwon.runtime.loop.enforcement import Mode, is_unfinished
from hardwon.runtime.loop.extract import carry_out, read_episode

from .tool_episode import ToolEpisode
from .tool_run import ToolRun


def begin_run(
    library: ExperienceLibrary,
    task: str,
    *,
    mode: Mode | None = "warn",
    guidance: Guidance | None = None,
    recall_k: int = 5,
    seed: int | None = None,
    hides_results: bool = False,
) -> ToolRun:
    """Begin a run for a request.

    Args:
        library: Where experience is recalled from; a read-only library is never written.
        task: The request.
        mode: How guardrails are enforced; None turns them off.
        guidance: Turns recalled experience into a hint. None uses `RetrievalGuidance`.
        recall_k: Number of similar steps and items to recall.
        seed: Seeds the random holdout of items. None draws a seed.
        hides_results: Whether the words of tool results are kept out of states and steps.
    """
    draw = random.getrandbits(32) if seed is None else seed
    learns = not library.read_only
    name = f"{draw}:{task}:{library.episodes}"
    advisor = Advisor(library, guidance or RetrievalGuidance(), learns)
    return ToolRun(
        library, ToolEpisode(library, task, hides_results=hides_results), name, advisor, mode, learns, recall_k
    )


def infer_success(run: ToolRun) -> bool | None:
    """Return whether the last call of every tool worked; None if a refused call was never run."""
    return None if is_unfinished(run.episode.steps) else not run.episode.broken


def record_run(
    run: ToolRun,
    *,
    success: bool | None,
    environment: str,
    score: float | None = None,
    ending: str = "",
    episode: str = "",
    writer: str = "",
    trust: Trust = "trusted",
    meta: Mapping[str, Any] | None = None,
    extractor: Extractor | None = None,
) -> str:
    """Record a run as one episode, and evolve the library if the outcome is known.

    Args:
        run: The run.
        success: Whether it succeeded; None if that is unknown, which excludes the episode from learning.
        environment: Name of the integration.
        score: Score in [0, 1]. None means 1.0 for a success and 0.0 otherwise.
        ending: Why the run ended; by default "success" or "done".
        episode: Id of the episode; empty for a new one.
        writer: Name of the client, if it is not this process.
        trust: Whether the words of the episode are trusted.
        meta: Further properties of the episode.
        extractor: Reads the episode and proposes items.

    Returns:
        The id of the episode; empty if there was nothing to record.
    """
    if not run.learn or not run.episode.steps:
        return ""
    library, name = run.library, episode or uuid.uuid4().hex
    fields = {"environment": environment, "policy": run.model, **(meta or {})}
    default_ending = "success" if success else "done"
    trajectory = run.episode.trajectory(
        success, score, arm="retrieved", ending=ending or default_ending, meta=fields, id=name
    )
    reading = None
    # The extractor runs before the episode is written, so that its errors are recorded with it.
    if extractor is not None and success is not None:
        reading = read_episode(extractor, trajectory, library)
        trajectory = replace(trajectory, meta={**trajectory.meta, "extraction": reading.report})
    if writer or trust == "untrusted":
        library.receive([trajectory], writer=writer, trust=trust)
    else:
        library.record(trajectory)
    if reading is not None:
        carry_out(reading, name, library)
    if success is not None:
        library.evolve()
    return name
