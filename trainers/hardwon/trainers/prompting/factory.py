"""The choice of the prompt format, made once, where the base of a run or of an export is opened."""

from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.types import Described, Environment, Tooled
from hardwon.runtime.llm.conversation import PromptBuilder
from hardwon.trainers.config.schema import ModelConfig

from .base import PromptFormat
from .chat import ChatFormat
from .compact import CompactFormat


def open_format(
    config: ModelConfig,
    tokenizer: Any,
    *,
    environment: Environment | None = None,
    builder: PromptBuilder | None = None,
) -> PromptFormat:
    """Return the prompt format of a base, and probe its chat template if it uses one."""
    if config.is_compact:
        return CompactFormat(tokenizer)
    manual, tools = _read_tools(environment)
    return ChatFormat(tokenizer, builder=builder, manual=manual, tools=tools)


def _read_tools(environment: Any) -> tuple[str, Any]:
    """Return the instructions and the tools of an environment; one that creates them per episode begins one."""
    try:
        return _describe(environment)
    except ConfigError:
        environment.reset()
        return _describe(environment)


def _describe(environment: Any) -> tuple[str, Any]:
    manual = environment.describe() if isinstance(environment, Described) else ""
    return manual, environment.tool_schemas() if isinstance(environment, Tooled) else None
