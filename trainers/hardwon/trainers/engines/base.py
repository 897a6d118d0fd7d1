"""The engine that generates: three calls behind which transformers, vLLM or a server may be.

    completion = await engine.generate(Request(prompt, role="policy", allowed=trie))
    values = await engine.logprobs(streams, role="policy")
    engine.load_adapter("policy", version, weights)

One base model, one set of weights a role (an adapter, or all parameters of a tiny model), several
resident at once. Requests of many concurrent episodes are served together.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hardwon.trainers.algorithms.samples import Allowed, Ids, PackedSequence

Weights = Mapping[str, Any] | str | Path
"""Tensors by name, or a peft folder."""


class Constraint(Protocol):
    """Says which token may follow: a `Trie` of the answers, or a `Grammar`."""

    def allowed(self, said: Sequence[int]) -> Ids:
        """The tokens that may follow, in a fixed order; none when the answer is complete."""
        ...

    def forced(self, said: Sequence[int]) -> Ids:
        """The tokens that must follow, as far as there is only one way to go on."""
        ...

    def complete(self, said: Sequence[int]) -> bool:
        """Whether the answer has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """What to complete. `session` names the episode, whose earlier turns need not be read again."""

    prompt: Ids
    role: str = "policy"
    allowed: Constraint | None = None
    """What may be said: a trie, a grammar; None for anything."""
    max_tokens: int = 64
    temperature: float = 1.0
    """0 takes the most probable token; the log-probabilities are then those at temperature 1."""
    stop: Ids = ()
    """Token ids after which a free completion ends; the token is part of it."""
    session: str = ""
    chance: random.Random | None = None
    """Where the numbers come from that choose tokens; the same ones give the same completion."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was said: one entry per token in each tuple."""

    tokens: Ids
    logprobs: tuple[float, ...]
    """Among the allowed tokens, at the temperature of the request."""
    mask: tuple[bool, ...]
    """False where there was no choice."""
    allowed: tuple[Allowed, ...]
    version: int


class Engine(Protocol):
    """Generates for several roles."""

    async def generate(self, request: Request) -> Completion:
        """One completion, sampled."""
        ...

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Log-probability of every masked token among its allowed ones, 0 elsewhere."""
        ...

    def load_adapter(self, role: str, version: int, weights: Weights) -> None:
        """Make these the weights of a role from now on; running completions keep theirs."""
        ...

    def versions(self) -> Mapping[str, int]:
        """The version that each role's weights have."""
        ...

    async def begin(self, session: str) -> None:
        """An episode begins: its requests are waited for, so that they are served together."""
        ...

    async def end(self, session: str) -> None:
        """The episode is over: nobody waits for it, and what was kept of it is dropped."""
        ...
