"""Models of a run: the base, a copy or an adapter of it for each role, and what is exported of them.

A tiny base is made here, with the words that were explored; any other is loaded by transformers from
a folder or the hub. This file trains nothing.
"""

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.config.schema import ModelConfig
from hardwon.trainers.models.adapters import activate, add_adapter, has_adapters
from hardwon.trainers.models.tiny import SPECIAL, build_model, build_tokenizer

BASE = "base"
"""Folder, in a checkpoint or an export, of a base that is nowhere else: a tiny one's."""


def build_base(config: ModelConfig, texts: Iterable[str], seed: int) -> tuple[Any, Any]:
    """The base and its tokenizer; a tiny one knows the words of the texts."""
    if config.base != "tiny":
        return load_base(config.base, config)
    tokenizer = build_tokenizer(texts)
    model = build_model(len(tokenizer), replace(config.tiny, seed=config.tiny.seed or seed))
    return model.to(device_of(config)), tokenizer


def load_base(path: str | Path, config: ModelConfig) -> tuple[Any, Any]:
    """A model and its tokenizer from a folder or the hub, which learns the words that mark a transcript."""
    import torch
    from transformers import AutoModelForCausalLM

    device = device_of(config)
    precision = torch.bfloat16 if device == "cuda" and config.adapter else torch.float32
    try:
        tokenizer = load_tokenizer(path)
        maker: Any = AutoModelForCausalLM
        model = maker.from_pretrained(str(path), dtype=precision)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.base {path} cannot be loaded: {error} Give a model's folder or hub name.") from error
    tokenizer.add_special_tokens({"additional_special_tokens": [word for word in SPECIAL if word != "<pad>"]})
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    return model.to(device).eval(), tokenizer


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a folder or of the hub, as it was saved.

    For a Qwen2 model `AutoTokenizer` takes Qwen2's own, whatever the folder says, so one that says
    otherwise is loaded by what it says.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    said = Path(path) / "tokenizer_config.json"
    plain = said.is_file() and json.loads(said.read_text(encoding="utf-8")).get("tokenizer_class") == _PLAIN
    loader: Any = PreTrainedTokenizerFast if plain else AutoTokenizer
    return loader.from_pretrained(str(path))


def device_of(config: ModelConfig) -> str:
    """cpu or cuda."""
    import torch

    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.device


def for_roles(base: Any, roles: Sequence[str], config: ModelConfig, seed: int) -> dict[str, Any]:
    """What each role trains: the base with an adapter for each, or a copy of it for each but the first."""
    if config.adapter is None:
        return {role: base if n == 0 else copy.deepcopy(base) for n, role in enumerate(roles)}
    for n, role in enumerate(roles):
        base = add_adapter(base, role, config.adapter, seed=seed + n)
    return dict.fromkeys(roles, base)


def save_base(model: Any, tokenizer: Any, folder: Path, config: ModelConfig) -> None:
    """Tokenizer and shape; the weights too where roles are adapters of a base that is nowhere else."""
    if config.base != "tiny":
        return
    tokenizer.save_pretrained(str(folder))
    if has_adapters(model):
        _plain(model).save_pretrained(str(folder))
    else:
        model.config.save_pretrained(str(folder))


def read_base(folder: Path, config: ModelConfig) -> tuple[Any, Any]:
    """The base of a checkpoint, whose weights may be the role's to restore."""
    if config.base != "tiny":
        return load_base(config.base, config)
    if config.adapter is not None:
        return load_base(folder, config)
    from transformers import AutoConfig, AutoModelForCausalLM

    made: Any = AutoModelForCausalLM
    model = made.from_config(AutoConfig.from_pretrained(str(folder)))
    return model.to(device_of(config)).eval(), load_tokenizer(folder)


def export(model: Any, tokenizer: Any, role: str, folder: Path, config: ModelConfig) -> Path:
    """A role's weights with the tokenizer, as peft, transformers and vLLM load them. Returns the folder."""
    there = folder / role
    there.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(there))
    if not has_adapters(model):
        model.save_pretrained(str(there))
        return there
    base = config.base
    if base == "tiny":
        base = str(save_plain(model, tokenizer, (folder / BASE).absolute()))
    _save_adapter(model, role, there, base)
    return there


def save_plain(model: Any, tokenizer: Any, folder: Path) -> Path:
    """The base under the adapters with the tokenizer, for a program that serves it. Returns the folder."""
    tokenizer.save_pretrained(str(folder))
    _plain(model).save_pretrained(str(folder))
    return folder


def _save_adapter(model: Any, role: str, folder: Path, base: str) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    activate(model, role)
    weights = get_peft_model_state_dict(model, adapter_name=role)
    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, folder / _WEIGHTS)
    shape = copy.deepcopy(model.peft_config[role])
    shape.base_model_name_or_path, shape.inference_mode = base, True
    shape.save_pretrained(str(folder))


_PLAIN = "TokenizersBackend"
"""What transformers calls a tokenizer that is all in its tokenizer.json."""
_WEIGHTS = "adapter_model.safetensors"
"""The name that peft gives to an adapter's weights."""


def _plain(model: Any) -> Any:
    """A copy of the base under the adapters."""
    return copy.deepcopy(model).unload()
