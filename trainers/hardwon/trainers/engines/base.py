"""The engine protocol: token generation by transformers, a vLLM server, or vLLM in process.

    completion = await engine.generate(Request(prompt, role="policy", allowed=trie))
    values = await engine.logprobs(streams, role="policy")
    engine.load_adapter("policy", version, weights)

An engine has one base model and one set of weights per role: an adapter, or all parameters of a tiny
model. All sets are resident at the same time. Requests of concurrent episodes are batched.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hardwon.trainers.algorithms.samples import Allowed, Ids, PackedSequence

Weights = Mapping[str, Any] | str | Path
"""Tensors by name, or the path of a peft folder."""


class Constraint(Protocol):
    """Determines which tokens may follow: a `Trie` of the possible answers, or a `Grammar`."""

    def allowed(self, prefix: Sequence[int]) -> Ids:
        """Return the tokens that may follow `prefix`, in a fixed order. Empty if the answer is complete."""
        ...

    def forced(self, prefix: Sequence[int]) -> Ids:
        """Return the tokens that must follow `prefix`, up to the next real choice."""
        ...

    def complete(self, prefix: Sequence[int]) -> bool:
        """Return whether the answer is complete."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to complete. `session` names the episode, so that tokens of its earlier turns are not read again."""

    prompt: Ids
    role: str = "policy"
    allowed: Constraint | None = None
    """Constraint on the answer: a trie or a grammar; None for free text."""
    max_tokens: int = 64
    temperature: float = 1.0
    """Sampling temperature. 0 takes the most probable token, with its log-probability at temperature 1."""
    stop: Ids = ()
    """Token ids that end a free completion. The stop token is part of the completion."""
    session: str = ""
    chance: random.Random | None = None
    """Random generator for sampling. The same state gives the same completion."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The generated tokens. Each tuple has one entry per token."""

    tokens: Ids
    logprobs: tuple[float, ...]
    """Log-probabilities among the allowed tokens, at the temperature of the request, in nats."""
    mask: tuple[bool, ...]
    """Whether the token was a choice; False for forced tokens."""
    allowed: tuple[Allowed, ...]
    version: int


class Engine(Protocol):
    """Generates tokens for several roles."""

    async def generate(self, request: Request) -> Completion:
        """Sample one completion.

        Args:
            request: Prompt, role, constraint and sampling parameters.

        Returns:
            The tokens with their log-probabilities and the version of the weights.

        Raises:
            ConfigError: The role is not served, or the prompt is empty.
            EngineFailure: Another program that holds the model failed.
        """
        ...

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Compute the log-probability of every masked token among its allowed tokens.

        Args:
            streams: Packed sequences to read.
            role: Role whose weights are used.

        Returns:
            One list per sequence with one value per token, in nats; 0 where the mask is False.
        """
        ...

    def load_adapter(self, role: str, version: int, weights: Weights) -> None:
        """Make these the weights of a role from now on.

        Args:
            role: One of the engine's roles.
            version: Version of the weights, which completions report.
            weights: Tensors by name, or a peft folder.

        Running completions keep the weights that they started with.
        """
        ...

    def versions(self) -> Mapping[str, int]:
        """Return the version of each role's weights."""
        ...

    async def begin(self, session: str) -> None:
        """Register an episode. An engine may wait for the requests of all open episodes to batch them."""
        ...

    async def end(self, session: str) -> None:
        """Unregister an episode and drop its cached state."""
        ...
