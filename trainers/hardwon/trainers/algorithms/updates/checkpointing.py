"""Gradient checkpointing, and when a micro-batch needs it.

    if needs_checkpointing(model, tokens):
        with recompute_activations(model):
            forward and backward

Without it, a backward pass keeps the activations of every layer: 2.4 MB for each further token of SmolLM2-135M in
float32. With it, layers keep their inputs: about 0.1 MB, and a tenth to a quarter more time. Measured on a CPU with
256 to 2,048 tokens of SmolLM2-135M.
"""

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from torch import nn

from hardwon.trainers.algorithms.logprobs import unwrap_causal

CONTAINER = Path("/sys/fs/cgroup")
"""Limits of a Linux container."""
ACCOUNTS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Limit, use, statistics, and the name of cached files in these, in both versions of control groups."""
M_MMAP_THRESHOLD, APART, USUAL = -3, 2**20, 2**25
"""The option of glibc's malloc, our value in bytes, and the largest one that it chooses by itself."""


def needs_checkpointing(model: nn.Module, tokens: int) -> bool:
    """Return whether the activations of a micro-batch would take more than half of the memory that is free.

    Args:
        model: Causal LM, with or without adapters.
        tokens: Tokens of the micro-batch, padding included.
    """
    # Bytes that a backward pass on a CPU needs, for each byte of inputs and outputs of the linear layers; measured.
    return tokens * _count_activations(model) * 1.5 > 0.5 * _read_free_memory(next(model.parameters()).device)


def _count_activations(model: nn.Module) -> int:
    """Return the bytes per token of the inputs and outputs of all linear layers but the head."""
    head = unwrap_causal(model).get_output_embeddings()
    layers = (module for module in model.modules() if isinstance(module, nn.Linear) and module is not head)
    return sum((layer.in_features + layer.out_features) * layer.weight.element_size() for layer in layers)


def _read_free_memory(device: torch.device) -> float:
    """Return the free memory of the device in bytes; on a CPU, that of the container if it has a limit."""
    if device.type == "cuda":
        # memory that torch holds for its next tensors is free for them, too
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    free: float = psutil.virtual_memory().available
    return min(free, *(_read_account(*names) for names in ACCOUNTS))


def _read_account(limit: str, used: str, statistics: str, cached: str) -> float:
    """Return the bytes that a container may still use, cached files included; infinity without a limit."""
    try:
        free = int((CONTAINER / limit).read_text()) - int((CONTAINER / used).read_text())
        lines = (CONTAINER / statistics).read_text().splitlines()
    except (OSError, ValueError):  # no container, no limit, or another version
        return math.inf
    # the kernel drops these files when memory is needed
    return free + sum(int(line.split()[1]) for line in lines if line.split()[:1] == [cached])


@contextmanager
def recompute_activations(model: nn.Module) -> Iterator[None]:
    """Use gradient checkpointing in this context: layers keep only their inputs and run again in the backward pass.

    transformers does this only for layers in training mode. Submodules keep their mode, so dropout stays
    off. Outside of this context the layers use their key-value cache, which the engine needs.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    causal = unwrap_causal(model)
    # the name in transformers from 5.24 on, or the one before
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    before = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = True
        with _return_large_blocks():
            yield
    finally:
        # checkpointing itself stays enabled: layers in evaluation mode ignore it
        for layer, training in zip(layers, before, strict=True):
            layer.training = training


@contextmanager
def _return_large_blocks() -> Iterator[None]:
    """Give every large block of memory back to the system as soon as it is free.

    glibc keeps free blocks in its heap and does not reuse them for aligned blocks of the same size, which torch asks
    for. In a row of 1,024 tokens, this made 1.2 GB of 0.1 GB. New blocks for all cost a fifth of the time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc: another C library or system
        yield
        return
    mallopt(M_MMAP_THRESHOLD, APART)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, USUAL)
