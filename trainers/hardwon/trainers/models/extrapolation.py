"""Extrapolation of weights along the straight line of training (RELEX, arXiv:2605.21468).

    weights, fits = extrapolate({0: start, 10: later, 20: latest}, step=100)

For every tensor, the changes since the first step are reduced to their first right singular vector. A line through its
coefficients over the steps is read at the wanted step. Tensors that never changed stay as they are. Of a LoRA, the
product B A is extrapolated and factored again, because A and B apart are not linear.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from hardwon.memory.errors import ConfigError

NamedWeights = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """How well a tensor lies on its line."""

    r2: float
    """Share of the variance of the coefficients that the line explains."""
    lost: float = 0.0
    """Share of a LoRA's product that its rank cannot hold."""


def extrapolate(history: Mapping[int, NamedWeights], step: int) -> tuple[dict[str, Tensor], dict[str, Fit]]:
    """Return the weights at a step, and the fit of every tensor that moved.

    Args:
        history: Weights by step; at least the first and two later ones.
        step: The step to read the line at.

    Raises:
        ConfigError: There are too few steps, or the step is not behind them.
    """
    steps = sorted(history)
    if len(steps) < 3:
        raise ConfigError(
            f"the history has {len(steps)} steps; a line needs the start and two more. Set run.history to a smaller "
            "number, or train longer."
        )
    if step <= steps[-1]:
        raise ConfigError(f"step {step} is not behind the last one of the history, {steps[-1]}; choose a later one.")
    weights: dict[str, Tensor] = {}
    fits: dict[str, Fit] = {}
    for name in history[steps[0]]:
        if name in weights:
            continue
        other = name.replace(".lora_A.", ".lora_B.")
        if other != name:
            products = [history[at][other].double() @ history[at][name].double() for at in steps]
            product, r2 = _extrapolate_tensor(products, steps, step)
            rank = history[steps[0]][name].shape[0]
            (weights[name], weights[other]), lost = _factor(product, rank, history[steps[0]][name])
            fits[name] = Fit(r2, lost)
        elif ".lora_B." not in name:
            values = [history[at][name].double() for at in steps]
            value, r2 = _extrapolate_tensor(values, steps, step)
            weights[name] = value.to(history[steps[0]][name].dtype)
            if any(not torch.equal(later, values[0]) for later in values[1:]):
                fits[name] = Fit(r2)
    return weights, fits


def _extrapolate_tensor(values: list[Tensor], steps: list[int], step: int) -> tuple[Tensor, float]:
    """Return a tensor at a step, and the share of variance that the line explains."""
    start = values[0]
    changes = torch.stack([(value - start).flatten() for value in values[1:]])
    # the Gram matrix is small: one row per saved step
    sizes, vectors = torch.linalg.eigh(changes @ changes.T)
    if float(sizes[-1]) <= 0:
        return start, 1.0
    direction = changes.T @ vectors[:, -1] / sizes[-1].sqrt()
    coefficients = (changes @ direction).tolist()
    intercept, slope, r2 = fit_line([float(at) for at in steps[1:]], coefficients)
    return start + ((intercept + slope * step) * direction).reshape(start.shape), r2


def fit_line(xs: list[float], ys: list[float]) -> tuple[float, float, float]:
    """Return intercept, slope and the explained share of variance of the least-squares line."""
    x_mean, y_mean = fmean(xs), fmean(ys)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)
    intercept = y_mean - slope * x_mean
    total = sum((y - y_mean) ** 2 for y in ys)
    missed = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return intercept, slope, 1 - missed / total if total else 1.0


def _factor(product: Tensor, rank: int, like: Tensor) -> tuple[tuple[Tensor, Tensor], float]:
    """Return A and B of a rank with the product nearest to the given one, and the share that is lost."""
    left, sizes, right = torch.linalg.svd(product, full_matrices=False)
    root = sizes[:rank].sqrt()
    a, b = root[:, None] * right[:rank], left[:, :rank] * root
    total = float(sizes.square().sum())
    lost = float(sizes[rank:].square().sum()) / total if total else 0.0
    return (a.to(like.dtype), b.to(like.dtype)), lost
