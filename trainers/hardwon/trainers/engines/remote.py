"""Common base of the vLLM engines: versions, adapters in use, and exact sampling under a trie.

Another program holds the model, reads prompts and returns probabilities; sampling under a trie happens
here. At each branch, the engine requests the log-probabilities of the tokens that may follow and draws
one, as the local engine does. Forced tokens cost nothing. The program's prefix cache keeps the prompt,
so a branch reads only a few tokens. All requests run in one private event loop, so an engine works from
any loop and any thread. Subclasses implement the connection to a program.
"""

import asyncio
import hashlib
import json
import math
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from hardwon.memory.errors import ConfigError, EngineFailure
from hardwon.runtime.llm.chat_model import in_own_loop
from hardwon.trainers.algorithms.samples import Allowed, Ids, PackedSequence

from .base import Completion, Constraint, Request, Weights
from .grammar import Grammar
from .trie import Trie

MAX_SCORED = 128
"""Largest number of tokens whose log-probabilities vLLM returns in one request."""
MAX_PLACES = 128
"""Largest number of places at which listed answers part that are scored at once; longer lists are decoded greedily."""
MAX_SEED = 2**31
"""Exclusive upper bound of seeds."""
WEIGHTS, SHAPE = "adapter_model.safetensors", "adapter_config.json"
"""The files of a peft folder."""


@dataclass(eq=False, slots=True)
class Serving:
    """The weights that a role's requests use: an adapter, or the base."""

    name: str = ""
    """Name of the adapter; empty for the base."""
    folder: str = ""
    version: int = 0
    running: int = 0
    """Requests in progress."""
    retired: bool = False
    """Whether newer weights have replaced these."""


class RemoteEngine(ABC):
    """An engine over another program. See the module's docstring."""

    def __init__(self, tokenizer: Any, roles: Sequence[str], folder: str | Path | None) -> None:
        self.tokenizer = tokenizer
        self._serving = {role: Serving() for role in roles}
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        self.tokens_read = 0
        """Tokens of all prompts and completions so far."""

    # -- implemented per program ---------------------------------------------------------------------

    @abstractmethod
    async def _sample(
        self, serving: Serving, request: Request, seed: int, grammar: str | None = None
    ) -> tuple[Sequence[int], Sequence[float]]:
        """Sample a completion, free or by a grammar.

        Return tokens and log-probabilities at the temperature (0: at 1).
        """

    @abstractmethod
    async def _score(self, serving: Serving, prompt: Ids, ids: Ids) -> list[float]:
        """Return log-probabilities of these next tokens at temperature 1, up to a constant; at most MAX_SCORED."""

    @abstractmethod
    async def _read(self, serving: Serving, tokens: Ids) -> list[float]:
        """Return the log-probability of every token but the first, given those before it."""

    @abstractmethod
    async def _install(self, serving: Serving) -> None:
        """Load an adapter."""

    @abstractmethod
    async def _remove(self, serving: Serving) -> None:
        """Unload an adapter."""

    @abstractmethod
    async def _close(self) -> None:
        """Disconnect from the program."""

    # -- the three calls ----------------------------------------------------------------------------

    async def generate(self, request: Request, serving: Serving | None = None) -> Completion:
        """Sample one completion.

        Raises:
            ConfigError: The role is not served, or the prompt is empty.
            EngineFailure: The other program failed or does not mask as requested.
        """
        self._check(request.role)
        if not request.prompt:
            raise ConfigError("a prompt needs at least one token.")
        completion: Completion = await asyncio.wrap_future(in_own_loop(self._complete(request, serving)))
        self.tokens_read += len(request.prompt) + len(completion.tokens)
        return completion

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Compute the log-probability of every masked token among its allowed tokens."""
        self._check(role)
        return await asyncio.wrap_future(in_own_loop(self._logprobs(streams, role)))

    def load_adapter(self, role: str, version: int, weights: Weights) -> None:
        """Make these the weights of a role from now on. Running completions keep theirs.

        Args:
            role: One of the engine's roles.
            version: Version of the weights.
            weights: A peft folder, or the tensors of an adapter from `adapters.add_adapter`, which are written
                to a folder. A folder must not change while its version is in use.

        Raises:
            AdapterRefused: The program does not accept the adapter.
            ConfigError: The role is not served, or the weights are no LoRA adapter.
        """
        self._check(role)
        if isinstance(weights, Mapping):
            weights = write_adapter(weights, self._get_folder() / f"{role}-v{version}")
        in_own_loop(self._load(role, version, Path(weights))).result()

    def versions(self) -> Mapping[str, int]:
        """Return the version of each role's weights; 0 is the base."""
        return {role: serving.version for role, serving in self._serving.items()}

    async def begin(self, session: str) -> None:
        """Do nothing: the other program batches requests as they come."""
        return

    async def end(self, session: str) -> None:
        """Do nothing: the other program evicts its cache by itself."""
        return

    def hold(self) -> dict[str, Serving]:
        """Keep the current weights of every role loaded until `release`, and return them.

        Engines of other processes can then request them, whatever this one loads meanwhile.
        """
        held: dict[str, Serving] = in_own_loop(self._hold()).result()
        return held

    def release(self, held: Mapping[str, Serving]) -> None:
        """Let go of weights that `hold` returned; those that were replaced meanwhile are unloaded."""
        in_own_loop(self._release(held)).result()

    def close(self) -> None:
        """Close connections and delete temporary files."""
        in_own_loop(self._finish()).result()
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- generating ---------------------------------------------------------------------------------

    def _check(self, role: str) -> None:
        if role not in self._serving:
            raise ConfigError(f"role {role!r} is not served. Roles: {', '.join(self._serving)}.")

    @contextmanager
    def _lease(self, serving: Serving) -> Iterator[Serving]:
        """Keep weights loaded for the duration of this context."""
        serving.running += 1
        try:
            yield serving
        finally:
            self._give_back(serving)

    def _give_back(self, serving: Serving) -> None:
        """Count a finished use of weights. The last one unloads them if newer ones have replaced them."""
        serving.running -= 1
        if serving.retired and not serving.running:
            task = asyncio.get_running_loop().create_task(self._drop(serving))
            self._dropping.add(task)  # keeps the task from being collected
            task.add_done_callback(self._dropping.discard)

    async def _hold(self) -> dict[str, Serving]:
        for serving in self._serving.values():
            serving.running += 1
        return dict(self._serving)

    async def _release(self, held: Mapping[str, Serving]) -> None:
        for serving in held.values():
            self._give_back(serving)

    async def _complete(self, request: Request, serving: Serving | None = None) -> Completion:
        with self._lease(serving or self._serving[request.role]) as serving:
            if isinstance(request.allowed, Grammar):
                return await self._sample_by_grammar(serving, request, request.allowed)
            if request.temperature == 0.0 and can_score_at_once(request.allowed):
                return await self._choose_best(serving, request, request.allowed)
            if request.allowed is not None:
                return await self._sample_by_trie(serving, request)
            seed = (request.chance or random).randrange(MAX_SEED)
            tokens, logprobs = await self._sample(serving, request, seed)
            n = len(tokens)
            return Completion(tuple(tokens), tuple(logprobs), (True,) * n, (None,) * n, serving.version)

    async def _sample_by_grammar(self, serving: Serving, request: Request, grammar: Grammar) -> Completion:
        """Sample with the program's mask, and compute the allowed sets with our own automaton."""
        bounded = replace(request, stop=(grammar.end,), max_tokens=min(request.max_tokens, grammar.max_tokens))
        seed = (request.chance or random).randrange(MAX_SEED)
        tokens, logprobs = await self._sample(serving, bounded, seed, grammar.lark)
        allowed: list[Allowed] = []
        for n, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            possible = grammar.allowed(tokens[:n])
            # Tolerance in nats: the log-probability of a forced token is this close to 0.
            if token not in possible or (len(possible) == 1 and abs(logprob) > 1e-3):
                raise EngineFailure(
                    f"token {token} was sampled with log-probability {logprob:.3f} where the grammar allows "
                    f"{len(possible)} tokens: the other program does not mask as requested. Start vLLM with "
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
        prompt that the program has cached. Log-probabilities of the prompt would take one request per answer, but vLLM
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
        chunks = await asyncio.gather(*(self._score(serving, prompt, part) for part in parts))
        scores = [score / temperature for chunk in chunks for score in chunk]
        largest = max(scores)  # subtracted before exp, so that nothing overflows
        total = largest + math.log(math.fsum(math.exp(score - largest) for score in scores))
        return [score - total for score in scores]

    async def _logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        with self._lease(self._serving[role]) as serving:
            return list(await asyncio.gather(*(self._score_sequence(serving, stream) for stream in streams)))

    async def _score_sequence(self, serving: Serving, stream: PackedSequence) -> list[float]:
        """Return the log-probability of every masked token of one sequence."""
        positions = [at for at in range(1, len(stream)) if stream.mask[at]]
        values = [0.0] * len(stream)
        if any(stream.allowed[at] is None for at in positions):
            read = [0.0, *await self._read(serving, stream.tokens)]
            for at in positions:
                values[at] = read[at]
        bound = [(at, ids) for at in positions if (ids := stream.allowed[at]) is not None]
        results = await asyncio.gather(*(self._score_among(serving, stream.tokens[:at], ids) for at, ids in bound))
        for (at, ids), scores in zip(bound, results, strict=True):
            values[at] = scores[ids.index(stream.tokens[at])]
        return values

    # -- adapters -----------------------------------------------------------------------------------

    async def _load(self, role: str, version: int, folder: Path) -> None:
        before = self._serving[role]
        # the hash of the weights is in the name, so vLLM cannot reuse cached weights of another run's same version
        name = f"{role}-v{version}-{hash_adapter(folder)}"
        if name == before.name:
            return
        new = Serving(name, str(folder.absolute()), version)
        # installed before the switch, so no request names an adapter that the program does not have
        await self._install(new)
        self._serving[role] = new
        before.retired = True
        if not before.running:
            await self._drop(before)

    async def _drop(self, serving: Serving) -> None:
        if not serving.name:
            return
        with suppress(EngineFailure):  # an adapter that stays loaded does no harm
            await self._remove(serving)

    async def _finish(self) -> None:
        # removals in progress still need the connection
        await asyncio.gather(*self._dropping)
        await self._close()

    def _get_folder(self) -> Path:
        """Return the folder for adapters that come as tensors."""
        if self._folder is not None:
            return Path(self._folder)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hardwon-adapters-")
        return Path(self._temporary.name)


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


def hash_adapter(folder: Path) -> str:
    """Return eight hex digits that identify an adapter's weights and shape."""
    digest = hashlib.blake2b(digest_size=4)
    for name in (SHAPE, WEIGHTS):
        try:
            digest.update((folder / name).read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{folder} is not a peft folder: it has no {name}. Pass a folder that peft saved."
            ) from error
    return digest.hexdigest()


def write_adapter(weights: Mapping[str, Any], folder: Path) -> Path:
    """Write the tensors of an adapter as a peft folder. The shape is derived from the tensors."""
    from safetensors.torch import save_file

    from hardwon.trainers.models.adapters import WEIGHT

    ranks = {value.shape[0] for name, value in weights.items() if ".lora_A." in name}
    layers = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in weights})
    unknown = [name for name in weights if ".lora_A." not in name and ".lora_B." not in name]
    if unknown or len(ranks) != 1:
        raise ConfigError(
            f"vLLM serves LoRA adapters, but {unknown[0] if unknown else 'nothing'!r} is not part of one. "
            "Train with an adapter (model.adapter), or pass a peft folder."
        )
    (rank,) = ranks
    shape = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": round(WEIGHT * rank),
        "target_modules": layers,
        "bias": "none",
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, str(folder / WEIGHTS))
    (folder / SHAPE).write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
    return folder
