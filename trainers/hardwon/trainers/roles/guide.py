"""The guide: the role that says, before an episode, a hint or nothing, and learns when a hint is worth it (Mem-π).

It reads the situation and what was recalled for it, decides by one token whether to speak, and then says
a text of its own or one of those on offer. Stage 1 imitates guidance that past experience bears out; stage 2
plays structured groups, in which every episode of its arms is made to speak and those of the control arm
are the branch that abstained, and is paid by `guide_credit`. Whoever acts is not trained by it.

It recalls nothing by itself: what it may look at is given. `guided` serves it in the runtime's loop.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from hardwon.memory import Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.trainers.algorithms.imitation import Report, WarmStart, warm_start
from hardwon.trainers.algorithms.learner import Learner, freeze_copy
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, Sample, pack_samples
from hardwon.trainers.config.schema import CONTROL, parse
from hardwon.trainers.engines.base import Weights
from hardwon.trainers.models.adapters import activate, has_adapters, parameters_of
from hardwon.trainers.rollouts.rollout import Spec

from .base import Parts, load_weights, weights_of
from .guide_credit import LEAST, Branch, GuideCredit, guide_credit
from .guide_speech import GuideQuery, GuideReply, Speaker
from .item_reward import row_of
from .note_generators import format_path

Source = Callable[[Spec], GuideQuery | None]
"""What the guide may look at before an episode; None where there is nothing to say anything of."""
Lesson = tuple[GuideQuery, str]
"""A situation with what was recalled for it, and the guidance that experience bears out."""


@dataclass(frozen=True, kw_only=True)
class GuideSettings:
    """How the guide is taught and paid."""

    cost: float = 0.05
    """What a text of `length` tokens costs, in units of success."""
    length: int = 128
    """Tokens that cost so much, and the most that it says."""
    ready: int = 8
    """Groups that make an update."""
    free: bool = False
    """Say any words; else one of the texts on offer."""
    distil: int = 100
    """Updates of stage 1, where there are lessons; 0 for none."""
    distil_lr: float = 1e-3
    """Its learning rate at its highest."""

    def __post_init__(self) -> None:
        for name in ("length", "ready"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")
        if self.distil < 0:
            raise ConfigError(f"distil is {self.distil}; use 0 for no stage 1, or more.")


class GuideRole:
    """Says what is shown before an episode, or nothing; see the module's docstring."""

    def __init__(
        self,
        parts: Parts,
        source: Source | None = None,
        lessons: Callable[[], Iterable[Lesson]] | None = None,
        *,
        name: str = "guide",
    ) -> None:
        """source and lessons: else of the episodes that the run explored."""
        self.name, self.model = name, parts.model
        self._parts = parts
        self._source = source or (lambda spec: explored(spec, parts))
        self._lessons = lessons or (lambda: build_lessons(parts.episodes()))
        self.settings = parse(GuideSettings, parts.config.settings, f"roles.{name}.settings")
        self.speaker = Speaker(
            parts.engine, parts.transcript, role=name, free=self.settings.free, most=self.settings.length
        )
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)
        self._first: Weights | None = None
        self._said: dict[str, GuideReply] = {}
        self._groups: list[tuple[list[Sample], dict[str, list[float]]]] = []
        self.stats: dict[str, float] = {}
        """Of the last collection: probability of speaking, advantage of the decision, groups left out."""

    # -- stage 1 --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Stage 1, if there are lessons; what it is then is what it is kept near, and what `frozen` means."""
        if self.settings.distil and (lessons := list(self._lessons())):
            self.distil(lessons)
        self._first = _copy_weights(self.weights())
        if self._parts.config.loss.kl:
            self._learner.reference = _copy_reference(self.model, self.name)

    def distil(self, lessons: Sequence[Lesson]) -> Report:
        """Imitate the guidance of the lessons: what to say, not whether to; that is left to the outcomes."""
        rows = [self.speaker.lesson(asked, text, f"lesson/{n}") for n, (asked, text) in enumerate(lessons)]
        examples = pack_samples(rows, {row.trace: [1.0] for row in rows})
        learning = WarmStart(updates=self.settings.distil, lr=self.settings.distil_lr, seed=self._parts.seed)
        return warm_start(self.model, examples, learning, role=self.name if has_adapters(self.model) else "")

    # -- stage 2 --------------------------------------------------------------------------------------

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """The episodes with a text each: all of them speak, for the control arm is the branch that abstains.

        Where `frozen`, what it would have said, or not, when training began.
        """
        if not frozen:
            said = await self._say(specs, speaks=True)
            self._said.update({name: one for name, one in said.items() if one.text})
            return _fill_specs(specs, said)
        engine, version = self._parts.engine, self._parts.engine.versions()[self.name]
        if self._first is None:
            raise ConfigError("begin was not called: there is nothing to be frozen at.")
        now = _copy_weights(self.weights())
        engine.load_adapter(self.name, 0, self._first)
        try:
            return await self.choose(specs)
        finally:
            engine.load_adapter(self.name, version, now)

    async def choose(self, specs: Sequence[Spec], *, speaks: bool | None = None) -> Sequence[Spec]:
        """Greedy: a hint, or nothing; not remembered. `speaks` makes it speak, or be silent, all the same."""
        return _fill_specs(specs, await self._say(specs, speaks=speaks, greedy=True))

    async def ask(self, specs: Sequence[Spec], *, speaks: bool | None = None) -> dict[str, GuideReply]:
        """What it says to each episode, greedily, with what it cost; by session."""
        return await self._say(specs, speaks=speaks, greedy=True)

    async def _say(self, specs: Sequence[Spec], *, speaks: bool | None, greedy: bool = False) -> dict[str, GuideReply]:
        """What is said to each episode; those that look at the same are decided on once, by the first one's chance."""
        asked = {spec.session: found for spec in specs if (found := self._source(spec)) is not None}
        firsts = {self.speaker.prompt(one): name for name, one in reversed(asked.items())}
        chosen = await asyncio.gather(
            *(self.speaker.decide(asked[name], name, greedy=greedy) for name in firsts.values())
        )
        decided = dict(zip(firsts, chosen, strict=True))
        made = await asyncio.gather(
            *(
                self.speaker.complete(decided[self.speaker.prompt(one)], one, name, speaks=speaks, greedy=greedy)
                for name, one in asked.items()
            )
        )
        return dict(zip(asked, made, strict=True))

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether its group was played as it must be, and its episodes ended differently."""
        return (
            self._credit(rollouts) is not None
            and len({one.trajectory.success for one in _select_counted(rollouts)}) > 1
        )

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """The groups with their advantages; a group without both kinds of branches says nothing."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout.group, []).append(rollout)
        found = [credited for group in groups.values() if (credited := self._credit(group)) is not None]
        for said, credit in found:
            self._groups.append(rows_of(said, credit))
        self._said = {}
        self.stats = {
            "groups_left_out": float(len(groups) - len(found)),
            "generates": fmean(one.p_speaks for said, _ in found for one in said) if found else 0.0,
            "decision": fmean(credit.decision for _, credit in found) if found else 0.0,
            "reward": fmean(credit.reward for _, credit in found) if found else 0.0,
        }

    def _credit(self, rollouts: Sequence[Rollout]) -> tuple[list[GuideReply], GuideCredit] | None:
        """What was said in a group and its advantages: one branch that abstained, two or more that spoke."""
        counted = _select_counted(rollouts)
        silent = tuple(_outcome(one) for one in counted if one.trajectory.arm == CONTROL)
        spoken = [(self._said[one.trajectory.id], _outcome(one)) for one in counted if one.trajectory.id in self._said]
        if not silent or len(spoken) < LEAST:
            return None
        branches = [Branch((outcome,), said.tokens) for said, outcome in spoken]
        credit = guide_credit(Branch(silent), branches, cost=self.settings.cost, length=self.settings.length)
        return [said for said, _ in spoken], credit

    def ready(self) -> bool:
        """Whether there are groups enough for an update."""
        return len(self._groups) >= self.settings.ready

    def update(self) -> dict[str, float]:
        """One step on the groups; they are gone then: the next are another guide's."""
        groups, self._groups = self._groups, []
        metrics = self._learner.step(to_streams(groups), self._parts.config.loss)
        return {**metrics, **self.stats, "lr": self._learner.lr, "groups": float(len(groups))}

    # -- what is kept ---------------------------------------------------------------------------------

    def weights(self) -> Weights:
        """All parameters, or the adapter's as peft names them."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, groups that wait, and what it was after stage 1."""
        return {
            "weights": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "learner": self._learner.state_dict(),
            "groups": [([asdict(row) for row in rows], credit) for rows, credit in self._groups],
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if self._parts.config.loss.kl and state["first"] is not None:
            self._set(state["first"])
            self._learner.reference = _copy_reference(self.model, self.name)
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])
        self._groups = [([row_of(row) for row in rows], dict(credit)) for rows, credit in state["groups"]]
        self._first = state["first"]

    def _set(self, weights: Mapping[str, Any]) -> None:
        if not has_adapters(self.model):
            self.model.load_state_dict(weights)
            return
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(self.model, dict(weights), adapter_name=self.name)


def rows_of(said: Sequence[GuideReply], credit: GuideCredit) -> tuple[list[Sample], dict[str, list[float]]]:
    """The rows of a group with their advantages: to abstain, to speak, and the texts where those have a signal.

    A decision counts by the probability with which it would have been taken, for here it was made: the gradient is
    then that of the guide's own choices, p (1 - p) A_D, and what is decided already no longer moves. The branches
    that spoke share one row for it, which counts for all of them.
    """
    first, n = said[0], len(said)
    rows = [first.silent, first.decision]
    advantages = {
        first.silent.trace: [-credit.decision * (1.0 - first.p_speaks)],
        first.decision.trace: [credit.decision * first.p_speaks * n],
    }
    for one, content in zip(said, credit.content, strict=True):
        if one.content is not None and content:
            rows.append(replace(one.content, trace=f"{one.content.trace}/text"))
            advantages[rows[-1].trace] = [content]
    return rows, advantages


def to_streams(groups: Iterable[tuple[Sequence[Sample], Mapping[str, Sequence[float]]]]) -> list[PackedSequence]:
    """The branches as a learner reads them: a decision and its content are one stream with two advantages."""
    return [stream for rows, advantages in groups for stream in pack_samples(rows, advantages)]


# -- what a run gives it to look at -------------------------------------------------------------------


def explored(spec: Spec, parts: Parts) -> GuideQuery | None:
    """What another role chose to show, else the last walk that explored this world, whatever became of it."""
    walks = parts.explored(spec.task, spec.seed)
    if not walks or not walks[-1].steps:
        return None
    first = walks[-1].steps[0].pre
    return GuideQuery(first, (spec.memory,), (spec.memory,)) if spec.memory else build_query(walks[-1])


def build_query(walk: Trajectory) -> GuideQuery:
    """The situation in which a walk began, and the walk as it is recalled: insight where it succeeded, else warning.

    On offer are the way that it took without its circles, and the whole of it.
    """
    whole, kept = format_path(walk.steps), format_path(without_circles(walk.steps))
    kind = "insight" if walk.success else "warning"
    return GuideQuery(walk.steps[0].pre, (f"{whole} {kind}",), tuple(dict.fromkeys((kept, whole))))


def build_lessons(episodes: Iterable[Trajectory]) -> list[Lesson]:
    """What experience bears out: to say the way of an episode that succeeded, without its circles."""
    return [
        (build_query(one), format_path(without_circles(one.steps))) for one in episodes if one.success and one.steps
    ]


def _fill_specs(specs: Sequence[Spec], said: Mapping[str, GuideReply]) -> list[Spec]:
    """Where it says nothing, nothing is shown, whatever was meant to be."""
    return [replace(spec, memory=said[spec.session].text if spec.session in said else None) for spec in specs]


def _select_counted(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [one for one in rollouts if not one.failed and one.trajectory.success is not None]


def _outcome(rollout: Rollout) -> float:
    return float(bool(rollout.trajectory.success))


def _copy_weights(weights: Weights) -> dict[str, Any]:
    assert isinstance(weights, Mapping)
    return {name: value.detach().clone() for name, value in weights.items()}


def _copy_reference(model: Any, role: str) -> Any:
    """The model as it is now; of one with adapters, the base is shared with it and only the adapters are copied."""
    if not has_adapters(model):
        return freeze_copy(model)
    activate(model, role)
    shared = {id(value): value for name, value in model.named_parameters() if "lora_" not in name}
    made = copy.deepcopy(model, memo=dict(shared))
    return made.requires_grad_(False).eval()
