"""The nodes of the loop: functions from the episode's state to an update of it.

    begin -> observe -> signature -> recall -> guide -> plan -> decide -> guard -> act -> diagnose -> record
                ^                                                  ^________|                          |
                |______________________________________________________________________________________|-> finish

`plan` is skipped if the agent has no planner. `guide` and `plan` are in `loop.nodes_advise`, the state is in
`loop.state`, and `ROUTES` names the node that follows each node. `loop.graph` builds LangGraph graphs from them; this
module does not import LangGraph.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

from hardwon.memory import Diagnosis, Failure, Reasons, Recollection, Step, Trajectory, Verdict
from hardwon.memory.errors import EnvironmentFailure, EnvironmentHung, HardwonError, PolicyFailure
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.open_runs import ABANDONED
from hardwon.memory.situations.refinements import select_filed
from hardwon.runtime.interfaces.diagnosis import diagnose, why_replan
from hardwon.runtime.interfaces.plans import PlannedStep
from hardwon.runtime.interfaces.types import Decision, Info
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.planning.plans import Following, explain_plan
from hardwon.runtime.planning.progress import advance_plan, find_followed_step, judge_skills

from .advisor import collect_sources
from .enforcement import Ruling, rule, settle
from .extract import carry_out, read_episode
from .holdout import DrawnItems, is_forced
from .nodes_advise import DEMONSTRATIONS, AdvisingNodes
from .routed_recall import STORES
from .starts import rebuild_hints, rebuild_memory, start_from
from .state import EpisodeState, LiveEpisode, StateUpdate, build_cost_fields
from .tuning import TUNING


@runtime_checkable
class Closable(Protocol):
    """A component that holds something open."""

    def close(self) -> None:
        """Release all resources. You can call this more than once."""
        ...


@dataclass(frozen=True, slots=True)
class Nodes(AdvisingNodes):
    """All nodes of one agent's loop, with the components that they use."""

    extractor: Extractor | None = None

    def with_live(self, live: Mapping[str, LiveEpisode]) -> "Nodes":
        """Return these nodes for the episodes of another dictionary."""
        return replace(self, live=live)

    def close(self) -> None:
        """Close what the planner opened, if it opened anything."""
        if isinstance(self.planner, Closable):
            self.planner.close()

    def begin(self, episode: EpisodeState) -> StateUpdate:
        """Reset the environment and the episode's state, and repeat the prefix if there is one."""
        live = self.live[episode["thread"]]
        prefix = episode.get("prefix", ())
        fresh = {
            "steps": (),
            "practice": None,
            "usage": ModelUsage(),
            "hints": {},
            "drawn": {},
            "plan": None,
            "skills": None if self.planner is None else {},
            "replan": None,
            "score": 0.0,
            "success": False,
            "ending": "",
            "failed": "",
            **self._choose_stores(episode),
        }
        try:
            if prefix:
                return {**fresh, **self._begin_with(episode, prefix)}
            state = live.environment.reset(episode["task"], episode["seed"])
        except EnvironmentFailure as error:
            return {**fresh, **_exclude(error)}
        live.working.begin(state)
        return {**fresh, "first": state, "state": state}

    def _begin_with(self, episode: EpisodeState, prefix: tuple[Step, ...]) -> StateUpdate:
        """Return the update after the steps of a prefix, as if they had been taken in this episode."""
        live = self.live[episode["thread"]]
        reached = start_from(live.environment, episode["task"], episode["seed"], prefix)
        live.working = rebuild_memory(self.library, reached.first, prefix)
        return {
            "first": reached.first,
            "state": live.working.annotate(reached.state),
            "steps": tuple(replace(step, t=t, id=None, return_to_go=None) for t, step in enumerate(prefix)),
            "hints": rebuild_hints(prefix),
            "replan": why_replan(prefix),
            "score": float(reached.info.get("score", 0.0)),
            "success": bool(reached.info.get("success", False)),
            "ending": self._determine_ending(prefix, False, reached.info, episode.get("max_steps")),
        }

    def observe(self, episode: EpisodeState) -> StateUpdate:
        """List the admissible actions and clear the fields of the previous step."""
        try:
            actions = tuple(self.live[episode["thread"]].environment.admissible(episode["state"]))
        except EnvironmentFailure as error:
            return _exclude(error)
        # A checkpoint stores each field that changes, so the rare ones are reset only if they were set.
        begun = {"actions": actions, "forbidden": {}, "blocked": (), "replans": 0, "outcome": None, "decision": None}
        begun |= self._count_practice(episode, actions)
        return {**begun, "overrode": (), "trial": ()} if episode.get("overrode") else begun

    def _count_practice(self, episode: EpisodeState, actions: Sequence[str]) -> StateUpdate:
        """Count the practice once, before the first decision of an episode in which the policy explores."""
        if not self.settings.explores or episode.get("practice") is not None:
            return {}
        return {"practice": self.library.episodes.count(episode["state"], actions)}

    def signature(self, episode: EpisodeState) -> StateUpdate:
        """Determine whether this kind of situation is new in the episode."""
        signature = episode["state"].signature
        return {"new_situation": all(step.pre.signature != signature for step in episode["steps"])}

    def recall(self, episode: EpisodeState) -> StateUpdate:
        """Recall past experience for the current state, unless the policy asks for it itself."""
        if self._recalls_on_demand:
            return {"recollection": Recollection()}
        recollection, silent = self._recall(episode, episode["actions"])
        if silent:
            # An episode counts as one without a store that was down, and does not wait for it again.
            return {"recollection": recollection, "stores": {**episode["stores"], **dict.fromkeys(silent, False)}}
        return {"recollection": recollection}

    def decide(self, episode: EpisodeState) -> StateUpdate:
        """Let the policy choose an action."""
        try:
            return self.apply_decision(episode, self.policy.decide(self._prepare_decision(episode)))
        except PolicyFailure as error:
            return self.apply_policy_failure(episode, error)

    async def adecide(self, episode: EpisodeState) -> StateUpdate:
        """Let the policy choose an action, awaiting it."""
        try:
            return self.apply_decision(episode, await self.policy.adecide(self._prepare_decision(episode)))
        except PolicyFailure as error:
            return self.apply_policy_failure(episode, error)

    def apply_decision(self, episode: EpisodeState, decision: Decision) -> StateUpdate:
        """Return the update after the policy's choice."""
        return {"decision": decision, "usage": episode["usage"] + decision.usage, "policy_failure": None}

    def apply_policy_failure(self, episode: EpisodeState, error: PolicyFailure) -> StateUpdate:
        """Return the update after a failure of the policy; the step is recorded as failed."""
        spent = getattr(error, "usage", None) or ModelUsage()
        return {"decision": None, "usage": episode["usage"] + spent, "policy_failure": str(error)}

    def guard(self, episode: EpisodeState) -> StateUpdate:
        """Refuse a forbidden or inadmissible action before it runs, with the reason."""
        decision, forbidden, actions = episode["decision"], episode["forbidden"], episode["actions"]
        if decision is None:
            return {}
        action = decision.action
        if action in actions and all(candidate in forbidden for candidate in actions):
            # Every action is forbidden, and one of them must run: the policy's choice stands.
            return {"forbidden": {}, "blocked": (), **self._record_override(episode, action)}
        if actions and action not in actions:
            ruling = Ruling(Verdict(False, None, "it is not among the admissible actions"), runs=False)
        elif action in forbidden:  # refused in this step already: repeat the answer without counting it again
            ruling = Ruling(Verdict(False, None, forbidden[action]), runs=False)
        else:
            mode, learn = self.settings.guardrails, self.settings.learn
            ruling = rule(
                self.library, mode, episode["state"], action, episode["steps"], learn=learn, by_hours=not learn
            )
        verdict = ruling.verdict
        if ruling.runs and verdict.items:
            trial = verdict.items if verdict.trial else ()
            return {"forbidden": {}, "blocked": (), "overrode": verdict.items, "trial": trial}
        if ruling.runs:
            return {"forbidden": {}} if forbidden else {}
        trying = self.settings.tries and verdict.item_id is not None
        if trying and is_forced(self._episode_name(episode), len(episode["steps"]), episode["replans"]):
            return {"forbidden": {}, "overrode": (verdict.item_id,)}
        refused = {**forbidden, action: verdict.cause}
        # The full list costs a check of every action, so it is made only for the last choice.
        if self.settings.guardrails and episode["replans"] + 1 >= TUNING.max_replans:
            refused.update(self._list_forbidden(episode))
        blocked = (*episode["blocked"], verdict.item_id) if verdict.item_id else episode["blocked"]
        # Beyond the maximum, so that the route leads to `diagnose` and not to another decision.
        replans = TUNING.max_replans + 1 if ruling.over else episode["replans"] + 1
        return {"forbidden": refused, "blocked": blocked, "replans": replans, "stopped": ruling.over}

    def _record_override(self, episode: EpisodeState, action: str) -> StateUpdate:
        items = self.library.check(episode["state"], action).items if self.settings.guardrails else ()
        return {"overrode": items[:1]} if items else {}

    def _list_forbidden(self, episode: EpisodeState) -> dict[str, str]:
        checks = {action: self.library.check(episode["state"], action) for action in episode["actions"]}
        return {action: verdict.cause for action, verdict in checks.items() if not verdict.allowed}

    def act(self, episode: EpisodeState) -> StateUpdate:
        """Run the action in the environment."""
        decision = episode["decision"]
        assert decision is not None
        live = self.live[episode["thread"]]
        try:
            return {"outcome": live.environment.step(decision.action)}
        except EnvironmentFailure as error:
            return _exclude(error)

    async def aact(self, episode: EpisodeState) -> StateUpdate:
        """Run the action, awaiting environments that support it so that other episodes continue meanwhile."""
        decision, environment = episode["decision"], self.live[episode["thread"]].environment
        if decision is None or not getattr(environment, "waits", False):
            return self.act(episode)
        try:
            return {"outcome": await cast(Any, environment).astep(decision.action)}
        except EnvironmentFailure as error:
            return _exclude(error)

    def diagnose(self, episode: EpisodeState) -> StateUpdate:
        """Diagnose the step and append it to the episode."""
        live = self.live[episode["thread"]]
        working = live.working
        step, done, info = self._build_step(episode, working)
        working.add(step)
        if not self.settings.learn:  # a recorded episode settles its trials itself
            settle(self.library, step)
        if not step.diagnosis.success and step.action:
            working.fail(
                step.action, self.library.episodes.context(step.pre, step.action), step.diagnosis.failure.value
            )
        # Notes go into the state only now: the diagnosis compares states as the environment reported them.
        step = replace(step, post=working.annotate(step.post))
        planned = find_followed_step(episode.get("plan"), step.action) if episode["outcome"] is not None else None
        if planned is not None and planned.item_id:
            step = replace(step, why=step.why.updated(skills=(planned.item_id,)))
        if planned is not None:
            step = replace(step, why=step.why.merged(Reasons(extra=explain_plan(episode["plan"]))))
        steps = (*episode["steps"], step)
        ending = (
            "blocked" if episode.get("stopped") else self._determine_ending(steps, done, info, episode.get("max_steps"))
        )
        update = {
            "steps": steps,
            "state": step.post,
            "replan": why_replan(steps),
            "score": float(info.get("score", episode.get("score", 0.0))),
            "success": bool(info.get("success", False)),
            "ending": ending,
        }
        if episode.get("plan") is not None:
            update |= self._advance_plan(episode, planned, update)
        if self.settings.learn:
            self._keep(live, cast(EpisodeState, {**episode, **update}))
        return update

    def _keep(self, live: LiveEpisode, reached: EpisodeState) -> None:
        """Keep the state after a step; the process may end before the episode does."""
        live.reached, steps = reached, reached["steps"]
        if live.run is None:
            begun = cast(EpisodeState, {**reached, "steps": (), "ending": ABANDONED})
            header = self.record(begun)["trajectory"]
            live.run = self.library.episodes.open_run(live.id, lambda: header)
            live.run.add_soon(*steps)
        else:
            live.run.add_soon(steps[-1])

    def _advance_plan(self, episode: EpisodeState, planned: PlannedStep | None, update: StateUpdate) -> StateUpdate:
        """Return the plan after a step and, when the plan or the episode ends, the verdicts on its skills."""
        plan, changed = episode["plan"], StateUpdate()
        assert plan is not None
        if planned is not None:
            plan, missed = advance_plan(plan, planned, update["steps"][-1])
            changed["plan"] = plan
            if missed and not update["replan"] and not episode.get("replan"):  # report trouble once, not while it lasts
                changed["replan"] = missed
        if plan.next is None or update["ending"]:
            changed["skills"] = judge_skills(plan, update["state"], episode["skills"] or {})
        return changed

    def _build_step(self, episode: EpisodeState, working: WorkingMemory) -> tuple[Step, bool, Info]:
        pre, decision, steps = episode["state"], episode["decision"], episode["steps"]
        why = Reasons.of({name: episode[name] for name in ("blocked", "overrode", "trial") if episode.get(name)})
        if decision is None:
            failure = Failure.POLICY_ERROR
            diagnosis = Diagnosis(False, failure, 0.0, True, evidence=episode.get("policy_failure") or "")
            return Step(pre, "", pre, diagnosis, t=len(steps), why=why), False, {}
        why = why.merged(decision.why).updated(**_collect_advice(episode))
        outcome = episode["outcome"]
        if outcome is None:
            cause = episode["forbidden"].get(decision.action, "")
            diagnosis = Diagnosis(False, Failure.BLOCKED, 0.0, True, evidence=cause)
            return Step(pre, decision.action, pre, diagnosis, t=len(steps), why=why), False, {}
        post, reward, done, info = outcome
        diagnosis = diagnose(pre, decision.action, post, reward, info, steps, working)
        keys = self.library.episodes.keys(pre, decision.action, working.counts(pre, decision.action))
        keys = select_filed(keys, why)
        # An episode that nobody records need not carry the list, unless the policy needs its map after a resume.
        is_needed = self.settings.learn or self.settings.tries or self._looks_ahead or self.planner is not None
        admissible = tuple(episode["actions"]) if is_needed else ()
        step = Step(pre, decision.action, post, diagnosis, reward, len(steps), keys, why, admissible=admissible)
        return step, done, info

    def _determine_ending(self, steps: tuple[Step, ...], done: bool, info: Info, most: int | None = None) -> str:
        if done:
            return "success" if info.get("success") else "task_lost" if info.get("lost") else "done"
        failures = [step.diagnosis.failure for step in steps[-TUNING.max_policy_failures :]]
        if failures == [Failure.POLICY_ERROR] * TUNING.max_policy_failures:
            return "policy_error"
        limit = most or self.settings.budget.limit(steps, steps[-1].post)
        return "step_limit" if len(steps) >= limit else ""

    def record(self, episode: EpisodeState) -> StateUpdate:
        """Build the trajectory once the episode has ended."""
        if not episode.get("ending"):
            return {}
        excluded = bool(episode.get("failed"))
        meta = {
            "environment": self.live[episode["thread"]].environment.name,
            "policy": self.policy.name,
            "attempt": episode["attempt"],
            "episode": episode["episode"],
            **_name_split(episode),
            **({"failed": episode["failed"]} if excluded else {}),
            **self._name_trial(episode),
            **({"skills": skills} if (skills := episode.get("skills")) else {}),
            **({"guidance": guidance} if (guidance := _summarize_guidance(episode["steps"])) else {}),
            **({"strategy": episode["strategy"]} if episode.get("strategy") else {}),
            **({"test": True} if episode.get("is_test") else {}),
            **({STORES: stores} if (stores := episode.get("stores")) else {}),
            **build_cost_fields(episode.get("usage", ModelUsage())),
        }
        trajectory = Trajectory(
            episode["state"].task if "state" in episode else episode["task"],
            episode["steps"],
            None if excluded else episode["success"],
            episode["score"],
            self.settings.arm.name,
            episode["seed"],
            episode["ending"],
            meta,
            self.live[episode["thread"]].id if self.settings.learn else "",
        )
        return {"trajectory": trajectory}

    def _name_trial(self, episode: EpisodeState) -> dict[str, str]:
        """Return whether demonstrations were followed or withheld, if the episode measures their worth."""
        if not isinstance(self.planner, Following) or not self._is_trying:
            return {}
        if any("demonstration" in step.why.extra for step in episode["steps"]):
            return {DEMONSTRATIONS: "followed"}
        return {DEMONSTRATIONS: "withheld"} if self._is_withheld(episode, DEMONSTRATIONS) else {}

    def finish(self, episode: EpisodeState) -> StateUpdate:
        """Store the episode and learn from it.

        `record` already gave the trajectory its id, so that an episode that is resumed here is stored only once.
        """
        trajectory = episode["trajectory"]
        if not self.settings.learn:
            return {"trajectory": trajectory}
        # The extractor runs before `record` writes, because its cost and errors belong to the episode's record.
        reading, usage = None, episode.get("usage", ModelUsage())
        if self.extractor is not None and trajectory.success is not None:
            reading = read_episode(self.extractor, trajectory, self.library)
            usage += reading.usage
            trajectory = replace(
                trajectory, meta={**trajectory.meta, **build_cost_fields(usage), "extraction": reading.report}
            )
        self._store(episode["thread"], trajectory)
        if reading is not None:
            carry_out(reading, trajectory.id, self.library)
        # An excluded episode teaches nothing (decision 007).
        if trajectory.success is not None:
            self.library.evolve()
        return {"trajectory": trajectory, "usage": usage}

    def _store(self, thread: str, trajectory: Trajectory) -> None:
        """Store an episode in place of the steps that were kept."""
        live = self.live[thread]
        live.reached = None
        if live.is_resumed:
            self.library.record(trajectory, continued=True)
        else:
            self.library.record(trajectory)
        if live.run is not None:
            live.run.close()

    def store_cut(self, episode: EpisodeState) -> None:
        """Store what an episode did before an error or a person stopped it; its outcome is unknown."""
        with suppress(HardwonError):  # the error that stopped it is the one that its caller must see
            self._store(episode["thread"], self.record(episode)["trajectory"])

    async def afinish(self, episode: EpisodeState) -> StateUpdate:
        """Store the episode and learn from it; an extractor may wait for a model, so it runs in a thread."""
        return self.finish(episode) if self.extractor is None else await asyncio.to_thread(self.finish, episode)


def _exclude(error: EnvironmentFailure) -> StateUpdate:
    hung = isinstance(error, EnvironmentHung)
    return {"ending": Failure.ENVIRONMENT_HANG if hung else Failure.ENVIRONMENT_CRASH, "failed": str(error)}


def _collect_advice(episode: EpisodeState) -> dict[str, Any]:
    """Return the fields of `Reasons` that tell which advice the policy got in this step."""
    drawn = episode.get("drawn", {}).get(episode["state"].signature, DrawnItems())
    advice = collect_sources(episode["hint"], drawn)
    if guided := episode.get("guided"):
        advice["guidance"] = guided
    return advice


def _name_split(episode: EpisodeState) -> dict[str, str]:
    """Return the split that the environment was reset with, if its states name the task in other words.

    The same seed of another split is another task instance, and the task's words may be the same.
    """
    is_split = "state" in episode and episode["task"] not in ("", episode["state"].task)
    return {"split": episode["task"]} if is_split else {}


def _summarize_guidance(steps: Sequence[Step]) -> dict[str, float]:
    """Return how often guidance ran and abstained in an episode, with tokens, cost and seconds of its models."""
    records = [step.why.guidance for step in steps if step.why.guidance is not None]
    sums = {
        name: sum(record.get(name, 0) for record in records)
        for name in ("abstained", "calls", "prompt_tokens", "completion_tokens", "cost_usd", "seconds")
    }
    return {"asked": len(records), **{name: total for name, total in sums.items() if total}} if records else {}


def _route_after_guard(episode: EpisodeState) -> str:
    if episode.get("decision") is None:
        return "diagnose"
    if not episode["forbidden"]:
        return "act"
    return "decide" if episode["replans"] <= TUNING.max_replans else "diagnose"


def _route_unless_failed(following: str) -> Callable[[EpisodeState], str]:
    return lambda episode: "record" if episode.get("failed") else following


ROUTES: Mapping[str, Callable[[EpisodeState], str]] = {
    "begin": lambda episode: "record" if episode.get("ending") else "observe",
    "observe": _route_unless_failed("signature"),
    "signature": lambda _: "recall",
    "recall": lambda _: "guide",
    "guide": lambda episode: "decide" if episode.get("skills") is None else "plan",
    "plan": lambda _: "decide",
    "decide": lambda _: "guard",
    "guard": _route_after_guard,
    "act": _route_unless_failed("diagnose"),
    "diagnose": lambda _: "record",
    "record": lambda episode: "finish" if episode.get("ending") else "observe",
}
"""The node that follows each node; `finish` ends the episode."""
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
"""All nodes that can follow each node, for drawing the graph."""
