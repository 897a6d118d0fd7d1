"""The admission as a role: one constrained token of the shared base decides whether a step is shared.

    roles: {policy: {...}, admission: {settings: {teams: 3, runs: 4}}}

After the rollouts of an iteration it sends teams into some of their worlds: the policy as it is, which
shares and reads by rule, several runs of each world, which are compared with each other. Only its own
adapter moves. How a decision is credited is in `roles.admission_learning`, how a team shares in
`hardwon.runtime.teams.sharing`.
"""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal, cast

import numpy as np

from hardwon.memory import Step
from hardwon.memory.bank import Bank
from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime import Agent, Result
from hardwon.runtime.interfaces.types import Context, Decision, Policy
from hardwon.runtime.teams.sharing import Desk, SharedEnvironment, SharedPolicy
from hardwon.runtime.teams.sharing_policy import Candidate, Choice, extract_words
from hardwon.trainers.algorithms.learner import Learner
from hardwon.trainers.algorithms.samples import Rollout, Sample, pack_samples
from hardwon.trainers.config.schema import parse
from hardwon.trainers.engines.base import Engine, Request, Weights
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.rollouts.rollout import Spec, TokenPolicy, collect
from hardwon.trainers.rollouts.transcript import Transcript, compact

from .admission_learning import Decided, Episode, Sparsity, advantages, run_reward
from .base import Parts, load_weights, weights_of
from .note_generators import format_path

SHOWN = 6
"""Newest keys that a decision sees."""
_PLAIN: dict[str, Any] = {"learn": False, "guardrails": False, "recall_k": 0, "retries": 0}
"""Members neither learn nor recall: what they know is what they share."""
_SESSION: ContextVar[str] = ContextVar("hardwon_team_session", default="")
"""The episode that the running member belongs to: its requests are served in the rounds of that one."""


class EngineAdmission:
    """YES or NO as one token, `<keep>` or `<skip>`, among which the probabilities are exact."""

    name = "role"

    def __init__(self, engine: Engine, transcript: Transcript, *, role: str = "admission", salt: str = "") -> None:
        """salt: tells this one's chance from another's; without it the more probable token is taken."""
        self._engine, self._transcript, self._role, self._salt = engine, transcript, role, salt
        (self._keep,), (self._skip,) = (self._ids(word) for word in ("<keep>", "<skip>"))
        self._either = Trie([(self._keep, transcript.end), (self._skip, transcript.end)])
        self.rows: list[Sample] = []
        """Of every decision, as it was sampled."""

    async def decide(self, candidate: Candidate) -> Choice:
        """Asks the engine."""
        name = f"{self._salt}/{_SESSION.get()}/{len(self.rows)}"
        request = Request(
            self.prompt(candidate),
            self._role,
            self._either,
            temperature=1.0 if self._salt else 0.0,
            session=_SESSION.get(),
            chance=random.Random(name),
        )
        said = await self._engine.generate(request)
        admit, probability = said.tokens[0] == self._keep, math.exp(said.logprobs[0])
        known = (self._role, said.version, "", "", "", name, 0)
        self.rows.append(Sample(request.prompt, said.tokens, said.logprobs, said.mask, said.allowed, *known))
        return Choice(admit, probability if admit else 1.0 - probability, said.logprobs[0])

    def prompt(self, candidate: Candidate) -> tuple[int, ...]:
        """`<task> find coin . <memory> KEY . KEY . <see> KEY . VALUE . <item>`: the task, the newest keys, the step."""
        keys = " ".join(compact(key) for key in candidate.keys[-SHOWN:])
        step = f"{compact(candidate.key)} {compact(candidate.value)}"
        return self._ids(f"<task> {compact(candidate.task)} <memory> {keys} <see> {step} <item>")

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._transcript.tokenizer(text, add_special_tokens=False).input_ids)


class Member:
    """An agent that reads by rule: it pulls what speaks of the task's things, and is shown it as memory.

    What it shares is the way to where it is, in the words of a memory.
    """

    def __init__(self, name: str, agent: Agent, admission: EngineAdmission, bank: Bank) -> None:
        self.name, self.admission = name, admission
        self.desk = Desk(bank, name, admission, value=_format_way, threads=False)
        reading = _Reads(agent.policy, self.desk)
        self._agent = agent.joined(reading, lambda inner: SharedEnvironment(inner, self.desk))
        agent.close()

    async def arun(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> Result:
        """One episode; its decisions are asked in its session."""
        _SESSION.set(thread_id or "")
        return await self._agent.arun(task, seed, thread_id=thread_id)

    def close(self) -> None:
        """Close its environments."""
        self._agent.close()


def _format_way(steps: Sequence[Step]) -> str:
    return format_path(without_circles(list(steps)))


class _Reads:
    """The policy of a member."""

    reads: Literal["values", "text"] = "text"

    def __init__(self, inner: Policy, desk: Desk) -> None:
        self.name, self._inner, self._desk = inner.name, inner, desk
        self._shared = SharedPolicy(inner, desk)
        self._pulled: set[int] = set()
        self._memory: str | None = None

    async def adecide(self, context: Context) -> Decision:
        """Share what is new, pull the newest that fits, and decide."""
        await self._shared.tell(context.history)
        await self._desk.look()
        wanted = extract_words(context.state.task)
        fitting = [one for one in self._desk.others if one.id not in self._pulled and extract_words(one.key) & wanted]
        if fitting:
            self._pulled.add(fitting[-1].id)
            self._memory = await self._desk.pull(fitting[-1].id) or self._memory
        return await self._inner.adecide(replace(context, guidance=self._memory))

    def decide(self, context: Context) -> Decision:
        """The same, for a loop that does not await."""
        return asyncio.run(self.adecide(context))


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """How the teams are sent, and how deciding is paid."""

    teams: int = 3
    """Members of a team: K."""
    runs: int = 4
    """Runs of one world that are compared with each other: G."""
    worlds: int = 2
    """Worlds an iteration into which teams are sent."""
    ready: int = 64
    """Decisions that make an update."""
    steps: int = 20
    """Steps after which a member's episode ends."""
    target: float = 0.4
    """Share of the steps that may be shared, which the price of a YES holds."""
    usage_weight: float = 1.0
    """Bonus of what another member pulled in a run that came to something: beta."""
    first_weight: float = 0.5
    """What the first one to finish counts for, beside the answer of all."""

    def __post_init__(self) -> None:
        for name, least in (("teams", 2), ("runs", 2), ("worlds", 1), ("ready", 1), ("steps", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; use {least} or more.")


class AdmissionRole:
    """Learns which steps of a team are worth sharing; see the module's docstring."""

    def __init__(self, parts: Parts, *, name: str = "admission") -> None:
        self.name, self.model = name, parts.model
        self._parts = parts
        self.settings = parse(AdmissionSettings, parts.config.settings, f"roles.{name}.settings")
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)
        self.price = Sparsity(self.settings.target)
        self._groups: list[list[tuple[Episode, list[Sample]]]] = []
        self._sent = 0

    def begin(self) -> None:
        """Nothing is compared with how it was. Raises ConfigError where there is no world to send teams into."""
        if self._parts.environment is None:
            raise ConfigError(f"the role {self.name} sends teams into worlds and was given no environment.")

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """As they are: what teams share is shown to teams alone."""
        return specs

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """As they are."""
        return specs

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """No: it learns from runs of its own."""
        return False

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Nothing."""

    def read(self, ahead: Sequence[tuple[str, int]], salt: str) -> None:
        """Nothing: teams are sent once the rollouts are over."""

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """Send teams into some worlds of the rollouts; what to log of it."""
        worlds = list(dict.fromkeys(rollout.group for rollout in rollouts))[: self.settings.worlds]
        if not worlds:
            return {}
        groups = [await self._group(world) for world in worlds]
        self._groups += groups
        decided = [one for group in groups for episode, _ in group for one in episode.decisions]
        return {
            "team_reward": fmean(episode.reward for group in groups for episode, _ in group),
            "admitted": fmean(one.admit for one in decided) if decided else 0.0,
            "used": fmean(one.used for one in decided) if decided else 0.0,
        }

    async def _group(self, world: str) -> list[tuple[Episode, list[Sample]]]:
        """The runs of one world, one after the other."""
        fold, _, seed = world.rpartition("#")
        self._sent += 1
        salts = [f"{self._parts.seed}/{self.name}/{self._sent}.{n}" for n in range(self.settings.runs)]
        return [await self.send(fold, int(seed), salt) for salt in salts]

    async def send(self, fold: str, seed: int, salt: str) -> tuple[Episode, list[Sample]]:
        """One team into one world: how it went, and the rows of its decisions. Nothing is remembered of it."""
        parts, settings = self._parts, self.settings
        policy = TokenPolicy(parts.engine, parts.transcript)
        assert parts.environment is not None
        with parts.library.bank(f"{fold}#{seed} {salt}") as bank:
            members = [
                Member(
                    f"member {n}",
                    Agent(policy, parts.library, parts.environment, arm="team", max_steps=settings.steps, **_PLAIN),
                    EngineAdmission(parts.engine, parts.transcript, role=self.name, salt=salt),
                    bank,
                )
                for n in range(settings.teams)
            ]
            specs = [Spec(fold, seed, member.name, salt=salt) for member in members]
            agents = cast(Mapping[str, Agent], {member.name: member for member in members})
            try:
                rollouts = await collect(agents, parts.engine, specs)
            finally:
                for member in members:
                    member.close()
            used = {entry for entry, _ in bank.pulls()}
        shared = [one for member in members for one in member.desk.shared]
        decided = tuple(Decided(np.zeros(0), one.choice.admit, one.choice.p, one.entry in used) for one in shared)
        rows = [row for member in members for row in member.admission.rows]
        return Episode(self._reward(rollouts), decided), rows

    def _reward(self, rollouts: Sequence[Rollout]) -> float:
        """The best member's success; the first one to finish is the one that took fewest steps."""
        counted = [rollout.trajectory for rollout in rollouts if not rollout.failed]
        if not counted:
            return 0.0
        first = min(counted, key=lambda trajectory: len(trajectory.steps))
        earliness = 1.0 - len(first.steps) / self.settings.steps
        best = max(float(bool(trajectory.success)) for trajectory in counted)
        return run_reward(
            best, float(bool(first.success)), earliness=earliness, first_weight=self.settings.first_weight
        )

    def ready(self) -> bool:
        """Whether there are enough decisions."""
        return sum(len(rows) for group in self._groups for _, rows in group) >= self.settings.ready

    def update(self) -> dict[str, float]:
        """One step on the runs; they are gone then."""
        groups, self._groups = self._groups, []
        price, credited, rows = self.price.price, dict[str, list[float]](), list[Sample]()
        for group in groups:
            values = advantages(
                [episode for episode, _ in group], usage_weight=self.settings.usage_weight, sparsity=price
            )
            for (_, mine), each in zip(group, values, strict=True):
                rows += mine
                credited.update({row.trace: [value] for row, value in zip(mine, each, strict=True)})
        decided = [one for group in groups for episode, _ in group for one in episode.decisions]
        self.price.saw(fmean(one.admit for one in decided))
        metrics = self._learner.step(pack_samples(rows, credited), self._parts.config.loss)
        return {**metrics, "lr": self._learner.lr, "price": price, "decisions": float(len(decided))}

    def weights(self) -> Weights:
        """All parameters, or the adapter's as peft names them."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, price, and the runs that wait to be learnt from."""
        waiting = [
            [
                {
                    "reward": episode.reward,
                    "decisions": [[one.admit, one.p, one.used] for one in episode.decisions],
                    "rows": [asdict(row) for row in rows],
                }
                for episode, rows in group
            ]
            for group in self._groups
        ]
        return {
            "weights": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "learner": self._learner.state_dict(),
            "price": self.price.state_dict(),
            "sent": self._sent,
            "waiting": waiting,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])
        self.price.load_state_dict(state["price"])
        self._sent = int(state["sent"])
        self._groups = [[_load_episode(run) for run in group] for group in state["waiting"]]


def _load_episode(saved: Mapping[str, Any]) -> tuple[Episode, list[Sample]]:
    decisions = tuple(Decided(np.zeros(0), bool(admit), p, bool(used)) for admit, p, used in saved["decisions"])
    return Episode(saved["reward"], decisions), [_load_row(row) for row in saved["rows"]]


def _load_row(saved: Mapping[str, Any]) -> Sample:
    """A row of plain values; checkpoints make lists of tuples."""
    flat = {name: tuple(saved[name]) for name in ("prompt", "completion", "logprobs", "mask")}
    return Sample(
        **{**saved, **flat, "allowed": tuple(None if each is None else tuple(each) for each in saved["allowed"])}
    )
