"""Adapters: one base model, one LoRA for each role, several resident at once.

Which role acts is said before every use; a role's parameters are its own, and the base is never
trained. This file neither trains nor saves.
"""

from typing import Any

import torch
from torch import nn

from hardwon.memory.errors import ConfigError, MissingExtra

WEIGHT = 2.0
"""A LoRA's contribution is multiplied by this, whatever its rank (alpha / rank)."""


def add_adapter(model: Any, role: str, rank: int = 16, *, seed: int = 0) -> Any:
    """The model with an adapter named `role` on all its linear layers but the head; it changes nothing yet.

    Use the model returned from then on. The same seed gives the same adapter, whatever was drawn before.
    """
    try:
        from peft import LoraConfig, PeftModel, get_peft_model
    except ImportError as missing:
        raise MissingExtra.of("peft", "train") from missing

    shape = LoraConfig(
        r=rank, lora_alpha=round(WEIGHT * rank), target_modules="all-linear", bias="none", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        if not isinstance(model, PeftModel):
            return get_peft_model(model, shape, adapter_name=role).eval()
        if role in model.peft_config:
            raise ConfigError(f"the model has an adapter {role!r} already; choose another name.")
        model.add_adapter(role, shape)
        return model.eval()


def has_adapters(model: Any) -> bool:
    """Whether roles are adapters of this model; else all its parameters are one role's."""
    return hasattr(model, "peft_config")


def activate(model: Any, role: str) -> None:
    """From now on the model is this role's, and only this role's parameters are trained."""
    if not has_adapters(model):
        return
    if role not in model.peft_config:
        raise ConfigError(f"the model has no adapter {role!r}; there are: {', '.join(model.peft_config)}.")
    model.set_adapter(role)


def parameters_of(model: Any, role: str) -> dict[str, nn.Parameter]:
    """What a role trains, by name: its adapter, or everything where there are no adapters."""
    if not has_adapters(model):
        return dict(model.named_parameters())
    activate(model, role)
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
