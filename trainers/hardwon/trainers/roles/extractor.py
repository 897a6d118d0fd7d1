"""The extractor role: reads finished episodes, writes lessons, and learns from what they are worth (Complementary RL).

It samples several lessons about an episode. Each is tried in other task instances, where recall ranks it among the
items of the library, in pairs of episodes with it and without it; see `roles.trials`. The mean difference in outcome is
its reward, its siblings are the baseline, and only what helped is stored. Episodes are read in the background while
others are played.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean
from typing import Any

from hardwon.memory import Trajectory
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.records import Add, Admission
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import parse
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.rollouts.beginnings import Beginnings
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.workers.background import Background

from .base import Parts, Play
from .supervised_stage import plan_stage
from .teaching import RULES, mark_lessons, open_teacher
from .trained import TrainedRole
from .trials import Trial, Trials
from .tuning import TUNING
from .writing import MAX_TOKENS, LessonWriter, Written


@dataclass(frozen=True, kw_only=True)
class ExtractorSettings:
    """Settings of the extractor: what it reads and writes, its trials, its reward and its stage 1."""

    episodes: int = 8
    """Finished episodes to read per iteration, spread over task instances."""
    samples: int = 4
    """Lessons to sample per episode; equal ones are tried once."""
    tokens: int = MAX_TOKENS
    """Longest lesson."""
    pairs: int = 160
    """Largest number of pairs of episodes, with and without it, in which a lesson is tried. 160 find a gain of 0.2 in
    87 %; a lesson that is clearly good or useless needs 10 to 60."""
    ready: int = 32
    """Judged lessons per update."""
    cost: float = 0.05
    """Cost of a text of `length` tokens, in units of success."""
    length: int = 128
    """Number of tokens that cost `cost`."""
    malformed: float = 0.1
    """Cost of an answer that is no lesson: empty, too long, with control tokens, or an order to the reader."""
    distil: int = 0
    """Updates of stage 1, which imitates the lessons of a teacher about explored episodes. 0 skips it."""
    distil_lr: float = 5e-4
    """Peak learning rate of stage 1; for a tiny base, some 2e-3."""
    distil_batch: int = 2
    """Lessons of an update of stage 1."""
    teacher: str = RULES
    """The teacher that stage 1 imitates. rules: the task with the step that solved it or, in a failed episode, the
    first failed step. Or MODULE:CALLABLE, which takes an episode and returns a lesson, or an empty text."""

    def __post_init__(self) -> None:
        if self.teacher != RULES and not all(self.teacher.partition(":")):
            raise ConfigError(f"teacher is {self.teacher!r}; use rules, or MODULE:CALLABLE such as lessons:write.")


@dataclass(frozen=True, slots=True)
class Reading:
    """The lessons about one episode."""

    trajectory: Trajectory
    written: tuple[Written, ...]
    group: str = ""
    """Task instance of the episode."""


class ExtractorRole(TrainedRole):
    """Reads episodes, and learns from the effect of the lessons that it wrote."""

    def __init__(self, parts: Parts, *, name: str = "extractor") -> None:
        self.settings = how = parse(ExtractorSettings, parts.config.settings, f"roles.{name}.settings")
        super().__init__(parts, name, plan_stage(how.distil, how.distil_batch, how.distil_lr))
        self._writer = LessonWriter(parts.engine, parts.prompts, role=name, max_tokens=how.tokens)
        beginnings = Beginnings(parts.environment)

        def read(instance: tuple[str, int]) -> str:
            state, _ = beginnings.read(Spec(*instance))
            return f"{state.task}\n{state.observation}"

        self._trials = Trials(parts.trained, read, pairs=how.pairs)
        self._reading: Background[Reading] = Background()
        self._readings: list[Reading] = []
        """Readings whose lessons are to be tried."""
        self._unread: list[str] = []
        self._groups: dict[str, str] = {}
        """Task instance of each episode that is to be read."""

    def begin(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Say what an iteration of trials can cost, and run stage 1 if the settings ask for it."""
        how = self.settings
        tell(
            f"{self.name}: each iteration tries up to {how.episodes * how.samples} lessons, each in up to {how.pairs} "
            f"pairs of episodes. Lower pairs, samples or episodes in its settings if that is too slow."
        )
        if (learning := self.supervised.learning) is not None:
            most, teacher = learning.updates * learning.batch, open_teacher(self.settings.teacher, self._parts)
            self.supervised.learn(mark_lessons(self._parts, teacher, self._writer, most=most), tell)

    # -- reading beside the rollouts ----------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Return whether an iteration waits for its readings at its end, which makes a run reproducible bit for bit."""
        return isinstance(self._parts.engine, LocalEngine)

    def read(self, salt: str) -> None:
        """Start reading recorded episodes in the background."""
        for trajectory_id in self._unread:
            self._reading.submit(trajectory_id, self._read_finished(trajectory_id, salt))
        self._unread = []

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """Take over the finished readings; queue recorded rollouts to be read."""
        readings, problems = await self._reading.finished(wait=self.waits)
        self._readings += [reading for _, reading in readings]
        unread = spread(rollouts)[: self.settings.episodes]
        self._unread += [rollout.trajectory.id for rollout in unread]
        groups = {**self._groups, **{rollout.trajectory.id: rollout.group for rollout in unread}}
        self._groups = {name: groups[name] for name in (*self._reading.under_way(), *self._unread)}
        return {"read": len(readings), "problems": len(problems), "unread": len(self._reading.under_way())}

    async def _read_finished(self, trajectory_id: str, salt: str) -> Reading:
        """Read a recorded episode."""
        trajectory = self._parts.library.episodes.get(trajectory_id)
        written = await self._writer.write(trajectory, samples=self.settings.samples, salt=salt)
        return Reading(trajectory, tuple(written), self._groups.get(trajectory_id, ""))

    # -- trying ---------------------------------------------------------------------------------------

    async def try_candidates(self, play: Play, arm: str, salt: str) -> dict[str, float]:
        """Try the lessons that were written, store those that helped, and keep the rewards of all for an update."""
        readings, self._readings = self._readings, []
        counts: Counter[str] = Counter(pairs=0)
        readings = [reading for reading in readings if self._may_be_tried(reading)]
        trials = {reading.trajectory.id: self._open_trials(reading, counts) for reading in readings}
        round_ = 0
        while specs := self._trials.plan(arm, f"{salt}/try/{round_}"):
            counts["pairs"] += self._trials.collect(await play(specs))
            round_ += 1
        for trial in self._trials.take():
            counts["judged"] += 1
            counts["recalled"] += trial.hits
            counts["known" if trial.is_known else trial.test.verdict or "undecided"] += 1
            if trial.test.verdict == "helps" and not trial.is_known:
                counts[self._store(trial).status] += 1
        rewards = [self._credit(reading, trials[reading.trajectory.id]) for reading in readings]
        flat = [reward for each in rewards for reward in each]
        return {**counts, **({"reward": fmean(flat)} if flat else {})}

    def _may_be_tried(self, reading: Reading) -> bool:
        """Return whether an episode is trusted. Lessons of another are in quarantine, and no policy is shown them."""
        if reading.trajectory.trust == "trusted":
            return True
        items = {written.item.title: written.item for written in reading.written if written.item is not None}
        self._parts.library.apply([Add(item) for item in items.values()], reading.trajectory, [])
        return False

    def _open_trials(self, reading: Reading, counts: "Counter[str]") -> dict[str, Trial]:
        """Put the different lessons about an episode on trial; return the trials by text."""
        trials: dict[str, Trial] = {}
        for written in reading.written:
            counts["written"] += 1
            counts["malformed"] += written.item is None
            if written.item is None or written.item.title in trials:
                continue
            trial = Trial(replace(written.item, id=written.row.trace), reading.group, reading.trajectory.id)
            trials[written.item.title] = trial
            self._trials.add(trial)
        return trials

    def _store(self, trial: Trial) -> Admission:
        """Add a lesson that helped to the library, with a score by its gain."""
        item = replace(trial.item, id="", score=min(1.0, 0.5 + 0.5 * trial.test.gain))
        try:
            episode = self._parts.library.episodes.get(trial.episode)
        except UnknownName as gone:
            return Admission("rejected", f"its episode was forgotten: {gone}")
        (answer,) = self._parts.library.apply([Add(item)], episode, [])
        return answer

    def _credit(self, reading: Reading, trials: Mapping[str, Trial]) -> list[float]:
        """Keep the samples of an episode with their advantages over their siblings; return the rewards."""
        rewarded = [
            (written.row, self._reward(written, None if written.item is None else trials[written.item.title]))
            for written in reading.written
        ]
        rewards = [reward for _, reward in rewarded]
        for row, reward in rewarded if len(rewarded) > 1 else ():
            baseline = (sum(rewards) - reward) / (len(rewards) - 1)
            self._waiting.append(([row], {row.trace: [reward - baseline]}))
        return rewards

    def _reward(self, written: Written, trial: Trial | None) -> float:
        """Return what a lesson adds, less its cost. One that repeats what is recalled anyway adds nothing."""
        if trial is None:
            return -self.settings.malformed
        gain = 0.0 if trial.is_known else trial.test.gain
        return gain - self.settings.cost * (len(written.row.completion) - 1) / self.settings.length

    # -- learning -----------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Return whether enough lessons were judged, and some of them better than their siblings."""
        advantages = [value for _, credit in self._waiting for (value,) in credit.values()]
        return len(advantages) >= self.settings.ready and any(abs(value) > TUNING.epsilon for value in advantages)

    def state_dict(self) -> dict[str, Any]:
        """Return what an exact resume needs, with the episodes to read."""
        # unfinished readings are lost with the process, so a resumed run starts them again
        unread = [*self._reading.under_way(), *self._unread]
        return {**super().state_dict(), "unread": unread, "groups": dict(self._groups)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self._unread, self._groups = list(state["unread"]), dict(state["groups"])


def spread(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the usable rollouts, first one of each group, then a second of each, and so on."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        if not rollout.failed and rollout.trajectory.steps:
            groups.setdefault(rollout.group, []).append(rollout)
    return [rollout for rank in zip_longest(*groups.values()) for rollout in rank if rollout is not None]
