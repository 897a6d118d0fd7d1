"""The stages before a decision: guidance, the plan, and the context that the policy sees.

    guide -> plan -> decide

Items withheld at random (see `loop.holdout`) are hidden from guidance and planner here, and their ids are recorded.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Item, Recollection
from hardwon.memory.records import Kind
from hardwon.runtime.guidance.base import Guidance, Occasion, find_occasion
from hardwon.runtime.interfaces.extension import Recaller, Router
from hardwon.runtime.interfaces.plans import Plan
from hardwon.runtime.interfaces.types import Context, Described, Environment, Policy, Tooled
from hardwon.runtime.planning.plans import Following, Planner
from hardwon.runtime.planning.progress import explain_dead_end, judge_skills

from .advisor import Advice, Advisor
from .holdout import DrawnItems
from .routed_recall import MergedRecall
from .state import EpisodeState, LiveEpisode, Settings, StateUpdate
from .tuning import TUNING

DEMONSTRATIONS = "demonstrations"
"""Name under which a following planner is withheld at random, as an item is under its id."""


@dataclass(frozen=True, slots=True)
class AdvisingNodes:
    """The nodes that prepare a decision, with the components that they use."""

    policy: Policy
    library: ExperienceLibrary
    guidance: Guidance
    settings: Settings
    live: Mapping[str, LiveEpisode]
    planner: Planner | None = None
    recaller: Recaller | Router | None = None

    def _choose_stores(self, episode: EpisodeState) -> StateUpdate:
        """Return from which stores the episode recalls, if the recaller decides so in every episode."""
        if not isinstance(self.recaller, Router) or not self.settings.arm.has_memory:
            return {}
        name, environment = self._episode_name(episode), self._get_environment(episode).name
        return {"stores": dict(self.recaller.choose(name, environment, tries=self._is_trying))}

    def _find_recaller(self, episode: EpisodeState) -> Recaller:
        """Return what answers the recalls of an episode: the library, unless the agent was given another recaller."""
        if self.recaller is None or not self.settings.arm.has_memory:
            return self.library
        return self.recaller.limit_to(episode.get("stores", {})) if isinstance(self.recaller, Router) else self.recaller

    def guide(self, episode: EpisodeState) -> StateUpdate:
        """Propose a hint on the occasions for guidance, and repeat the situation's last hint otherwise."""
        if (occasion := self._find_occasion(episode)) is None:
            return self._repeat_hint(episode)
        context, drawn = self._prepare_guidance(episode)
        return self._apply_advice(episode, self._advisor.advise(occasion, context), drawn)

    async def aguide(self, episode: EpisodeState) -> StateUpdate:
        """Propose a hint as `guide` does, awaiting guidance that waits for a model."""
        if (occasion := self._find_occasion(episode)) is None:
            return self._repeat_hint(episode)
        context, drawn = self._prepare_guidance(episode)
        return self._apply_advice(episode, await self._advisor.aadvise(occasion, context), drawn)

    @property
    def _advisor(self) -> Advisor:
        return Advisor(self.library, self.guidance, self._is_trying)

    def _find_occasion(self, episode: EpisodeState) -> Occasion | None:
        if self.policy.reads == "values" or not self.settings.arm.has_memory:
            return None
        return find_occasion(
            steps=len(episode["steps"]),
            new_situation=episode["new_situation"],
            replan=episode.get("replan"),
            was_guided=episode["state"].signature in episode["hints"],
        )

    def _repeat_hint(self, episode: EpisodeState) -> StateUpdate:
        return {"hint": episode["hints"].get(episode["state"].signature), "guided": None}

    def _prepare_guidance(self, episode: EpisodeState) -> tuple[Context, DrawnItems]:
        """Return the context for guidance without the withheld items, and the items of random trials."""
        recollection, drawn = self._advisor.withhold(episode["recollection"], self._episode_name(episode))
        return self.context({**episode, "hint": None, "recollection": recollection}), drawn

    def _apply_advice(self, episode: EpisodeState, advice: Advice, drawn: DrawnItems) -> StateUpdate:
        """Return the update after guidance: the hint or its absence, and the cost."""
        signature = episode["state"].signature
        return {
            "hint": advice.hint,
            "guided": advice.record,
            "usage": episode["usage"] + advice.usage,
            # None is stored too: abstaining also holds for the situation, until there is trouble.
            "hints": {**episode["hints"], signature: advice.hint},
            "drawn": {**episode.get("drawn", {}), signature: drawn},
        }

    def _is_withheld(self, episode: EpisodeState, item_id: str) -> bool:
        return self._advisor.is_withheld(self._episode_name(episode), item_id)

    @property
    def _is_trying(self) -> bool:
        """Return whether items may be withheld at random: in learning episodes of an arm with memory."""
        return self.settings.tries and self.settings.arm.has_memory

    def _episode_name(self, episode: EpisodeState) -> str:
        if self.settings.tries and not self.settings.learn:
            # The caller records later, so only the thread tells the episodes of one task instance apart.
            return f"{self.settings.seed}:{episode['thread']}"
        # A frozen agent makes the same random choices whatever its library contains.
        learnt = episode["episode"] if self.settings.learn else 0
        return f"{self.settings.seed}:{episode['task']}:{episode['seed']}:{learnt}"

    def plan(self, episode: EpisodeState) -> StateUpdate:
        """Make a plan in a new situation or after the last plan ended, and repair it after trouble."""
        if self.planner is None:
            return {}
        context, plan = self.context(episode), episode["plan"]
        if (followed := self._follow_demonstration(episode, plan, context)) is not None:
            return {"plan": followed}
        if plan and plan.source:
            plan = None  # no demonstration is left
        trouble = episode.get("replan") or explain_dead_end(context)
        if not trouble and (plan.next is not None if plan else not episode["new_situation"]):
            return {}
        items, drawn = self._select_items(episode, ("skill", "remedy") if trouble else ("skill",))
        if trouble:
            revised: Plan | None = self.planner.repair(plan or Plan(context.state.task), trouble, context, items)
        else:
            revised = self.planner.plan(context, items)
        update: StateUpdate = {"plan": revised if revised and revised.steps else None}
        if plan:
            update["skills"] = judge_skills(plan, episode["state"], episode["skills"] or {}, continued_by=revised)
        if revised and revised.usage.calls:
            update["usage"] = episode["usage"] + revised.usage
        if drawn != DrawnItems():
            # Guidance may have drawn items in this step already, so the ids are merged.
            signature = episode["state"].signature
            earlier = episode.get("drawn", {}).get(signature, DrawnItems())
            update["drawn"] = {**episode.get("drawn", {}), signature: earlier.joined(drawn.withheld, drawn.masked)}
        return update

    def _follow_demonstration(self, episode: EpisodeState, plan: Plan | None, context: Context) -> Plan | None:
        """Return the plan of a demonstration that is bound to the task; None without one, or while a skill runs."""
        if not isinstance(self.planner, Following) or not self.settings.arm.has_memory:
            return None
        if plan and plan.next and not plan.source:
            return None
        # A planner that made outcomes worse is tried in the episodes in which another one is withheld.
        if not (plan and plan.source) and self._is_withheld(episode, DEMONSTRATIONS) != self.planner.yields(context):
            return None
        return self.planner.follow(plan, context)

    async def aplan(self, episode: EpisodeState) -> StateUpdate:
        """Plan as `plan` does; a planner that waits for a model runs in a thread."""
        if self.planner is not None and self.planner.waits:
            import asyncio  # here, because it takes longer to import than a hook of a coding agent should

            return await asyncio.to_thread(self.plan, episode)
        return self.plan(episode)

    def _select_items(self, episode: EpisodeState, kinds: Sequence[Kind]) -> tuple[tuple[Item, ...], DrawnItems]:
        """Return fitting skills and remedies that have not failed in this episode, and the items of random trials."""
        if not self.settings.arm.has_memory:
            return (), DrawnItems()
        results = episode["skills"] or {}
        fitting = [item for item in self.library.offered(episode["state"], kinds=kinds) if results.get(item.id, True)]
        withheld = tuple(item.id for item in fitting if self._is_withheld(episode, item.id))
        kept = [item for item in fitting if item.id not in withheld]
        masked: Sequence[Item] = ()
        if self._is_trying:  # a masked item hurt in this world, and is sometimes tried again
            masked = self.library.offered(episode["state"], kinds=kinds, masked=True)
            kept += [item for item in masked if self._is_withheld(episode, item.id) and results.get(item.id, True)]
            withheld += tuple(item.id for item in masked if not self._is_withheld(episode, item.id))
        return tuple(kept), DrawnItems(withheld, tuple(item.id for item in masked))

    def context(self, episode: EpisodeState) -> Context:
        """Return the input for the policy's decision."""
        hint = episode["hint"]
        name = self._episode_name(episode)
        return Context(
            state=episode["state"],
            actions=tuple(episode["actions"]),
            recollection=episode["recollection"],
            guidance=hint.text if hint else None,
            forbidden=episode["forbidden"],
            history=tuple(episode["steps"]),
            working=self.live[episode["thread"]].working,
            # Seeded per decision, so that a resumed episode draws the same as an uninterrupted one.
            rng=random.Random(f"{name}:{len(episode['steps'])}:{episode['replans']}"),
            learning=self.settings.explores,
            practice=episode.get("practice") or 0,
            replan=episode.get("replan"),
            manual=self._read_manual(episode),
            tools=self._read_tools(episode),
            thread=episode.get("thread", ""),
            plan=episode.get("plan"),
            budget=self.settings.budget.describe(episode["steps"], episode["state"]),
            environment=self._get_environment(episode).name,
            start=(episode["task"], episode["seed"]) if "seed" in episode else None,
        )

    def _prepare_decision(self, episode: EpisodeState) -> Context:
        """Return the input for the policy's decision, with the lookahead if the policy looks ahead."""
        context = self.context(episode)
        if self._recalls_on_demand:
            context = replace(context, recall=lambda actions: self._recall(episode, actions)[0])
        if not self._looks_ahead:
            return context
        return replace(context, lookahead=self.library.look_ahead(context.state, context.actions, context.working.map))

    def _recall(self, episode: EpisodeState, actions: Sequence[str]) -> tuple[Recollection, frozenset[str]]:
        """Return the past experience with some actions in the current state, and the names of stores that are down."""
        state, working = episode["state"], self.live[episode["thread"]].working
        counts = {action: working.counts(state, action) for action in actions}
        values = self.policy.reads == "values"  # such a policy reads estimates only, so no items are searched
        recaller = self._find_recaller(episode)
        recollection = recaller.recall(
            state,
            k=0 if values else self.settings.recall_k,
            budget_tokens=TUNING.guidance_tokens,
            level=self.settings.level,
            actions=counts,
            after=episode["steps"][-1].action if episode["steps"] else "",
        )
        repeats = {step.action for step in episode["steps"]}.difference(counts) & recollection.outcomes.keys()
        if repeats:  # what this episode did already, and cannot repeat now, is nothing to work towards
            left = {action: outcome for action, outcome in recollection.outcomes.items() if action not in repeats}
            recollection = replace(recollection, outcomes=left)
        return recollection, frozenset(recaller.silent if isinstance(recaller, MergedRecall) else ())

    @property
    def _recalls_on_demand(self) -> bool:
        """Return whether the policy asks for estimates when it needs them, and no planner reads them."""
        is_asked = self.policy.reads == "values" and getattr(self.policy, "recalls_on_demand", False)
        # Other libraries answer at every step, because an episode during which one is down does not count for it.
        return bool(is_asked) and self.planner is None and self.recaller is None

    @property
    def _looks_ahead(self) -> bool:
        return bool(getattr(self.policy, "looks_ahead", False))

    def _read_tools(self, episode: EpisodeState) -> Mapping[str, Mapping[str, Any]]:
        inner = self._get_environment(episode)
        return inner.tool_schemas() if self.policy.reads == "text" and isinstance(inner, Tooled) else {}

    def _get_environment(self, episode: EpisodeState) -> Environment:
        """Return the environment of an episode without the wrapper that watches the time."""
        environment: Any = self.live[episode["thread"]].environment
        inner: Environment = getattr(environment, "inner", environment)
        return inner

    def _read_manual(self, episode: EpisodeState) -> str:
        inner = self._get_environment(episode)
        return inner.describe() if self.policy.reads == "text" and isinstance(inner, Described) else ""
