"""The gate that asks whoever will act: one of three words, and after `refine` its own words for the text.

    guidance = GatedGuidance(RetrievalGuidance(), Gated(PolicyGate(engine, transcript)))     # gate: {kind: policy}

It reads the episode so far, the text, and its own mean score on such tasks, and answers with the weights that it
acts with. The most probable words are taken, so that the same question gets the same answer. Nothing here teaches
it to judge: no credit reaches the tokens of an answer.
"""

import math
import re
from statistics import fmean
from typing import Literal, get_args

from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.redaction import redact
from hardwon.runtime.guidance.base import forbidden_in
from hardwon.runtime.interfaces.types import Context, Usage
from hardwon.runtime.llm.prompts import GUIDANCE, clean
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.engines.base import Engine, Request
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.rollouts.rollout import current_session
from hardwon.trainers.rollouts.transcript import Transcript

from .gate import Judgement, Question

Answer = Literal["accept", "refine", "reject"]
"""The words that it may say."""
ASKS = ": accept , refine or reject ?"
"""What it is asked."""
QUESTION = f"mean score 0 . 1 2 3 4 5 6 7 8 9 , with it {ASKS}"
"""All the words of a question beside the text's; a word tokenizer must know them."""
MOST = 64
"""Tokens of a refined text."""
_MARKS = re.compile("[<>]")
"""What the marks of a transcript are written with."""


class PolicyGate:
    """Asks a role of an engine, within the episode that it plays."""

    def __init__(self, engine: Engine, transcript: Transcript, *, role: str = "policy") -> None:
        """Raises ConfigError where the tokenizer cannot tell the three answers apart."""
        self._engine, self._transcript, self._role = engine, transcript, role
        self._answers: dict[Ids, Answer] = {transcript.action(word): word for word in get_args(Answer)}
        if len(self._answers) < len(get_args(Answer)):
            raise ConfigError(
                "the tokenizer does not know accept, refine and reject; "
                "ask a base that does, or let a record be the gate (gate.kind=record)."
            )
        self._either = Trie(self._answers)

    async def ajudge(self, question: Question) -> Judgement:
        """What it says; a refinement that is of no use accepts the text as it is."""
        prompt = self.prompt(question)
        said = await self._engine.generate(
            Request(prompt, self._role, self._either, temperature=0.0, session=current_session())
        )
        answer, spent = self._answers[said.tokens], Usage(len(prompt), sum(said.mask), calls=1)
        why = " ".join([f"p {math.exp(sum(said.logprobs)):.2f}", *_known(question)])
        if answer != "refine":
            return Judgement(answer, why=why, usage=spent)
        text, cost = await self._refined(question, (*prompt, *said.tokens))
        if _is_of_use(text, question):
            return Judgement("refine", text, why, spent + cost)
        return Judgement("accept", why=f"{why}; refined to nothing of use", usage=spent + cost)

    def prompt(self, question: Question) -> Ids:
        """`<task> find coin . <see> kitchen . <at> kitchen <memory> kitchen : move east . mean score 0.4 ... <item>`

        It begins as the policy's own prompt does, so that what was read of the episode is not read again.
        """
        context: Context = question.context
        *episode, _ = self._transcript.prompt(context.history, context.state, None)
        asked = " ".join(["<memory>", _plain(question.text), *_known(question), ASKS, "<item>"])
        return (*episode, *self._ids(asked))

    async def _refined(self, question: Question, prompt: Ids) -> tuple[str, Usage]:
        request = Request(
            (*prompt, *self._ids("<memory>")),
            self._role,
            max_tokens=MOST,
            temperature=0.0,
            stop=(self._transcript.end,),
            session=current_session(),
        )
        said = await self._engine.generate(request)
        text = str(self._transcript.tokenizer.decode(said.tokens, skip_special_tokens=True))
        return _plain(clean(redact(text), GUIDANCE)), Usage(len(request.prompt), len(said.tokens), calls=1)

    def _ids(self, text: str) -> Ids:
        return tuple(self._transcript.tokenizer(text, add_special_tokens=False).input_ids)


def _known(question: Question) -> list[str]:
    """Its own mean score on such tasks, and what it would be with the text by what that was worth so far."""
    if not question.scores:
        return []
    mean = fmean(question.scores)
    with_it = min(1.0, max(0.0, mean + fmean(question.record))) if question.record else None
    return [f"mean score {mean:.1f}", *([f", with it {with_it:.1f}"] if with_it is not None else [])]


def _plain(text: str) -> str:
    """In one line, and without what a mark of the transcript could be made of."""
    return " ".join(_MARKS.sub(" ", text).split())


def _is_of_use(text: str, question: Question) -> bool:
    """Whether it says something, something else, and nothing that a guardrail forbids here."""
    same = text.lower() == _plain(question.text).lower()
    return bool(text) and not same and forbidden_in(text, question.context) is None
