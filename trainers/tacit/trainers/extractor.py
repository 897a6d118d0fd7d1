"""The extractor: the role that reads episodes and learns what is worth keeping of them (Complementary RL).

What it wrote is shown to some episodes of a group and not to others. An item is worth the difference,
shrunk while it is seldom used, less a cost for its length; to keep nothing is worth 0. That reward
reaches the one sequence that wrote the item and no other. Rollouts never wait for reading: what is
slow reads in the background, and what it found is used when it is there.

It shows nothing by itself and stores nothing: the loop shows, the library admits.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from tacit.memory import Item, Trajectory
from tacit.memory.errors import ConfigError
from tacit.memory.extraction import Extractor
from tacit.memory.records import Admission, Operation

from .adapters import parameters_of
from .config import parse
from .engine import Weights
from .gate import Gated
from .optim import Learner
from .roles import Parts, load_weights, weights_of
from .rollout import Spec
from .rows import Ids, Rollout, Row, Stream, streams
from .writers import KeepOrSkip, Writer, Written, text_of

SHRINK = 2.0
"""An item used n times counts n / (n + SHRINK) of what it seems to be worth."""

Measure = Literal["difference", "sign", "outcome"]
"""What an item's use is worth: R with it less R without; the sign of that; or R with it alone, 0 as -1."""


# -- what an item is worth ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """The episodes of one group that consumed an item, and those that were shown nothing: their outcomes."""

    shown: tuple[float, ...]
    control: tuple[float, ...]


def worth(
    uses: Iterable[Use],
    *,
    tokens: int = 0,
    measure: Measure = "difference",
    cost: float = 0.05,
    length: int = 128,
) -> float | None:
    """Reward of the sequence that wrote an item; None while nothing can be said.

        r(e) = clip(mean over consuming episodes of [R - mean of the control siblings], -1, 1) n / (n + SHRINK)
               - cost tokens / length

    Groups without both kinds of episodes say nothing, but to the measure `outcome`, which compares
    with nothing. That one and `sign` are what others do, for comparison: they pay for what is of no use.
    """
    said = [use for use in uses if use.shown and (use.control or measure == "outcome")]
    n = sum(len(use.shown) for use in said)
    if not n:
        return None
    value = sum(_value(use, measure) * len(use.shown) for use in said) / n
    return max(-1.0, min(1.0, value)) * n / (n + SHRINK) - cost * tokens / length


def _value(use: Use, measure: Measure) -> float:
    if measure == "outcome":
        return fmean(2.0 * outcome - 1.0 for outcome in use.shown)
    difference = fmean(use.shown) - fmean(use.control)
    return difference if measure == "difference" else float((difference > 0) - (difference < 0))


def of_group(outcomes: Mapping[str | None, Sequence[float]]) -> dict[str, Use]:
    """By item, its use in one group, from the outcomes by what was shown; None was shown nothing."""
    control = tuple(outcomes.get(None, ()))
    return {item: Use(tuple(shown), control) for item, shown in outcomes.items() if item is not None}


# -- what is known of what it wrote ---------------------------------------------------------------


@dataclass(slots=True)
class Sample:
    """A sequence, the items that it wrote, and how they were used since it was last trained on."""

    row: Row
    items: dict[str, int] = field(default_factory=dict)
    """By id, tokens of the item's text. A sequence that returned has none."""
    uses: dict[str, list[Use]] = field(default_factory=dict)
    trained: int = 0
    """Updates that it was in."""
    rests: int = 0
    """Update from which it may be trained on again."""

    def reward(self, **settings: Any) -> float | None:
        """Mean over the items that were used; 0 for having kept nothing, None while none was used."""
        if not self.items:
            return 0.0
        found = [worth(self.uses.get(item, ()), tokens=tokens, **settings) for item, tokens in self.items.items()]
        known = [value for value in found if value is not None]
        return fmean(known) if known else None


class Buffer:
    """Sequences waiting to be trained on, keyed by who wrote them: credit reaches no other."""

    def __init__(
        self,
        *,
        ready: int = 64,
        cooldown: int = 1,
        capacity: int = 4096,
        measure: Measure = "difference",
        cost: float = 0.05,
        length: int = 128,
    ) -> None:
        """ready: rewarded sequences, each with items of its own, that make an update.

        cooldown: updates for which a sequence rests once it was trained on. capacity: sequences kept;
        the oldest go.
        """
        self._ready, self._cooldown, self._capacity = ready, cooldown, capacity
        self._settings = {"measure": measure, "cost": cost, "length": length}
        self._samples: dict[str, Sample] = {}
        self._writer: dict[str, str] = {}
        self.updates = 0
        """Batches taken so far."""

    def __len__(self) -> int:
        return len(self._samples)

    def wrote(self, row: Row, items: Mapping[str, int]) -> None:
        """A sequence wrote these items, by id with their tokens; none where it returned.

        An item that another sequence wrote before stays that one's.
        """
        mine = {item: tokens for item, tokens in items.items() if item not in self._writer}
        if items and not mine:
            return
        self._samples[row.trace] = Sample(row, mine)
        self._writer.update(dict.fromkeys(mine, row.trace))
        while len(self._samples) > self._capacity:
            self._forget(next(iter(self._samples)))

    def used(self, item: str, use: Use) -> None:
        """An item was used; one whose writer is not known, or forgotten, is passed over."""
        if sequence := self._writer.get(item):
            self._samples[sequence].uses.setdefault(item, []).append(use)

    def ready(self) -> bool:
        """Whether there is enough for an update."""
        return len(self._rewarded()) >= self._ready

    def take(self) -> list[tuple[Sample, float, float]]:
        """What is to be trained on: sample, reward, advantage.

        The advantage is the reward less the batch's mean, times (1 + times trained)^-1/2. What was
        taken rests, and what it is credited with begins anew; who returned is done.
        """
        found = self._rewarded()
        self.updates += 1
        mean = fmean(reward for _, reward in found) if found else 0.0
        batch = []
        for sample, reward in found:
            batch.append((replace(sample), reward, (reward - mean) * (1 + sample.trained) ** -0.5))
            sample.trained += 1
            sample.rests = self.updates + self._cooldown
            sample.uses = {}
            if not sample.items:
                self._forget(sample.row.trace)
        return batch

    def _rewarded(self) -> list[tuple[Sample, float]]:
        rested = (sample for sample in self._samples.values() if sample.rests <= self.updates)
        rewards = ((sample, sample.reward(**self._settings)) for sample in rested)
        return [(sample, reward) for sample, reward in rewards if reward is not None]

    def _forget(self, sequence: str) -> None:
        for item in self._samples.pop(sequence).items:
            self._writer.pop(item, None)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values."""
        return {"updates": self.updates, "samples": [asdict(sample) for sample in self._samples.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.updates = int(state["updates"])
        self._samples, self._writer = {}, {}
        for saved in state["samples"]:
            uses = {item: [_use(use) for use in each] for item, each in saved["uses"].items()}
            sample = Sample(_row(saved["row"]), dict(saved["items"]), uses, saved["trained"], saved["rests"])
            self._samples[sample.row.trace] = sample
            self._writer.update(dict.fromkeys(sample.items, sample.row.trace))


def _use(saved: Mapping[str, Any]) -> Use:
    return Use(tuple(saved["shown"]), tuple(saved["control"]))


def _row(saved: Mapping[str, Any]) -> Row:
    """A row of plain values; checkpoints make lists of tuples."""
    allowed = tuple(None if each is None else tuple(each) for each in saved["allowed"])
    flat = {name: tuple(saved[name]) for name in ("prompt", "completion", "logprobs", "mask")}
    return Row(**{**saved, **flat, "allowed": allowed})


def to_streams(batch: Sequence[tuple[Sample, float, float]]) -> list[Stream]:
    """The sequences with their advantages, as a learner reads them."""
    return streams((sample.row for sample, _, _ in batch), {s.row.trace: [advantage] for s, _, advantage in batch})


# -- reading in the background --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """What an extractor said of an episode, or why it said nothing."""

    trajectory: Trajectory
    shown: tuple[Item, ...]
    operations: tuple[Operation, ...] = ()
    problem: str = ""


class Background:
    """Lets an extractor read in a thread; nobody waits for it.

    What waits is bounded: beyond `waiting` episodes the oldest unread one is dropped and counted.
    """

    def __init__(self, extractor: Extractor, *, waiting: int = 64) -> None:
        self._extractor, self._most = extractor, waiting
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="extractor")
        self._running: list[Future[Reading]] = []
        self.dropped = 0
        """Episodes that were never read."""

    def submit(self, trajectory: Trajectory, shown: Sequence[Item] = ()) -> None:
        """Have an episode read, some time."""
        self._running.append(self._threads.submit(self._read, trajectory, tuple(shown)))
        waiting = [future for future in self._running if not future.done()]
        if len(waiting) > self._most and any(future.cancel() for future in waiting):
            self.dropped += 1

    def finished(self) -> list[Reading]:
        """What was read since the last time, in the order of asking."""
        done = [future for future in self._running if future.done()]
        self._running = [future for future in self._running if not future.done()]
        return [future.result() for future in done if not future.cancelled()]

    def wait(self) -> list[Reading]:
        """All that is still to be read: at the end of a run."""
        for future in self._running:
            if not future.cancelled():
                future.result()
        return self.finished()

    def close(self) -> None:
        """Read nothing more."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _read(self, trajectory: Trajectory, shown: tuple[Item, ...]) -> Reading:
        try:
            return Reading(trajectory, shown, tuple(self._extractor.extract(trajectory, shown)))
        except Exception as error:  # an extractor that fails costs its item, never the run
            return Reading(trajectory, shown, problem=f"{type(error).__name__}: {error}")


# -- the role -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExtractorSettings:
    """How the extractor is paid, and when it learns."""

    ready: int = 64
    """Rewarded sequences that make an update."""
    cooldown: int = 1
    """Updates for which a sequence rests once it was trained on."""
    measure: Measure = "difference"
    """difference, sign or outcome; the last two are for comparison."""
    cost: float = 0.05
    """What a text of `length` tokens costs, in units of success."""
    length: int = 128
    """Tokens that cost so much."""
    capacity: int = 4096
    """Sequences kept."""

    def __post_init__(self) -> None:
        for name in ("ready", "length", "capacity"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")


Source = Callable[[str, int], Trajectory | None]
"""What is known of a task and seed before its episodes: an episode to read, or nothing."""


class ExtractorRole:
    """Reads what is known of a world, shows what it keeps of it, and learns from what that was worth."""

    def __init__(
        self,
        parts: Parts,
        source: Source | None = None,
        writer: Writer | None = None,
        *,
        gate: Gated | None = None,
        name: str = "extractor",
    ) -> None:
        """source: else the run's. writer: else a token each way.

        gate: asked before each episode that is to be shown something; else all is shown.
        """
        self.name, self.model = name, parts.model
        self._parts, self._source, self._gate = parts, source or parts.source, gate
        self._writer = writer or KeepOrSkip(parts.engine, parts.transcript, role=name)
        self.settings = parse(ExtractorSettings, parts.config.settings, f"roles.{name}.settings")
        self.buffer = Buffer(**asdict(self.settings))
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)
        self._shown: dict[str, str] = {}
        self._pending: dict[str, list[tuple[Row, dict[str, int]]]] = {}
        self._first: Weights | None = None
        self.told: dict[str, float] = {}
        """Of the last batch of episodes: share of candidates kept, of groups that were shown something."""

    def begin(self) -> None:
        """What it is now is what `frozen` means."""
        self._first = _copied(self.weights())

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """The episodes with what is to be shown: every item that was kept of their world, dealt in turn.

        Greedy where `frozen`: the surest item alone, or nothing when it would be skipped.
        """
        if not frozen:
            return await self._prepare(specs, greedy=False)
        engine, version = self._parts.engine, self._parts.engine.versions()[self.name]
        if self._first is None:
            raise ConfigError("begin was not called: there is nothing to be frozen at.")
        now = _copied(self.weights())
        engine.load_adapter(self.name, 0, self._first)
        try:
            return await self._prepare(specs, greedy=True)
        finally:
            engine.load_adapter(self.name, version, now)

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """For evaluation: the surest item of each world, or nothing; not remembered."""
        return await self._prepare(specs, greedy=True)

    async def _prepare(self, specs: Sequence[Spec], *, greedy: bool) -> list[Spec]:
        first = {spec.group: spec for spec in specs}
        read = dict(
            zip(first, await asyncio.gather(*(self._read(spec, greedy) for spec in first.values())), strict=True)
        )
        kept = {
            group: _surest(written) if greedy else self._remember(group, written) for group, written in read.items()
        }
        seen, shown = sum(map(len, read.values())), sum(map(len, kept.values()))
        self.told = {"kept": shown / max(1, seen), "shown": fmean(map(bool, kept.values())) if kept else 0.0}
        dealt: dict[str, int] = {}
        made = []
        for spec in specs:
            turn = dealt[spec.group] = dealt.get(spec.group, -1) + 1
            if texts := kept[spec.group]:
                item, text = texts[turn % len(texts)]
                passed = text if self._gate is None else self._gate.passed(spec.task, text, item=item)
                if not greedy and passed is not None:
                    self._shown[spec.session] = item
                spec = replace(spec, memory=passed)
            made.append(spec)
        return made

    async def _read(self, spec: Spec, greedy: bool) -> list[Written]:
        trajectory = self._source(spec.task, spec.seed)
        if trajectory is None:
            return []
        return await self._writer.read(trajectory, salt=f"{spec.salt}/{spec.group}", greedy=greedy)

    def _remember(self, group: str, read: Sequence[Written]) -> list[tuple[str, str]]:
        """Ids and texts of what was kept. Who wrote them is buffered once its group is collected, and only then."""
        texts: list[tuple[str, str]] = []
        for written in read:
            items = {f"{written.row.trace}#{n}": text_of(item) for n, item in enumerate(written.items)}
            lengths = {item: self._length(text) for item, text in items.items()}
            self._pending.setdefault(group, []).append((written.row, lengths))
            texts += items.items()
        return texts

    def _length(self, text: str) -> int:
        ids: Ids = tuple(self._parts.transcript.tokenizer(text, add_special_tokens=False).input_ids)
        return len(ids)

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether the episodes of a group ended differently: else nothing made a difference."""
        return len({rollout.trajectory.success for rollout in rollouts if not rollout.failed}) > 1

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Credit what was shown with how its episodes ended, beside their siblings that were shown nothing.

        An episode whose gate refused what it was to be shown is one of those.
        """
        groups: dict[str, dict[str | None, list[float]]] = {}
        for rollout in rollouts:
            trajectory = rollout.trajectory
            if rollout.failed or trajectory.success is None:
                continue
            for item in consumed(trajectory, self._shown):
                ended = groups.setdefault(rollout.group, {})
                ended.setdefault(item, []).append(float(trajectory.success))
        for group, outcomes in groups.items():
            uses = of_group(outcomes)
            for row, items in self._pending.get(group, ()):
                if not items or any(item in uses for item in items):  # what nobody was dealt is never used
                    self.buffer.wrote(row, items)
            for item, use in uses.items():
                self.buffer.used(item, use)
        self._shown, self._pending = {}, {}

    async def extract(self, trajectory: Trajectory, shown: Sequence[str] = ()) -> list[Admission]:
        """Read a recorded episode and have the library carry out what is asked; for items that are recalled later."""
        library = self._parts.library
        items = [library.get(item) for item in shown]
        admissions: list[Admission] = []
        for written in await self._writer.read(trajectory, items, salt=trajectory.id):
            answers = library.apply(written.operations, trajectory, shown)
            made = [answer.item_id for answer in answers if answer.status in ("added", "replaced") and answer.item_id]
            if made or not written.items:  # what the library refused is no failure of who wrote it
                self.buffer.wrote(written.row, {item: self._length(text_of(library.get(item))) for item in made})
            admissions += answers
        return admissions

    def ready(self) -> bool:
        """Whether there is enough for an update."""
        return self.buffer.ready()

    def update(self) -> dict[str, float]:
        """One step on what is rewarded."""
        batch = self.buffer.take()
        metrics = self._learner.step(to_streams(batch), self._parts.config.loss)
        rewards = [reward for _, reward, _ in batch]
        return {**metrics, **self.told, "lr": self._learner.lr, "reward": fmean(rewards), "samples": len(batch)}

    def weights(self) -> Weights:
        """All parameters, or the adapter's as peft names them."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, buffer, and what it was when training began."""
        return {
            "weights": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "learner": self._learner.state_dict(),
            "buffer": self.buffer.state_dict(),
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])
        self.buffer.load_state_dict(state["buffer"])
        self._first = state["first"]


def _copied(weights: Weights) -> dict[str, Any]:
    assert isinstance(weights, Mapping)
    return {name: value.detach().clone() for name, value in weights.items()}


def _surest(read: Sequence[Written]) -> list[tuple[str, str]]:
    """The item most probably kept, if it is rather kept than not."""
    kept = [written for written in read if written.items]
    if not kept:
        return []
    best = max(kept, key=lambda written: written.keeps)
    return [(best.row.trace, text_of(best.items[0]))]


def consumed(trajectory: Trajectory, shown: Mapping[str, str]) -> list[str | None]:
    """Ids of what an episode was shown; None alone for nothing."""
    items: list[str | None] = [shown[trajectory.id]] if trajectory.id in shown else []
    for step in trajectory.steps:
        items += step.why.get("recalled", ())
    return list(dict.fromkeys(items)) or [None]
