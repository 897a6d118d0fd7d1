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

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.logprobs import autocast, compute_logprobs
from hardwon.trainers.algorithms.samples import Allowed, PackedSequence

from .base import Completion, Request, Weights
from .cache import BatchCache, Session

READ_AT_ONCE = 16_384
"""Tokens of a batch, padding included, whose log-probabilities are asked for."""


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

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Log-probability of every masked token among its allowed ones, 0 elsewhere."""
        read = compute_logprobs(self._model(role), streams, budget=READ_AT_ONCE)
        self.tokens_read += sum(len(stream) for stream in streams if any(stream.mask))
        found = []
        for stream, values in zip(streams, read, strict=True):
            of_tokens = iter(values.tolist())
            found.append([next(of_tokens) if counts else 0.0 for counts in stream.mask])
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
        session.tokens = session.tokens[:kept]
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
                # as the trainer reads them: in bfloat16 on a GPU
                with torch.inference_mode(), autocast(self.device):
                    self._complete(self._model(role), mine[start : start + self._max_batch])

    def _model(self, role: str) -> Any:
        if hasattr(self.model, "peft_config"):
            self.model.set_adapter(role)
            return self.model
        return self._own.get(role, self.model)

    def _complete(self, model: Any, batch: Sequence[_Running]) -> None:
        """Read what is unread, choose a token for each row, until all are done."""
        cache = BatchCache([running.session for running in batch], model, self.device)
        rows = list(batch)
        while rows:
            _choose(rows, self._read(model, rows, cache))
            left = [at for at, running in enumerate(rows) if not running.done]
            if len(left) < len(rows):
                cache.keep(left, [bool(running.request.session) for running in rows])
                rows = [rows[at] for at in left]
        for running in batch:
            if not running.future.done():
                running.future.set_result(_completion(running))

    def _read(self, model: Any, rows: Sequence[_Running], cache: BatchCache) -> Tensor:
        """Logits after the last unread token of each row, (rows, V) float32; nothing is unread then."""
        new = [running.unread for running in rows]
        lengths = [len(tokens) for tokens in new]
        longest = max(lengths)
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in new])
        valid = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None] if min(lengths) < longest else None
        kept, place = torch.unique(torch.tensor(lengths) - 1, return_inverse=True)  # only the last ones need logits
        mask = cache.mask(valid, longest)
        output = model(
            input_ids=ids.to(self.device),
            attention_mask=None if mask is None else mask.to(self.device),
            position_ids=cache.positions(longest).to(self.device),
            past_key_values=cache.past,
            use_cache=True,
            logits_to_keep=kept.to(self.device),
        )
        self.tokens_read += sum(lengths)
        cache.take(new, valid, longest)
        for running in rows:
            running.unread = []
        logits: Tensor = output.logits[torch.arange(len(rows)), place.to(self.device)].float()
        return logits


def _choose(rows: Sequence[_Running], logits: Tensor) -> None:
    """Say one token in every row, and what must follow it."""
    sets = [running.request.allowed.allowed(running.said) if running.request.allowed else None for running in rows]
    free = [at for at, allowed in enumerate(sets) if allowed is None]
    bound = [at for at, allowed in enumerate(sets) if allowed is not None]
    for places, score in ((free, _free), (bound, _bound)):
        if not places:
            continue
        running = [rows[at] for at in places]
        allowed = [sets[at] for at in places]
        mine = logits if len(places) == len(rows) else logits[torch.tensor(places, device=logits.device)]
        which, told = _drawn(score(mine, allowed), running)
        for one, index, logprob, only in zip(running, which, told, allowed, strict=True):
            one.say(index if only is None else only[index], logprob, True, only)
            one.follow()


def _free(logits: Tensor, _: Sequence[Allowed]) -> Tensor:
    return torch.log_softmax(logits, dim=-1)


def _bound(logits: Tensor, sets: Sequence[Allowed]) -> Tensor:
    """Log-probabilities among each row's allowed tokens, in their order; -inf behind them."""
    given = [allowed or () for allowed in sets]
    most = max(map(len, given))
    index = torch.tensor([[*allowed, *[0] * (most - len(allowed))] for allowed in given])
    empty = torch.arange(most)[None, :] >= torch.tensor([len(allowed) for allowed in given])[:, None]
    scores = logits.gather(1, index.to(logits.device)).masked_fill(empty.to(logits.device), -torch.inf)
    return torch.log_softmax(scores, dim=-1)


def _drawn(logprobs: Tensor, rows: Sequence[_Running]) -> tuple[list[int], list[float]]:
    """For each row an index drawn by inverse transform from one number of its chance, and its log-probability.

    At temperature 0 it is the most probable one, with its log-probability at temperature 1.
    """
    heats = [running.request.temperature for running in rows]
    points = [
        (running.request.chance or random).random() if heat else 0.0 for running, heat in zip(rows, heats, strict=True)
    ]
    numbers = torch.tensor([points, heats], dtype=torch.float64).to(logprobs.device)
    if any(heat not in (0.0, 1.0) for heat in heats):
        heat = numbers[1].masked_fill(numbers[1] == 0, 1.0).to(logprobs.dtype)
        logprobs = torch.log_softmax(logprobs / heat[:, None], dim=-1)
    cumulative = logprobs.double().exp().cumsum(1)
    total = cumulative[:, -1:]
    which = torch.searchsorted(cumulative, numbers[0, :, None] * total, right=True)
    # rounding must not choose what has no probability
    which = which.minimum((cumulative < total).sum(1, keepdim=True))
    if 0.0 in heats:
        which = torch.where(numbers[1, :, None] == 0, logprobs.argmax(1, keepdim=True), which)
    told = logprobs.gather(1, which)
    found, values = torch.cat([which.double(), told.double()], dim=1).T.tolist()  # one transfer from a GPU
    return [int(index) for index in found], values


def _completion(running: _Running) -> Completion:
    return Completion(
        tuple(running.said),
        tuple(running.logprobs),
        tuple(running.mask),
        tuple(running.allowed),
        running.session.version,
    )
