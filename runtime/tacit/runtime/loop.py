"""The nodes of the loop: pure steps from the episode's state to what they change of it.

    begin -> observe -> signature -> recall -> guide -> plan -> decide -> guard -> act -> diagnose -> record
                ^                                                  ^________|                          |
                |______________________________________________________________________________________|-> finish

`plan` is left out where the agent has no planner. Dependencies arrive through `Nodes`; what cannot be
written to a checkpoint (the open environment, the working memory) is in `Live` and is rebuilt when an
episode is resumed. `ROUTES` says what follows a node. `graph` makes a LangGraph of them; nothing here
imports it.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, cast

from tacit.memory import (
    Diagnosis,
    ExperienceLibrary,
    Failure,
    Item,
    Recollection,
    State,
    Step,
    Trajectory,
    Verdict,
)
from tacit.memory.errors import EnvironmentFailure, EnvironmentHung, PolicyFailure
from tacit.memory.extraction import Extractor
from tacit.memory.records import Kind

from .diagnosis import diagnose, why_replan
from .following import advanced, cannot_go_on, followed, verdicts
from .guidance import Guidance, Hint, Occasion, forbidden_in, occasion, proposed
from .plan import Plan, PlannedStep, Planner
from .protocols import Context, Decision, Described, Environment, Info, Policy, Usage
from .reading import carry_out, read_episode
from .trials import is_forced, is_withheld, without
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
    guided: dict[str, Any] | None
    """Of guidance asked for in this step: why, what came of it, what it cost."""
    withheld: dict[str, tuple[str, ...]]
    """The items held back in each situation."""
    plan: Plan | None
    skills: dict[str, bool] | None
    """The skills and remedies whose run is over, and whether it was verified; None without a planner."""
    forbidden: dict[str, str]
    blocked: tuple[str, ...]
    overrode: tuple[str, ...]
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
    planner: Planner | None = None
    extractor: Extractor | None = None

    def begin(self, episode: EpisodeState) -> Update:
        """Reset the environment."""
        live = self.live[episode["thread"]]
        fresh = {
            "steps": (),
            "usage": Usage(),
            "hints": {},
            "withheld": {},
            "plan": None,
            "skills": None if self.planner is None else {},
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
        begun = {"actions": actions, "forbidden": {}, "blocked": (), "replans": 0, "outcome": None, "decision": None}
        return {**begun, "overrode": ()} if episode.get("overrode") else begun

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
            after=episode["steps"][-1].action if episode["steps"] else "",
        )
        return {"recollection": recollection}

    def guide(self, episode: EpisodeState) -> Update:
        """The hint, or nothing: asked for at an `occasion`, repeated otherwise."""
        if (why := self._occasion(episode)) is None:
            return self._unasked(episode)
        context, withheld = self._asking(episode)
        began = time.perf_counter()
        return self._guided(episode, why, context, withheld, self.guidance.propose(context), began)

    async def aguide(self, episode: EpisodeState) -> Update:
        """The same, awaiting guidance that waits for a model."""
        if (why := self._occasion(episode)) is None:
            return self._unasked(episode)
        context, withheld = self._asking(episode)
        began = time.perf_counter()
        return self._guided(episode, why, context, withheld, await proposed(self.guidance, context), began)

    def _occasion(self, episode: EpisodeState) -> Occasion | None:
        if self.policy.reads == "values" or self.settings.arm == "control":
            return None
        return occasion(
            steps=len(episode["steps"]),
            new_situation=episode["new_situation"],
            replan=episode.get("replan"),
            known=episode["state"].signature in episode["hints"],
        )

    def _unasked(self, episode: EpisodeState) -> Update:
        return {"hint": episode["hints"].get(episode["state"].signature), "guided": None}

    def _asking(self, episode: EpisodeState) -> tuple[Context, tuple[str, ...]]:
        """What guidance looks at: without the items that are held back, whose ids come with it."""
        recollection, withheld = without(episode["recollection"], lambda ref: self._held_back(episode, ref))
        return self.context({**episode, "hint": None, "recollection": recollection}), withheld

    def _guided(
        self,
        episode: EpisodeState,
        why: Occasion,
        context: Context,
        withheld: tuple[str, ...],
        hint: Hint | None,
        began: float,
    ) -> Update:
        """Keep what was said, or that nothing was, with what it cost."""
        here, told, spent = episode["state"].signature, dict[str, Any](asked=why), Usage()
        if hint is not None:
            told, spent = {**told, **hint.why}, hint.usage
        if hint is not None and hint.written and (action := forbidden_in(hint.text, context)):
            hint, told["dropped"] = None, action
        hint = hint if hint is not None and hint.text else None
        told["abstained"] = hint is None
        if spent.calls:
            told.update(_spent(spent), seconds=time.perf_counter() - began)
        return {
            "hint": hint,
            "guided": told,
            "usage": episode["usage"] + spent,
            "hints": {**episode["hints"], here: hint},
            "withheld": {**episode["withheld"], here: withheld},
        }

    def _held_back(self, episode: EpisodeState, item_id: str) -> bool:
        trying = self.settings.learn and self.settings.arm != "control"
        return trying and is_withheld(self._asked(episode), item_id)

    def _asked(self, episode: EpisodeState) -> str:
        return f"{self.settings.seed}:{episode['task']}:{episode['seed']}:{episode['episode']}"

    def plan(self, episode: EpisodeState) -> Update:
        """Repair the plan after trouble, go on with it, or make one: in a new situation, and after one is over."""
        if self.planner is None:
            return {}
        context, plan = self.context(episode), episode["plan"]
        trouble = episode.get("replan") or cannot_go_on(context)
        if not trouble and (plan.next is not None if plan else not episode["new_situation"]):
            return {}
        items, withheld = self._offered(episode, ("skill", "remedy") if trouble else ("skill",))
        if trouble:
            made: Plan | None = self.planner.repair(plan or Plan(context.state.task), trouble, context, items)
        else:
            made = self.planner.plan(context, items)
        update: Update = {"plan": made if made and made.steps else None}
        if plan:
            update["skills"] = verdicts(plan, episode["state"], episode["skills"] or {}, going_on=made)
        if made and made.usage.calls:
            update["usage"] = episode["usage"] + made.usage
        if withheld:
            here = episode["state"].signature
            known = episode["withheld"].get(here, ())
            update["withheld"] = {**episode["withheld"], here: tuple(dict.fromkeys((*known, *withheld)))}
        return update

    async def aplan(self, episode: EpisodeState) -> Update:
        """The same; a planner that waits for a model is left to a thread."""
        if self.planner is not None and self.planner.waits:
            return await asyncio.to_thread(self.plan, episode)
        return self.plan(episode)

    def _offered(self, episode: EpisodeState, kinds: Sequence[Kind]) -> tuple[tuple[Item, ...], tuple[str, ...]]:
        """Skills and remedies that fit here and did not fail in this episode; and the ids of those held back."""
        if self.settings.arm == "control":
            return (), ()
        known = episode["skills"] or {}
        fitting = [item for item in self.library.offered(episode["state"], kinds=kinds) if known.get(item.id, True)]
        withheld = tuple(item.id for item in fitting if self._held_back(episode, item.id))
        return tuple(item for item in fitting if item.id not in withheld), withheld

    def context(self, episode: EpisodeState) -> Context:
        """What the policy may look at."""
        hint = episode["hint"]
        asked = self._asked(episode)
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
            plan=episode.get("plan"),
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
            return {"forbidden": {}, "blocked": (), **self._overridden(episode, action)}  # all is: the choice stands
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
        trying = self.settings.learn and verdict.item_id is not None
        if trying and is_forced(self._asked(episode), len(episode["steps"]), episode["replans"]):
            return {"forbidden": {}, "overrode": (verdict.item_id,)}
        refused = {**forbidden, action: verdict.cause}
        if self.settings.guardrails and episode["replans"] + 1 >= MAX_REPLANS:
            refused.update(self._all_forbidden(episode))
        blocked = (*episode["blocked"], verdict.item_id) if verdict.item_id else episode["blocked"]
        return {"forbidden": refused, "blocked": blocked, "replans": episode["replans"] + 1}

    def _overridden(self, episode: EpisodeState, action: str) -> Update:
        verdict = self.library.check(episode["state"], action) if self.settings.guardrails else Verdict(True)
        return {"overrode": (verdict.item_id,)} if verdict.item_id else {}

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

    async def aact(self, episode: EpisodeState) -> Update:
        """The same; an environment that can be awaited is, so that others go on meanwhile."""
        decision, environment = episode["decision"], self.live[episode["thread"]].environment
        if decision is None or not getattr(environment, "waits", False):
            return self.act(episode)
        try:
            return {"outcome": await cast(Any, environment).astep(decision.action)}
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
        planned = followed(episode.get("plan"), step.action) if episode["outcome"] is not None else None
        if planned is not None and planned.item_id:
            step = replace(step, why={**step.why, "skill": planned.item_id})
        steps = (*episode["steps"], step)
        ending = self._ending(steps, done, info)
        update = {
            "steps": steps,
            "state": step.post,
            "replan": why_replan(steps),
            "score": float(info.get("score", episode.get("score", 0.0))),
            "success": bool(info.get("success", False)),
            "ending": ending,
        }
        return update if episode.get("plan") is None else {**update, **self._advanced(episode, planned, update)}

    def _advanced(self, episode: EpisodeState, planned: PlannedStep | None, update: Update) -> Update:
        """The plan after a step; at its end, or the episode's, the verdict on its skills."""
        plan, changed = episode["plan"], Update()
        assert plan is not None
        if planned is not None:
            plan, missed = advanced(plan, planned, update["steps"][-1])
            changed["plan"] = plan
            if missed and not update["replan"] and not episode.get("replan"):  # once, not while the trouble lasts
                changed["replan"] = missed
        if plan.next is None or update["ending"]:
            changed["skills"] = verdicts(plan, update["state"], episode["skills"] or {})
        return changed

    def _step(self, episode: EpisodeState, working: WorkingMemory) -> tuple[Step, bool, Info]:
        pre, decision, steps = episode["state"], episode["decision"], episode["steps"]
        why: dict[str, Any] = {name: list(episode[name]) for name in ("blocked", "overrode") if episode.get(name)}
        if decision is None:
            failure = Failure.POLICY_ERROR
            judged = Diagnosis(False, failure, 0.0, True, evidence=episode.get("policy_failure") or "")
            return Step(pre, "", pre, judged, t=len(steps), why=why), False, {}
        why.update(decision.why)
        if hint := episode["hint"]:
            why["recalled"] = list(hint.item_ids)
            why["like"] = list(hint.step_ids)
        if guided := episode.get("guided"):
            why["guidance"] = guided
        if withheld := episode.get("withheld", {}).get(pre.signature):
            why["withheld"] = list(withheld)
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
            **({"skills": skills} if (skills := episode.get("skills")) else {}),
            **({"guidance": guidance} if (guidance := _guidance_of(episode["steps"])) else {}),
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
        trajectory = episode["trajectory"]
        if not self.settings.learn:
            return {"trajectory": trajectory}
        reading, usage = None, episode.get("usage", Usage())
        if self.extractor is not None and trajectory.success is not None:
            reading = read_episode(self.extractor, trajectory, self.library)
            usage += reading.usage
            trajectory = replace(trajectory, meta={**trajectory.meta, **_spent(usage), "extraction": reading.told})
        self.library.record(trajectory)
        if reading is not None:
            carry_out(reading, trajectory.id, self.library)
        if trajectory.success is not None:
            self.library.evolve()
        return {"trajectory": trajectory, "usage": usage}

    async def afinish(self, episode: EpisodeState) -> Update:
        """The same; an extractor is left to a thread, for it may wait for a model."""
        return self.finish(episode) if self.extractor is None else await asyncio.to_thread(self.finish, episode)


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


def _guidance_of(steps: Sequence[Step]) -> dict[str, float]:
    """How often guidance was asked for in an episode and abstained, and what it cost where a model was asked."""
    asked = [step.why["guidance"] for step in steps if "guidance" in step.why]
    sums = {
        name: sum(one.get(name, 0) for one in asked)
        for name in ("abstained", "calls", "prompt_tokens", "completion_tokens", "cost_usd", "seconds")
    }
    return {"asked": len(asked), **{name: total for name, total in sums.items() if total}} if asked else {}


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
    "guide": lambda episode: "decide" if episode.get("skills") is None else "plan",
    "plan": lambda _: "decide",
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
    "guide": ("plan", "decide"),
    "plan": ("decide",),
    "decide": ("guard",),
    "guard": ("act", "decide", "diagnose"),
    "act": ("diagnose", "record"),
    "diagnose": ("record",),
    "record": ("observe", "finish"),
}
"""Where each node can lead, for drawing."""
