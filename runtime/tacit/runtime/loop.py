"""The nodes of the loop: pure steps from the episode's state to what they change of it.

    begin -> observe -> signature -> recall -> guide -> decide -> guard -> act -> diagnose -> record
                ^                                          ^________|                          |
                |______________________________________________________________________________|-> finish

Dependencies arrive through `Nodes`; what cannot be written to a checkpoint (the open environment,
the working memory) is in `Live` and is rebuilt when an episode is resumed. `routes` says what
follows a node. `graph` makes a LangGraph of them; nothing here imports it.
"""

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from tacit.memory import (
    Diagnosis,
    ExperienceLibrary,
    Failure,
    Recollection,
    State,
    Step,
    Trajectory,
    Verdict,
)
from tacit.memory.errors import EnvironmentFailure, EnvironmentHung, PolicyFailure

from .diagnosis import diagnose, why_replan
from .guidance import Guidance, Hint
from .protocols import Context, Decision, Described, Environment, Info, Policy, Usage
from .working import WorkingMemory

MAX_REPLANS = 2
"""Other actions asked for when one is forbidden; then the policy is told all that is forbidden."""
MAX_POLICY_FAILURES = 3
"""Policy failures in a row that end an episode."""
GUIDANCE_TOKENS = 512


class EpisodeState(TypedDict, total=False):
    """What a checkpoint holds of an episode."""

    thread: str
    task: str
    seed: int
    episode: int
    attempt: int
    first: State
    state: State
    steps: tuple[Step, ...]
    actions: tuple[str, ...]
    new_situation: bool
    recollection: Recollection
    hint: Hint | None
    hints: dict[str, Hint | None]
    """What was proposed in each situation of the episode."""
    forbidden: dict[str, str]
    blocked: tuple[str, ...]
    replans: int
    replan: str | None
    decision: Decision | None
    policy_failure: str | None
    outcome: tuple[State, float, bool, Info] | None
    usage: Usage
    score: float
    success: bool
    ending: str
    failed: str
    trajectory: Trajectory


Update = dict[str, Any]
Node = Callable[[EpisodeState], Update]


@dataclass(slots=True)
class Live:
    """What belongs to a running episode and cannot be written down."""

    environment: Environment
    working: WorkingMemory


@dataclass(frozen=True, slots=True)
class Settings:
    """How an agent runs its episodes."""

    arm: str = "retrieved"
    level: Literal["step", "task"] = "step"
    learn: bool = True
    guardrails: bool = True
    max_steps: int = 50
    recall_k: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes over one agent's parts."""

    policy: Policy
    library: ExperienceLibrary
    guidance: Guidance
    settings: Settings
    live: Mapping[str, Live]

    def begin(self, episode: EpisodeState) -> Update:
        """Reset the environment."""
        live = self.live[episode["thread"]]
        fresh = {
            "steps": (),
            "usage": Usage(),
            "hints": {},
            "replan": None,
            "score": 0.0,
            "success": False,
            "ending": "",
            "failed": "",
        }
        try:
            state = live.environment.reset(episode["task"], episode["seed"])
        except EnvironmentFailure as error:
            return {**fresh, **_excluded(error)}
        live.working.begin(state)
        return {**fresh, "first": state, "state": state}

    def observe(self, episode: EpisodeState) -> Update:
        """What can be done here."""
        try:
            actions = tuple(self.live[episode["thread"]].environment.admissible(episode["state"]))
        except EnvironmentFailure as error:
            return _excluded(error)
        return {"actions": actions, "forbidden": {}, "blocked": (), "replans": 0, "outcome": None, "decision": None}

    def signature(self, episode: EpisodeState) -> Update:
        """Whether this kind of situation is new in the episode."""
        here = episode["state"].signature
        return {"new_situation": all(step.pre.signature != here for step in episode["steps"])}

    def recall(self, episode: EpisodeState) -> Update:
        """What past experience says of this state."""
        state, working = episode["state"], self.live[episode["thread"]].working
        counts = {action: working.counts(state, action) for action in episode["actions"]}
        values = self.policy.reads == "values"
        recollection = self.library.recall(
            state,
            k=0 if values else self.settings.recall_k,
            budget_tokens=GUIDANCE_TOKENS,
            level=self.settings.level,
            actions=counts,
        )
        return {"recollection": recollection}

    def guide(self, episode: EpisodeState) -> Update:
        """The hint, or nothing: asked for in a new situation and after trouble, repeated otherwise."""
        if self.policy.reads == "values" or self.settings.arm == "control":
            return {"hint": None}
        hints, here = episode["hints"], episode["state"].signature
        if episode["new_situation"] or episode.get("replan") or here not in hints:
            hints = {**hints, here: self.guidance.propose(episode["recollection"])}
        return {"hint": hints[here], "hints": hints}

    def context(self, episode: EpisodeState) -> Context:
        """What the policy may look at."""
        hint = episode["hint"]
        asked = f"{self.settings.seed}:{episode['task']}:{episode['seed']}:{episode['episode']}"
        return Context(
            state=episode["state"],
            actions=tuple(episode["actions"]),
            recollection=episode["recollection"],
            guidance=hint.text if hint else None,
            forbidden=episode["forbidden"],
            history=tuple(episode["steps"]),
            working=self.live[episode["thread"]].working,
            rng=random.Random(f"{asked}:{len(episode['steps'])}:{episode['replans']}"),
            learning=self.settings.learn,
            episode=episode["episode"],
            replan=episode.get("replan"),
            manual=self._manual(episode),
        )

    def _manual(self, episode: EpisodeState) -> str:
        environment = self.live[episode["thread"]].environment
        inner = getattr(environment, "inner", environment)
        return inner.describe() if self.policy.reads == "text" and isinstance(inner, Described) else ""

    def decide(self, episode: EpisodeState) -> Update:
        """Ask the policy."""
        try:
            return self.decided(episode, self.policy.decide(self.context(episode)))
        except PolicyFailure as error:
            return self.undecided(episode, error)

    async def adecide(self, episode: EpisodeState) -> Update:
        """Ask the policy, awaited."""
        try:
            return self.decided(episode, await self.policy.adecide(self.context(episode)))
        except PolicyFailure as error:
            return self.undecided(episode, error)

    def decided(self, episode: EpisodeState, decision: Decision) -> Update:
        """The policy chose."""
        return {"decision": decision, "usage": episode["usage"] + decision.usage, "policy_failure": None}

    def undecided(self, episode: EpisodeState, error: PolicyFailure) -> Update:
        """The policy failed; the step is recorded as such."""
        spent = getattr(error, "usage", None) or Usage()
        return {"decision": None, "usage": episode["usage"] + spent, "policy_failure": str(error)}

    def guard(self, episode: EpisodeState) -> Update:
        """Refuse a forbidden action before it is run, and say why."""
        decision, forbidden, actions = episode["decision"], episode["forbidden"], episode["actions"]
        if decision is None:
            return {}
        action = decision.action
        if action in actions and all(known in forbidden for known in actions):
            return {"forbidden": {}, "blocked": ()}  # all is forbidden: the policy's choice overrides
        if actions and action not in actions:
            verdict = Verdict(False, None, "it is not among the admissible actions")
        elif action in forbidden:
            verdict = Verdict(False, None, forbidden[action])
        elif self.settings.guardrails:
            verdict = self.library.check(episode["state"], action)
        else:
            verdict = Verdict(True)
        if verdict.allowed:
            return {"forbidden": {}} if forbidden else {}
        refused = {**forbidden, action: verdict.cause}
        if self.settings.guardrails and episode["replans"] + 1 >= MAX_REPLANS:
            refused.update(self._all_forbidden(episode))
        blocked = (*episode["blocked"], verdict.item_id) if verdict.item_id else episode["blocked"]
        return {"forbidden": refused, "blocked": blocked, "replans": episode["replans"] + 1}

    def _all_forbidden(self, episode: EpisodeState) -> dict[str, str]:
        verdicts = {action: self.library.check(episode["state"], action) for action in episode["actions"]}
        return {action: verdict.cause for action, verdict in verdicts.items() if not verdict.allowed}

    def act(self, episode: EpisodeState) -> Update:
        """Run the action."""
        decision = episode["decision"]
        assert decision is not None
        live = self.live[episode["thread"]]
        try:
            return {"outcome": live.environment.step(decision.action)}
        except EnvironmentFailure as error:
            return _excluded(error)

    def diagnose(self, episode: EpisodeState) -> Update:
        """Judge the step and add it to the episode."""
        working = self.live[episode["thread"]].working
        step, done, info = self._step(episode, working)
        working.add(step)
        if not step.diagnosis.success and step.action:
            working.fail(step.action, self.library.context(step.pre, step.action), step.diagnosis.failure.value)
        step = replace(step, post=working.annotate(step.post))
        steps = (*episode["steps"], step)
        return {
            "steps": steps,
            "state": step.post,
            "replan": why_replan(steps),
            "score": float(info.get("score", episode.get("score", 0.0))),
            "success": bool(info.get("success", False)),
            "ending": self._ending(steps, done, info),
        }

    def _step(self, episode: EpisodeState, working: WorkingMemory) -> tuple[Step, bool, Info]:
        pre, decision, steps = episode["state"], episode["decision"], episode["steps"]
        why: dict[str, Any] = {"blocked": list(episode["blocked"])} if episode["blocked"] else {}
        if decision is None:
            failure = Failure.POLICY_ERROR
            judged = Diagnosis(False, failure, 0.0, True, evidence=episode.get("policy_failure") or "")
            return Step(pre, "", pre, judged, t=len(steps), why=why), False, {}
        why.update(decision.why)
        if hint := episode["hint"]:
            why["recalled"] = list(hint.item_ids)
            why["like"] = list(hint.step_ids)
        outcome = episode["outcome"]
        if outcome is None:
            cause = episode["forbidden"].get(decision.action, "")
            judged = Diagnosis(False, Failure.BLOCKED, 0.0, True, evidence=cause)
            return Step(pre, decision.action, pre, judged, t=len(steps), why=why), False, {}
        post, reward, done, info = outcome
        judged = diagnose(pre, decision.action, post, reward, info, steps, working)
        keys = self.library.keys(pre, decision.action, working.counts(pre, decision.action))
        return Step(pre, decision.action, post, judged, reward, len(steps), keys, why), done, info

    def _ending(self, steps: tuple[Step, ...], done: bool, info: Info) -> str:
        if done:
            return "success" if info.get("success") else "task_lost" if info.get("lost") else "done"
        failures = [step.diagnosis.failure for step in steps[-MAX_POLICY_FAILURES:]]
        if failures == [Failure.POLICY_ERROR] * MAX_POLICY_FAILURES:
            return "policy_error"
        return "step_limit" if len(steps) >= self.settings.max_steps else ""

    def record(self, episode: EpisodeState) -> Update:
        """The episode as a trajectory, once it is over."""
        if not episode.get("ending"):
            return {}
        excluded = bool(episode.get("failed"))
        meta = {
            "environment": self.live[episode["thread"]].environment.name,
            "policy": self.policy.name,
            "attempt": episode["attempt"],
            "episode": episode["episode"],
            **({"failed": episode["failed"]} if excluded else {}),
            **_spent(episode.get("usage", Usage())),
        }
        trajectory = Trajectory(
            episode["state"].task if "state" in episode else episode["task"],
            episode["steps"],
            None if excluded else episode.get("success", False),
            episode.get("score", 0.0),
            self.settings.arm,
            episode["seed"],
            episode["ending"],
            meta,
            uuid.uuid4().hex if self.settings.learn else "",
        )
        return {"trajectory": trajectory}

    def finish(self, episode: EpisodeState) -> Update:
        """Keep the episode and learn from it. Its id was given before, so that a resumed one is kept once."""
        if self.settings.learn:
            self.library.record(episode["trajectory"])
            if episode["trajectory"].success is not None:
                self.library.evolve()
        return {"trajectory": episode["trajectory"]}


def _excluded(error: EnvironmentFailure) -> Update:
    hung = isinstance(error, EnvironmentHung)
    return {"ending": Failure.ENVIRONMENT_HANG if hung else Failure.ENVIRONMENT_CRASH, "failed": str(error)}


def _spent(usage: Usage) -> dict[str, Any]:
    if not usage.calls:
        return {}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost_usd": usage.cost_usd,
        "calls": usage.calls,
    }


def _after_guard(episode: EpisodeState) -> str:
    if episode.get("decision") is None:
        return "diagnose"
    if not episode["forbidden"]:
        return "act"
    return "decide" if episode["replans"] <= MAX_REPLANS else "diagnose"


def _unless_failed(following: str) -> Callable[[EpisodeState], str]:
    return lambda episode: "record" if episode.get("failed") else following


ROUTES: Mapping[str, Callable[[EpisodeState], str]] = {
    "begin": _unless_failed("observe"),
    "observe": _unless_failed("signature"),
    "signature": lambda _: "recall",
    "recall": lambda _: "guide",
    "guide": lambda _: "decide",
    "decide": lambda _: "guard",
    "guard": _after_guard,
    "act": _unless_failed("diagnose"),
    "diagnose": lambda _: "record",
    "record": lambda episode: "finish" if episode.get("ending") else "observe",
}
"""What follows each node; `finish` ends the episode."""
TARGETS: Mapping[str, tuple[str, ...]] = {
    "begin": ("observe", "record"),
    "observe": ("signature", "record"),
    "signature": ("recall",),
    "recall": ("guide",),
    "guide": ("decide",),
    "decide": ("guard",),
    "guard": ("act", "decide", "diagnose"),
    "act": ("diagnose", "record"),
    "diagnose": ("record",),
    "record": ("observe", "finish"),
}
"""Where each node can lead, for drawing."""
