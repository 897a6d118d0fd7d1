"""An engine over a transformers model in this process, on CPU or GPU.

Requests of concurrent episodes are batched in rounds. A round starts when every open session has a
request, so the same episodes make the same batches, and runs are reproducible bit for bit. Tokens that
a session has read stay in a key-value cache as long as its prompts extend each other. Rows of a batch
differ in length; each keeps its true positions, and empty slots are masked, so padding changes nothing.
Tokens that a constraint forces cost no forward pass of their own, and a list of answers is scored in one
forward pass; see `tree`.
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
from hardwon.trainers.algorithms.samples import Allowed, Ids, PackedSequence

from .base import Completion, Request, Weights
from .cache import BatchCache, CachedSession
from .tree import TreeQuery, can_read_trees, count_tokens, find_best, find_tree, number_nodes, read_trees
from .trie import Tree, Trie

READ_AT_ONCE = 16_384
"""Tokens of a micro-batch when log-probabilities are computed, padding included."""
MOST = 256
"""Largest number of requests in one batch."""


@dataclass(slots=True)
class _Running:
    """One completion in progress."""

    request: Request
    future: "asyncio.Future[Completion]"
    session: CachedSession
    unread: list[int]
    tree: Tree | None = None
    """The tree of the possible answers, if they are scored at once."""
    generated: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)

    def append(self, token: int, logprob: float, chosen: bool, allowed: Allowed) -> None:
        """Append a token to the completion."""
        self.generated.append(token)
        self.logprobs.append(logprob)
        self.mask.append(chosen)
        self.allowed.append(allowed)
        self.unread.append(token)

    def append_forced(self) -> None:
        """Append the tokens that must follow, up to the next real choice."""
        trie = self.request.allowed
        if trie is not None:
            for token in trie.forced(self.generated):
                self.append(token, 0.0, False, (token,))

    @property
    def is_done(self) -> bool:
        request = self.request
        if request.allowed is not None:
            return request.allowed.complete(self.generated)
        ended = bool(self.generated) and self.generated[-1] in request.stop
        return ended or len(self.generated) >= request.max_tokens


class LocalEngine:
    """Serves one model. Use it from a single event loop. See the module's docstring."""

    def __init__(self, model: Any, tokenizer: Any, *, roles: Sequence[str] = ("policy",)) -> None:
        """Serve a model.

        Args:
            model: Causal LM. With peft adapters, each role is the name of one. Without, roles share its weights.
            tokenizer: The tokenizer of the model.
            roles: Names of the roles.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.device = next(model.parameters()).device
        self._versions = dict.fromkeys(roles, 0)
        self._own: dict[str, Any] = {}
        self._open: set[str] = set()
        self._sessions: dict[tuple[str, str], list[CachedSession]] = {}
        self._reads_trees = can_read_trees(model)
        self._waiting: list[_Running] = []
        self._round: asyncio.Task[None] | None = None
        self.tokens_read = 0
        """Tokens that went through the model so far."""

    # -- the three calls --------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        """Sample one completion.

        Raises:
            ConfigError: The role is not served, or the prompt is empty.
        """
        if request.role not in self._versions:
            raise ConfigError(f"role {request.role!r} is not served. Roles: {', '.join(self._versions)}.")
        if not request.prompt:
            raise ConfigError("a prompt needs at least one token.")
        running = self._start(request)
        # every token was forced: no forward pass, and no wait for a round
        if running.is_done:
            return _to_completion(running)
        self._waiting.append(running)
        self._wake()
        return await running.future

    async def logprobs(self, streams: Sequence[PackedSequence], role: str) -> list[list[float]]:
        """Compute the log-probability of every masked token among its allowed tokens.

        Args:
            streams: Packed sequences to read.
            role: Role whose weights are used.

        Returns:
            One list per sequence with one value per token, in nats; 0 where the mask is False.
        """
        read = compute_logprobs(self._get_model(role), streams, budget=READ_AT_ONCE)
        self.tokens_read += sum(len(stream) for stream in streams if any(stream.mask))
        results = []
        for stream, values in zip(streams, read, strict=True):
            trained = iter(values.tolist())
            results.append([next(trained) if counts else 0.0 for counts in stream.mask])
        return results

    def load_adapter(self, role: str, version: int, weights: Weights) -> None:
        """Make these the weights of a role from now on.

        Args:
            role: One of the engine's roles.
            version: Version of the weights, which completions report. The current version is increased by 1:
                different weights must not have the same version.
            weights: Tensors by name for the role's adapter or its own model, or a peft folder.
        """
        if isinstance(weights, Mapping):
            self._load_tensors(role, weights)
        else:
            self.model.load_adapter(str(weights), adapter_name=role)
        self._versions[role] = version + 1 if version == self._versions[role] else version
        self._forget(role)

    def _forget(self, role: str) -> None:
        """Drop what was read with earlier weights, also by requests that wait for their round."""
        for key in [key for key in self._sessions if key[1] == role]:
            del self._sessions[key]
        for running in self._waiting:
            if running.request.role == role:
                running.session = self._open_session(running.request, ())
                running.unread = [*running.request.prompt, *running.generated]

    def _load_tensors(self, role: str, weights: Mapping[str, Tensor]) -> None:
        if hasattr(self.model, "peft_config"):
            from peft import set_peft_model_state_dict

            set_peft_model_state_dict(self.model, dict(weights), adapter_name=role)
            return
        # several roles without adapters: loading into one shared model would overwrite the others
        if len(self._versions) > 1 and role not in self._own:
            import copy

            self._own[role] = copy.deepcopy(self.model)
        self._own.get(role, self.model).load_state_dict(weights)

    def versions(self) -> Mapping[str, int]:
        """Return the version of each role's weights."""
        return dict(self._versions)

    # -- sessions ---------------------------------------------------------------------------------

    async def begin(self, session: str) -> None:
        """Register an episode: rounds wait for its requests."""
        self._open.add(session)

    async def end(self, session: str) -> None:
        """Unregister an episode and drop its cache."""
        self._open.discard(session)
        for key in [key for key in self._sessions if key[0] == session]:
            del self._sessions[key]
        # the round may have waited for this session alone
        self._wake()

    def _start(self, request: Request) -> _Running:
        """Prepare a completion and reuse the cached prefix of its session."""
        session = self._open_session(request, request.prompt)
        future = asyncio.get_running_loop().create_future()
        running = _Running(request, future, session, list(request.prompt[len(session.tokens) :]))
        running.append_forced()
        if self._reads_trees:
            running.tree = find_tree(request.allowed, running.generated)
        return running

    def _open_session(self, request: Request, prompt: Ids) -> CachedSession:
        """Return the session's cache that shares most with the prompt, cut to what it shares, or a new one."""
        version = self._versions[request.role]
        if not request.session:
            return CachedSession(version)
        kept = self._sessions.setdefault((request.session, request.role), [])
        # the last token is always read again, for its logits
        shared = [_count_shared(cached.tokens, prompt[:-1]) for cached in kept]
        best = max(range(len(kept)), key=lambda at: shared[at], default=None)
        # a prompt that continues little of what was read is another conversation, such as a question of a guide
        if best is None or shared[best] * 2 < len(kept[best].tokens):
            session = CachedSession(version)
            # Three conversations are kept per session and role: a guide may ask between the turns of an episode.
            del kept[: max(0, len(kept) - 2)]
        else:
            session = kept.pop(best)
            # changes the session at once, so a session must have only one request at a time
            session.tokens = session.tokens[: shared[best]]
        kept.append(session)  # the most recently used one is last
        return session

    # -- rounds -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Start the serving task if requests are waiting and it is not running."""
        if self._waiting and (self._round is None or self._round.done()):
            self._round = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Serve rounds while every open session has a request."""
        while self._waiting:
            await asyncio.sleep(0)  # let tasks that are ready add their requests to this round
            requesting = {running.request.session for running in self._waiting}
            if self._open - requesting:
                return  # the last session to send a request, or to end, wakes it again
            batch, self._waiting = self._waiting, []
            try:
                # no await inside, so weights stay the same; sorted, so the order of arrival does not matter
                self._serve_round(sorted(batch, key=lambda running: running.request.session))
            # every waiter gets an answer: a future that nobody resolves would hang its episode
            except BaseException as error:
                for running in batch:
                    if not running.future.done():
                        running.future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

    def _serve_round(self, batch: Sequence[_Running]) -> None:
        """Complete a round's requests, by role and in batches of similar length."""
        for role in self._versions:
            pending = [running for running in batch if running.request.role == role]
            # rows with similar numbers of unread tokens share a batch, which keeps padding low
            pending.sort(key=lambda running: len(running.unread))
            listed = [running for running in pending if running.tree is not None]
            plain = [running for running in pending if running.tree is None]
            for serve, rows in ((self._choose, listed), (self._complete, plain)):
                for start in range(0, len(rows), MOST):
                    # the same autocast as in training, so log-probabilities match: bfloat16 on a GPU
                    with torch.inference_mode(), autocast(self.device):
                        serve(self._get_model(role), rows[start : start + MOST])

    def _get_model(self, role: str) -> Any:
        """Return the model with the weights of a role active."""
        if hasattr(self.model, "peft_config"):
            self.model.set_adapter(role)
            return self.model
        return self._own.get(role, self.model)

    def _choose(self, model: Any, batch: Sequence[_Running]) -> None:
        """Score all listed answers of the rows in one forward pass, and choose one in each row."""
        first, places = _find_equal(batch)
        cache = BatchCache([running.session for running in first], model, self.device)
        read = [TreeQuery(list(running.unread), running.tree or Tree()) for running in first]
        answers = read_trees(model, read, cache)
        cache.spread(places, [running.session for running in batch])
        questions, scored = [read[at] for at in places], [answers[at] for at in places]
        self.tokens_read += sum(map(count_tokens, read))
        new, longest = [], max(map(count_tokens, questions))
        valid = torch.zeros((len(batch), longest), dtype=torch.bool)
        for at, (running, question) in enumerate(zip(batch, questions, strict=True)):
            nodes = _choose_answer(running, question.tree, scored[at])
            size = len(question.unread)
            new.append([*question.unread, *(question.tree.tokens[node] for node in nodes)])
            # of the tree, the cache keeps only what stands before the chosen answer's last choice
            valid[at, [*range(size), *(size + node for node in nodes)]] = True
        cache.take(new, valid, longest)
        cache.keep([], [bool(running.request.session) for running in batch])
        for running in batch:
            if not running.future.done():
                running.future.set_result(_to_completion(running))

    def _complete(self, model: Any, batch: Sequence[_Running]) -> None:
        """Read unread tokens and sample one token per row, until all rows are done."""
        first, places = _find_equal(batch)
        cache = BatchCache([running.session for running in first], model, self.device)
        logits = self._read(model, first, cache)[torch.tensor(places, device=self.device)]
        cache.spread(places, [running.session for running in batch])
        for running in batch:
            running.unread = []
        rows = list(batch)
        while rows:
            _sample_tokens(rows, logits)
            left = [at for at, running in enumerate(rows) if not running.is_done]
            if len(left) < len(rows):
                cache.keep(left, [bool(running.request.session) for running in rows])
                rows = [rows[at] for at in left]
            if rows:
                logits = self._read(model, rows, cache)
        for running in batch:
            if not running.future.done():
                running.future.set_result(_to_completion(running))

    def _read(self, model: Any, rows: Sequence[_Running], cache: BatchCache) -> Tensor:
        """Read the unread tokens. Return the logits after each row's last one, (rows, V) float32."""
        new = [running.unread for running in rows]
        lengths = [len(tokens) for tokens in new]
        longest = max(lengths)
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in new])
        valid = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None] if min(lengths) < longest else None
        kept, place = torch.unique(torch.tensor(lengths) - 1, return_inverse=True)  # only these positions need logits
        mask = cache.mask(valid, longest)
        output = model(
            input_ids=ids.to(self.device),
            attention_mask=None if mask is None else mask.to(self.device),
            position_ids=cache.positions(longest).to(self.device),
            **cache.arguments,
            logits_to_keep=kept.to(self.device),
        )
        self.tokens_read += sum(lengths)
        cache.take(new, valid, longest)
        for running in rows:
            running.unread = []
        logits: Tensor = output.logits[torch.arange(len(rows)), place.to(self.device)].float()
        return logits


def _find_equal(batch: Sequence[_Running]) -> tuple[list[_Running], list[int]]:
    """Return the different rows, and the place of each row of the batch among them.

    Siblings begin with equal prompts, which are read once. A row that continues something is like no other.
    """
    keys: dict[Any, int] = {}
    first, places = list[_Running](), list[int]()
    for running in batch:
        tree = running.tree or Tree()
        question = tuple(running.unread), tuple(tree.prefixes), tuple(tree.choices)
        key = id(running) if running.session.tokens else question
        if key not in keys:
            keys[key] = len(first)
            first.append(running)
        places.append(keys[key])
    return first, places


def _count_shared(first: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    return next((n for n, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other)))


def _choose_answer(running: _Running, tree: Tree, scored: dict[int, Tensor]) -> list[int]:
    """Append one of the listed answers to a row, and return the nodes of the tree on the way to it."""
    trie = running.request.allowed
    assert isinstance(trie, Trie)
    begun, nodes = len(running.generated), number_nodes(tree)
    best: Ids = ()
    if not running.request.temperature:
        best = find_best([answer[begun:] for answer in trie.sequences(running.generated)], tree, scored)
    while not running.is_done:
        allowed, path = trie.allowed(running.generated), tuple(running.generated[begun:])
        logprobs = scored[nodes[path]]
        if best:
            index = allowed.index(best[len(path)])
            value = float(logprobs[index])
        else:
            (index,), (value,) = _draw(logprobs[None], [running])
        running.append(allowed[index], value, True, allowed)
        running.append_forced()
    reply = tuple(running.generated[begun:])
    return [nodes[reply[: n + 1]] for n in range(len(reply)) if reply[: n + 1] in nodes]


def _sample_tokens(rows: Sequence[_Running], logits: Tensor) -> None:
    """Sample one token in every row and append the tokens that it forces."""
    sets = [running.request.allowed.allowed(running.generated) if running.request.allowed else None for running in rows]
    free = [at for at, allowed in enumerate(sets) if allowed is None]
    bound = [at for at, allowed in enumerate(sets) if allowed is not None]
    for places, score in ((free, _score_all), (bound, _score_allowed)):
        if not places:
            continue
        running = [rows[at] for at in places]
        allowed = [sets[at] for at in places]
        pending = logits if len(places) == len(rows) else logits[torch.tensor(places, device=logits.device)]
        chosen, chosen_logprobs = _draw(score(pending, allowed), running)
        for row, index, logprob, only in zip(running, chosen, chosen_logprobs, allowed, strict=True):
            row.append(index if only is None else only[index], logprob, True, only)
            row.append_forced()


def _score_all(logits: Tensor, _: Sequence[Allowed]) -> Tensor:
    """Return log-probabilities over the whole vocabulary."""
    return torch.log_softmax(logits, dim=-1)


def _score_allowed(logits: Tensor, sets: Sequence[Allowed]) -> Tensor:
    """Return log-probabilities among each row's allowed tokens, in their order; -inf in the padding."""
    candidates = [allowed or () for allowed in sets]
    most = max(map(len, candidates))
    index = torch.tensor([[*allowed, *[0] * (most - len(allowed))] for allowed in candidates])
    empty = torch.arange(most)[None, :] >= torch.tensor([len(allowed) for allowed in candidates])[:, None]
    scores = logits.gather(1, index.to(logits.device)).masked_fill(empty.to(logits.device), -torch.inf)
    return torch.log_softmax(scores, dim=-1)


def _draw(logprobs: Tensor, rows: Sequence[_Running]) -> tuple[list[int], list[float]]:
    """Draw one index per row by inverse transform of one random number.

    At temperature 0, take the most probable index, with its log-probability at temperature 1.
    """
    temperatures = [running.request.temperature for running in rows]
    points = [
        (running.request.chance or random).random() if temperature else 0.0
        for running, temperature in zip(rows, temperatures, strict=True)
    ]
    numbers = torch.tensor([points, temperatures], dtype=torch.float64).to(logprobs.device)
    if any(temperature not in (0.0, 1.0) for temperature in temperatures):
        temperature = numbers[1].masked_fill(numbers[1] == 0, 1.0).to(logprobs.dtype)
        logprobs = torch.log_softmax(logprobs / temperature[:, None], dim=-1)
    # double: a float32 sum over a large vocabulary would lose small probabilities
    cumulative = logprobs.double().exp().cumsum(1)
    total = cumulative[:, -1:]
    # right=True: a point of exactly 0 must not select a first token of probability 0
    chosen = torch.searchsorted(cumulative, numbers[0, :, None] * total, right=True)
    # rounding must not select an index behind the last one with positive probability
    chosen = chosen.minimum((cumulative < total).sum(1, keepdim=True))
    if 0.0 in temperatures:
        chosen = torch.where(numbers[1, :, None] == 0, logprobs.argmax(1, keepdim=True), chosen)
    chosen_logprobs = logprobs.gather(1, chosen)
    indices, values = torch.cat(
        [chosen.double(), chosen_logprobs.double()], dim=1
    ).T.tolist()  # one transfer from a GPU
    return [int(index) for index in indices], values


def _to_completion(running: _Running) -> Completion:
    return Completion(
        tuple(running.generated),
        tuple(running.logprobs),
        tuple(running.mask),
        tuple(running.allowed),
        running.session.version,
    )
