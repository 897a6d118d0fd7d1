"""The extractor role: reads episodes and learns which texts are worth keeping (Complementary RL).

With `reads: rollouts`, it reads finished episodes. What it keeps is tried in other task instances, beside what recall
gives there: the difference in outcome is its reward, and only what helped is stored; see `roles.trials`. With
`reads: explored`, it reads the exploring episode of a task instance and its texts are shown in the episodes of that
instance. `roles.item_reward` computes the reward. Reading runs in the background; its results are collected at the end
of an iteration.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from statistics import fmean
from typing import Any, Literal

from hardwon.memory import State, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.reading import load_shown_items
from hardwon.memory.records import Admission
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.algorithms.learner import Learner
from hardwon.trainers.algorithms.samples import Rollout, Sample
from hardwon.trainers.config.kinds import READS, TRIALS
from hardwon.trainers.config.schema import parse
from hardwon.trainers.engines.base import Engine, Weights
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.gate import Gated
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.prompting.base import PromptFormat
from hardwon.trainers.rollouts.beginnings import Beginnings
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.workers.background import Background

from .base import Parts, load_weights, weights_of
from .item_reward import Buffer, Measure as Measure, row_of, to_streams, uses_of
from .marking import mark_lessons
from .note_generators import KeepOrSkip, Writer, Writes, Written, text_of
from .proposals import Proposals, Reading
from .supervised_stage import SupervisedStage, plan_stage


@dataclass(frozen=True, kw_only=True)
class ExtractorSettings:
    """Settings of the extractor: what it reads and writes, its reward and its schedule."""

    reads: Literal["explored", "rollouts"] = READS
    """rollouts: finished episodes, into the library, for arms with guidance `library`.
    explored: the exploring episode of an upcoming task instance, for arms with guidance `role`."""
    writes: Literal["choice", "text"] = "choice"
    """choice: keep or skip each path of an episode with one token. text: generate free text."""
    trials: int = TRIALS
    """For reads: rollouts, the other task instances in which a candidate is tried before it is stored. In each, half of
    an arm's episodes are shown it besides what is recalled, and the difference is its reward. An iteration judges at
    most `run.groups` x recalling arms / trials candidates. 0 stores candidates at once, and pays them by the episodes
    that recall them later."""
    explores: float = 0.25
    """Share of the skipped candidates that are tried as well, so that a wrong verdict is noticed."""
    episodes: int = 8
    """Finished episodes to read per iteration, spread over task instances."""
    max_tokens: int = 96
    """Maximum number of tokens per episode for writes: text."""
    waits: bool | None = None
    """Wait for unfinished readings at the end of an iteration, which makes a run reproducible bit for bit.
    false leaves them for the next iteration. null waits if the engine is in this process."""
    warmup: int = 0
    """Iterations of credit before the first update; Complementary RL uses 5."""
    ready: int = 16
    """Rewarded sequences per update."""
    cooldown: int = 1
    """Updates for which a trained sequence is skipped."""
    measure: Measure = "difference"
    """Reward of an item's use: difference, sign or outcome. The last two are baselines."""
    cost: float = 0.05
    """Cost of a text of `length` tokens, in units of success."""
    length: int = 128
    """Number of tokens that cost `cost`."""
    capacity: int = 4096
    """Maximum number of buffered sequences."""
    distil: int = 0
    """Updates of stage 1 for writes: choice, which imitates right answers about the lessons of explored episodes: those
    that name what solved other task instances are kept. 0 skips it."""
    distil_lr: float = 5e-4
    """Peak learning rate of stage 1; for a tiny base, some 2e-3."""
    distil_batch: int = 2
    """Questions of an update of stage 1."""

    def __post_init__(self) -> None:
        for name in ("episodes", "max_tokens", "ready", "length", "capacity", "distil_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")
        if self.trials < 0:
            raise ConfigError(f"trials is {self.trials}; use 0 to store candidates at once, or more.")
        if not 0.0 <= self.explores <= 1.0:
            raise ConfigError(f"explores is {self.explores}; it is a share, between 0 and 1.")


TraceSource = Callable[[str, int], Trajectory | None]
"""Returns an episode to read for a task instance, by split and seed, or None."""


def build_writer(
    engine: Engine, prompts: PromptFormat, settings: ExtractorSettings, *, role: str = "extractor"
) -> Writer:
    """Return the writer of the settings, for training and for production."""
    if settings.writes == "text":
        return Writes(engine, prompts, role=role, max_tokens=settings.max_tokens)
    return KeepOrSkip(engine, prompts, role=role, outcome=settings.reads == "rollouts")


class ExtractorRole:
    """Reads episodes and learns from the effect of the texts that it wrote."""

    def __init__(
        self,
        parts: Parts,
        source: TraceSource | None = None,
        writer: Writer | None = None,
        *,
        gate: Gated | None = None,
        name: str = "extractor",
    ) -> None:
        """Create the role.

        Args:
            parts: The objects of the run.
            source: Provides the episode to read for a task instance; default: the run's explorer.
            writer: Generates the texts; default: as the settings say.
            gate: Judges texts before they are shown; default: the run's gate, if any.
            name: Name of the role.
        """
        self.name, self.model = name, parts.model
        self._parts, self._source, self._gate = parts, source or parts.source, gate or parts.gate
        self.settings = parse(ExtractorSettings, parts.config.settings, f"roles.{name}.settings")
        self._writer = writer or build_writer(parts.engine, parts.prompts, self.settings, role=name)
        paid = ("ready", "cooldown", "capacity", "measure", "cost", "length")
        self.buffer = Buffer(**{name: getattr(self.settings, name) for name in paid})
        reward = {name: getattr(self.settings, name) for name in ("measure", "cost", "length")}
        self._proposals = Proposals(
            parts.library,
            self.buffer,
            self._length,
            Beginnings(parts.environment),
            worlds=self.settings.trials,
            explores=self.settings.explores,
            reward=reward,
        )
        how = self.settings
        learning = plan_stage(how.distil, how.distil_batch, how.distil_lr, parts.seed)
        self.supervised = SupervisedStage(parts, name, parts.prompts.verdicts("keep"), learning)
        is_verdict = self.settings.writes == "choice"
        self._verdicts = parts.prompts.verdicts("keep") if is_verdict else None
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)
        self._first: Weights | None = None
        self._collected = 0
        self._reading: Background[Reading] = Background()
        self._beside = False
        self._readings: dict[str, list[list[tuple[Sample, dict[str, str]]]]] = {}
        self._unread: list[str] = []
        self._groups: dict[str, str] = {}
        """Task instance of each episode that is to be read."""
        self._items_sent: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._pending: dict[str, list[tuple[Sample, dict[str, int]]]] = {}
        self.stats: dict[str, float] = {}
        """Figures of the last batch: share of kept candidates, and share of groups with a text to show."""

    def begin(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Run stage 1 if the settings ask for it, then copy the weights, which `frozen` refers to."""
        if (learning := self.supervised.learning) is not None and isinstance(writer := self._writer, KeepOrSkip):
            most = learning.updates * learning.batch
            self.supervised.learn(mark_lessons(self._parts, writer.candidates, writer.ask, most=most), tell)
        self._first = _copy_weights(self.weights())

    async def report_accuracy(self) -> str:
        """Return in words how well stage 1 taught it which lessons to keep."""
        return await self.supervised.describe()

    # -- reading beside the rollouts ----------------------------------------------------------------

    def read(self, ahead: Sequence[tuple[str, int]], salt: str) -> None:
        """Start reading in the background: recorded episodes, or upcoming task instances."""
        self._beside = True
        if self.settings.reads == "rollouts":
            for trajectory_id in self._unread:
                self._reading.submit(trajectory_id, self._read_finished(trajectory_id, salt))
            self._unread = []
            return
        under_way = Counter(self._reading.under_way())
        for (task, seed), wanted in Counter(ahead).items():
            group = f"{task}#{seed}"
            for n in range(len(self._readings.get(group, ())) + under_way[group], wanted):
                self._reading.submit(group, self._read_world(task, seed, f"{salt}.{n}/{group}", greedy=False))

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """Collect the finished readings for display or for the library; queue recorded rollouts to be read."""
        waits = isinstance(self._parts.engine, LocalEngine) if self.settings.waits is None else self.settings.waits
        readings, problems = await self._reading.finished(wait=waits)
        counts = Counter({"read": len(readings), "problems": len(problems), "unread": len(self._reading.under_way())})
        if self._tries:
            self._proposals.judge(counts)
        for name, reading in readings:
            if reading.trajectory is not None and self.settings.reads == "rollouts":
                (self._proposals.offer if self._tries else self._proposals.apply)(reading, counts)
            else:
                self._readings.setdefault(name, []).append([_name_texts(written) for written in reading.written])
        if self.settings.reads == "rollouts":
            unread = spread(rollouts)[: self.settings.episodes]
            self._unread += [rollout.trajectory.id for rollout in unread]
            groups = {**self._groups, **{rollout.trajectory.id: rollout.group for rollout in unread}}
            self._groups = {name: groups[name] for name in (*self._reading.under_way(), *self._unread)}
        return dict(counts)

    async def _read_world(self, task: str, seed: int, salt: str, *, greedy: bool) -> Reading:
        """Read the earlier episode of a task instance."""
        trajectory = self._source(task, seed)
        if trajectory is None:
            return Reading(None, (), ())
        return Reading(trajectory, (), tuple(await self._writer.read(trajectory, salt=salt, greedy=greedy)))

    async def _read_finished(self, trajectory_id: str, salt: str) -> Reading:
        """Read a recorded episode together with the active items that it was shown."""
        library = self._parts.library
        trajectory = library.trajectory(trajectory_id)
        items = load_shown_items(trajectory, library)
        written = await self._writer.read(trajectory, items, salt=salt)
        seen_ids = tuple(item.id for item in items)
        return Reading(trajectory, seen_ids, tuple(written), self._groups.get(trajectory_id, ""))

    async def extract(self, trajectory: Trajectory, seen_ids: Sequence[str] = ()) -> list[Admission]:
        """Read a recorded episode now, and apply its operations to the library without a trial."""
        items = [self._parts.library.get(item) for item in seen_ids]
        written = await self._writer.read(trajectory, items, salt=trajectory.id)
        return self._proposals.apply(Reading(trajectory, tuple(seen_ids), tuple(written)), Counter())

    # -- trying ---------------------------------------------------------------------------------------

    @property
    def _tries(self) -> bool:
        """Whether candidates are tried before they are stored."""
        return self.settings.reads == "rollouts" and self.settings.trials > 0

    def assign_candidates(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the episodes, half of those of each task instance and arm with a candidate."""
        return self._proposals.assign(specs) if self._tries else specs

    def has_candidates(self) -> bool:
        """Return whether candidates wait for episodes in which they are tried."""
        return self._tries and len(self._proposals.trials) > 0

    def rate_instances(self, specs: Sequence[Spec]) -> Sequence[float]:
        """Return for each episode how much the waiting candidates have to do with its task instance."""
        return self._proposals.rate(specs)

    # -- showing ------------------------------------------------------------------------------------

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """Return the episodes with the kept texts of their task instances, dealt in turn.

        During a run this does not wait for readings: an instance without a finished reading shows nothing. With
        `frozen`, decoding is greedy: only the most probable item is shown, or nothing if it would be skipped.

        Raises:
            ConfigError: `frozen` is set and `begin` was not called.
        """
        if not frozen:
            return await self._prepare(specs, greedy=False)
        engine, version = self._parts.engine, self._parts.engine.versions()[self.name]
        if self._first is None:
            raise ConfigError("begin was not called: there is nothing to be frozen at.")
        # a copy: a local engine shares the model, so loading `_first` overwrites the trained parameters
        now = _copy_weights(self.weights())
        engine.load_adapter(self.name, 0, self._first)
        try:
            return await self._prepare(specs, greedy=True)
        finally:
            engine.load_adapter(self.name, version, now)

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the episodes with the most probable text of their task instances; store nothing."""
        return await self._prepare(specs, greedy=True)

    async def _prepare(self, specs: Sequence[Spec], *, greedy: bool) -> Sequence[Spec]:
        """Return the episodes with texts, sampled or greedy."""
        if self.settings.reads == "rollouts":  # these items reach the episodes through recall
            return specs
        first = {spec.group: spec for spec in specs}
        if greedy:
            read = await asyncio.gather(
                *(self._read_world(s.task, s.seed, f"{s.salt}/{s.group}", greedy=True) for s in first.values())
            )
            kept = {group: _select_surest(reading.written) for group, reading in zip(first, read, strict=True)}
        else:
            readings = dict(zip(first, await asyncio.gather(*map(self._take_reading, first.values())), strict=True))
            kept = {group: self._remember(group, written) for group, written in readings.items()}
            seen = sum(map(len, readings.values()))
            self.stats = {
                "kept": sum(map(len, kept.values())) / max(1, seen),
                "shown": fmean(map(bool, kept.values())) if kept else 0.0,
            }
        return await self._dealt(specs, kept, remembered=not greedy)

    async def _take_reading(self, spec: Spec) -> list[tuple[Sample, dict[str, str]]]:
        """Return the oldest background reading of a task instance; read now if there is no background."""
        if readings := self._readings.get(spec.group):
            first, *rest = readings
            if rest:
                self._readings[spec.group] = rest
            else:
                del self._readings[spec.group]
            return first
        if self._beside:
            return []
        reading = await self._read_world(spec.task, spec.seed, f"{spec.salt}/{spec.group}", greedy=False)
        return [_name_texts(written) for written in reading.written]

    async def _dealt(
        self, specs: Sequence[Spec], kept: Mapping[str, Sequence[tuple[str, str]]], *, remembered: bool
    ) -> list[Spec]:
        """Return the episodes with texts dealt in turn within each group, after the gate's judgement."""
        turns: Counter[str] = Counter()
        dealt: dict[Spec, tuple[str, str]] = {}
        for spec in specs:
            if texts := kept[spec.group]:
                dealt[spec] = texts[turns[spec.group] % len(texts)]
            turns[spec.group] += 1
        answers = await asyncio.gather(*(self._passed(spec, text) for spec, (_, text) in dealt.items()))
        passed = dict(zip(dealt, answers, strict=True))
        for spec, (item, text) in dealt.items() if remembered else ():
            if passed[spec] is not None:
                self._items_sent[spec.session], self._texts[item] = item, _gate_key(spec, text)
        return [replace(spec, memory=passed[spec]) if spec in passed else spec for spec in specs]

    async def _passed(self, spec: Spec, text: str) -> str | None:
        """Return the text that the gate allows for the initial situation of the task instance, or None."""
        if self._gate is None:
            return text
        walk = self._source(spec.task, spec.seed)
        first = walk.steps[0].pre if walk is not None and walk.steps else State("", task=spec.task)
        judged = await self._gate.ask(Context(first), text, item=_gate_key(spec, text))
        return judged.text or None

    def _remember(self, group: str, read: Sequence[tuple[Sample, dict[str, str]]]) -> list[tuple[str, str]]:
        """Return ids and texts of the kept items; the sequences are buffered once the group is collected."""
        texts: list[tuple[str, str]] = []
        for row, items in read:
            lengths = {item: self._length(text) for item, text in items.items()}
            self._pending.setdefault(group, []).append((row, lengths))
            texts += items.items()
        return texts

    def _length(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self._parts.prompts.text(text)) - 1  # without the end token

    # -- learning -----------------------------------------------------------------------------------

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Return whether the outcomes within a group differ."""
        return len({rollout.outcome for rollout in rollouts if rollout.outcome is not None}) > 1

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Credit the shown texts with the outcomes of their episodes and the control siblings.

        Episodes whose text was rejected by the gate count as control.
        """
        self._collected += 1
        self._proposals.collect(rollouts)
        uses = uses_of(rollouts, self._items_sent)
        used = {(group, item) for group, item, _ in uses}
        for group in {rollout.group: None for rollout in rollouts if not rollout.failed}:
            for row, items in self._pending.get(group, ()):
                if not items or any((group, item) in used for item in items):  # skip texts that no episode was given
                    self.buffer.wrote(row, items)
        for _, item, use in uses:
            self.buffer.used(item, use)
            if self._gate is not None and use.control and item in self._texts:
                self._gate.record_differences(self._texts[item], use.differences)
        # rerolled groups are never collected, so their sequences are dropped here
        self._items_sent, self._texts, self._pending = {}, {}, {}

    def ready(self) -> bool:
        """Return whether the warm-up is over and there are enough rewarded sequences."""
        return self._collected > self.settings.warmup and self.buffer.ready()

    def update(self) -> dict[str, float]:
        """Run one optimizer step on the rewarded sequences."""
        batch = self.buffer.take()
        metrics = self._learner.step(to_streams(batch, self._verdicts), self._parts.config.loss)
        rewards = [reward for _, reward, _ in batch]
        return {**metrics, **self.stats, "lr": self._learner.lr, "reward": fmean(rewards), "samples": len(batch)}

    def weights(self) -> Weights:
        """Return all parameters, or the adapter's parameters under peft's names."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer state, buffer, pending readings and the initial weights."""
        # unfinished readings are lost with the process, so a resumed run starts them again
        under_way = self._reading.under_way() if self.settings.reads == "rollouts" else []
        pending = {
            group: [[(asdict(row), items) for row, items in reading] for reading in readings]
            for group, readings in self._readings.items()
        }
        return {
            "weights": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "learner": self._learner.state_dict(),
            "buffer": self.buffer.state_dict(),
            "first": self._first,
            "unread": [*under_way, *self._unread],
            "groups": dict(self._groups),
            "trials": self._proposals.trials.state_dict(),
            "known": pending,
            "collected": self._collected,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])
        self.buffer.load_state_dict(state["buffer"])
        self._first = state["first"]
        self._unread, self._collected = list(state["unread"]), state["collected"]
        # absent in checkpoints from before candidates were tried
        self._groups = dict(state.get("groups", {}))
        self._proposals.trials.load_state_dict(state.get("trials", []))
        self._readings = {
            group: [[(row_of(row), dict(items)) for row, items in reading] for reading in readings]
            for group, readings in state["known"].items()
        }


def _gate_key(spec: Spec, text: str) -> str:
    """Return the gate's key of a text: its effect is recorded per task instance."""
    return f"{spec.group}: {text}"


def _name_texts(written: Written) -> tuple[Sample, dict[str, str]]:
    """Return a sequence's sample, and its texts by new ids."""
    return written.row, {f"{written.row.trace}#{n}": text_of(item) for n, item in enumerate(written.items)}


def _copy_weights(weights: Weights) -> dict[str, Any]:
    """Return a detached copy of some weights."""
    assert isinstance(weights, Mapping)
    return {name: value.detach().clone() for name, value in weights.items()}


def _select_surest(read: Sequence[Written]) -> list[tuple[str, str]]:
    """Return the item with the highest probability of being kept, if any would be kept."""
    kept = [written for written in read if written.items]
    if not kept:
        return []
    best = max(kept, key=lambda written: written.keeps)
    return [(best.row.trace, text_of(best.items[0]))]


def spread(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the usable rollouts, first one of each group, then a second of each, and so on."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        if not rollout.failed and rollout.trajectory.steps:
            groups.setdefault(rollout.group, []).append(rollout)
    return [rollout for rank in zip_longest(*groups.values()) for rollout in rank if rollout is not None]
