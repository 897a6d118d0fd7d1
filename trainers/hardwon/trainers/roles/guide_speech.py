"""How a guide speaks: one token that decides, then a text; every token kept as it was sampled.

    said = await Speaker(engine, transcript).say(asked, "a name")        # said.text is None where it abstains
    guidance = TrainedGuidance(engine, transcript)                       # the same in the runtime's loop

It learns nothing and credits nobody.
"""

import asyncio
import math
import random
from dataclasses import dataclass, field, replace

from hardwon.memory import State
from hardwon.runtime.guidance.base import Hint, hint_of, lines_of
from hardwon.runtime.interfaces.types import Context, Usage
from hardwon.trainers.algorithms.samples import Allowed, Ids, Sample
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.rollouts.transcript import Transcript, compact


@dataclass(frozen=True, slots=True)
class Asked:
    """What a guide looks at: a situation, and what was recalled for it; `offers` are the texts that it may say."""

    state: State
    recalled: tuple[str, ...]
    offers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What a guide said, token by token."""

    text: str | None
    """None: it abstained."""
    p_speaks: float
    decision: Sample
    """The token of the decision that was taken, or that it was made to take."""
    silent: Sample
    """The token that abstains, in the same place."""
    content: Sample | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def tokens(self) -> int:
        """Of the text."""
        return len(self.content.completion) if self.content is not None else 0


class Speaker:
    """Asks an engine for what a guide says."""

    def __init__(
        self, engine: Engine, transcript: Transcript, *, role: str = "guide", free: bool = False, most: int = 64
    ) -> None:
        """free: any words, at most `most` tokens; else one of the texts on offer."""
        self._engine, self._transcript, self._role = engine, transcript, role
        self._free, self._most = free, most
        (self._speak,), (self._abstain,) = (self._ids(word) for word in ("<keep>", "<skip>"))
        self._either = Trie([(self._speak,), (self._abstain,)])

    async def say(self, asked: Asked, name: str, *, speaks: bool | None = None, greedy: bool = False) -> Said:
        """A text or nothing; `speaks` decides in its place. `name` is that of the trace, and of its chance.

        With nothing on offer it abstains, unless its words are free.
        """
        return await self.go_on(
            await self.decide(asked, name, greedy=greedy), asked, name, speaks=speaks, greedy=greedy
        )

    async def decide(self, asked: Asked, name: str, *, greedy: bool = False) -> Completion:
        """The token that decides, alone: where several texts are wanted of one situation it is asked for once."""
        chance, temperature = random.Random(name), 0.0 if greedy else 1.0
        return await self._engine.generate(
            Request(self.prompt(asked), self._role, self._either, temperature=temperature, chance=chance)
        )

    async def go_on(
        self, chosen: Completion, asked: Asked, name: str, *, speaks: bool | None = None, greedy: bool = False
    ) -> Said:
        """What follows that token, or the one that it is made to be."""
        prompt, p = self.prompt(asked), math.exp(chosen.logprobs[0])
        p = p if chosen.tokens[0] == self._speak else 1.0 - p
        wants = chosen.tokens[0] == self._speak if speaks is None else speaks
        spoken = self._decision(prompt, self._speak, p, chosen, name)
        silent = self._decision(prompt, self._abstain, 1.0 - p, chosen, f"{name}/silent")
        usage = Usage(len(prompt), 1, calls=1)
        if not wants or not (self._free or asked.offers):
            return Said(None, p, replace(silent, trace=name), silent, None, usage)
        request = Request(
            (*prompt, self._speak),
            self._role,
            None if self._free else Trie({self._said(text) for text in asked.offers}),
            max_tokens=self._most,
            temperature=0.0 if greedy else 1.0,
            stop=(self._transcript.end,),
            chance=random.Random(f"{name}/text"),
        )
        said = await self._engine.generate(request)
        content = self._row(request.prompt, said, name)
        usage += Usage(len(request.prompt), sum(said.mask), calls=1)
        return Said(self._text(said.tokens, asked), p, spoken, silent, content, usage)

    def prompt(self, asked: Asked) -> Ids:
        """`<task> find coin . <see> kitchen . fridge . <at> kitchen <memory> kitchen : move east . insight <item>`

        What was recalled comes last, next to the decision about it.
        """
        state = asked.state
        at = f"<at> {state.location.lower()} " if state.location else ""
        recalled = " ".join(f"<memory> {text}" for text in asked.recalled)
        return self._ids(f"<task> {compact(state.task)} <see> {compact(state.observation)} {at}{recalled} <item>")

    def lesson(self, asked: Asked, text: str, name: str) -> Sample:
        """What it should have said once it speaks, as a row to imitate."""
        said = self._said(text)
        n = len(said)
        trie = None if self._free else Trie({said, *(self._said(offer) for offer in asked.offers)})
        allowed: tuple[Allowed, ...] = tuple(None if trie is None else trie.allowed(said[:at]) for at in range(n))
        mask = tuple(each is None or len(each) > 1 for each in allowed)
        prompt = (*self.prompt(asked), self._speak)
        return Sample(prompt, said, (0.0,) * n, mask, allowed, self._role, 0, "", "", "", name, 0)

    def _decision(self, prompt: Ids, token: int, p: float, chosen: Completion, name: str) -> Sample:
        logprob = math.log(max(p, 1e-30))
        known = (self._role, chosen.version, "", "", "", name, 0)
        return Sample(prompt, (token,), (logprob,), (True,), chosen.allowed[:1], *known)

    def _row(self, prompt: Ids, said: Completion, name: str) -> Sample:
        known = (self._role, said.version, "", "", "", name, 1)
        return Sample(prompt, said.tokens, said.logprobs, said.mask, said.allowed, *known)

    def _said(self, text: str) -> Ids:
        return (*self._ids(text), self._transcript.end)

    def _text(self, tokens: Ids, asked: Asked) -> str | None:
        """The offer that was said, or the words; None where there were none."""
        if not self._free:
            return {self._said(text): text for text in reversed(asked.offers)}[tokens]
        words = tokens[:-1] if tokens and tokens[-1] == self._transcript.end else tokens
        return str(self._transcript.tokenizer.decode(words)).strip() or None

    def _ids(self, text: str) -> Ids:
        return tuple(self._transcript.tokenizer(text, add_special_tokens=False).input_ids)


class TrainedGuidance:
    """A guide of an engine, as guidance in the runtime's loop: what was recalled is on offer, line by line."""

    def __init__(self, engine: Engine, transcript: Transcript, *, role: str = "guide", free: bool = False) -> None:
        """As `Speaker`."""
        self._speaker = Speaker(engine, transcript, role=role, free=free)

    async def apropose(self, context: Context) -> Hint | None:
        """Greedy; nothing recalled: nothing is asked."""
        lines = lines_of(context.recollection, context.state, context.actions)
        if not lines:
            return None
        texts = tuple(dict.fromkeys(line.text for line in lines))
        said = await self._speaker.say(Asked(context.state, texts, texts), "", greedy=True)
        used = [line for line in lines if line.text == said.text]
        hint = hint_of(used, said.text) if said.text else Hint("")
        return replace(hint, usage=said.usage, written=True, why={"p_speaks": round(said.p_speaks, 4)})

    def propose(self, context: Context) -> Hint | None:
        """The same, for a loop that does not await."""
        return asyncio.run(self.apropose(context))
