"""Which engine a run generates with: the model that is trained, vLLM in this process, or a vLLM server.

    engine = open_engine(config, model, tokenizer, out)

The trainer moves weights in its own model; an engine elsewhere serves the base, and gets every role's
adapter after each of its updates under a name with its version. This file generates nothing.
"""

import os
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.config.schema import TrainConfig

from .base import Engine
from .base_models import BASE, save_plain


def open_engine(config: TrainConfig, model: Any, tokenizer: Any, out: Path) -> Engine:
    """The engine of the settings, for all roles. Raises ConfigError, EngineUnreachable, MissingExtra."""
    roles, how = list(config.roles), config.engine
    if how.kind == "local":
        from .local import LocalEngine

        return LocalEngine(model, tokenizer, roles=roles)
    folder = Path(how.folder) if how.folder else out / "adapters"
    base = config.model.base
    if base == "tiny" or not _knows(base, tokenizer):
        made = save_plain(model, tokenizer, out / BASE)
        if how.kind == "server":
            raise ConfigError(
                f"{base} has no place for the words that mark a transcript; {made} has: "
                f"start the server with it, and set model.base={made}."
            )
        base = str(made)
    if how.kind == "server":
        from .server import ServerEngine

        assert how.url is not None
        return ServerEngine(how.url, tokenizer, roles, _key(how.key), model=how.model, folder=folder)
    from .vllm import VllmEngine

    assert config.model.adapter is not None
    return VllmEngine(base, tokenizer, roles, max_rank=_served(config.model.adapter), folder=folder, **how.settings)


def _knows(base: str, tokenizer: Any) -> bool:
    """Whether the model, as it is elsewhere, has a place for all of the tokenizer's words."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(base).vocab_size) >= len(tokenizer)


def tokens_read(engine: Engine) -> int:
    """Tokens that it has read and said so far; 0 where it does not count."""
    return int(getattr(engine, "tokens_read", 0))


def _key(name: str | None) -> str | None:
    if name is not None and name not in os.environ:
        raise ConfigError(f"engine.key names {name}, which is not in the environment; set it to the server's API key.")
    return None if name is None else os.environ[name]


_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The largest ranks that vLLM can be told."""


def _served(rank: int) -> int:
    """The smallest of them that is no less than the adapter's."""
    fitting = [largest for largest in _RANKS if largest >= rank]
    if not fitting:
        raise ConfigError(f"model.adapter is {rank}, and vLLM serves adapters of rank {_RANKS[-1]} at most.")
    return fitting[0]
