"""Guidance that asks the guide, in every situation, whether what the library recalls is shown.

    guidance = ConsultedGuidance(RetrievalGuidance(), engine, prompts)       # in production and in evaluations
    guidance = ConsultedGuidance(..., always=True)                           # in training: asked, and shown anyway

The guide writes nothing. So before it has learned anything it can only leave out, and what it lets through is what the
library would have shown without it. In training, every recollection is shown and the arm `control` is shown none; the
difference in outcome teaches the answers (Mem-π's abstaining branch).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hardwon.memory import State
from hardwon.runtime.guidance.base import Guidance, Hint, apropose_hint
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.prompting.base import PromptFormat, Query
from hardwon.trainers.rollouts.rollout import current_episode, current_session

from .deciding import Decider, count_usage

ROLE = "guide"
"""The engine's role that is asked."""


class ConsultedGuidance:
    """Shows the hint of another guidance where the guide says that it helps."""

    def __init__(self, inner: Guidance, engine: Engine, prompts: PromptFormat, *, always: bool = False) -> None:
        """Wrap a guidance."""
        self._inner, self._prompts, self._always = inner, prompts, always
        self._decider = Decider(engine, prompts, "guide", role=ROLE)

    async def apropose(self, context: Context) -> Hint | None:
        """Return the hint of the inner guidance; one with an empty text if the guide declines."""
        hint = await apropose_hint(self._inner, context)
        if hint is None or not hint.text:
            return hint
        prompt = write_question(self._prompts, context.state, hint.text.splitlines())
        decision = await self._decider.ask(prompt, session=current_session())
        if self._always:
            decision = replace(decision, tokens=len(self._prompts.text(hint.text)))
            current_episode().consulted.append(decision)
        answered = hint if self._always or decision.is_yes else Hint("")
        why = {**hint.why, "p_speaks": round(decision.p_yes, 4)}
        return replace(answered, usage=hint.usage + count_usage(decision), why=why)

    def propose(self, context: Context) -> Hint | None:
        """Run `apropose` for a loop without asyncio."""
        return asyncio.run(self.apropose(context))


def write_question(prompts: PromptFormat, state: State, recalled: Sequence[str]) -> Ids:
    """Return the tokens of the question whether some recalled lines help, up to the answer.

    The recalled lines come last, next to the decision about them.
    """
    sections: dict[str, str | tuple[str, ...]] = {"task": state.task, "observation": state.observation}
    if state.location:
        sections["location"] = state.location
    return prompts.query(Query("guide", {**sections, "recalled": tuple(recalled)}))
