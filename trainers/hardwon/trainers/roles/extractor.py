"""The extractor role: reads finished episodes and learns which lessons are worth keeping (Complementary RL).

What it keeps is tried in other task instances, beside what recall gives there: the difference in outcome is its reward,
and only what helped is stored; see `roles.trials`. `roles.item_reward` computes the reward. Reading runs in the
background; its results are collected at the end of an iteration.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.learner import Learner
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import parse
from hardwon.trainers.engines.base import Weights
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.rollouts.beginnings import Beginnings
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.workers.background import Background

from .base import Parts, load_weights, weights_of
from .item_reward import Buffer, to_streams
from .marking import mark_lessons
from .note_generators import KeepOrSkip
from .proposals import Proposals, Reading
from .supervised_stage import SupervisedStage, plan_stage


@dataclass(frozen=True, kw_only=True)
class ExtractorSettings:
    """Settings of the extractor: what it reads, its reward and its schedule."""

    trials: int = 2
    """The other task instances in which a candidate is tried before it is stored. In each, half of an arm's episodes
    are shown it besides what is recalled, and the difference is its reward. An iteration judges at most
    `run.groups` x recalling arms / trials candidates."""
    explores: float = 0.25
    """Share of the skipped candidates that are tried as well, so that a wrong verdict is noticed."""
    episodes: int = 8
    """Finished episodes to read per iteration, spread over task instances."""
    ready: int = 16
    """Rewarded verdicts per update."""
    cost: float = 0.05
    """Cost of a text of `length` tokens, in units of success."""
    length: int = 128
    """Number of tokens that cost `cost`."""
    distil: int = 0
    """Updates of stage 1, which imitates right answers about the lessons of explored episodes: those that name what
    solved other task instances are kept. 0 skips it."""
    distil_lr: float = 5e-4
    """Peak learning rate of stage 1; for a tiny base, some 2e-3."""
    distil_batch: int = 2
    """Questions of an update of stage 1."""

    def __post_init__(self) -> None:
        for name in ("trials", "episodes", "ready", "length", "distil_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")
        if not 0.0 <= self.explores <= 1.0:
            raise ConfigError(f"explores is {self.explores}; it is a share, between 0 and 1.")


class ExtractorRole:
    """Reads episodes and learns from the effect of the lessons that it kept."""

    def __init__(self, parts: Parts, writer: KeepOrSkip | None = None, *, name: str = "extractor") -> None:
        """Create the role. The writer decides about the lessons of an episode."""
        self.name, self.model = name, parts.model
        self._parts = parts
        self.settings = how = parse(ExtractorSettings, parts.config.settings, f"roles.{name}.settings")
        self._writer = writer or KeepOrSkip(parts.engine, parts.prompts, role=name)
        self.buffer = Buffer(ready=how.ready)
        self._proposals = Proposals(
            parts.library,
            self.buffer,
            self._length,
            Beginnings(parts.environment),
            worlds=how.trials,
            explores=how.explores,
            reward={"cost": how.cost, "length": how.length},
        )
        self._verdicts = parts.prompts.verdicts("keep")
        learning = plan_stage(how.distil, how.distil_batch, how.distil_lr, parts.seed)
        self.supervised = SupervisedStage(parts, name, self._verdicts, learning)
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)
        self._reading: Background[Reading] = Background()
        self._unread: list[str] = []
        self._groups: dict[str, str] = {}
        """Task instance of each episode that is to be read."""

    def begin(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Run stage 1 if the settings ask for it."""
        if (learning := self.supervised.learning) is not None:
            most = learning.updates * learning.batch
            self.supervised.learn(mark_lessons(self._parts, self._writer.candidates, self._writer.ask, most=most), tell)

    async def report_accuracy(self) -> str:
        """Return in words how well stage 1 taught it which lessons to keep."""
        return await self.supervised.describe()

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
        counts = Counter({"read": len(readings), "problems": len(problems), "unread": len(self._reading.under_way())})
        self._proposals.judge(counts)
        for _, reading in readings:
            self._proposals.offer(reading, counts)
        unread = spread(rollouts)[: self.settings.episodes]
        self._unread += [rollout.trajectory.id for rollout in unread]
        groups = {**self._groups, **{rollout.trajectory.id: rollout.group for rollout in unread}}
        self._groups = {name: groups[name] for name in (*self._reading.under_way(), *self._unread)}
        return dict(counts)

    async def _read_finished(self, trajectory_id: str, salt: str) -> Reading:
        """Read a recorded episode."""
        trajectory = self._parts.library.trajectory(trajectory_id)
        written = await self._writer.read(trajectory, salt=salt)
        return Reading(trajectory, tuple(written), self._groups.get(trajectory_id, ""))

    # -- trying ---------------------------------------------------------------------------------------

    def assign_candidates(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the episodes, half of those of each task instance and arm with a candidate."""
        return self._proposals.assign(specs)

    def has_candidates(self) -> bool:
        """Return whether candidates wait for episodes in which they are tried."""
        return len(self._proposals.trials) > 0

    def rate_instances(self, specs: Sequence[Spec]) -> Sequence[float]:
        """Return for each episode how much the waiting candidates have to do with its task instance."""
        return self._proposals.rate(specs)

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """Return the episodes unchanged: stored items reach them through recall."""
        return specs

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the episodes unchanged."""
        return specs

    def _length(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self._parts.prompts.text(text)) - 1  # without the end token

    # -- learning -----------------------------------------------------------------------------------

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Return whether the outcomes within a group differ."""
        return len({rollout.outcome for rollout in rollouts if rollout.outcome is not None}) > 1

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Credit the candidates with the outcomes of their episodes and of the siblings."""
        self._proposals.collect(rollouts)

    def ready(self) -> bool:
        """Return whether there are enough rewarded verdicts."""
        return self.buffer.ready()

    def update(self) -> dict[str, float]:
        """Run one optimizer step on the rewarded verdicts."""
        batch = self.buffer.take()
        metrics = self._learner.step(to_streams(batch, self._verdicts), self._parts.config.loss)
        rewards = [reward for _, reward in batch]
        return {**metrics, "lr": self._learner.lr, "reward": fmean(rewards), "samples": len(batch)}

    def weights(self) -> Weights:
        """Return all parameters, or the adapter's parameters under peft's names."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer state, buffer and candidates."""
        return {
            "weights": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "learner": self._learner.state_dict(),
            "buffer": self.buffer.state_dict(),
            # unfinished readings are lost with the process, so a resumed run starts them again
            "unread": [*self._reading.under_way(), *self._unread],
            "groups": dict(self._groups),
            "trials": self._proposals.trials.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])
        self.buffer.load_state_dict(state["buffer"])
        self._unread, self._groups = list(state["unread"]), dict(state["groups"])
        self._proposals.trials.load_state_dict(state["trials"])


def spread(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the usable rollouts, first one of each group, then a second of each, and so on."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        if not rollout.failed and rollout.trajectory.steps:
            groups.setdefault(rollout.group, []).append(rollout)
    return [rollout for rank in zip_longest(*groups.values()) for rollout in rank if rollout is not None]
