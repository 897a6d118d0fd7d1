"""Choice of the engine: the model in training, or a vLLM server.

    engine = open_engine(config, model, tokenizer, out)

The trainer updates weights in its own model. A server has the base and receives every
role's adapter after each update, under a name that contains the version.
"""

import os
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.config.schema import TrainConfig

from .base import Engine
from .base_models import BASE, save_without_adapters
from .server import ServerEngine


def open_engine(config: TrainConfig, model: Any, tokenizer: Any, out: Path) -> Engine:
    """Open the engine of the settings, for all roles."""
    roles, settings = list(config.roles), config.engine
    if settings.url is None:
        from .local import LocalEngine

        return LocalEngine(model, tokenizer, roles=roles)
    folder = Path(settings.folder) if settings.folder else out / "adapters"
    if not _has_tokens(config.model.base, tokenizer):
        derived = save_without_adapters(model, tokenizer, out / BASE)
        raise ConfigError(
            f"{config.model.base} has no embeddings for some tokens of its tokenizer. {derived} has them: "
            f"start the server with it and set model.base={derived}."
        )
    return open_server(config, tokenizer, read_api_key(), folder)


def open_server(config: TrainConfig, tokenizer: Any, key: str | None, folder: Path | None = None) -> ServerEngine:
    """Open an engine over the vLLM server of the settings."""
    assert config.engine.url is not None
    return ServerEngine(config.engine.url, tokenizer, list(config.roles), key, folder=folder)


def _has_tokens(base: str, tokenizer: Any) -> bool:
    """Return whether the published model has an embedding for every token of the tokenizer."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(base).vocab_size) >= len(tokenizer)


def get_tokens_read(engine: Engine) -> int:
    """Return the number of tokens that the engine has read and generated, or 0 if it does not count them."""
    return int(getattr(engine, "tokens_read", 0))


def read_api_key() -> str | None:
    """Return the API key of the server, from the variable that vLLM itself reads."""
    return os.environ.get("VLLM_API_KEY")
