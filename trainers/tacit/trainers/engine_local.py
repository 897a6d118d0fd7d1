"""The engine over a transformers model in this process, on CPU or GPU.

Requests of concurrent episodes are served together, in rounds: a round begins when every open
session has asked for something, so that the same episodes make the same batches and a run can be
repeated bit for bit. What a session has read stays in a key-value cache and is not read again while
its prompts extend each other. Rows of a batch differ in length: each keeps its true positions, and
empty slots are masked, so padding changes nothing. Tokens that a trie forces cost no forward pass.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.memory.errors import ConfigError

from .engine import Completion, Request, Weights
from .rows import Allowed, Ids, Stream


@dataclass(slots=True)
class Session:
    """What one episode has read under one role: tokens, and a key and a value for each in every layer."""

    version: int
    tokens: Ids = ()
    keys: list[Tensor] = field(default_factory=list)
    """By layer, (heads, tokens, width)."""
    values: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Running:
    """One completion under way."""

    request: Request
    future: "asyncio.Future[Completion]"
    session: Session
    unread: list[int]
    said: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)

    def say(self, token: int, logprob: float, chosen: bool, allowed: Allowed) -> None:
        self.said.append(token)
        self.logprobs.append(logprob)
        self.mask.append(chosen)
        self.allowed.append(allowed)
        self.unread.append(token)

    def follow(self) -> None:
        """Say what must be said, as far as there is no choice."""
        trie = self.request.allowed
        if trie is not None:
            for token in trie.forced(self.said):
                self.say(token, 0.0, False, (token,))

    @property
    def done(self) -> bool:
        request = self.request
        if request.allowed is not None:
            return request.allowed.complete(self.said)
        ended = bool(self.said) and self.said[-1] in request.stop
        return ended or len(self.said) >= request.max_tokens


class LocalEngine:
    """Serves one model; see the module's docstring. Use from one event loop."""

    def __init__(self, model: Any, tokenizer: Any, *, roles: Sequence[str] = ("policy",), max_batch: int = 256) -> None:
        """`model` is a causal LM; with peft adapters, each role is the name of one; else roles share its weights."""
        self.model = model
        self.tokenizer = tokenizer
        self.device = next(model.parameters()).device
        self._max_batch = max_batch
        self._versions = dict.fromkeys(roles, 0)
        self._own: dict[str, Any] = {}
        self._open: set[str] = set()
        self._sessions: dict[tuple[str, str], Session] = {}
        self._waiting: list[_Running] = []
        self._round: asyncio.Task[None] | None = None
        self.tokens_read = 0
        """Tokens that went through the model so far."""

    # -- the three calls --------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        """One completion. Raises ConfigError for a role that it does not have, or an empty prompt."""
        if request.role not in self._versions:
            raise ConfigError(f"role {request.role!r} is not served; there are: {', '.join(self._versions)}.")
        if not request.prompt:
            raise ConfigError("a prompt needs at least one token.")
        running = self._start(request)
        if running.done:
            return _completion(running)
        self._waiting.append(running)
        self._wake()
        return await running.future

    async def logprobs(self, streams: Sequence[Stream], role: str) -> list[list[float]]:
        """Log-probability of every masked token among its allowed ones, 0 elsewhere."""
        model = self._model(role)
        found = []
        with torch.inference_mode():
            for stream in streams:
                ids = torch.tensor([stream.tokens], device=self.device)
                logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
                self.tokens_read += len(stream)
                values = [0.0]
                for at in range(1, len(stream)):
                    if stream.mask[at]:
                        values.append(_logprob(logits[at - 1], stream.tokens[at], stream.allowed[at]))
                    else:
                        values.append(0.0)
                found.append(values)
        return found

    def load_adapter(self, role: str, version: int, weights: Weights) -> None:
        """Make these the weights of a role: tensors by name for its adapter or its own model, or a peft folder."""
        if isinstance(weights, Mapping):
            self._load_tensors(role, weights)
        else:
            self.model.load_adapter(str(weights), adapter_name=role)
        self._versions[role] = version

    def _load_tensors(self, role: str, weights: Mapping[str, Tensor]) -> None:
        if hasattr(self.model, "peft_config"):
            from peft import set_peft_model_state_dict

            set_peft_model_state_dict(self.model, dict(weights), adapter_name=role)
            return
        if len(self._versions) > 1 and role not in self._own:
            import copy

            self._own[role] = copy.deepcopy(self.model)
        self._own.get(role, self.model).load_state_dict(weights)

    def versions(self) -> Mapping[str, int]:
        """The version that each role's weights have."""
        return dict(self._versions)

    # -- sessions ---------------------------------------------------------------------------------

    async def begin(self, session: str) -> None:
        """An episode begins."""
        self._open.add(session)

    async def end(self, session: str) -> None:
        """The episode is over: nobody waits for it, and its cache is dropped."""
        self._open.discard(session)
        for key in [key for key in self._sessions if key[0] == session]:
            del self._sessions[key]
        self._wake()

    def _start(self, request: Request) -> _Running:
        version = self._versions[request.role]
        session = self._sessions.get((request.session, request.role)) if request.session else None
        if session is None or session.version != version:
            session = Session(version)
        kept = 0  # what of the cache the prompt begins with; its last token is always read, for its logits
        for ours, theirs in zip(session.tokens, request.prompt[:-1], strict=False):
            if ours != theirs:
                break
            kept += 1
        if kept < len(session.tokens):
            session.tokens = session.tokens[:kept]
            session.keys = [layer[:, :kept] for layer in session.keys]
            session.values = [layer[:, :kept] for layer in session.values]
        if request.session:
            self._sessions[request.session, request.role] = session
        future = asyncio.get_running_loop().create_future()
        running = _Running(request, future, session, list(request.prompt[kept:]))
        running.follow()
        return running

    # -- rounds -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._waiting and (self._round is None or self._round.done()):
            self._round = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Serve rounds until nobody waits who need not wait for others."""
        while self._waiting:
            await asyncio.sleep(0)
            asking = {running.request.session for running in self._waiting}
            if self._open - asking:
                return  # woken again by who asks, or ends, last
            batch, self._waiting = self._waiting, []
            try:
                self._serve_round(sorted(batch, key=lambda running: running.request.session))
            except BaseException as error:
                for running in batch:
                    if not running.future.done():
                        running.future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

    def _serve_round(self, batch: Sequence[_Running]) -> None:
        for role in self._versions:
            mine = [running for running in batch if running.request.role == role]
            # those that have as much to read go together: little is padded
            mine.sort(key=lambda running: len(running.unread))
            for start in range(0, len(mine), self._max_batch):
                with torch.inference_mode():
                    self._complete(self._model(role), mine[start : start + self._max_batch])

    def _model(self, role: str) -> Any:
        if hasattr(self.model, "peft_config"):
            self.model.set_adapter(role)
            return self.model
        return self._own.get(role, self.model)

    def _complete(self, model: Any, batch: Sequence[_Running]) -> None:
        """Read what is unread, choose a token for each row, until all are done."""
        cache = _Cache(batch, model.config, self.device)
        rows = list(range(len(batch)))
        while rows:
            logits = self._read(model, batch, rows, cache)
            _choose([batch[row] for row in rows], logits)
            left = [row for row in rows if not batch[row].done]
            if len(left) < len(rows):
                cache.keep([at for at, row in enumerate(rows) if not batch[row].done])
            rows = left
        for running in batch:
            if not running.future.done():
                running.future.set_result(_completion(running))

    def _read(self, model: Any, batch: Sequence[_Running], rows: Sequence[int], cache: "_Cache") -> Tensor:
        """Logits after the last unread token of each row, (rows, V) float32; nothing is unread then."""
        new = [batch[row].unread for row in rows]
        longest = max(map(len, new))
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in new])
        valid = torch.tensor([[True] * len(tokens) + [False] * (longest - len(tokens)) for tokens in new])
        last = valid.sum(1) - 1
        kept, place = torch.unique(last, return_inverse=True)  # only these positions need logits
        positions = cache.lengths[:, None] + torch.arange(longest)[None, :]
        mask = torch.cat([cache.slots, valid], dim=1)
        output = model(
            input_ids=ids.to(self.device),
            attention_mask=mask.long().to(self.device),
            position_ids=positions.to(self.device),
            past_key_values=cache.past,
            use_cache=True,
            logits_to_keep=kept.to(self.device),
        )
        self.tokens_read += int(valid.sum())
        cache.take(mask, new)
        for row in rows:
            batch[row].unread = []
        logits: Tensor = output.logits[torch.arange(len(rows)), place.to(self.device)].float()
        return logits


class _Cache:
    """The keys and values of a batch: slots in the order of reading, some of them empty.

    `slots` says which are filled, (rows, slots); a row that is done gives its own back to its session.
    """

    def __init__(self, batch: Sequence[_Running], config: Any, device: torch.device) -> None:
        from transformers import DynamicCache

        self.past: Any = DynamicCache(config=config)
        self._rows = list(batch)
        self._read: list[list[int]] = [[] for _ in batch]
        sizes = [len(running.session.tokens) for running in batch]
        most = max(sizes)
        self.slots = torch.arange(most)[None, :] < torch.tensor(sizes)[:, None]
        if most:
            filled = next(running.session for running in batch if running.session.keys)
            for layer in range(len(filled.keys)):
                self.past.update(
                    _stack([running.session.keys for running in batch], layer, filled.keys[layer], most, device),
                    _stack([running.session.values for running in batch], layer, filled.values[layer], most, device),
                    layer,
                )

    @property
    def lengths(self) -> Tensor:
        """How many tokens each row has read: the position of its next one."""
        return self.slots.sum(1)

    def take(self, slots: Tensor, new: Sequence[list[int]]) -> None:
        """These tokens were read into new slots."""
        self.slots = slots
        for read, tokens in zip(self._read, new, strict=True):
            read.extend(tokens)

    def keep(self, left: Sequence[int]) -> None:
        """Only these rows go on; the others' keys and values go back to their sessions."""
        staying = set(left)
        for at in range(len(self._rows)):
            if at not in staying:
                self._give_back(at)
        chosen = torch.tensor(left, dtype=torch.long)
        self.slots = self.slots[chosen]
        self._rows = [self._rows[at] for at in left]
        self._read = [self._read[at] for at in left]
        if left:
            self.past.batch_select_indices(chosen.to(self.past.layers[0].keys.device))

    def _give_back(self, at: int) -> None:
        running = self._rows[at]
        if not running.request.session:
            return
        filled = self.slots[at].to(self.past.layers[0].keys.device)
        session = running.session
        session.keys = [layer.keys[at][:, filled] for layer in self.past.layers]
        session.values = [layer.values[at][:, filled] for layer in self.past.layers]
        session.tokens = (*session.tokens, *self._read[at])


def _stack(rows: Sequence[list[Tensor]], layer: int, like: Tensor, most: int, device: torch.device) -> Tensor:
    """One layer of several caches as (rows, heads, most, width), zero where a row is shorter."""
    stacked = torch.zeros((len(rows), like.shape[0], most, like.shape[2]), dtype=like.dtype, device=device)
    for at, layers in enumerate(rows):
        if layers:
            stacked[at, :, : layers[layer].shape[1]] = layers[layer]
    return stacked


def _choose(batch: Sequence[_Running], logits: Tensor) -> None:
    """Say one token in every row, and what must follow it."""
    possible = [running.request.allowed.allowed(running.said) if running.request.allowed else None for running in batch]
    for running, scores, allowed in zip(batch, _scores(logits, possible), possible, strict=True):
        temperature = running.request.temperature
        sharp = torch.log_softmax(scores / temperature, dim=-1) if temperature not in (0.0, 1.0) else scores
        which = _drawn(sharp, temperature, running.request.chance)
        token = which if allowed is None else allowed[which]
        running.say(token, float(sharp[which]), True, allowed)
        running.follow()


def _scores(logits: Tensor, possible: Sequence[Allowed]) -> list[Tensor]:
    """For each row, the log-probabilities of its possible tokens at temperature 1, on the CPU."""
    if any(allowed is None for allowed in possible):
        rows = torch.log_softmax(logits, dim=-1).cpu()
        return [
            row if allowed is None else torch.log_softmax(row[list(allowed)], dim=-1)
            for row, allowed in zip(rows, possible, strict=True)
        ]
    sets = [allowed or () for allowed in possible]
    most = max(map(len, sets))
    index = torch.tensor([[*allowed, *[0] * (most - len(allowed))] for allowed in sets])
    empty = torch.arange(most)[None, :] >= torch.tensor([len(allowed) for allowed in sets])[:, None]
    scores = logits.gather(1, index.to(logits.device)).masked_fill(empty.to(logits.device), -torch.inf)
    rows = torch.log_softmax(scores, dim=-1).cpu()
    return [row[: len(allowed)] for row, allowed in zip(rows, sets, strict=True)]


def _drawn(logprobs: Tensor, temperature: float, chance: random.Random | None) -> int:
    """An index drawn by inverse transform from one number of `chance`; the most probable at temperature 0."""
    if temperature == 0.0:
        return int(logprobs.argmax())
    point = (chance or random).random()
    cumulative = logprobs.double().exp().cumsum(0)
    return min(int(torch.searchsorted(cumulative, point * float(cumulative[-1]), right=True)), len(logprobs) - 1)


def _logprob(logits: Tensor, token: int, allowed: Allowed) -> float:
    if allowed is None:
        return float(torch.log_softmax(logits, dim=-1)[token])
    return float(torch.log_softmax(logits[list(allowed)], dim=-1)[allowed.index(token)])


def _completion(running: _Running) -> Completion:
    return Completion(
        tuple(running.said),
        tuple(running.logprobs),
        tuple(running.mask),
        tuple(running.allowed),
        running.session.version,
    )
