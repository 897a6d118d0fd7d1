"""The stages before a choice: what the policy is told, what is planned, and all that it may look at.

    guide -> plan -> decide

What is held back by chance (`trials`) is kept from guidance and from the planner here, and its ids are noted.
The policy is not asked here.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.records import Kind
from hardwon.runtime.guidance.base import Guidance, Hint, Occasion, forbidden_in, occasion, proposed
from hardwon.runtime.interfaces.types import Context, Described, Policy, Usage
from hardwon.runtime.planning.plans import Plan, Planner
from hardwon.runtime.planning.progress import cannot_go_on, verdicts

from .holdout import is_withheld, without
from .state import EpisodeState, Live, Settings, Update, costs


@dataclass(frozen=True, slots=True)
class AdvisingNodes:
    """The nodes that advise, over one agent's parts."""

    policy: Policy
    library: ExperienceLibrary
    guidance: Guidance
    settings: Settings
    live: Mapping[str, Live]
    planner: Planner | None = None

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
        get = self.library.get if self._is_trying else None
        recollection, withheld = without(episode["recollection"], lambda ref: self._held_back(episode, ref), get)
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
            told.update(costs(spent), seconds=time.perf_counter() - began)
        return {
            "hint": hint,
            "guided": told,
            "usage": episode["usage"] + spent,
            "hints": {**episode["hints"], here: hint},
            "withheld": {**episode["withheld"], here: withheld},
        }

    def _held_back(self, episode: EpisodeState, item_id: str) -> bool:
        return self._is_trying and is_withheld(self._asked(episode), item_id)

    @property
    def _is_trying(self) -> bool:
        """Whether chance may decide what is shown: in learning episodes outside the control arm."""
        return self.settings.learn and self.settings.arm != "control"

    def _asked(self, episode: EpisodeState) -> str:
        learnt = episode["episode"] if self.settings.learn else 0  # frozen, chance is the same with any library
        return f"{self.settings.seed}:{episode['task']}:{episode['seed']}:{learnt}"

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
        shown = [item for item in fitting if item.id not in withheld]
        if self._is_trying:  # what hurts in this world is tried again now and then
            masked = self.library.offered(episode["state"], kinds=kinds, masked=True)
            shown += [item for item in masked if self._held_back(episode, item.id) and known.get(item.id, True)]
            withheld += tuple(item.id for item in masked if not self._held_back(episode, item.id))
        return tuple(shown), withheld

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
