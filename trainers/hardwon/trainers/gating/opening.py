"""Open the gate that the settings name."""

import importlib

from hardwon.memory.errors import UnknownName
from hardwon.trainers.config.schema import GateConfig
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.prompting.base import PromptFormat

from .gate import ByRecord, Gated
from .gate_policy import PolicyGate


def open_gate(config: GateConfig, engine: Engine, prompts: PromptFormat) -> Gated | None:
    """Return the gate of the settings, or None."""
    kind = config.kind
    if kind == "none":
        return None
    if kind == "record":
        return Gated(ByRecord(least=config.least, floor=config.floor))
    if kind == "policy":
        return Gated(PolicyGate(engine, prompts))
    module, colon, name = kind.partition(":")
    try:
        if not colon:
            raise UnknownName.of("gate", kind, ["none", "record", "policy", "MODULE:CLASS"])
        return Gated(getattr(importlib.import_module(module), name)())
    except (ImportError, AttributeError) as error:
        raise UnknownName(
            f"gate.kind is {kind!r}: {error}. Name a module that can be imported and its class."
        ) from error
