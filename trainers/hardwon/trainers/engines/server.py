"""An engine over a vLLM server on this machine or another one.

    engine = ServerEngine("http://127.0.0.1:8000/v1", tokenizer, roles=("policy", "extractor"))
    engine.load_adapter("policy", 3, "runs/coin/export/policy")

Start the server yourself. To swap adapters, it needs `--enable-lora`, `--max-loras` of one more than the number of
roles, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True. It must see the adapter folders under the same paths.

The server holds the model, reads prompts and returns probabilities; sampling under a trie happens here. At each branch,
the engine requests the log-probabilities of the tokens that may follow and draws one, as the local engine does. Forced
tokens cost nothing. The server's prefix cache keeps the prompt, so a branch reads only a few tokens.
"""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from hardwon.memory.errors import ConfigError, EngineFailure
from hardwon.runtime.llm.chat_model import in_own_loop
from hardwon.trainers.algorithms.samples import Allowed, Ids, PackedSequence

from .base import Completion, Constraint, Request, Weights
from .grammar import Grammar
from .served_weights import ServedWeights, Serving
from .trie import Trie
from .vllm_client import MAX_SCORED, VllmClient

MAX_PLACES = 128
"""Largest number of places at which listed answers part that are scored at once; longer lists are decoded greedily."""
MAX_SEED = 2**31
"""Exclusive upper bound of seeds."""


class ServerEngine:
    """Serves several roles from one vLLM server. See the module's docstring."""

    def __init__(
        self,
        base_url: str,
        tokenizer: Any,
        roles: Sequence[str] = ("policy",),
        api_key: str | None = None,
        *,
        model: str | None = None,
        folder: str | Path | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Prepare a connection. The server is contacted with the first request.

        Args:
            base_url: URL of the server, with its /v1.
            tokenizer: The tokenizer of the model.
            roles: Names of the roles.
            api_key: API key of the server.
            model: Name of the base; None for the server's first model.
            folder: Folder for adapters that come as tensors, which the server must see. None for a temporary
                folder, which works on the same machine.
            timeout_s: Timeout of one request in seconds, including its time in the server's queue.
        """
        self.tokenizer = tokenizer
        self._client = VllmClient(base_url, api_key, model, timeout_s)
        self._weights = ServedWeights(self._client, roles, folder)
        self.tokens_read = 0
        """Tokens of all prompts and completions so far."""

    @property
    def base_url(self) -> str:
        """Return the URL of the server, with its /v1."""
        return self._client.base_url

    async def generate(self, request: Request, serving: Serving | None = None) -> Completion:
        """Sample one completion.

        Raises:
            ConfigError: The role is not served, or the prompt is empty.
            EngineFailure: The server failed or does not mask as requested.
        """
        self._weights.check(request.role)
        if not request.prompt:
            raise ConfigError("a prompt needs at least one token.")
        completion: Completion = await asyncio.wrap_future(in_own_loop(self._complete(request, serving)))
        self.tokens_read += len(request.prompt) + len(completion.tokens)
        return completion

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Compute the log-probability of every masked token among its allowed tokens."""
        self._weights.check(role)
        return await asyncio.wrap_future(in_own_loop(self._logprobs(streams, role)))

    def load_adapter(self, role: str, version: int, weights: Weights) -> None:
        """Make these the weights of a role from now on. Running completions keep theirs.

        Args:
            role: One of the engine's roles.
            version: Version of the weights.
            weights: A peft folder, or the tensors of an adapter from `adapters.add_adapter`, which are written
                to a folder. A folder must not change while its version is in use.

        Raises:
            AdapterRefused: The server does not accept the adapter.
            ConfigError: The role is not served, or the weights are no LoRA adapter.
        """
        self._weights.check(role)
        folder = self._weights.locate(role, version, weights)
        in_own_loop(self._weights.load(role, version, folder)).result()

    def versions(self) -> Mapping[str, int]:
        """Return the version of each role's weights; 0 is the base."""
        return {role: serving.version for role, serving in self._weights.by_role.items()}

    async def begin(self, session: str) -> None:
        """Do nothing: the server batches requests as they come."""
        return

    async def end(self, session: str) -> None:
        """Do nothing: the server evicts its cache by itself."""
        return

    def hold(self) -> dict[str, Serving]:
        """Keep the current weights of every role loaded until `release`, and return them.

        Engines of other processes can then request them, whatever this one loads meanwhile.
        """
        held: dict[str, Serving] = in_own_loop(self._weights.hold()).result()
        return held

    def release(self, held: Mapping[str, Serving]) -> None:
        """Let go of weights that `hold` returned; those that were replaced meanwhile are unloaded."""
        in_own_loop(self._weights.release(held)).result()

    def close(self) -> None:
        """Close connections and delete temporary files."""
        in_own_loop(self._weights.close()).result()

    # -- generating ---------------------------------------------------------------------------------

    async def _complete(self, request: Request, serving: Serving | None = None) -> Completion:
        with self._weights.lease(serving or self._weights.by_role[request.role]) as serving:
            if isinstance(request.allowed, Grammar):
                return await self._sample_by_grammar(serving, request, request.allowed)
            if request.temperature == 0.0 and can_score_at_once(request.allowed):
                return await self._choose_best(serving, request, request.allowed)
            if request.allowed is not None:
                return await self._sample_by_trie(serving, request)
            seed = (request.chance or random).randrange(MAX_SEED)
            tokens, logprobs = await self._client.sample(serving.name, request, seed)
            n = len(tokens)
            return Completion(tuple(tokens), tuple(logprobs), (True,) * n, (None,) * n, serving.version)

    async def _sample_by_grammar(self, serving: Serving, request: Request, grammar: Grammar) -> Completion:
        """Sample with the server's mask, and compute the allowed sets with our own automaton."""
        bounded = replace(request, stop=(grammar.end,), max_tokens=min(request.max_tokens, grammar.max_tokens))
        seed = (request.chance or random).randrange(MAX_SEED)
        tokens, logprobs = await self._client.sample(serving.name, bounded, seed, grammar.lark)
        allowed: list[Allowed] = []
        for n, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            possible = grammar.allowed(tokens[:n])
            # Tolerance in nats: the log-probability of a forced token is this close to 0.
            if token not in possible or (len(possible) == 1 and abs(logprob) > 1e-3):
                raise EngineFailure(
                    f"token {token} was sampled with log-probability {logprob:.3f} where the grammar allows "
                    f"{len(possible)} tokens: the server does not mask as requested. Start vLLM with "
                    "--structured-outputs-config.backend guidance and --logprobs-mode processed_logprobs."
                )
            allowed.append(possible)
        mask = tuple(len(possible or ()) > 1 for possible in allowed)
        return Completion(tuple(tokens), tuple(logprobs), mask, tuple(allowed), serving.version)

    async def _sample_by_trie(self, serving: Serving, request: Request) -> Completion:
        """Sample from branch to branch of the trie, as the local engine does."""
        trie = request.allowed
        assert trie is not None
        completion: list[int] = []
        logprobs: list[float] = []
        mask: list[bool] = []
        allowed: list[Allowed] = []
        while True:
            for token in trie.forced(completion):
                completion.append(token)
                logprobs.append(0.0)
                mask.append(False)
                allowed.append((token,))
            if trie.complete(completion):
                return Completion(tuple(completion), tuple(logprobs), tuple(mask), tuple(allowed), serving.version)
            possible = trie.allowed(completion)
            # temperature 0 chooses greedily, with log-probabilities at temperature 1 as in the local engine
            scores = await self._score_among(
                serving, (*request.prompt, *completion), possible, request.temperature or 1.0
            )
            index = _draw(scores, request)
            completion.append(possible[index])
            logprobs.append(scores[index])
            mask.append(True)
            allowed.append(possible)

    async def _choose_best(self, serving: Serving, request: Request, trie: Trie) -> Completion:
        """Return the answer with the highest sum of log-probabilities, as the local engine chooses it.

        All places at which answers part are scored in concurrent requests, each of which reads a few tokens behind a
        prompt that the server has cached. Log-probabilities of the prompt would take one request per answer, but vLLM
        computes them without its cache, so it would read the prompt as often.
        """
        begin = trie.forced(())
        tree = trie.tree(begin)
        places = [(*begin, *(tree.prefixes[node] if node >= 0 else ())) for node, _ in tree.choices]
        scores = await asyncio.gather(
            *(
                self._score_among(serving, (*request.prompt, *place), possible)
                for place, (_, possible) in zip(places, tree.choices, strict=True)
            )
        )
        by_prefix: dict[Ids, float] = {
            (*place, token): score
            for place, (_, possible), values in zip(places, tree.choices, scores, strict=True)
            for token, score in zip(possible, values, strict=True)
        }
        best = max(
            trie.sequences(), key=lambda answer: sum(by_prefix.get(answer[: n + 1], 0.0) for n in range(len(answer)))
        )
        allowed = tuple(trie.allowed(best[:n]) for n in range(len(best)))
        logprobs = tuple(by_prefix.get(best[: n + 1], 0.0) for n in range(len(best)))
        return Completion(best, logprobs, tuple(len(each) > 1 for each in allowed), allowed, serving.version)

    async def _score_among(self, serving: Serving, prompt: Ids, ids: Ids, temperature: float = 1.0) -> list[float]:
        """Return the log-probabilities of these next tokens relative to each other."""
        parts = [ids[at : at + MAX_SCORED] for at in range(0, len(ids), MAX_SCORED)]
        chunks = await asyncio.gather(*(self._client.score(serving.name, prompt, part) for part in parts))
        scores = [score / temperature for chunk in chunks for score in chunk]
        largest = max(scores)  # subtracted before exp, so that nothing overflows
        total = largest + math.log(math.fsum(math.exp(score - largest) for score in scores))
        return [score - total for score in scores]

    async def _logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        with self._weights.lease(self._weights.by_role[role]) as serving:
            return list(await asyncio.gather(*(self._score_sequence(serving, stream) for stream in streams)))

    async def _score_sequence(self, serving: Serving, stream: PackedSequence) -> list[float]:
        """Return the log-probability of every masked token of one sequence."""
        positions = [at for at in range(1, len(stream)) if stream.mask[at]]
        values = [0.0] * len(stream)
        if any(stream.allowed[at] is None for at in positions):
            read = [0.0, *await self._client.read(serving.name, stream.tokens)]
            for at in positions:
                values[at] = read[at]
        bound = [(at, ids) for at in positions if (ids := stream.allowed[at]) is not None]
        results = await asyncio.gather(*(self._score_among(serving, stream.tokens[:at], ids) for at, ids in bound))
        for (at, ids), scores in zip(bound, results, strict=True):
            values[at] = scores[ids.index(stream.tokens[at])]
        return values


def can_score_at_once(allowed: Constraint | None) -> TypeGuard[Trie]:
    """Return whether a constraint is a list of answers that is short enough to score every answer."""
    return isinstance(allowed, Trie) and len(allowed.tree(()).choices) <= MAX_PLACES


def _draw(logprobs: Sequence[float], request: Request) -> int:
    """Draw an index by inverse transform of one random number. At temperature 0, return the most probable one."""
    if request.temperature == 0.0:
        return max(range(len(logprobs)), key=logprobs.__getitem__)
    point = (request.chance or random).random()
    cumulative = 0.0
    for index, logprob in enumerate(logprobs):
        cumulative += math.exp(logprob)
        if point < cumulative:
            return index
    # reached if rounding leaves the sum just below `point`
    return len(logprobs) - 1
