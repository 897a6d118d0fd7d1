"""Generation for a guide: a verdict decides whether to speak, then follows a text.

    reply = await Speaker(engine, prompts).say(query, "a name")      # reply.text is None if it abstains
    guidance = TrainedGuidance(engine, prompts)                      # the same in the runtime's loop

Every sampled token is kept for training. Credit is in `credit`, and the updates in `role`. A guide that only decides
whether the recollection is shown writes nothing; it is served by `gating.consulting`.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace

from hardwon.memory import State
from hardwon.runtime.guidance.base import Hint, HintLine, hint_of, lines_of
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.trainers.algorithms.samples import Allowed, Ids, Sample, WordChoice
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.gating.consulting import write_question
from hardwon.trainers.gating.deciding import Decider, count_usage
from hardwon.trainers.prompting.base import PromptFormat


@dataclass(frozen=True, slots=True)
class GuideQuery:
    """The input of a guide: a state, the recalled texts, and the texts that it may say (`offers`)."""

    state: State
    recalled: tuple[str, ...]
    offers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GuideReply:
    """The output of a guide, with its tokens."""

    text: str | None
    """The hint, or None if the guide abstained."""
    p_speaks: float
    decision: Sample
    """The tokens of the verdict, as they were sampled or forced."""
    silent: Sample
    """The tokens that abstain, in the same position."""
    content: Sample | None = None
    usage: ModelUsage = field(default_factory=ModelUsage)

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the text."""
        return len(self.content.completion) if self.content is not None else 0


class Speaker:
    """Samples a guide's replies from an engine."""

    def __init__(
        self, engine: Engine, prompts: PromptFormat, *, role: str = "guide", free: bool = False, most: int = 64
    ) -> None:
        """Create a speaker on an engine."""
        self._engine, self._prompts, self._role = engine, prompts, role
        self._free, self._most = free, most
        self.decider = Decider(engine, prompts, "guide", role=role)

    async def say(
        self, query: GuideQuery, name: str, *, speaks: bool | None = None, greedy: bool = False
    ) -> GuideReply:
        """Decide and, if the decision is to speak, generate a text.

        Without offers the guide abstains, unless `free` is set.
        """
        return await self.complete(
            await self.decide(query, name, greedy=greedy), query, name, speaks=speaks, greedy=greedy
        )

    async def decide(self, query: GuideQuery, name: str, *, greedy: bool = False) -> WordChoice:
        """Decide without a text. Several texts for one query can share it."""
        return await self.decider.ask(self.prompt(query), chance=None if greedy else random.Random(name))

    async def complete(
        self, decided: WordChoice, query: GuideQuery, name: str, *, speaks: bool | None = None, greedy: bool = False
    ) -> GuideReply:
        """Generate the text after a decision, or after the one that `speaks` forces."""
        spoken, silent = self.decider.build_words(decided, name)
        usage, p_speaks = count_usage(decided), decided.p_yes
        speaks_now = decided.is_yes if speaks is None else speaks
        if not speaks_now or not (self._free or query.offers):
            return GuideReply(None, p_speaks, replace(silent, trace=name), silent, None, usage)
        request = Request(
            (*decided.prompt, *self.decider.verdicts.yes),
            self._role,
            None if self._free else Trie({self._prompts.text(text) for text in query.offers}),
            max_tokens=self._most,
            temperature=0.0 if greedy else 1.0,
            stop=(self._prompts.end,),
            chance=random.Random(f"{name}/text"),
        )
        completion = await self._engine.generate(request)
        content = self._row(request.prompt, completion, name)
        usage += ModelUsage(len(request.prompt), sum(completion.mask), calls=1)
        return GuideReply(self._decode(completion.tokens, query), p_speaks, spoken, silent, content, usage)

    def prompt(self, query: GuideQuery) -> Ids:
        """Return the tokens of a query, up to the verdict."""
        return write_question(self._prompts, query.state, query.recalled)

    def lesson(self, query: GuideQuery, text: str, name: str) -> Sample:
        """Return a text as a sample to imitate, as the continuation of a decision to speak."""
        tokens = self._prompts.text(text)
        n = len(tokens)
        trie = None if self._free else Trie({tokens, *(self._prompts.text(offer) for offer in query.offers)})
        allowed: tuple[Allowed, ...] = tuple(None if trie is None else trie.allowed(tokens[:at]) for at in range(n))
        # A token without an alternative has probability 1 and nothing to learn.
        mask = tuple(each is None or len(each) > 1 for each in allowed)
        prompt = (*self.prompt(query), *self.decider.verdicts.yes)
        return Sample(prompt, tokens, (0.0,) * n, mask, allowed, self._role, 0, "", "", "", name, 0)

    def _row(self, prompt: Ids, completion: Completion, name: str) -> Sample:
        """Return the sample of a generated text."""
        fields = (self._role, completion.version, "", "", "", name, 1)
        return Sample(prompt, completion.tokens, completion.logprobs, completion.mask, completion.allowed, *fields)

    def _decode(self, tokens: Ids, query: GuideQuery) -> str | None:
        """Return the offer or the free words behind some tokens; None for an empty text."""
        if not self._free:
            # reversed: of two offers with equal tokens, the first wins
            return {self._prompts.text(text): text for text in reversed(query.offers)}[tokens]
        return self._prompts.read(tokens) or None


def query_of(context: Context) -> tuple[GuideQuery, tuple[HintLine, ...]] | None:
    """Return what a guide is asked about a recollection, with its lines; None if nothing was recalled."""
    lines = tuple(lines_of(context.recollection, context.state, context.actions, history=context.history))
    texts = tuple(dict.fromkeys(line.text for line in lines))
    return (GuideQuery(context.state, texts, texts), lines) if lines else None


class TrainedGuidance:
    """Guidance in the runtime's loop by a trained guide, which chooses among the recalled lines."""

    def __init__(
        self, engine: Engine, prompts: PromptFormat, *, role: str = "guide", free: bool = False, most: int = 64
    ) -> None:
        """Create guidance on an engine.

        Args:
            engine: Generates the tokens.
            prompts: Encodes the texts.
            role: The engine's role whose weights speak.
            free: Allow any words; otherwise only the recalled lines.
            most: Maximum number of tokens of a text.
        """
        self._speaker = Speaker(engine, prompts, role=role, free=free, most=most)

    async def apropose(self, context: Context) -> Hint | None:
        """Return the guide's greedy hint, or None if nothing was recalled."""
        if (question := query_of(context)) is None:
            return None
        query, lines = question
        reply = await self._speaker.say(query, "", greedy=True)
        used = [line for line in lines if line.text == reply.text]
        hint = hint_of(used, reply.text) if reply.text else Hint("")
        return replace(hint, usage=reply.usage, written=True, why={"p_speaks": round(reply.p_speaks, 4)})

    def propose(self, context: Context) -> Hint | None:
        """Run `apropose` for a loop without asyncio."""
        return asyncio.run(self.apropose(context))
