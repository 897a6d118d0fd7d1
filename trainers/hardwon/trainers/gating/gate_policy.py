"""A gate that asks the policy: it answers with one of three words and, after `refine`, with a new text.

    guidance = GatedGuidance(RetrievalGuidance(), Gated(PolicyGate(engine, prompts)))     # gate: {kind: policy}

The policy sees the episode so far, the text and its mean score on the task. Decoding is greedy, so the same
question gets the same answer. The answers are not trained: their tokens get no credit.
"""

import math
import re
from statistics import fmean
from typing import Literal, cast, get_args

from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.redaction import redact
from hardwon.runtime.guidance.base import forbidden_in
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.llm.prompts import GUIDANCE, clean
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.engines.base import Engine, Request
from hardwon.trainers.prompting.base import PromptFormat, Purpose, Query
from hardwon.trainers.prompting.compact import JUDGE
from hardwon.trainers.rollouts.rollout import current_session

from .gate import Judgement, Question
from .tuning import TUNING

GateAnswer = Literal["accept", "refine", "reject"]
"""The possible answers."""
QUESTION = f"mean score 0 . 1 2 3 4 5 6 7 8 9 , with it {JUDGE}"
"""All words of a question except those of the text; a word tokenizer must know them."""
_MARKS = re.compile("[<>]")
"""Characters of the marks of compact prompts."""


class PolicyGate:
    """Asks a role of an engine within its running episode."""

    def __init__(self, engine: Engine, prompts: PromptFormat, *, role: str = "policy") -> None:
        """Create a gate on an engine."""
        self._engine, self._prompts, self._role = engine, prompts, role
        self._either, answers = prompts.actions(get_args(GateAnswer))
        if len(answers) < len(get_args(GateAnswer)):
            raise ConfigError(
                "the tokenizer does not know accept, refine and reject; "
                "ask a base that does, or let a record be the gate (gate.kind=record)."
            )
        self._answers = cast(dict[Ids, GateAnswer], answers)

    async def ajudge(self, question: Question) -> Judgement:
        """Return the role's answer. An unusable refinement becomes an acceptance of the original text."""
        prompt = self.prompt(question)
        completion = await self._engine.generate(
            Request(prompt, self._role, self._either, temperature=0.0, session=current_session())
        )
        answer, usage = self._answers[completion.tokens], ModelUsage(len(prompt), sum(completion.mask), calls=1)
        why = " ".join([f"p {math.exp(sum(completion.logprobs)):.2f}", *_format_scores(question)])
        if answer != "refine":
            return Judgement(answer, why=why, usage=usage)
        text, cost = await self._refined(question)
        if _is_of_use(text, question):
            return Judgement("refine", text, why, usage + cost)
        return Judgement("accept", why=f"{why}; refined to nothing of use", usage=usage + cost)

    def prompt(self, question: Question, purpose: Purpose = "judge") -> Ids:
        """Return the tokens of a question about a text: the episode, the text, and its mean score on the task."""
        # marks are stripped: an item's text must not inject special tokens
        sections = {"lesson": _strip_marks(question.text)}
        if scores := _format_scores(question):
            sections["scores"] = " ".join(scores)
        return self._prompts.query(Query(purpose, sections, context=question.context))

    async def _refined(self, question: Question) -> tuple[str, ModelUsage]:
        """Return the refined text, redacted and on one line, with its cost."""
        request = Request(
            self.prompt(question, "refine"),
            self._role,
            max_tokens=TUNING.refined_tokens,
            temperature=0.0,
            stop=(self._prompts.end,),
            session=current_session(),
        )
        completion = await self._engine.generate(request)
        marks = self._prompts.tokenizer.added_tokens_decoder  # a compact answer's marks are words of its language
        text = self._prompts.read([token for token in completion.tokens if token not in marks])
        return _strip_marks(clean(redact(text), GUIDANCE)), ModelUsage(
            len(request.prompt), len(completion.tokens), calls=1
        )


def _format_scores(question: Question) -> list[str]:
    """Return the mean score on the task, and the score expected with the text, as words."""
    if not question.scores:
        return []
    mean = fmean(question.scores)
    with_it = min(1.0, max(0.0, mean + fmean(question.record))) if question.record else None
    return [f"mean score {mean:.1f}", *([f", with it {with_it:.1f}"] if with_it is not None else [])]


def _strip_marks(text: str) -> str:
    """Return a text on one line, without the characters of special tokens."""
    return " ".join(_MARKS.sub(" ", text).split())


def _is_of_use(text: str, question: Question) -> bool:
    """Return whether a refinement is new, not empty, and free of forbidden actions."""
    same = text.lower() == _strip_marks(question.text).lower()
    return bool(text) and not same and forbidden_in(text, question.context) is None
