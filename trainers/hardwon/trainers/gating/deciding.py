"""Questions that a role answers with one of two words.

    decider = Decider(engine, prompts, "share", role="admission")
    decision = await decider.ask(prompt)              # decision.is_yes, decision.p_yes
    yes, no = decider.build_words(decision, "a name")      # both words as samples

Both probabilities are exact: only the first token of a word is a choice.
"""

import math
import random

from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.trainers.algorithms.samples import Allowed, Ids, Sample, WordChoice
from hardwon.trainers.engines.base import Engine, Request
from hardwon.trainers.prompting.base import PromptFormat, Purpose

from .tuning import TUNING


class Decider:
    """Asks a role one of the questions with two answers."""

    def __init__(self, engine: Engine, prompts: PromptFormat, purpose: Purpose, *, role: str) -> None:
        """Create a decider on an engine."""
        self._engine, self.role, self.verdicts = engine, role, prompts.verdicts(purpose)

    async def ask(self, prompt: Ids, *, chance: random.Random | None = None, session: str = "") -> WordChoice:
        """Return the more probable answer to a question, or a sampled one if there is a chance."""
        heat = 0.0 if chance is None else 1.0
        request = Request(prompt, self.role, self.verdicts.trie, temperature=heat, session=session, chance=chance)
        answer = await self._engine.generate(request)
        probability, is_yes = math.exp(sum(answer.logprobs)), answer.tokens == self.verdicts.yes
        return WordChoice(prompt, probability if is_yes else 1.0 - probability, answer.version, is_yes)

    def build_words(self, decision: WordChoice, trace: str) -> tuple[Sample, Sample]:
        """Return both words as samples, the one that agrees first; the trace of the other one ends with `/no`."""
        return self.build_word(decision, True, trace), self.build_word(decision, False, f"{trace}/no")

    def build_word(self, decision: WordChoice, is_yes: bool, trace: str) -> Sample:
        """Return one of the two words as a sample."""
        word, probability = (self.verdicts.yes, decision.p_yes) if is_yes else (self.verdicts.no, 1.0 - decision.p_yes)
        allowed: tuple[Allowed, ...] = tuple(self.verdicts.trie.allowed(word[:at]) for at in range(len(word)))
        forced = len(word) - 1
        logprobs = (math.log(max(probability, TUNING.min_weight)), *(0.0,) * forced)
        fields = (self.role, decision.version, "", "", "", trace, 0)
        return Sample(decision.prompt, word, logprobs, (True, *(False,) * forced), allowed, *fields)


def count_usage(decision: WordChoice) -> ModelUsage:
    """Return the cost of an answer, of which one token was a choice."""
    return ModelUsage(len(decision.prompt), 1, calls=1)
