"""LoRA adapters: one frozen base model with one resident adapter per role.

Activate a role before each use of the model. Only the parameters of the active role are trained.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hardwon.memory.errors import ConfigError, MissingExtra

WEIGHT = 2.0
"""Scale of a LoRA's contribution (alpha / rank), the same for every rank."""


def add_adapter(model: Any, role: str, rank: int = 16, *, seed: int = 0) -> Any:
    """Add an adapter named `role` to all linear layers except the head, initialized as a no-op.

    Args:
        model: The base model, or a model that already has adapters.
        role: Name of the adapter.
        rank: Rank of the LoRA matrices.
        seed: Seed of the initial weights.

    Returns:
        The model with the adapter; use it in place of `model`.

    Raises:
        MissingExtra: peft is not installed.
        ConfigError: The model already has an adapter of that name.
    """
    try:
        from peft import LoraConfig, PeftModel, get_peft_model
    except ImportError as missing:
        raise MissingExtra.of("peft", "train") from missing

    shape = LoraConfig(
        r=rank, lora_alpha=round(WEIGHT * rank), target_modules="all-linear", bias="none", task_type="CAUSAL_LM"
    )
    # Draw the weights in a forked generator: the same seed gives the same adapter in any context.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        if not isinstance(model, PeftModel):
            return get_peft_model(model, shape, adapter_name=role).eval()
        if role in model.peft_config:
            raise ConfigError(f"the model has an adapter {role!r} already; choose another name.")
        model.add_adapter(role, shape)
        return model.eval()


def has_adapters(model: Any) -> bool:
    """Return whether roles are adapters of this model; otherwise one role trains all parameters."""
    return hasattr(model, "peft_config")


def activate(model: Any, role: str) -> None:
    """Make a role's adapter the active one and the only trainable one.

    Raises:
        ConfigError: The model has adapters, but none for this role.
    """
    if not has_adapters(model):
        return
    if role not in model.peft_config:
        raise ConfigError(f"the model has no adapter {role!r}; there are: {', '.join(model.peft_config)}.")
    model.set_adapter(role)


def read_adapter(model: Any, role: str) -> dict[str, Any]:
    """Return the weights of a role's adapter under peft's names, without those of the base."""
    from peft import get_peft_model_state_dict

    # peft's default adds the embeddings where a vocabulary was extended; they are the base's and are not trained
    weights: dict[str, Any] = get_peft_model_state_dict(model, adapter_name=role, save_embedding_layers=False)
    return weights


def parameters_of(model: Any, role: str) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a role by name: its adapter, or all without adapters."""
    if not has_adapters(model):
        return dict(model.named_parameters())
    activate(model, role)
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def copy_adapter(model: Any, source: str, target: str) -> None:
    """Give a role's adapter the weights of another role's adapter of the same rank.

    Raises:
        ConfigError: The model has no adapter for one of the roles.
    """
    weights = {
        name.replace(f".{source}.", f".{target}."): value.detach()
        for name, value in parameters_of(model, source).items()
    }
    with torch.no_grad():
        for name, parameter in parameters_of(model, target).items():
            parameter.copy_(weights[name])


@contextmanager
def without_adapters(model: Any) -> Iterator[Any]:
    """Yield the model with its adapters disabled."""
    with model.disable_adapter():
        yield model
