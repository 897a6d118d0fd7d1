"""Grades: outcomes that an episode gets after it was recorded, with who gave them, when and why.

A grade is an entry of the change log, so the history of an episode names every grade. The episode itself holds the
outcome of the newest one, and the first entry keeps the outcome that was recorded.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.records import Admission, Trajectory
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import log_change
from hardwon.memory.storage.freshness import GRADES
from hardwon.memory.validation import check_text, describe_value

LONGEST = 4000
"""Largest number of characters of a reason, a lesson or an action."""
_READ = "SELECT at, detail FROM changes WHERE namespace = ? AND what = 'grade' AND ref = ? ORDER BY seq"
_KEEP = "success, score, why, lesson, instead, step, grader"


@dataclass(frozen=True, slots=True)
class Grade:
    """A grade of one recorded episode."""

    episode: str
    """Id of the episode."""
    success: bool | None
    """The outcome from now on; None excludes the episode from learning."""
    score: float
    grader: str
    """Who gave the grade."""
    why: str = ""
    """The reason, kept in the history."""
    lesson: str = ""
    """What to learn from the episode, in words."""
    instead: str = ""
    """The action that should have been taken."""
    step: int | None = None
    """Number of the step at which it should have been taken."""
    at: str = ""
    """Time of the grade: UTC, ISO 8601."""
    previous_success: bool | None = None
    """The outcome before."""
    previous_score: float = 0.0
    is_new: bool = True
    """Whether the grade changed anything; False if the episode had it already."""
    admission: Admission | None = None
    """The curator's decision on the lesson or the correction, if there is one."""


@dataclass(frozen=True, slots=True)
class GradeRequest:
    """A grade as it was asked for."""

    success: bool | None = None
    """None keeps the outcome, unless a score is given or `unknown` is set."""
    score: float | None = None
    unknown: bool = False
    """Whether the outcome is unknown, which excludes the episode from learning."""
    why: str = ""
    lesson: str = ""
    instead: str = ""
    step: int | None = None
    grader: str = "user"

    def check(self) -> None:
        """Check the values."""
        for name in ("why", "lesson", "instead", "grader"):
            text = getattr(self, name)
            check_text(name, text)
            if len(text) > LONGEST:
                raise ConfigError(f"{name} has {len(text)} characters; give at most {LONGEST}.")
        if not self.grader.strip():
            raise ConfigError("grader is empty; give the name of who grades the episode.")
        if self.success is not None and not isinstance(self.success, bool):
            raise ConfigError(f"success is {describe_value(self.success)}; give True, False or None.")
        if self.score is not None and not (type(self.score) in (int, float) and 0.0 <= self.score <= 1.0):
            raise ConfigError(f"score is {describe_value(self.score)}; give a number from 0 to 1.")
        if self.unknown and (self.success is not None or self.score is not None):
            raise ConfigError("unknown is set together with success or score; give one of them.")
        if self.success and self.score == 0.0:
            raise ConfigError("score is 0 for a success; give a score above 0, or grade a failure.")
        if self.success is False and self.score == 1.0:
            raise ConfigError("score is 1 for a failure; give a score below 1, or grade a success.")
        if self.step is not None and not self.instead.strip():
            raise ConfigError(f"step is {self.step!r:.80}, but there is no `instead`; give the action to take there.")
        if not (self.unknown or self.success is not None or self.score is not None or self.has_words):
            raise ConfigError("the grade says nothing; give success, score, unknown, why, lesson or instead.")

    @property
    def has_words(self) -> bool:
        """Return whether there is a reason, a lesson or a correction."""
        return any(text.strip() for text in (self.why, self.lesson, self.instead))

    def decide(self, episode: Trajectory) -> tuple[bool | None, float]:
        """Return the outcome and the score that the episode has from now on."""
        if self.unknown:
            return None, 0.0
        if self.success is None and self.score is None:
            return episode.success, episode.score
        if self.success is None:
            assert self.score is not None
            return self.score >= 1.0, float(self.score)
        return bool(self.success), float(self.success if self.score is None else self.score)

    def grade(self, episode: Trajectory) -> Grade:
        """Return the grade that this request gives an episode, without secrets."""
        if self.step is not None and not 0 <= self.step < len(episode.steps):
            raise ConfigError(
                f"step is {self.step}, but episode {episode.id} has steps 0 to {len(episode.steps) - 1}. "
                f"`hardwon memory show LIBRARY {episode.id}` lists them."
            )
        success, score = self.decide(episode)
        return Grade(
            episode.id, success, score, redact(self.grader), redact(self.why), redact(self.lesson),
            redact(self.instead), self.step, previous_success=episode.success, previous_score=episode.score,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FirstOutcome:
    """The outcome with which a graded episode was recorded."""

    success: bool | None
    score: float
    reward: float
    """Reward of the last step."""
    ending: str


def read_grades(store: Store, namespace: int, episode: str) -> list[Grade]:
    """Return the grades of an episode, oldest first."""
    return [_parse(episode, at, json.loads(detail)) for at, detail in store.rows(_READ, (namespace, episode))]


def _parse(episode: str, at: str, detail: Mapping[str, Any]) -> Grade:
    success, score = detail["before"]
    kept = {name: detail.get(name) for name in _KEEP.split(", ")}
    return Grade(episode, at=at, previous_success=success, previous_score=score, **kept)  # type: ignore[arg-type]


def read_first_outcome(store: Store, namespace: int, episode: Trajectory) -> FirstOutcome:
    """Return the outcome with which an episode was recorded."""
    rows = store.rows(f"{_READ} LIMIT 1", (namespace, episode.id))
    if rows:
        return FirstOutcome(*json.loads(rows[0][1])["recorded"])
    reward = episode.steps[-1].reward if episode.steps else 0.0
    return FirstOutcome(episode.success, episode.score, reward, episode.ending)


def is_repeated(grade: Grade, before: list[Grade]) -> bool:
    """Return whether the newest grade of an episode is the same."""
    if not before:
        return False
    return all(getattr(grade, name) == getattr(before[-1], name) for name in _KEEP.split(", "))


def log_grade(connection: Connection, namespace: int, grade: Grade, first: FirstOutcome) -> Grade:
    """Append a grade to the change log, and make every process read its caches again; return it with its time."""
    detail = {
        **{name: getattr(grade, name) for name in _KEEP.split(", ")},
        "before": [grade.previous_success, grade.previous_score],
        "recorded": [first.success, first.score, first.reward, first.ending],
    }
    log_change(connection, namespace, "grade", grade.episode, "graded", detail)
    note_change(connection)
    ((at,),) = connection.execute("SELECT at FROM changes ORDER BY seq DESC LIMIT 1")
    return replace(grade, at=at)


def note_change(connection: Connection) -> None:
    """Make every process read its caches again, because recorded experience changed."""
    connection.execute(
        "INSERT INTO meta VALUES (?, '1') ON CONFLICT(name) DO UPDATE SET value = CAST(value AS INTEGER) + 1", (GRADES,)
    )
