"""torch.compile for the training step alone.

The layers of the model are compiled one by one, once, for any length; outside of a step they are as
they were, because the engine that generates with the same layers meets another shape at every token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Compiled:
    """Layers with their compiled selves beside them."""

    def __init__(self, model: nn.Module, backend: str = "inductor") -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self._layers: list[Any] = [
            module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
        ]
        compiled: Any = torch.compile
        self._faster = [compiled(layer._call_impl, dynamic=True, backend=backend) for layer in self._layers]

    @contextmanager
    def use(self) -> Iterator[None]:
        """Here calls of the layers are compiled."""
        try:
            for layer, faster in zip(self._layers, self._faster, strict=True):
                layer._compiled_call_impl = faster
            yield
        finally:
            for layer in self._layers:
                layer._compiled_call_impl = None
