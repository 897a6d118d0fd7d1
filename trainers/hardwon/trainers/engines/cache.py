"""Keys and values: what sessions have read, and the batch that is read at the moment.

A batch has slots in the order of reading, some of them empty where rows differ in length; empty ones
are masked, so padding changes nothing. Room is made for many tokens at a time, and each token is
written into it in place. This file knows neither requests nor sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from hardwon.trainers.algorithms.samples import Ids

ROOM = 64
"""Slots that are made at a time."""


@dataclass(slots=True)
class Block:
    """What rows that left a batch together had read; rows are as long as the longest of them."""

    keys: list[Tensor]
    """By layer, (rows, tokens, heads, width)."""
    values: list[Tensor]


@dataclass(slots=True)
class Session:
    """What one episode has read under one role: tokens, and where their keys and values are."""

    version: int
    tokens: Ids = ()
    block: Block | None = None
    row: int = 0


class _Roomy(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer of transformers' cache that has room for tokens to come; `keys` and `values` show what is filled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rooms: tuple[Tensor, Tensor] | None = None
        self._filled = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new tokens behind the others."""
        until = self._filled + key_states.shape[2]
        if self._rooms is None or until > self._rooms[0].shape[2]:
            self._grow(key_states, value_states, until)
        assert self._rooms is not None
        for room, states in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, self._filled : until] = states
        self._filled = until
        return self._show()

    def start(self, keys: Tensor, values: Tensor, filled: int) -> None:
        """Begin with these rooms, so far filled."""
        self._rooms, self._filled = (keys, values), filled
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._show()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows go on."""
        if self._rooms is not None:
            self._rooms = (self._rooms[0][indices], self._rooms[1][indices])
            self._show()

    def _grow(self, key_states: Tensor, value_states: Tensor, until: int) -> None:
        size = until + ROOM
        grown = []
        for old, states in zip(self._rooms or (None, None), (key_states, value_states), strict=True):
            room = states.new_empty((states.shape[0], states.shape[1], size, states.shape[3]))
            if old is not None:
                room[:, :, : self._filled] = old[:, :, : self._filled]
            grown.append(room)
        self._rooms = (grown[0], grown[1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def _show(self) -> tuple[Tensor, Tensor]:
        assert self._rooms is not None
        self.keys, self.values = (room[:, :, : self._filled] for room in self._rooms)
        return self.keys, self.values


class BatchCache:
    """The keys and values of a batch. `slots` says which are filled, (rows, slots)."""

    def __init__(self, sessions: Sequence[Session], model: Any, device: torch.device) -> None:
        self.past: Any = DynamicCache(config=model.config)
        self._device = device
        self._shapes_masks = getattr(model.config, "_attn_implementation", "") == "sdpa"
        if all(type(layer) is DynamicLayer for layer in self.past.layers):
            self.past.layers = [_Roomy() for _ in self.past.layers]
        else:  # windows of attention: transformers knows how they are masked
            self._shapes_masks = False
        self._sessions = list(sessions)
        self._read: list[list[int]] = [[] for _ in sessions]
        sizes = [len(session.tokens) for session in sessions]
        most = max(sizes)
        self.slots = torch.arange(most)[None, :] < torch.tensor(sizes)[:, None]
        self.whole = min(sizes) == most
        """Whether no slot is empty."""
        if most:
            self._start(most)

    def _start(self, most: int) -> None:
        """What the sessions have read, block by block."""
        blocks: dict[int, tuple[Block, list[int], list[int]]] = {}
        for at, session in enumerate(self._sessions):
            if session.tokens and session.block is not None:
                _, places, rows = blocks.setdefault(id(session.block), (session.block, [], []))
                places.append(at)
                rows.append(session.row)
        taken = [
            (block, torch.tensor(places, device=self._device), torch.tensor(rows, device=self._device))
            for block, places, rows in blocks.values()
        ]
        for number, layer in enumerate(self.past.layers):
            keys = self._room([(block.keys[number], places, rows) for block, places, rows in taken], most)
            values = self._room([(block.values[number], places, rows) for block, places, rows in taken], most)
            if isinstance(layer, _Roomy):
                layer.start(keys, values, most)
            else:
                layer.update(keys[:, :, :most], values[:, :, :most])

    def _room(self, taken: Sequence[tuple[Tensor, Tensor, Tensor]], most: int) -> Tensor:
        """(rows, heads, most and room, width) with rows of blocks at their places, else zero."""
        _, _, heads, width = taken[0][0].shape
        room = taken[0][0].new_zeros((len(self._sessions), heads, most + ROOM, width))
        for block, places, rows in taken:
            read = min(most, block.shape[1])
            room[places, :, :read] = block[rows, :read].transpose(1, 2)
        return room

    def positions(self, longest: int) -> Tensor:
        """Where the next tokens of each row stand, (rows or 1, longest)."""
        following = torch.arange(longest)[None, :]
        if self.whole:
            return following + self.slots.shape[1]
        return following + self.slots.sum(1)[:, None]

    def mask(self, valid: Tensor | None, longest: int) -> Tensor | None:
        """What the new tokens may see, as transformers takes it; `valid` says which are real, None for all.

        None where no slot is empty, else the form (rows, 1, new, slots) where attention is torch's own;
        elsewhere by slot, and transformers makes the form.
        """
        if self.whole and valid is None:
            return None
        new = torch.ones((len(self.slots), longest), dtype=torch.bool) if valid is None else valid
        seen = torch.cat([self.slots, new], dim=1)
        if not self._shapes_masks:
            return seen.long()
        if longest == 1:
            return seen[:, None, None, :]
        before = torch.arange(seen.shape[1])[None, :] <= torch.arange(longest)[:, None] + self.slots.shape[1]
        return seen[:, None, None, :] & before[None, None]

    def take(self, new: Sequence[list[int]], valid: Tensor | None, longest: int) -> None:
        """These tokens were read into new slots."""
        if valid is None:
            valid = torch.ones((len(new), longest), dtype=torch.bool)
        else:
            self.whole = False
        self.slots = torch.cat([self.slots, valid], dim=1)
        for read, tokens in zip(self._read, new, strict=True):
            read.extend(tokens)

    def keep(self, left: Sequence[int], wanted: Sequence[bool]) -> None:
        """Only these rows go on; the others' keys and values go back to their sessions, where they are wanted."""
        staying = set(left)
        if leaving := [at for at, asked in enumerate(wanted) if asked and at not in staying]:
            self._give_back(leaving)
        chosen = torch.tensor(left, dtype=torch.long)
        self.slots = self.slots[chosen]
        self._sessions = [self._sessions[at] for at in left]
        self._read = [self._read[at] for at in left]
        if left:
            self.past.batch_select_indices(chosen.to(self._device))

    def _give_back(self, leaving: Sequence[int]) -> None:
        filled = self.slots[torch.tensor(leaving)]
        most = int(filled.sum(1).max())
        places = (~filled).to(torch.uint8).sort(dim=1, stable=True).indices[:, :most].to(self._device)
        rows = torch.tensor(leaving, device=self._device)[:, None]
        layers = self.past.layers
        block = Block(
            [layer.keys[rows, :, places] for layer in layers], [layer.values[rows, :, places] for layer in layers]
        )
        for row, at in enumerate(leaving):
            session = self._sessions[at]
            session.tokens = (*session.tokens, *self._read[at])
            session.block, session.row = block, row
