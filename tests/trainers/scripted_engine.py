"""An engine of tests whose answers are given texts."""

from typing import Any

from hardwon.trainers.engines.base import Completion


class Scripted:
    """Answers with given texts; `...` at the end of one is an answer without an end token."""

    def __init__(self, tokenizer: Any, *texts: str) -> None:
        self.tokenizer, self.texts = tokenizer, [*texts]
        self.requests: list[Any] = []

    async def generate(self, request: Any) -> Completion:
        self.requests.append(request)
        text = self.texts.pop(0)
        tokens = tuple(self.tokenizer(text.removesuffix("..."), add_special_tokens=False).input_ids)
        tokens += () if text.endswith("...") else (self.tokenizer.eos_token_id,)
        n = len(tokens)
        return Completion(tokens, (-1.0,) * n, (True,) * n, (None,) * n, 1)

    async def begin(self, session: str) -> None:
        """Count nothing."""

    async def end(self, session: str) -> None:
        """Count nothing."""

    def read(self, number: int) -> str:
        """The prompt of a request as text."""
        return str(self.tokenizer.decode(self.requests[number].prompt))
