"""Judge the actions of another policy by a trained one: step-level Q models (arXiv:2409.09345).

    Q(s, a) = beta (log pi(a | s) - log ref(a | s))

pi has the adapter of a role that was trained on preferences between actions, and ref is its base without the adapter.
The policy whose actions are judged keeps its weights, and may be a chat model on a server.
"""

from collections.abc import Sequence

from hardwon.memory import Estimate
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm import prompts as messages
from hardwon.runtime.llm.conversation import Conversations, PromptBuilder
from hardwon.runtime.planning.proposals import NO_ESTIMATE
from hardwon.runtime.policies.tuning import TUNING as POLICIES
from hardwon.trainers.algorithms.logprobs import compute_logprobs
from hardwon.trainers.algorithms.samples import Ids, PackedSequence, pack_samples
from hardwon.trainers.engines.local import READ_AT_ONCE, LocalEngine
from hardwon.trainers.models.adapters import without_adapters
from hardwon.trainers.prompting.base import PromptFormat
from hardwon.trainers.rollouts.demonstration import build_sample

from .tuning import TUNING


class PreferenceValue:
    """The log-ratio of a trained policy to its base, for each listed action."""

    def __init__(
        self, engine: LocalEngine, prompts: PromptFormat, *, builder: PromptBuilder | None = None, role: str = "policy"
    ) -> None:
        """Judge with a role of an engine."""
        self._engine, self._prompts, self._role = engine, prompts, role
        self._log = Conversations(builder)
        self._context: Context | None = None
        self._prompt: Ids = ()
        self._judged: dict[str, Estimate] = {}

    async def judge(self, context: Context, action: str = "") -> Estimate:
        """Return the worth of a listed action that was not refused, or the highest one; nothing for other actions."""
        choices = messages.choices(context)
        if not action:
            judged = [await self.judge(context, each) for each in choices]
            return max(judged, key=lambda estimate: estimate.value, default=NO_ESTIMATE)
        if action not in choices:
            return NO_ESTIMATE
        if context is not self._context:
            self._context, self._judged = context, {}
            self._prompt = self._prompts.open_prompt(self._log.advance(context), context)
        if action not in self._judged:
            sample = build_sample(self._prompts, self._prompt, action, choices, self._role, 0, "", "", "", "", 0)
            ratio = await self._measure(pack_samples([sample], {"": [0.0]}))
            # rounded, because two passes over equal weights differ in the last digits
            self._judged[action] = Estimate(round(TUNING.beta * ratio, 5), POLICIES.enough_steps)
        return self._judged[action]

    async def _measure(self, streams: Sequence[PackedSequence]) -> float:
        """Return by how much the role makes the tokens more likely than its base does, in nats."""
        (trained,) = await self._engine.logprobs(streams, self._role)
        with without_adapters(self._engine.model) as base:
            (reference,) = compute_logprobs(base, streams, budget=READ_AT_ONCE)
        return sum(trained) - float(reference.sum())
