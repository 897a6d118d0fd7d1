"""What the engines over vLLM share: versions, adapters in use, and exact choices among allowed tokens.

Another program holds the model, reads a prompt and tells probabilities; a choice that a trie bounds
is made here. At each real branch it is asked for the log-probabilities of the tokens that may follow,
one token is drawn as the local engine draws it, and forced tokens cost nothing. What was read stays
in the other program's prefix cache, so a branch reads a few tokens. All of it runs in one event loop
of its own, so an engine may be used from any loop and any thread. This file speaks to no program.
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
from typing import Any

from hardwon.memory.errors import ConfigError, EngineFailure
from hardwon.runtime.llm.chat_model import in_own_loop
from hardwon.trainers.algorithms.samples import Allowed, Ids, PackedSequence

from .base import Completion, Request, Weights
from .grammar import Grammar

MAX_SCORED = 128
"""Tokens whose log-probabilities vLLM tells in one request."""
MAX_SEED = 2**31
"""Seeds are below this."""
FORCED = 1e-3
"""The log-probability of a token that is the only one possible is no further from 0 than this."""
WEIGHTS, SHAPE = "adapter_model.safetensors", "adapter_config.json"
"""The files of a peft folder."""


@dataclass(eq=False, slots=True)
class Serving:
    """The weights that a role's requests are sent under: an adapter, or the base where there is none."""

    name: str = ""
    """Empty for the base."""
    folder: str = ""
    version: int = 0
    running: int = 0
    """Requests under way."""
    retired: bool = False
    """Whether other weights have taken its place."""


class RemoteEngine(ABC):
    """An engine over another program; see the module's docstring."""

    def __init__(self, tokenizer: Any, roles: Sequence[str], folder: str | Path | None) -> None:
        self.tokenizer = tokenizer
        self._serving = {role: Serving() for role in roles}
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        self.tokens_read = 0
        """Tokens of all prompts and completions so far."""

    # -- what a program must do ---------------------------------------------------------------------

    @abstractmethod
    async def _sample(
        self, serving: Serving, request: Request, seed: int, grammar: str | None = None
    ) -> tuple[Sequence[int], Sequence[float]]:
        """A completion, free or by a grammar, and its log-probabilities under it, at the temperature (0: at 1)."""

    @abstractmethod
    async def _score(self, serving: Serving, prompt: Ids, ids: Ids) -> list[float]:
        """Log-probabilities of these next tokens at temperature 1, up to a constant; at most MAX_SCORED."""

    @abstractmethod
    async def _read(self, serving: Serving, tokens: Ids) -> list[float]:
        """Log-probability of every token but the first, given those before it."""

    @abstractmethod
    async def _install(self, serving: Serving) -> None:
        """Load an adapter."""

    @abstractmethod
    async def _remove(self, serving: Serving) -> None:
        """Unload it."""

    @abstractmethod
    async def _close(self) -> None:
        """Let go of the program."""

    # -- the three calls ----------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        """One completion. Raises ConfigError for a role that it does not have, or an empty prompt."""
        self._check(request.role)
        if not request.prompt:
            raise ConfigError("a prompt needs at least one token.")
        said: Completion = await asyncio.wrap_future(in_own_loop(self._complete(request)))
        self.tokens_read += len(request.prompt) + len(said.tokens)
        return said

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Log-probability of every masked token among its allowed ones, 0 elsewhere."""
        self._check(role)
        return await asyncio.wrap_future(in_own_loop(self._logprobs(streams, role)))

    def load_adapter(self, role: str, version: int, weights: Weights) -> None:
        """Make these the weights of a role from now on; running completions keep theirs.

        `weights` is a peft folder, or the tensors of an adapter as `adapters.add_adapter` makes them,
        which are written to a folder. A folder must stay as it is while its version is in use.
        """
        self._check(role)
        if isinstance(weights, Mapping):
            weights = write_adapter(weights, self._place() / f"{role}-v{version}")
        in_own_loop(self._load(role, version, Path(weights))).result()

    def versions(self) -> Mapping[str, int]:
        """The version that each role's weights have; 0 is the base."""
        return {role: serving.version for role, serving in self._serving.items()}

    async def begin(self, session: str) -> None:
        """An episode begins. Nobody is waited for: requests are batched as they come."""
        return

    async def end(self, session: str) -> None:
        """The episode is over. What was kept of it makes room by itself."""
        return

    def close(self) -> None:
        """Let go of connections and files."""
        in_own_loop(self._finish()).result()
        if self._temporary is not None:
            self._temporary.cleanup()

    # -- generating ---------------------------------------------------------------------------------

    def _check(self, role: str) -> None:
        if role not in self._serving:
            raise ConfigError(f"role {role!r} is not served; there are: {', '.join(self._serving)}.")

    @contextmanager
    def _using(self, role: str) -> Iterator[Serving]:
        """A role's weights as they are now; they stay loaded as long as this lasts."""
        serving = self._serving[role]
        serving.running += 1
        try:
            yield serving
        finally:
            serving.running -= 1
            if serving.retired and not serving.running:
                task = asyncio.get_running_loop().create_task(self._drop(serving))
                self._dropping.add(task)
                task.add_done_callback(self._dropping.discard)

    async def _complete(self, request: Request) -> Completion:
        with self._using(request.role) as serving:
            if isinstance(request.allowed, Grammar):
                return await self._by_grammar(serving, request, request.allowed)
            if request.allowed is not None:
                return await self._walk(serving, request)
            seed = (request.chance or random).randrange(MAX_SEED)
            tokens, logprobs = await self._sample(serving, request, seed)
            said = len(tokens)
            return Completion(tuple(tokens), tuple(logprobs), (True,) * said, (None,) * said, serving.version)

    async def _by_grammar(self, serving: Serving, request: Request, grammar: Grammar) -> Completion:
        """The other program masks; the sets that it drew among are those of our own automaton."""
        asked = replace(request, stop=(grammar.end,), max_tokens=min(request.max_tokens, grammar.max_tokens))
        seed = (request.chance or random).randrange(MAX_SEED)
        tokens, told = await self._sample(serving, asked, seed, grammar.lark)
        allowed: list[Allowed] = []
        for n, (token, logprob) in enumerate(zip(tokens, told, strict=True)):
            possible = grammar.allowed(tokens[:n])
            if token not in possible or (len(possible) == 1 and abs(logprob) > FORCED):
                raise EngineFailure(
                    f"token {token} was sampled with log-probability {logprob:.3f} where the grammar allows "
                    f"{len(possible)} tokens: the other program does not mask as asked. vLLM does with "
                    "--structured-outputs-config.backend guidance and --logprobs-mode processed_logprobs."
                )
            allowed.append(possible)
        mask = tuple(len(possible or ()) > 1 for possible in allowed)
        return Completion(tuple(tokens), tuple(told), mask, tuple(allowed), serving.version)

    async def _walk(self, serving: Serving, request: Request) -> Completion:
        """From branch to branch of the trie, as the local engine does."""
        trie = request.allowed
        assert trie is not None
        said: list[int] = []
        logprobs: list[float] = []
        mask: list[bool] = []
        allowed: list[Allowed] = []
        while True:
            for token in trie.forced(said):
                said.append(token)
                logprobs.append(0.0)
                mask.append(False)
                allowed.append((token,))
            if trie.complete(said):
                return Completion(tuple(said), tuple(logprobs), tuple(mask), tuple(allowed), serving.version)
            possible = trie.allowed(said)
            scores = await self._among(serving, (*request.prompt, *said), possible, request.temperature or 1.0)
            which = _drawn(scores, request)
            said.append(possible[which])
            logprobs.append(scores[which])
            mask.append(True)
            allowed.append(possible)

    async def _among(self, serving: Serving, prompt: Ids, ids: Ids, temperature: float = 1.0) -> list[float]:
        """Log-probabilities of these next tokens among themselves."""
        parts = [ids[at : at + MAX_SCORED] for at in range(0, len(ids), MAX_SCORED)]
        told = await asyncio.gather(*(self._score(serving, prompt, part) for part in parts))
        scores = [score / temperature for part in told for score in part]
        most = max(scores)
        total = most + math.log(math.fsum(math.exp(score - most) for score in scores))
        return [score - total for score in scores]

    async def _logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        with self._using(role) as serving:
            return list(await asyncio.gather(*(self._values(serving, stream) for stream in streams)))

    async def _values(self, serving: Serving, stream: PackedSequence) -> list[float]:
        asked = [at for at in range(1, len(stream)) if stream.mask[at]]
        values = [0.0] * len(stream)
        if any(stream.allowed[at] is None for at in asked):
            read = [0.0, *await self._read(serving, stream.tokens)]
            for at in asked:
                values[at] = read[at]
        bound = [(at, ids) for at in asked if (ids := stream.allowed[at]) is not None]
        told = await asyncio.gather(*(self._among(serving, stream.tokens[:at], ids) for at, ids in bound))
        for (at, ids), scores in zip(bound, told, strict=True):
            values[at] = scores[ids.index(stream.tokens[at])]
        return values

    # -- adapters -----------------------------------------------------------------------------------

    async def _load(self, role: str, version: int, folder: Path) -> None:
        before = self._serving[role]
        # the weights are in the name: what vLLM cached of other ones under the same role and version is not met
        name = f"{role}-v{version}-{digest(folder)}"
        if name == before.name:
            return
        new = Serving(name, str(folder.absolute()), version)
        await self._install(new)
        self._serving[role] = new
        before.retired = True
        if not before.running:
            await self._drop(before)

    async def _drop(self, serving: Serving) -> None:
        if not serving.name:
            return
        with suppress(EngineFailure):  # one that stays loaded is in nobody's way
            await self._remove(serving)

    async def _finish(self) -> None:
        await asyncio.gather(*self._dropping)
        await self._close()

    def _place(self) -> Path:
        """Where adapters are written."""
        if self._folder is not None:
            return Path(self._folder)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hardwon-adapters-")
        return Path(self._temporary.name)


def _drawn(logprobs: Sequence[float], request: Request) -> int:
    """An index drawn by inverse transform from one number; the most probable at temperature 0."""
    if request.temperature == 0.0:
        return max(range(len(logprobs)), key=logprobs.__getitem__)
    point = (request.chance or random).random()
    cumulative = 0.0
    for which, logprob in enumerate(logprobs):
        cumulative += math.exp(logprob)
        if point < cumulative:
            return which
    return len(logprobs) - 1


def digest(folder: Path) -> str:
    """Eight letters that tell an adapter's weights and shape from any other's. Raises ConfigError."""
    found = hashlib.blake2b(digest_size=4)
    for name in (SHAPE, WEIGHTS):
        try:
            found.update((folder / name).read_bytes())
        except OSError as error:
            raise ConfigError(f"{folder} is no peft folder: it has no {name}. Give one that peft has saved.") from error
    return found.hexdigest()


def write_adapter(weights: Mapping[str, Any], folder: Path) -> Path:
    """The tensors of an adapter as a peft folder, which is returned; its shape is read off them.

    Raises ConfigError for anything else than a LoRA: all parameters of a model cannot be swapped.
    """
    from safetensors.torch import save_file

    from hardwon.trainers.models.adapters import WEIGHT

    ranks = {value.shape[0] for name, value in weights.items() if ".lora_A." in name}
    layers = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in weights})
    strange = [name for name in weights if ".lora_A." not in name and ".lora_B." not in name]
    if strange or len(ranks) != 1:
        raise ConfigError(
            f"vLLM serves LoRA adapters and {strange[0] if strange else 'nothing'!r} is not of one; "
            "train with an adapter (model.adapter), or give a peft folder."
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
