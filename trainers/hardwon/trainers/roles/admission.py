"""Admission as a role: a verdict of the shared base decides whether a step is shared.

    roles: {policy: {...}, admission: {settings: {teams: 3, runs: 4}}}

After the rollouts of an iteration, teams of frozen policies play some of the same task instances. Each instance
is played several times, and the runs are compared with each other. Only the adapter of this role is trained.
`roles.admission_learning` assigns the credit; `hardwon.runtime.teams.sharing` implements the sharing.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

import numpy as np

from hardwon.memory import Step
from hardwon.memory.bank import Bank
from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime import Agent, Result
from hardwon.runtime.teams.reading import ReadingPolicy
from hardwon.runtime.teams.sharing import BankClient, SharedEnvironment
from hardwon.runtime.teams.sharing_policy import Choice, SharingInput
from hardwon.trainers.algorithms.samples import Rollout, WordChoice
from hardwon.trainers.config.schema import parse
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.engines.base_models import read_context
from hardwon.trainers.gating.deciding import Decider
from hardwon.trainers.gating.tuning import TUNING as GATING
from hardwon.trainers.gating.verdicts import weigh_sampled
from hardwon.trainers.prompting.base import PromptFormat, Query
from hardwon.trainers.rollouts.rollout import Spec, TokenPolicy, collect

from .admission_learning import Decided, Episode, Sparsity, advantages, run_reward
from .base import Parts
from .marking import format_path, mark_steps
from .supervised_stage import plan_stage
from .trained import TrainedRole, count_samples
from .tuning import TUNING

_PLAIN: dict[str, Any] = {"learn": False, "guardrails": False, "recall_k": 0, "retries": 0}
"""Members neither learn nor recall: all they know of the team is what it shares."""
_SESSION: ContextVar[str] = ContextVar("hardwon_team_session", default="")
"""Session of the running member's episode; its decisions are requested in that session."""


Run = tuple[Episode, Mapping[str, WordChoice]]
"""A run of a team: its reward with what was shared and used, and the decisions by name, in the same order."""


class EngineAdmission:
    """Decides with one of two verdicts, with exact probabilities."""

    name = "role"

    @staticmethod
    def value(steps: Sequence[Step]) -> str:
        """Return what readers get for the last step: the path to it, without loops."""
        return format_path(without_circles(list(steps)))

    def __init__(self, engine: Engine, prompts: PromptFormat, *, role: str = "admission", salt: str = "") -> None:
        """Create an admission on an engine; with a salt, it samples and keeps its decisions for training."""
        self._prompts, self._salt = prompts, salt
        self._decider = Decider(engine, prompts, "share", role=role)
        self.decisions: dict[str, WordChoice] = {}
        """Sampled decisions by name."""

    async def decide(self, candidate: SharingInput) -> Choice:
        """Return whether to share a step."""
        name = f"{self._salt}/{_SESSION.get()}/{len(self.decisions)}"
        chance = random.Random(name) if self._salt else None
        decision = await self._decider.ask(self.prompt(candidate), chance=chance, session=_SESSION.get())
        if self._salt:
            self.decisions[name] = decision
        probability = decision.p_yes if decision.is_yes else 1.0 - decision.p_yes
        return Choice(decision.is_yes, decision.p_yes, math.log(max(probability, GATING.min_weight)))

    def prompt(self, candidate: SharingInput) -> tuple[int, ...]:
        """Return the tokens of the question: the task, the newest keys, and the step."""
        step = f"{candidate.key}\n{candidate.value}"
        sections = {"task": candidate.task, "keys": candidate.keys[-TUNING.shown_items :], "observation": step}
        return self._prompts.query(Query("share", sections))


class Member:
    """A team member that pulls entries about the task's objects and shows them to its policy as memory.

    It shares the path to its current place.
    """

    def __init__(self, name: str, agent: Agent, admission: EngineAdmission, bank: Bank) -> None:
        self.name, self.admission = name, admission
        # without threads, accesses to the bank happen in the order of events and runs are reproducible
        self.client = BankClient(bank, name, admission, value=admission.value, threads=False)
        reading = ReadingPolicy(agent.policy, self.client)
        self._agent = agent.joined(reading, lambda inner: SharedEnvironment(inner, self.client))
        # the joined copy has environments of its own, so those of the original are not needed
        agent.close()

    async def arun(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> Result:
        """Run one episode; its decisions are requested in the episode's session."""
        _SESSION.set(thread_id or "")
        return await self._agent.arun(task, seed, thread_id=thread_id)

    def close(self) -> None:
        """Close the environments."""
        self._agent.close()


@dataclass(frozen=True, kw_only=True)
class AdmissionSettings:
    """Settings of the admission role: the teams and the credit."""

    teams: int = 3
    """Members of a team (K)."""
    runs: int = 4
    """Runs per task instance, which are compared with each other (G)."""
    worlds: int = 2
    """Task instances per iteration that teams play."""
    ready: int = 64
    """Decisions per update."""
    steps: int = 20
    """Maximum number of steps per member and episode."""
    target: float = 0.4
    """Target share of steps that are shared; the price of a YES adapts to it."""
    usage_weight: float = 1.0
    """Bonus for a step that another member pulled in a run with a positive reward (beta)."""
    first_weight: float = 0.5
    """Weight of the first finisher's success, in addition to the team's."""
    distil: int = 0
    """Updates of stage 1, which imitates right answers about the steps of explored episodes: those that solve the task
    instance are shared, those that its solution does without are not. 0 skips it."""
    distil_lr: float = 5e-4
    """Peak learning rate of stage 1; for a tiny base, some 2e-3."""
    distil_batch: int = 2
    """Questions of an update of stage 1."""


class AdmissionRole(TrainedRole):
    """The role that learns which steps of a team are worth sharing."""

    def __init__(self, parts: Parts, *, name: str = "admission") -> None:
        self.settings = how = parse(AdmissionSettings, parts.config.settings, f"roles.{name}.settings")
        self._decider = Decider(parts.engine, parts.prompts, "share", role=name)
        learning = plan_stage(how.distil, how.distil_batch, how.distil_lr)
        super().__init__(parts, name, learning, self._decider)
        self.price = Sparsity(how.target)
        self._admitted: list[bool] = []
        """Decisions since the last update."""
        self._sent = 0

    def begin(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Check that there is an environment to play in, and run stage 1 if the settings ask for it."""
        if self._parts.environment is None:
            raise ConfigError(f"the role {self.name} plays episodes itself and was given no environment.")
        if (learning := self.supervised.learning) is not None:
            asker = EngineAdmission(self._parts.engine, self._parts.prompts, role=self.name)
            most = learning.updates * learning.batch
            self.supervised.learn(mark_steps(self._parts, asker.value, asker.prompt, most=most), tell)

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """Run teams on some task instances of the rollouts, and return the metrics."""
        worlds = list(dict.fromkeys(rollout.group for rollout in rollouts))[: self.settings.worlds]
        if not worlds:
            return {}
        groups = [await self._group(world) for world in worlds]
        for group in groups:
            self.credit(group)
        decided = [entry for group in groups for episode, _ in group for entry in episode.decisions]
        return {
            "team_reward": fmean(episode.reward for group in groups for episode, _ in group),
            "admitted": fmean(entry.admit for entry in decided) if decided else 0.0,
            "used": fmean(entry.used for entry in decided) if decided else 0.0,
        }

    async def _group(self, world: str) -> list[Run]:
        """Return the runs of one task instance, played in sequence."""
        fold, _, seed = world.rpartition("#")
        self._sent += 1
        salts = [f"{self._parts.seed}/{self.name}/{self._sent}.{n}" for n in range(self.settings.runs)]
        return [await self.send(fold, int(seed), salt) for salt in salts]

    async def send(self, fold: str, seed: int, salt: str) -> Run:
        """Run one team on a task instance; return its reward and its decisions."""
        parts, settings = self._parts, self.settings
        limit = read_context(parts.model)
        policy = TokenPolicy(parts.engine, cast(Any, parts.prompts), settings=parts.policy, context=limit)
        assert parts.environment is not None
        with parts.library.admin.bank(f"{fold}#{seed} {salt}") as bank:
            members = [
                Member(
                    f"member {n}",
                    Agent(policy, parts.library, parts.environment, arm="team", max_steps=settings.steps, **_PLAIN),
                    EngineAdmission(parts.engine, parts.prompts, role=self.name, salt=salt),
                    bank,
                )
                for n in range(settings.teams)
            ]
            specs = [Spec(fold, seed, member.name, salt=salt) for member in members]
            agents = cast(Mapping[str, Agent], {member.name: member for member in members})
            try:
                rollouts = await collect(agents, parts.engine, specs, outcome=parts.outcome)
            finally:
                for member in members:
                    member.close()
            used = {entry for entry, _ in bank.pulls()}  # before the bank closes and is gone
        shared = [shared_entry for member in members for shared_entry in member.client.shared]
        decided = tuple(
            Decided(np.zeros(0), shared_entry.choice.admit, shared_entry.choice.p, shared_entry.entry in used)
            for shared_entry in shared
        )
        # in the same order, because `credit` zips the two; no features, because a language model reads tokens
        decisions = {name: decision for member in members for name, decision in member.admission.decisions.items()}
        return Episode(self._reward(rollouts), decided), decisions

    def _reward(self, rollouts: Sequence[Rollout]) -> float:
        """Return the reward of a run; the member with the fewest steps counts as the first to finish."""
        outcomes = [
            (len(rollout.trajectory.steps), rollout.outcome) for rollout in rollouts if rollout.outcome is not None
        ]
        if not outcomes:
            return 0.0
        steps, first = min(outcomes, key=lambda each: each[0])
        best = max(outcome for _, outcome in outcomes)
        earliness = 1.0 - steps / self.settings.steps
        return run_reward(best, first, earliness=earliness, first_weight=self.settings.first_weight)

    def credit(self, group: Sequence[Run]) -> None:
        """Keep the decisions of the runs of one task instance, each as the word that its advantage trains."""
        episodes = [episode for episode, _ in group]
        values = advantages(episodes, usage_weight=self.settings.usage_weight, sparsity=self.price.price)
        for (_, decisions), each in zip(group, values, strict=True):
            for (name, decision), value in zip(decisions.items(), each, strict=True):
                words = self._decider.build_words(decision, name)
                sampled, other = words if decision.is_yes else words[::-1]
                own, mirrored = weigh_sampled(sampled, other, value)
                row = sampled if own or not mirrored else other
                self._waiting.append(([row], {row.trace: [own or mirrored]}))
                self._admitted.append(decision.is_yes)

    def ready(self) -> bool:
        """Return whether there are enough decisions for an update."""
        return count_samples(self._waiting) >= self.settings.ready

    def update(self) -> dict[str, float]:
        """Run one optimizer step on the decisions, and adapt the price of sharing."""
        price, admitted, self._admitted = self.price.price, self._admitted, []
        self.price.update(fmean(admitted))
        return {**super().update(), "price": price}

    def state_dict(self) -> dict[str, Any]:
        """Return what an exact resume needs, with the price."""
        more = {"price": self.price.state_dict(), "sent": self._sent, "admitted": list(self._admitted)}
        return {**super().state_dict(), **more}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self.price.load_state_dict(state["price"])
        self._sent, self._admitted = int(state["sent"]), list(state["admitted"])
