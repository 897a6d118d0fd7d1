"""Begin runs and record them as episodes, for integrations that carry out an agent's calls themselves."""

import logging
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import LibraryBusy, LibraryError
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.open_runs import ABANDONED
from hardwon.memory.privacy.deadlines import deadline
from hardwon.memory.records import Trust
from hardwon.memory.validation import check_count, check_library
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.guidance.base import Guidance, RetrievalGuidance
from hardwon.runtime.loop.advisor import Advisor
from hardwon.runtime.loop.enforcement import Mode
from hardwon.runtime.loop.extract import carry_out, read_episode

from .tool_episode import BEFORE_CALL_S, ToolEpisode
from .tool_run import ToolRun

logger = logging.getLogger(__name__)

AFTER_RUN_S = 2.0
"""Seconds that the end of a run waits for the library altogether; then its episode is recorded later."""
REMIND_S = 60.0
"""Seconds between two log lines that say that the library is busy."""


def begin_run(
    library: ExperienceLibrary,
    task: str,
    *,
    mode: Mode | None = "warn",
    guidance: Guidance | None = None,
    recall_k: int = 5,
    hides_results: bool = False,
    header: Trajectory | None = None,
) -> ToolRun:
    """Begin a run for a request."""
    check_library(library)
    check_count("recall_k", recall_k)
    learns = not library.admin.read_only
    name = name_draws(library, random.getrandbits(32), task)
    advisor = Advisor(library, guidance or RetrievalGuidance(), learns)
    episode = ToolEpisode(library, task, hides_results=hides_results)
    return ToolRun(library, episode, name, advisor, mode, learns, recall_k, header)


def name_draws(library: ExperienceLibrary, seed: int, task: str) -> str:
    """Return the seed of a run's random draws, which differ from episode to episode."""
    with suppress(LibraryError), deadline(BEFORE_CALL_S):
        return f"{seed}:{task}:{library.episodes.count()}"
    return f"{seed}:{task}"


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
    arm: str = "retrieved",
    extractor: Extractor | None = None,
    is_continued: bool = False,
    has_begun: bool = False,
) -> str:
    """Record a run as one episode, and evolve the library if the outcome is known.

    A run without an answered call is none, unless it has begun one.
    """
    if not run.learn or not (run.episode.steps or has_begun):
        run.close()
        if run.learn:
            _say_not_recorded(environment)
        return ""
    library, name = run.library, episode or uuid.uuid4().hex
    fields = {"environment": environment, "policy": run.model, **(meta or {})}
    default_ending = "success" if success else "done"
    trajectory = run.episode.trajectory(success, score, arm=arm, ending=ending or default_ending, meta=fields, id=name)
    reading = None
    # The extractor runs before the episode is written, so that its errors are recorded with it.
    if extractor is not None and success is not None:
        reading = read_episode(extractor, trajectory, library)
        trajectory = replace(trajectory, meta={**trajectory.meta, "extraction": reading.report})
    # A run whose steps are not on the disk has no other place than the library.
    with deadline(AFTER_RUN_S) if run.is_kept else nullcontext():
        try:
            _write(library, trajectory, writer, trust, is_continued)
        except LibraryBusy as error:
            if not run.finish(replace(trajectory, writer=writer, trust=trust)):
                raise
            report_busy(environment, error)
            return name
        run.close()
        with suppress(LibraryBusy):  # a later run learns from this one, too
            if reading is not None:
                carry_out(reading, name, library)
            if success is not None:
                library.evolve()
    return name


def _write(library: ExperienceLibrary, trajectory: Trajectory, writer: str, trust: Trust, is_continued: bool) -> None:
    """Write an episode in place of its beginning, or as a new one."""
    if is_continued:
        library.record(replace(trajectory, writer=writer, trust=trust), continued=True)
    elif writer or trust == "untrusted":
        library.episodes.receive([trajectory], writer=writer, trust=trust)
    else:
        library.record(trajectory)


_reported_at: dict[str, float] = {}


def report_busy(door: str, error: LibraryBusy) -> None:
    """Log that a door goes on without the library, once and not with every call."""
    now = time.monotonic()
    if now - _reported_at.get(door, -REMIND_S) >= REMIND_S:
        _reported_at[door] = now
        logger.warning("%s continues without experience while the library is busy: %s", door, error)


def find_beginning(library: ExperienceLibrary, task: str, calls: Sequence[Call], environment: str) -> str:
    """Return the id of a recent unfinished episode that these calls continue; empty if there is none."""
    actions = [call.text for call in calls]
    for row in library.episodes.find(limit=50) if calls else ():
        if (row["ending"], row["task"], row["meta"].get("environment")) == (ABANDONED, task, environment):
            steps = library.episodes.get(row["id"]).steps
            if [step.action for step in steps] == actions[: len(steps)]:
                return str(row["id"])
    return ""


@cache
def _say_not_recorded(environment: str) -> None:
    """Log once in a process that runs without a call are not recorded."""
    logger.warning("%s: a run is not recorded, because it has no tool call. This is said once", environment)
