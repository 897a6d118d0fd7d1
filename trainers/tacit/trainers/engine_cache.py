"""Keys and values: what sessions have read, and the batch that is read at the moment.

A batch has slots in the order of reading, some of them empty where rows differ in length; empty ones
are masked, so padding changes nothing. Room is made for many tokens at a time, and each token is
written into it in place. This file knows neither requests nor sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from .rows import Ids

ROOM = 64
"""Slots that are made at a time."""


@dataclass(slots=True)
class Session:
    """What one episode has read under one role: tokens, and a key and a value for each in every layer."""

    version: int
    tokens: Ids = ()
    keys: list[Tensor] = field(default_factory=list)
    """By layer, (heads, tokens, width)."""
    values: list[Tensor] = field(default_factory=list)

    def cut(self, kept: int) -> None:
        """Forget all but the first tokens."""
        self.tokens = self.tokens[:kept]
        self.keys = [layer[:, :kept] for layer in self.keys]
        self.values = [layer[:, :kept] for layer in self.values]


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

    def start(self, keys: Sequence[Tensor | None], values: Sequence[Tensor | None], most: int) -> None:
        """Fill the slots with what each row has read, none longer than `most`; the rest of them are zero."""
        self._rooms = (_stacked(keys, most), _stacked(values, most))
        self.dtype, self.device = self._rooms[0].dtype, self._rooms[0].device
        self.is_initialized = True
        self._filled = most
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


def _stacked(rows: Sequence[Tensor | None], most: int) -> Tensor:
    """(rows, heads, most + room, width), zero where a row is shorter than `most`."""
    like = next(row for row in rows if row is not None)
    made = like.new_empty((len(rows), like.shape[0], most + ROOM, like.shape[2]))
    for at, row in enumerate(rows):
        filled = 0 if row is None else row.shape[1]
        if row is not None:
            made[at, :, :filled] = row
        made[at, :, filled:most] = 0
    return made


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
        for number, layer in enumerate(self.past.layers):
            keys = [session.keys[number] if session.keys else None for session in self._sessions]
            values = [session.values[number] if session.values else None for session in self._sessions]
            if isinstance(layer, _Roomy):
                layer.start(keys, values, most)
            else:
                layer.update(_stacked(keys, most)[:, :, :most], _stacked(values, most)[:, :, :most])

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
        for at, asked in enumerate(wanted):
            if asked and at not in staying:
                self._give_back(at)
        chosen = torch.tensor(left, dtype=torch.long)
        self.slots = self.slots[chosen]
        self._sessions = [self._sessions[at] for at in left]
        self._read = [self._read[at] for at in left]
        if left:
            self.past.batch_select_indices(chosen.to(self._device))

    def _give_back(self, at: int) -> None:
        session = self._sessions[at]
        filled = self.slots[at].nonzero().squeeze(1).to(self._device)
        session.keys = [layer.keys[at].index_select(1, filled) for layer in self.past.layers]
        session.values = [layer.values[at].index_select(1, filled) for layer in self.past.layers]
        session.tokens = (*session.tokens, *self._read[at])
