"""The advisor: one procedure by which recalled experience becomes a hint, for the loop and for the middleware.

It withholds items at random to measure them (see `loop.holdout`), asks the guidance for a hint, and drops a hint that
nobody should read: an empty one, and a model's text that mentions a forbidden action.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Recollection
from hardwon.runtime.guidance.base import Guidance, Hint, Occasion, ReadsLibrary, apropose_hint, forbidden_in
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.usage import ModelUsage

from .holdout import DrawnItems, is_withheld, without, without_advice
from .state import build_cost_fields


@dataclass(frozen=True, slots=True)
class Advice:
    """The result of asking for a hint."""

    hint: Hint | None
    """The hint that the policy reads; None if the guidance abstained or its hint was dropped."""
    record: dict[str, Any]
    """The occasion, the reasons of the guidance, whether there is a hint, and the cost; plain JSON values."""
    usage: ModelUsage = field(default_factory=ModelUsage)


@dataclass(frozen=True, slots=True)
class Advisor:
    """Turns recalled experience into hints."""

    library: ExperienceLibrary
    guidance: Guidance
    is_trying: bool
    """Whether items may be withheld at random, as in learning episodes outside the control arm."""

    def is_withheld(self, episode: str, item_id: str) -> bool:
        """Return whether an item is withheld in an episode, by the name that seeds the episode's draws."""
        return self.is_trying and is_withheld(episode, item_id)

    def withhold(
        self, recollection: Recollection, episode: str, *, is_measured: bool | None = None
    ) -> tuple[Recollection, DrawnItems]:
        """Return the recollection without what is withheld in an episode, and what was drawn.

        Args:
            recollection: What was recalled.
            episode: The name that seeds the episode's draws.
            is_measured: In a run of a user's own agent, whether all advice may be withheld, to measure what it is
                worth. Such a run has all of it otherwise. None for an episode in an environment.
        """
        recollection, advice = without_advice(recollection, episode, is_measured=bool(is_measured))
        get = self.library.items.get if self.is_trying else None
        kept, drawn = without(
            recollection, lambda ref: self.is_withheld(episode, ref), get, is_whole=is_measured is not None
        )
        drawn = drawn.joined(advice.withheld, advice.masked)
        return kept, replace(drawn, advice=advice.advice)

    def advise(self, occasion: Occasion, context: Context) -> Advice:
        """Ask the guidance for a hint."""
        began = time.perf_counter()
        return _review(self._attached.propose(context), occasion, context, began)

    async def aadvise(self, occasion: Occasion, context: Context) -> Advice:
        """Ask the guidance for a hint, awaiting guidance that waits for a model; see `advise`."""
        began = time.perf_counter()
        return _review(await apropose_hint(self._attached, context), occasion, context, began)

    @property
    def _attached(self) -> Guidance:
        guidance = self.guidance
        return guidance.attach(self.library) if isinstance(guidance, ReadsLibrary) else guidance


def _review(hint: Hint | None, occasion: Occasion, context: Context, began: float) -> Advice:
    """Return the advice for a proposed hint, without the hint if it must not be read."""
    record, usage = dict[str, Any](asked=occasion), ModelUsage()
    if hint is not None:
        record, usage = {**record, **hint.why}, hint.usage
    # Even a warning is dropped: the guardrail blocks the action anyway.
    if hint is not None and hint.written and (action := forbidden_in(hint.text, context)):
        hint, record["dropped"] = None, action
    hint = hint if hint is not None and hint.text else None
    record["abstained"] = hint is None
    if usage.calls:
        record.update(build_cost_fields(usage), seconds=time.perf_counter() - began)
    return Advice(hint, record, usage)


def collect_sources(hint: Hint | None, drawn: DrawnItems) -> dict[str, Any]:
    """Return the fields of `Reasons` that name the items and past steps of a hint, and the items of random trials."""
    sources = dict[str, Any]()
    if hint is not None:
        sources.update(recalled=hint.item_ids, similar=hint.step_ids)
    sources.update({name: ids for name in ("withheld", "masked", "advice") if (ids := getattr(drawn, name))})
    return sources
