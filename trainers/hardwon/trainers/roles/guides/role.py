"""The guide role: before an episode, gives a hint or none, and learns when a hint helps (Mem-π).

The guide reads the situation and the recalled texts, and decides with one token whether to speak. It then shows
everything that was recalled, one line of it, or words of its own. Stage 1 imitates guidance from successful episodes,
or decisions about recollections that fit and that do not. Stage 2 plays structured groups: in the guide's arms it must
speak, and the control arm serves as the abstaining branch; `credit` computes the advantages. The policy is not trained
by this role.

`speech.TrainedGuidance` and `gating.consulting` serve a trained guide in the runtime's loop.
"""

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.imitation import WarmStartReport
from hardwon.trainers.algorithms.learner import freeze_copy
from hardwon.trainers.algorithms.samples import Rollout, Sample
from hardwon.trainers.config.schema import CONTROL, parse
from hardwon.trainers.engines.base import Weights
from hardwon.trainers.gating.verdicts import weigh
from hardwon.trainers.models.adapters import activate, has_adapters
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.rollouts.rollout import Spec

from ..base import Parts
from ..supervised_stage import Marked, plan_stage
from ..trained import CreditedSamples, TrainedRole
from .credit import LEAST, Branch, GuideCredit, credit_blueprints, credit_foresight, guide_credit
from .lessons import Lesson, Recollections, build_lessons, explored, judge_recollections
from .speech import GuideQuery, GuideReply, Speaker

QuerySource = Callable[[Spec], GuideQuery | None]
"""Returns what the guide sees before an episode, or None to stay silent."""
RECALLED = "recalled"
"""The setting of a guide that only decides."""


@dataclass(frozen=True, kw_only=True)
class GuideSettings:
    """Settings of the guide: imitation and reward."""

    cost: float = 0.05
    """Cost of a text of `length` tokens, in units of success."""
    length: int = 128
    """Number of tokens that cost `cost`, and the maximum length of a text."""
    ready: int = 8
    """Groups per update."""
    says: Literal["line", "words", "recalled"] = "line"
    """line: it says one of the texts on offer. words: it says free text. recalled: everything that the library recalls
    is shown, and it decides only whether, in each situation of an episode; for arms whose guidance is `guide`."""
    distil: int = 100
    """Updates of stage 1 (imitation), if there are lessons; 0 skips it."""
    distil_lr: float = 1e-3
    """Peak learning rate of stage 1; for an adapter of a pretrained base, a fifth of this or less."""
    distil_batch: int = 16
    """Lessons of an update of stage 1."""
    credit: Literal["mem-pi", "himac", "foresight", "rlad"] = "mem-pi"
    """mem-pi: whether to speak, and what, against the control arm. himac: a text is a blueprint, which several episodes
    execute. foresight: a text is a subgoal for the next action. rlad: a text is an abstraction of the task. The last
    three compare the texts of a group alone."""
    executions: int = 1
    """Episodes of an arm in a row that are shown the same text, for himac."""
    reads: Literal["recalled", "task"] = "recalled"
    """task: nothing but the first state, for which `free` is needed."""

    def __post_init__(self) -> None:
        if self.reads == "task" and self.says != "words":
            raise ConfigError(f"reads is task, where no texts are on offer, and says is {self.says}; set says: words.")
        if self.says == RECALLED and (self.credit != "mem-pi" or self.executions > 1):
            raise ConfigError(
                f"says is recalled, so there are no texts to compare, and credit is {self.credit} with executions "
                f"{self.executions}; leave both out."
            )


@dataclass(frozen=True, slots=True)
class Credited:
    """The credit of a group, and what is learned from it."""

    credit: GuideCredit
    speaks: tuple[float, ...]
    """The probability of speaking of each decision."""
    rows: CreditedSamples
    """The samples, and their advantages by trace."""


class GuideRole(TrainedRole):
    """The role that gives a hint, or none, before an episode."""

    def __init__(
        self,
        parts: Parts,
        source: QuerySource | None = None,
        lessons: Callable[[], Iterable[Lesson]] | None = None,
        *,
        name: str = "guide",
    ) -> None:
        """Create the role."""
        self.settings = how = parse(GuideSettings, parts.config.settings, f"roles.{name}.settings")
        self.speaker = Speaker(parts.engine, parts.prompts, role=name, free=how.says == "words", most=how.length)
        learning = plan_stage(how.distil, how.distil_batch, how.distil_lr)
        super().__init__(parts, name, learning, self.speaker.decider)
        self._recollections = Recollections(parts)
        is_compact = isinstance(parts.prompts, CompactFormat)
        self._source = source or ((lambda spec: explored(spec, parts)) if is_compact else self._recollections.ask)
        # There is no right text to say about a recollection, so a chat model that says one begins with stage 2.
        self._lessons = lessons or (lambda: build_lessons(parts.episodes()) if is_compact else [])
        self._first: Weights | None = None
        self._replies: dict[str, GuideReply] = {}
        self.stats: dict[str, float] = {}
        """Figures of the last collection: probability of speaking, decision advantage, skipped groups."""

    # -- stage 1 --------------------------------------------------------------------------------------

    def begin(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Run stage 1 if there are lessons, then copy the weights as the reference and for `frozen`."""
        if self.settings.says == RECALLED:
            self.supervised.learn(self._mark_recollections(), tell)
        elif self.supervised.learning is not None and (lessons := list(self._lessons())):
            self.distil(lessons, tell)
        self._first = _copy_weights(self.weights())
        if self._parts.config.loss.kl:
            self._learner.reference = _copy_reference(self.model, self.name)

    def distil(self, lessons: Sequence[Lesson], tell: Callable[[str], None] = lambda _: None) -> WarmStartReport:
        """Imitate the texts of the lessons. Whether to speak is learned from outcomes in stage 2."""
        rows = [self.speaker.lesson(query, text, f"lesson/{n}") for n, (query, text) in enumerate(lessons)]
        return self.supervised.imitate(rows, tell)

    def _mark_recollections(self) -> list[Marked]:
        """Return questions about recollections of explored task instances, each with the right decision."""
        if (learning := self.supervised.learning) is None:
            return []
        most = learning.updates * learning.batch
        judged = judge_recollections(self._recollections, self._parts, most=most)
        return [
            Marked(self.speaker.prompt(query), fits, f"{query.state.task}\n{query.state.observation}")
            for query, fits in judged
        ]

    async def report_accuracy(self) -> str:
        """Return in words how well the guide decides about the recollections that it did not learn from."""
        return await self.supervised.describe() if self.settings.says == RECALLED else ""

    # -- stage 2 --------------------------------------------------------------------------------------

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """Return the episodes with a hint each; every one speaks, because control is the abstaining branch.

        With `frozen`, return the greedy choice of the weights at the start of training instead.
        """
        if self.settings.says == RECALLED:
            return specs
        if not frozen:
            replies = await self._say(specs, speaks=True, executions=self.settings.executions)
            self._replies.update({name: reply for name, reply in replies.items() if reply.text})
            return _fill_specs(specs, replies)
        engine, version = self._parts.engine, self._parts.engine.versions()[self.name]
        if self._first is None:
            raise ConfigError("begin() was not called, so there are no initial weights to use.")
        # a copy: a local engine shares the model, so loading `_first` overwrites the trained parameters
        now = _copy_weights(self.weights())
        engine.load_adapter(self.name, 0, self._first)
        try:
            return await self.choose(specs)
        finally:
            engine.load_adapter(self.name, version, now)

    async def choose(self, specs: Sequence[Spec], *, speaks: bool | None = None) -> Sequence[Spec]:
        """Return the episodes with greedy hints and store nothing; `speaks` overrides the decision."""
        if self.settings.says == RECALLED:
            return specs
        return _fill_specs(specs, await self._say(specs, speaks=speaks, greedy=True))

    async def _say(
        self, specs: Sequence[Spec], *, speaks: bool | None, greedy: bool = False, executions: int = 1
    ) -> dict[str, GuideReply]:
        """Return the replies by session. Episodes with equal queries share one decision, seeded by the first.

        With `executions`, so many episodes of a task instance and arm share one reply, that of the first of them.
        """
        leaders = share_replies(specs, executions)
        replies = await self._reply([spec for spec in specs if leaders[spec.session] == spec.session], speaks, greedy)
        return {name: replies[leader] for name, leader in leaders.items() if leader in replies}

    async def _reply(self, specs: Sequence[Spec], speaks: bool | None, greedy: bool) -> dict[str, GuideReply]:
        """Return the replies to episodes of which each is asked about."""
        queries = {spec.session: query for spec in specs if (query := self._ask(spec)) is not None}
        # reversed, so that the first episode with a prompt names its decision
        firsts = {self.speaker.prompt(request): name for name, request in reversed(queries.items())}
        chosen = await asyncio.gather(
            *(self.speaker.decide(queries[name], name, greedy=greedy) for name in firsts.values())
        )
        decided = dict(zip(firsts, chosen, strict=True))
        replies = await asyncio.gather(
            *(
                self.speaker.complete(
                    decided[self.speaker.prompt(request)], request, name, speaks=speaks, greedy=greedy
                )
                for name, request in queries.items()
            )
        )
        return dict(zip(queries, replies, strict=True))

    def _ask(self, spec: Spec) -> GuideQuery | None:
        """Return what the guide is asked before an episode."""
        query = self._source(spec)
        return query if query is None or self.settings.reads == "recalled" else GuideQuery(query.state, ())

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Return whether the group has both kinds of branches and different outcomes."""
        return (
            self._credit(rollouts) is not None and len({rollout.outcome for rollout in _select_counted(rollouts)}) > 1
        )

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Collect the advantages of complete groups; skip groups without both kinds of branches."""
        groups: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout.group, []).append(rollout)
        credited = [credit for group in groups.values() if (credit := self._credit(group)) is not None]
        self._waiting += [group.rows for group in credited]
        self._replies = {}
        self.stats = {
            "groups_left_out": float(len(groups) - len(credited)),
            "generates": fmean(p for group in credited for p in group.speaks) if credited else 0.0,
            "decision": fmean(group.credit.decision for group in credited) if credited else 0.0,
            "reward": fmean(group.credit.reward for group in credited) if credited else 0.0,
        }

    def _credit(self, rollouts: Sequence[Rollout]) -> "Credited | None":
        """Return the credit of a group, or None without an abstaining and two speaking branches."""
        counted = _select_counted(rollouts)
        silent = tuple(_outcome(rollout) for rollout in counted if rollout.trajectory.arm == CONTROL)
        if self.settings.says == RECALLED:
            return self._credit_consulted(counted, Branch(silent)) if silent else None
        spoken: dict[int, tuple[GuideReply, list[Rollout]]] = {}
        for rollout in counted:
            if (reply := self._replies.get(rollout.trajectory.id)) is not None:
                spoken.setdefault(id(reply), (reply, []))[1].append(rollout)
        credit = self.settings.credit
        if len(spoken) < LEAST or (credit == "mem-pi" and not silent):
            return None
        replies = [reply for reply, _ in spoken.values()]
        branches = [Branch(tuple(map(_outcome, episodes)), reply.tokens) for reply, episodes in spoken.values()]
        if credit == "foresight":
            result = credit_foresight(measure_gains([episodes for _, episodes in spoken.values()]))
        elif credit in ("himac", "rlad"):
            result = credit_blueprints(branches)
        else:
            result = guide_credit(Branch(silent), branches, cost=self.settings.cost, length=self.settings.length)
        return Credited(result, tuple(reply.p_speaks for reply in replies), rows_of(replies, result))

    def _credit_consulted(self, counted: Sequence[Rollout], silent: Branch) -> "Credited | None":
        """Return the credit of a group whose episodes were shown what the library recalls, in each situation.

        An episode costs the mean length of its hints. Its decisions all have the advantage of the group; a question
        that several episodes were asked counts once for each.
        """
        spoken = [rollout for rollout in counted if rollout.consulted]
        if len(spoken) < LEAST:
            return None
        lengths = [fmean(each.tokens for each in rollout.consulted) for rollout in spoken]
        branches = [Branch((_outcome(rollout),), round(n)) for rollout, n in zip(spoken, lengths, strict=True)]
        credit = guide_credit(silent, branches, cost=self.settings.cost, length=self.settings.length)
        rows: list[Sample] = []
        advantages: dict[str, list[float]] = {}
        questions = [each for rollout in spoken for each in rollout.consulted]
        counts = Counter(each.prompt for each in questions)
        for number, each in enumerate({each.prompt: each for each in questions}.values()):
            pair = self.speaker.decider.build_words(each, f"{spoken[0].group}/{number}")
            for row, weight in zip(pair, weigh(*pair, credit.decision * counts[each.prompt]), strict=True):
                rows.append(row)
                advantages[row.trace] = [weight]
        return Credited(credit, tuple(each.p_yes for each in questions), (rows, advantages))

    def ready(self) -> bool:
        """Return whether there are enough groups for an update."""
        return len(self._waiting) >= self.settings.ready

    def update(self) -> dict[str, float]:
        """Run one optimizer step on the groups."""
        groups = float(len(self._waiting))
        return {**super().update(), **self.stats, "groups": groups}

    # -- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what an exact resume needs, with the weights after stage 1."""
        return {**super().state_dict(), "first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        if self._parts.config.loss.kl and state["first"] is not None:
            # the reference holds the weights after stage 1: load those, copy, then load the current ones
            self._set(state["first"])
            self._learner.reference = _copy_reference(self.model, self.name)
        super().load_state_dict(state)
        self._first = state["first"]

    def _set(self, weights: Mapping[str, Any]) -> None:
        """Load weights under the names that `weights` returns."""
        if not has_adapters(self.model):
            self.model.load_state_dict(weights)
            return
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(self.model, dict(weights), adapter_name=self.name)


def rows_of(replies: Sequence[GuideReply], credit: GuideCredit) -> tuple[list[Sample], dict[str, list[float]]]:
    """Return the samples of a group with their advantages: abstaining, speaking, and the texts with a signal.

    The decisions were forced, so both words have an advantage that is known without sampling; see `verdicts`. They
    share one decision, which counts once for each branch.
    """
    first, branches = replies[0], len(replies) + 1
    rows = [first.silent, first.decision]
    speaks, abstains = weigh(first.decision, first.silent, credit.decision * branches)
    advantages = {first.silent.trace: [abstains], first.decision.trace: [speaks]}
    for reply, content in zip(replies, credit.content, strict=True):
        if reply.content is not None and content:
            rows.append(replace(reply.content, trace=f"{reply.content.trace}/text"))
            advantages[rows[-1].trace] = [content]
    return rows, advantages


def _fill_specs(specs: Sequence[Spec], replies: Mapping[str, GuideReply]) -> list[Spec]:
    """Return the episodes with the replies as memory; without a reply, an episode shows nothing."""
    return [replace(spec, memory=replies[spec.session].text if spec.session in replies else None) for spec in specs]


def share_replies(specs: Sequence[Spec], executions: int) -> dict[str, str]:
    """Return for every episode the one whose reply it is shown: the first of so many of its task instance and arm."""
    leaders: dict[str, str] = {}
    counts: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        own = counts.setdefault((spec.group, spec.arm), [])
        own.append(spec.session)
        leaders[spec.session] = own[(len(own) - 1) // executions * executions]
    return leaders


def measure_gains(groups: Sequence[Sequence[Rollout]]) -> list[float]:
    """Return for every text the mean of the next action's reward plus the change of the state's value.

    The value of a state is the mean outcome of the episodes that came to it after one action; the value before is the
    mean of all.
    """
    every = [rollout for group in groups for rollout in group]
    reached: dict[str, list[float]] = {}
    for rollout in every:
        reached.setdefault(_read_next(rollout), []).append(_outcome(rollout))
    before = fmean(map(_outcome, every))

    def measure(rollout: Rollout) -> float:
        reward = rollout.trajectory.steps[rollout.start].reward if _read_next(rollout) else 0.0
        return reward + fmean(reached[_read_next(rollout)]) - before

    return [fmean(map(measure, group)) for group in groups]


def _read_next(rollout: Rollout) -> str:
    """Return the signature of the state after the first own action; empty if there was none."""
    steps = rollout.trajectory.steps
    return steps[rollout.start].post.signature if len(steps) > rollout.start else ""


def _select_counted(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts with an outcome."""
    return [rollout for rollout in rollouts if rollout.outcome is not None]


def _outcome(rollout: Rollout) -> float:
    """Return the outcome of a counted rollout."""
    return rollout.outcome or 0.0


def _copy_weights(weights: Weights) -> dict[str, Any]:
    """Return a detached copy of some weights."""
    assert isinstance(weights, Mapping)
    return {name: value.detach().clone() for name, value in weights.items()}


def _copy_reference(model: Any, role: str) -> Any:
    """Return a frozen copy of the model. With adapters, the base is shared and only they are copied."""
    if not has_adapters(model):
        return freeze_copy(model)
    activate(model, role)
    shared = {id(value): value for name, value in model.named_parameters() if "lora_" not in name}
    # deepcopy takes what is in its memo as copied already, so the base exists once
    reference = copy.deepcopy(model, memo=dict(shared))
    return reference.requires_grad_(False).eval()
