"""The extractor: the role that reads episodes and learns what is worth keeping of them (Complementary RL).

It reads either the exploring episode of a world, before that world's episodes, and what it keeps is
shown to those (`explored`); or finished episodes, with their outcome and the items they were shown,
and what it writes goes through the library's curator and is recalled from then on (`rollouts`). Either
way what it wrote is paid by `roles.item_reward`. Rollouts never wait for reading: it goes on beside them, and what
it found is taken over at the end of the iteration. It shows nothing by itself and admits nothing: the
loop shows, the library admits.
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
from hardwon.memory.records import Admission, Return, Update
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.algorithms.learner import Learner
from hardwon.trainers.algorithms.samples import Ids, Rollout, Sample
from hardwon.trainers.config.schema import parse
from hardwon.trainers.engines.base import Weights
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.gate import Gated
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.rollouts.rollout import Spec

from .async_reader import Background
from .base import Parts, load_weights, weights_of
from .item_reward import Buffer, Measure as Measure, row_of, to_streams, uses_of
from .note_generators import KeepOrSkip, Writer, Writes, Written, text_of


@dataclass(frozen=True, kw_only=True)
class ExtractorSettings:
    """What the extractor reads, how it is paid, and when it learns."""

    reads: Literal["explored", "rollouts"] = "explored"
    """explored: the exploring episode of a world that comes next, for arms whose guidance is `role`.
    rollouts: finished episodes, into the library, for arms whose guidance is `library`."""
    writes: Literal["choice", "text"] = "choice"
    """choice: it keeps or skips each way that an episode took, by one token. text: it says its own words."""
    episodes: int = 8
    """Finished episodes that are read an iteration, of as many worlds as there are."""
    max_tokens: int = 96
    """Of what it says of one episode, where it says its own words."""
    waits: bool | None = None
    """Whether the end of an iteration waits for what is still being read, so that a run can be repeated bit
    for bit; false leaves it for the next one. null waits where the engine is in this process."""
    warmup: int = 0
    """Iterations of credit before its first update; Complementary RL has 5."""
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
        for name in ("episodes", "max_tokens", "ready", "length", "capacity"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")


Source = Callable[[str, int], Trajectory | None]
"""What is known of a task and seed before its episodes: an episode to read, or nothing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was said of one episode, and of finished ones the ids of the items that they were shown."""

    trajectory: Trajectory | None
    shown: tuple[str, ...]
    written: tuple[Written, ...]


class ExtractorRole:
    """Reads episodes, beside the rollouts or before them, and learns from what that was worth."""

    def __init__(
        self,
        parts: Parts,
        source: Source | None = None,
        writer: Writer | None = None,
        *,
        gate: Gated | None = None,
        name: str = "extractor",
    ) -> None:
        """source: else the run's. writer: else what the settings say.

        gate: asked before each episode that is to be shown something; else the run's, if it has one.
        """
        self.name, self.model = name, parts.model
        self._parts, self._source, self._gate = parts, source or parts.source, gate or parts.gate
        self.settings = parse(ExtractorSettings, parts.config.settings, f"roles.{name}.settings")
        self._writer = writer or self._build_writer()
        paid = ("ready", "cooldown", "capacity", "measure", "cost", "length")
        self.buffer = Buffer(**{name: getattr(self.settings, name) for name in paid})
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)
        self._first: Weights | None = None
        self._collected = 0
        self._reading: Background[Reading] = Background()
        self._beside = False
        self._known: dict[str, list[list[tuple[Sample, dict[str, str]]]]] = {}
        self._unread: list[str] = []
        self._shown: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._pending: dict[str, list[tuple[Sample, dict[str, int]]]] = {}
        self.stats: dict[str, float] = {}
        """Of the last batch of episodes: share of candidates kept, of groups that were shown something."""

    def _build_writer(self) -> Writer:
        parts, settings = self._parts, self.settings
        if settings.writes == "text":
            return Writes(parts.engine, parts.transcript, role=self.name, max_tokens=settings.max_tokens)
        finished = settings.reads == "rollouts"
        return KeepOrSkip(parts.engine, parts.transcript, role=self.name, outcome=finished)

    def begin(self) -> None:
        """What it is now is what `frozen` means."""
        self._first = _copy_weights(self.weights())

    # -- reading beside the rollouts ----------------------------------------------------------------

    def read(self, ahead: Sequence[tuple[str, int]], salt: str) -> None:
        """Begin to read what waits to be read: finished episodes, or the worlds that come next."""
        self._beside = True
        if self.settings.reads == "rollouts":
            for trajectory_id in self._unread:
                self._reading.submit(trajectory_id, self._read_finished(trajectory_id, salt))
            self._unread = []
            return
        under_way = Counter(self._reading.under_way())
        for (task, seed), wanted in Counter(ahead).items():
            group = f"{task}#{seed}"
            for n in range(len(self._known.get(group, ())) + under_way[group], wanted):
                self._reading.submit(group, self._read_world(task, seed, f"{salt}.{n}/{group}", greedy=False))

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """Take over what was read by now: to be shown, or into the library. `rollouts`, recorded, are read next."""
        waits = isinstance(self._parts.engine, LocalEngine) if self.settings.waits is None else self.settings.waits
        found, problems = await self._reading.finished(wait=waits)
        told = Counter({"read": len(found), "problems": len(problems), "unread": len(self._reading.under_way())})
        for name, reading in found:
            if reading.trajectory is not None and self.settings.reads == "rollouts":
                self._admit(reading, told)
            else:
                self._known.setdefault(name, []).append([_name_texts(written) for written in reading.written])
        if self.settings.reads == "rollouts":
            self._unread += [rollout.trajectory.id for rollout in spread(rollouts)[: self.settings.episodes]]
        return dict(told)

    async def _read_world(self, task: str, seed: int, salt: str, *, greedy: bool) -> Reading:
        trajectory = self._source(task, seed)
        if trajectory is None:
            return Reading(None, (), ())
        return Reading(trajectory, (), tuple(await self._writer.read(trajectory, salt=salt, greedy=greedy)))

    async def _read_finished(self, trajectory_id: str, salt: str) -> Reading:
        library = self._parts.library
        trajectory = library.trajectory(trajectory_id)
        recalled = dict.fromkeys(item for step in trajectory.steps for item in step.why.get("recalled", ()))
        items = [item for item in map(library.get, recalled) if item.status == "active"]
        written = await self._writer.read(trajectory, items, salt=salt)
        return Reading(trajectory, tuple(item.id for item in items), tuple(written))

    def _admit(self, reading: Reading, told: "Counter[str]") -> list[Admission]:
        """Have the library carry out what was asked; what came of it is buffered with who wrote it."""
        library, trajectory = self._parts.library, reading.trajectory
        assert trajectory is not None
        admissions: list[Admission] = []
        for written in reading.written:
            answers = library.apply(written.operations, trajectory, reading.shown)
            asked = [one for one in written.operations if not isinstance(one, Return)]
            made, rewritten = list[str](), list[str]()
            for one, answer in zip(asked, answers, strict=True):
                told[answer.status] += 1
                if answer.item_id and answer.status in ("added", "replaced"):
                    made.append(answer.item_id)
                elif answer.item_id and isinstance(one, Update) and answer.status == "merged":
                    rewritten.append(answer.item_id)
            told["returned"] += not asked
            if made or rewritten or not asked:  # what the library refused is no failure of who wrote it
                items = {item: self._length(text_of(library.get(item))) for item in (*made, *rewritten)}
                self.buffer.wrote(written.row, items, rewritten)
            admissions += answers
        return admissions

    async def extract(self, trajectory: Trajectory, shown: Sequence[str] = ()) -> list[Admission]:
        """Read a recorded episode now and have the library carry out what is asked."""
        items = [self._parts.library.get(item) for item in shown]
        written = await self._writer.read(trajectory, items, salt=trajectory.id)
        return self._admit(Reading(trajectory, tuple(shown), tuple(written)), Counter())

    # -- showing ------------------------------------------------------------------------------------

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """The episodes with what is to be shown: every item that was kept of their world, dealt in turn.

        In a run nothing is waited for: a world that was not read in time is shown nothing. Greedy where
        `frozen`: the surest item alone, or nothing when it would be skipped.
        """
        if not frozen:
            return await self._prepare(specs, greedy=False)
        engine, version = self._parts.engine, self._parts.engine.versions()[self.name]
        if self._first is None:
            raise ConfigError("begin was not called: there is nothing to be frozen at.")
        now = _copy_weights(self.weights())
        engine.load_adapter(self.name, 0, self._first)
        try:
            return await self._prepare(specs, greedy=True)
        finally:
            engine.load_adapter(self.name, version, now)

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """For evaluation: the surest item of each world, or nothing; not remembered."""
        return await self._prepare(specs, greedy=True)

    async def _prepare(self, specs: Sequence[Spec], *, greedy: bool) -> Sequence[Spec]:
        if self.settings.reads == "rollouts":  # what it keeps is recalled by the library
            return specs
        first = {spec.group: spec for spec in specs}
        if greedy:
            read = await asyncio.gather(
                *(self._read_world(s.task, s.seed, f"{s.salt}/{s.group}", greedy=True) for s in first.values())
            )
            kept = {group: _select_surest(reading.written) for group, reading in zip(first, read, strict=True)}
        else:
            said = dict(zip(first, await asyncio.gather(*map(self._known_of, first.values())), strict=True))
            kept = {group: self._remember(group, written) for group, written in said.items()}
            seen = sum(map(len, said.values()))
            self.stats = {
                "kept": sum(map(len, kept.values())) / max(1, seen),
                "shown": fmean(map(bool, kept.values())) if kept else 0.0,
            }
        return await self._dealt(specs, kept, remembered=not greedy)

    async def _known_of(self, spec: Spec) -> list[tuple[Sample, dict[str, str]]]:
        """What was said of a world, read beside the last rollouts; read now where nothing goes on beside."""
        if known := self._known.get(spec.group):
            first, *rest = known
            if rest:
                self._known[spec.group] = rest
            else:
                del self._known[spec.group]
            return first
        if self._beside:
            return []
        reading = await self._read_world(spec.task, spec.seed, f"{spec.salt}/{spec.group}", greedy=False)
        return [_name_texts(written) for written in reading.written]

    async def _dealt(
        self, specs: Sequence[Spec], kept: Mapping[str, Sequence[tuple[str, str]]], *, remembered: bool
    ) -> list[Spec]:
        turns: Counter[str] = Counter()
        dealt: dict[Spec, tuple[str, str]] = {}
        for spec in specs:
            if texts := kept[spec.group]:
                dealt[spec] = texts[turns[spec.group] % len(texts)]
            turns[spec.group] += 1
        asked = await asyncio.gather(*(self._passed(spec, text) for spec, (_, text) in dealt.items()))
        passed = dict(zip(dealt, asked, strict=True))
        for spec, (item, text) in dealt.items() if remembered else ():
            if passed[spec] is not None:
                self._shown[spec.session], self._texts[item] = item, _gate_key(spec, text)
        return [replace(spec, memory=passed[spec]) if spec in passed else spec for spec in specs]

    async def _passed(self, spec: Spec, text: str) -> str | None:
        """What the gate lets be shown of a text, in the situation in which the world's earlier episode began."""
        if self._gate is None:
            return text
        walk = self._source(spec.task, spec.seed)
        first = walk.steps[0].pre if walk is not None and walk.steps else State("", task=spec.task)
        judged = await self._gate.ask(Context(first), text, item=_gate_key(spec, text))
        return judged.text or None

    def _remember(self, group: str, read: Sequence[tuple[Sample, dict[str, str]]]) -> list[tuple[str, str]]:
        """Ids and texts of what was kept. Who wrote them is buffered once its group is collected, and only then."""
        texts: list[tuple[str, str]] = []
        for row, items in read:
            lengths = {item: self._length(text) for item, text in items.items()}
            self._pending.setdefault(group, []).append((row, lengths))
            texts += items.items()
        return texts

    def _length(self, text: str) -> int:
        ids: Ids = tuple(self._parts.transcript.tokenizer(text, add_special_tokens=False).input_ids)
        return len(ids)

    # -- learning -----------------------------------------------------------------------------------

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether the episodes of a group ended differently: else nothing made a difference."""
        return len({rollout.trajectory.success for rollout in rollouts if not rollout.failed}) > 1

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Credit what was shown with how its episodes ended, beside their siblings that were shown nothing.

        An episode whose gate refused what it was to be shown is one of those.
        """
        self._collected += 1
        uses = uses_of(rollouts, self._shown)
        used = {(group, item) for group, item, _ in uses}
        for group in {rollout.group: None for rollout in rollouts if not rollout.failed}:
            for row, items in self._pending.get(group, ()):
                if not items or any((group, item) in used for item in items):  # what nobody was dealt is never used
                    self.buffer.wrote(row, items)
        for _, item, use in uses:
            self.buffer.used(item, use)
            if self._gate is not None and use.control and item in self._texts:
                self._gate.record_differences(self._texts[item], use.differences)
        self._shown, self._texts, self._pending = {}, {}, {}

    def ready(self) -> bool:
        """Whether there is enough for an update."""
        return self._collected > self.settings.warmup and self.buffer.ready()

    def update(self) -> dict[str, float]:
        """One step on what is rewarded."""
        batch = self.buffer.take()
        metrics = self._learner.step(to_streams(batch), self._parts.config.loss)
        rewards = [reward for _, reward, _ in batch]
        return {**metrics, **self.stats, "lr": self._learner.lr, "reward": fmean(rewards), "samples": len(batch)}

    def weights(self) -> Weights:
        """All parameters, or the adapter's as peft names them."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, buffer, what waits to be read or shown, and what it was when training began."""
        under_way = self._reading.under_way() if self.settings.reads == "rollouts" else []
        known = {
            group: [[(asdict(row), items) for row, items in reading] for reading in readings]
            for group, readings in self._known.items()
        }
        return {
            "weights": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "learner": self._learner.state_dict(),
            "buffer": self.buffer.state_dict(),
            "first": self._first,
            "unread": [*under_way, *self._unread],
            "known": known,
            "collected": self._collected,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])
        self.buffer.load_state_dict(state["buffer"])
        self._first = state["first"]
        self._unread, self._collected = list(state["unread"]), state["collected"]
        self._known = {
            group: [[(row_of(row), dict(items)) for row, items in reading] for reading in readings]
            for group, readings in state["known"].items()
        }


def _gate_key(spec: Spec, text: str) -> str:
    """What a gate knows a text by: it may help in one world and mislead in another."""
    return f"{spec.group}: {text}"


def _name_texts(written: Written) -> tuple[Sample, dict[str, str]]:
    """A sequence, and the texts that it wrote under ids of their own."""
    return written.row, {f"{written.row.trace}#{n}": text_of(item) for n, item in enumerate(written.items)}


def _copy_weights(weights: Weights) -> dict[str, Any]:
    assert isinstance(weights, Mapping)
    return {name: value.detach().clone() for name, value in weights.items()}


def _select_surest(read: Sequence[Written]) -> list[tuple[str, str]]:
    """The item most probably kept, if it is rather kept than not."""
    kept = [written for written in read if written.items]
    if not kept:
        return []
    best = max(kept, key=lambda written: written.keeps)
    return [(best.row.trace, text_of(best.items[0]))]


def spread(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Those that count, one of each group first, then a second of each."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        if not rollout.failed and rollout.trajectory.steps:
            groups.setdefault(rollout.group, []).append(rollout)
    return [rollout for rank in zip_longest(*groups.values()) for rollout in rank if rollout is not None]
