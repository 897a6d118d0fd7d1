"""What the policy says before an action by a rule: a tag of its reasoning (RLVMR), or a prediction (Role-Agent).

    opening = open_opening(prompts, settings)
    spoken = await opening.speak(engine, request)      # the completions that stand before the action
    opening.read(spoken)                               # {"tag": "explore"}

A tag is one of four words; the policy chooses it and it is trained with the action's advantage. In prompts with lines a
thought follows it. A prediction is free text up to the end of the line, or words up to the end token.
"""

from collections.abc import Sequence
from dataclasses import replace

from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.prompting.base import PromptFormat
from hardwon.trainers.prompting.chat import ChatFormat

TAGS = ("planning", "explore", "reflection", "monitor")
"""The kinds of reasoning; `monitor` earns nothing in RLVMR."""


class TagChoice:
    """Lets the policy choose one of the tags."""

    def __init__(self, prompts: PromptFormat) -> None:
        # without the end token, because the answer goes on
        self._tags: dict[Ids, str] = {prompts.text(tag)[:-1]: tag for tag in TAGS}
        self._trie = Trie(self._tags)

    async def speak(self, engine: Engine, request: Request) -> list[Completion]:
        """Return the tag before the answer to a request."""
        most = max(map(len, self._tags))
        return [await engine.generate(replace(request, allowed=self._trie, max_tokens=most, stop=()))]

    def read(self, spoken: Sequence[Completion]) -> dict[str, str]:
        """Return the tag by its name."""
        return {"tag": self._tags[spoken[0].tokens]}


class WordsUntil:
    """Allows the words of a tokenizer up to an end token, and no control tokens."""

    def __init__(self, prompts: PromptFormat, limit: int) -> None:
        special = {*prompts.tokenizer.added_tokens_decoder}
        words = [number for number in sorted(prompts.tokenizer.get_vocab().values()) if number not in special]
        self._any, self._end, self._limit = (prompts.end, *words), prompts.end, limit

    def allowed(self, prefix: Sequence[int]) -> Ids:
        """Return all words and the end; only the end at the limit, and nothing after it."""
        if self.complete(prefix):
            return ()
        return (self._end,) if len(prefix) >= self._limit else self._any

    def forced(self, prefix: Sequence[int]) -> Ids:
        """Return the end token at the limit."""
        return (self._end,) if len(prefix) >= self._limit and not self.complete(prefix) else ()

    def complete(self, prefix: Sequence[int]) -> bool:
        """Return whether the text has ended."""
        return bool(prefix) and prefix[-1] == self._end


class Prediction:
    """Lets the policy say what it will see, in words of a compact format."""

    def __init__(self, prompts: PromptFormat, limit: int) -> None:
        self._prompts, self._limit = prompts, limit
        self._words = WordsUntil(prompts, limit)

    async def speak(self, engine: Engine, request: Request) -> list[Completion]:
        """Return the prediction before the answer to a request."""
        return [await engine.generate(replace(request, allowed=self._words, max_tokens=self._limit + 1, stop=()))]

    def read(self, spoken: Sequence[Completion]) -> dict[str, str]:
        """Return the text of the prediction."""
        return {"prediction": self._prompts.read(spoken[0].tokens)}


def open_opening(prompts: PromptFormat, settings: PolicySettings) -> TagChoice | Prediction | None:
    """Return what the policy says before an action by a rule; None if nothing, or a free line of a chat model."""
    if settings.speech == "tagged":
        return TagChoice(prompts)
    if settings.speech == "predicted" and not isinstance(prompts, ChatFormat):
        return Prediction(prompts, settings.speech_tokens)
    return None
