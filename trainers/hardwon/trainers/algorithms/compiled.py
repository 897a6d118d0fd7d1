"""torch.compile for the training step.

Each layer is compiled once, with dynamic lengths. Outside of a training step the layers run eagerly,
because the engine generates with the same layers and has another shape at every token.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Compiled:
    """The layers of a model with their compiled versions, which replace them on demand."""

    def __init__(self, model: nn.Module, backend: str = "inductor") -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self._layers: list[Any] = [
            module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
        ]
        compiled: Any = torch.compile
        # `_call_impl` and not the layer: the parameters keep their names in checkpoints
        self._compiled_calls = [compiled(layer._call_impl, dynamic=True, backend=backend) for layer in self._layers]

    @contextmanager
    def use(self) -> Iterator[None]:
        """Run the layers compiled within this context."""
        try:
            for layer, compiled_call in zip(self._layers, self._compiled_calls, strict=True):
                # nn.Module calls this attribute, where it is set, instead of `_call_impl`
                layer._compiled_call_impl = compiled_call
            yield
        finally:
            for layer in self._layers:
                layer._compiled_call_impl = None
