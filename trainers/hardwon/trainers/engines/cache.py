"""Key-value caches: the tokens that sessions have read, and the batch in progress.

A batch has slots in reading order. Where rows differ in length, some slots are empty; these are masked,
so padding changes nothing. Space is allocated for many tokens at a time, and each token is written in
place. This module knows neither requests nor sampling.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from hardwon.trainers.algorithms.logprobs import unwrap_causal
from hardwon.trainers.algorithms.samples import Ids

ROOM = 64
"""Number of spare slots in each allocation."""


@dataclass(slots=True)
class Block:
    """Keys and values of rows that left a batch together, padded to the longest of them."""

    keys: list[Tensor]
    """One tensor per layer, (rows, tokens, heads, width)."""
    values: list[Tensor]


@dataclass(slots=True)
class CachedSession:
    """Tokens that one episode has read under one role, and the location of their keys and values."""

    version: int
    tokens: Ids = ()
    block: Block | None = None
    row: int = 0


class _PreallocatedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer of transformers' cache with spare capacity. `keys` and `values` are views of the filled part."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._filled = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens. Return the filled part."""
        until = self._filled + key_states.shape[2]
        if self._buffers is None or until > self._buffers[0].shape[2]:
            self._grow(key_states, value_states, until)
        assert self._buffers is not None
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, self._filled : until] = states
        self._filled = until
        return self._refresh_views()

    def start(self, keys: Tensor, values: Tensor, filled: int) -> None:
        """Adopt these buffers, of which the first `filled` slots are in use."""
        self._buffers, self._filled = (keys, values), filled
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._refresh_views()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these rows."""
        if self._buffers is not None:
            self._buffers = (self._buffers[0][indices], self._buffers[1][indices])
            self._refresh_views()

    def _grow(self, key_states: Tensor, value_states: Tensor, until: int) -> None:
        # with spare slots: transformers' own layer copies the whole cache for every new token
        size = until + ROOM
        grown = []
        for old, states in zip(self._buffers or (None, None), (key_states, value_states), strict=True):
            buffer = states.new_empty((states.shape[0], states.shape[1], size, states.shape[3]))
            if old is not None:
                buffer[:, :, : self._filled] = old[:, :, : self._filled]
            grown.append(buffer)
        self._buffers = (grown[0], grown[1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def _refresh_views(self) -> tuple[Tensor, Tensor]:
        """Point `keys` and `values` to the filled part of the buffers."""
        assert self._buffers is not None
        self.keys, self.values = (buffer[:, :, : self._filled] for buffer in self._buffers)
        return self.keys, self.values


class BatchCache:
    """Keys and values of a batch. `slots`, (rows, slots), marks the filled slots."""

    def __init__(self, sessions: Sequence[CachedSession], model: Any, device: torch.device) -> None:
        self.past: Any = DynamicCache(config=model.config)
        self._device = device
        self._shapes_masks = getattr(model.config, "_attn_implementation", "") == "sdpa"
        if all(type(layer) is DynamicLayer for layer in self.past.layers):
            self.past.layers = [_PreallocatedLayer() for _ in self.past.layers]
        else:  # sliding windows: leave the mask to transformers
            self._shapes_masks = False
        self._sessions = list(sessions)
        self._read: list[list[int]] = [[] for _ in sessions]
        sizes = [len(session.tokens) for session in sessions]
        longest_read = max(sizes)
        self.slots = torch.arange(longest_read)[None, :] < torch.tensor(sizes)[:, None]
        self.whole = min(sizes) == longest_read
        """Whether all slots are filled."""
        if longest_read:
            self._load_sessions(longest_read)
        # models of transformers from 5.24 on take `cache`, and no `past_key_values` from 5.40 on
        takes = inspect.signature(unwrap_causal(model).forward).parameters
        self.arguments = {"cache" if "cache" in takes else "past_key_values": self.past, "use_cache": True}
        """Arguments of the model's forward pass that make it read and extend this cache."""

    def _load_sessions(self, longest_read: int) -> None:
        """Copy the keys and values of the sessions into the batch, one gather per block."""
        blocks: dict[int, tuple[Block, list[int], list[int]]] = {}
        for at, session in enumerate(self._sessions):
            if session.tokens and session.block is not None:
                _, places, rows = blocks.setdefault(id(session.block), (session.block, [], []))
                places.append(at)
                rows.append(session.row)
        gathers = [
            (block, torch.tensor(places, device=self._device), torch.tensor(rows, device=self._device))
            for block, places, rows in blocks.values()
        ]
        for number, layer in enumerate(self.past.layers):
            keys = self._allocate([(block.keys[number], places, rows) for block, places, rows in gathers], longest_read)
            values = self._allocate(
                [(block.values[number], places, rows) for block, places, rows in gathers], longest_read
            )
            if isinstance(layer, _PreallocatedLayer):
                # adopt the buffers with their spare slots instead of copying the filled part
                layer.start(keys, values, longest_read)
            else:
                layer.update(keys[:, :, :longest_read], values[:, :, :longest_read])

    def _allocate(self, gathers: Sequence[tuple[Tensor, Tensor, Tensor]], longest_read: int) -> Tensor:
        """Return (rows, heads, most + ROOM, width) with the rows of the blocks at their positions, zero elsewhere."""
        _, _, heads, width = gathers[0][0].shape
        # zeros, not empty: masked slots must not hold nan, which attention would spread
        buffer = gathers[0][0].new_zeros((len(self._sessions), heads, longest_read + ROOM, width))
        for block, places, rows in gathers:
            # a block can hold more than a session still uses, after its prompt diverged; `slots` masks the rest
            read = min(longest_read, block.shape[1])
            buffer[places, :, :read] = block[rows, :read].transpose(1, 2)
        return buffer

    def positions(self, longest: int) -> Tensor:
        """Return the positions of the next tokens of each row, (rows or 1, longest)."""
        following = torch.arange(longest)[None, :]
        if self.whole:
            return following + self.slots.shape[1]
        return following + self.slots.sum(1)[:, None]

    def mask(self, valid: Tensor | None, longest: int) -> Tensor | None:
        """Return the attention mask of the new tokens in the form that transformers expects."""
        # without a mask, torch can use flash attention, which accepts none
        if self.whole and valid is None:
            return None
        new = torch.ones((len(self.slots), longest), dtype=torch.bool) if valid is None else valid
        seen = torch.cat([self.slots, new], dim=1)
        if not self._shapes_masks:
            return seen.long()
        if longest == 1:
            return seen[:, None, None, :]
        # causal by slot, not by position: all rows write their new tokens to the same slots
        before = torch.arange(seen.shape[1])[None, :] <= torch.arange(longest)[:, None] + self.slots.shape[1]
        return seen[:, None, None, :] & before[None, None]

    def take(self, new: Sequence[list[int]], valid: Tensor | None, longest: int) -> None:
        """Record that these tokens were read into new slots."""
        if valid is None:
            valid = torch.ones((len(new), longest), dtype=torch.bool)
        else:
            self.whole = False
        self.slots = torch.cat([self.slots, valid], dim=1)
        for read, tokens in zip(self._read, new, strict=True):
            read.extend(tokens)

    def spread(self, places: Sequence[int], sessions: Sequence[CachedSession]) -> None:
        """Give each of these sessions a row of its own, a copy of the row at its place."""
        if len(sessions) == len(self._sessions):
            return
        rows = torch.tensor(places, dtype=torch.long)
        self.slots, self._sessions = self.slots[rows], list(sessions)
        self._read = [list(self._read[at]) for at in places]
        self.past.batch_select_indices(rows.to(self._device))

    def keep(self, left: Sequence[int], wanted: Sequence[bool]) -> None:
        """Keep only the rows `left`. Return the keys and values of the others to their sessions where `wanted`."""
        staying = set(left)
        if leaving := [at for at, is_wanted in enumerate(wanted) if is_wanted and at not in staying]:
            self._return_to_sessions(leaving)
        chosen = torch.tensor(left, dtype=torch.long)
        self.slots = self.slots[chosen]
        self._sessions = [self._sessions[at] for at in left]
        self._read = [self._read[at] for at in left]
        if left:
            self.past.batch_select_indices(chosen.to(self._device))

    def _return_to_sessions(self, leaving: Sequence[int]) -> None:
        """Copy the filled slots of these rows into a block and hand it to their sessions."""
        filled = self.slots[torch.tensor(leaving)]
        longest_read = int(filled.sum(1).max())
        # a stable sort moves each row's filled slots to the front and keeps their order
        places = (~filled).to(torch.uint8).sort(dim=1, stable=True).indices[:, :longest_read].to(self._device)
        rows = torch.tensor(leaving, device=self._device)[:, None]
        layers = self.past.layers
        block = Block(
            [layer.keys[rows, :, places] for layer in layers], [layer.values[rows, :, places] for layer in layers]
        )
        for row, at in enumerate(leaving):
            session = self._sessions[at]
            session.tokens = (*session.tokens, *self._read[at])
            session.block, session.row = block, row
