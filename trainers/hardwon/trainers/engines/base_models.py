"""Models of a run: the base, its copy or adapter for each role, and their exports.

A tiny base is built from the words that exploration found. Any other base is loaded by transformers
from a folder or the hub. This module trains nothing.
"""

import copy
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.config.schema import ModelConfig
from hardwon.trainers.models.adapters import activate, add_adapter, has_adapters, read_adapter
from hardwon.trainers.models.pretrained import locate_base, require_base
from hardwon.trainers.models.tiny import SPECIAL, build_model, build_tokenizer

BASE = "base"
"""Name of the folder with a tiny base, in a checkpoint or an export. Such a base exists nowhere else."""


def build_base(config: ModelConfig, texts: Iterable[str], seed: int) -> tuple[Any, Any]:
    """Build or load the base and its tokenizer. The vocabulary of a tiny base is the words of `texts`."""
    if config.base != "tiny":
        return load_base(config.base, config)
    tokenizer = build_tokenizer(texts)
    model = build_model(len(tokenizer), config.tiny, seed=seed)
    return model.to(select_device(config.device)), tokenizer


def load_base(path: str | Path, config: ModelConfig) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder or the hub, and add the marks of compact prompts if they are used.

    Raises:
        ConfigError: The model cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    require_base(str(path))
    device = select_device(config.device)
    # bfloat16 only for a frozen base: in trained weights it would round small updates away
    precision = torch.bfloat16 if device == "cuda" and config.adapter else torch.float32
    try:
        tokenizer = load_tokenizer(path)
        loader: Any = AutoModelForCausalLM
        model = loader.from_pretrained(str(path), dtype=precision)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.base {path} cannot be loaded: {error} Set it to a model's folder or hub name."
        ) from error
    # a chat template needs no marks, and rows that a frozen base never learned would only be noise
    if config.is_compact:
        tokenizer.add_special_tokens({"additional_special_tokens": [word for word in SPECIAL if word != "<pad>"]})
    # never shrink: many models have spare rows, and a server loads the published shape
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        # new rows are drawn at random: without a seed of their own, a resumed run would draw others
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(0)
            model.resize_token_embeddings(len(tokenizer))
    return model.to(device).eval(), tokenizer


def load_tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of a folder or of the hub as it was saved.

    For Qwen2 models, `AutoTokenizer` always picks Qwen2's class and ignores the saved one. A folder that
    names the generic class is therefore loaded with that class.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    shape = Path(path) / "tokenizer_config.json"
    plain = shape.is_file() and json.loads(shape.read_text(encoding="utf-8")).get("tokenizer_class") == _PLAIN
    loader: Any = PreTrainedTokenizerFast if plain else AutoTokenizer
    return loader.from_pretrained(str(path))


def read_context(model: Any) -> int | None:
    """Return the longest sequence that a model reads, in tokens; None if it does not say."""
    limit = getattr(model.config, "max_position_embeddings", None)
    return int(limit) if limit else None


def select_device(name: str) -> str:
    """Return the name of a device that this machine has; `auto` selects a GPU if there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=str(name)).tolist()  # the device `meta` has no values
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        why = str(error).strip().splitlines()[0][:120]
        raise ConfigError(f"device is {name!r}, which cannot be used here ({why}). Use cpu, cuda or auto.") from error
    return name


def prepare_for_roles(base: Any, roles: Sequence[str], config: ModelConfig, seed: int) -> dict[str, Any]:
    """Return the model that each role trains.

    With adapters, all roles share the base and each has its own adapter. Without, the first role trains
    the base itself, and every other role a copy.
    """
    if config.adapter is None:
        return {role: base if n == 0 else copy.deepcopy(base) for n, role in enumerate(roles)}
    for n, role in enumerate(roles):
        base = add_adapter(base, role, config.adapter, seed=seed + n)
    return dict.fromkeys(roles, base)


def save_base(model: Any, tokenizer: Any, folder: Path, config: ModelConfig) -> None:
    """Save the tokenizer and the shape of a tiny base, and its weights if the roles are adapters of it."""
    if config.base != "tiny":
        return
    tokenizer.save_pretrained(str(folder))
    if has_adapters(model):
        _copy_without_adapters(model).save_pretrained(str(folder))
    else:
        # each role saves all parameters in its own state, so the shape is enough
        model.config.save_pretrained(str(folder))


def read_base(folder: Path, config: ModelConfig) -> tuple[Any, Any]:
    """Load the base of a checkpoint. If roles train all parameters, the role restores the weights."""
    if config.base != "tiny":
        return load_base(config.base, config)
    if config.adapter is not None:
        return load_base(folder, config)
    from transformers import AutoConfig, AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    model = loader.from_config(AutoConfig.from_pretrained(str(folder)))
    return model.to(select_device(config.device)).eval(), load_tokenizer(folder)


def export(model: Any, tokenizer: Any, role: str, folder: Path, config: ModelConfig) -> Path:
    """Write a role's weights with the tokenizer, in the format that peft, transformers and vLLM load."""
    target = folder / role
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(target))
    if not has_adapters(model):
        model.save_pretrained(str(target))
        return target
    base = config.base
    if base == "tiny" or _has_more_rows(model, base):
        base = str(save_without_adapters(model, tokenizer, (folder / BASE).absolute()))
    _save_adapter(model, role, target, locate_base(base))
    return target


def save_without_adapters(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Save the base under the adapters and the tokenizer, to be served by another program. Return the folder."""
    tokenizer.save_pretrained(str(folder))
    _copy_without_adapters(model).save_pretrained(str(folder))
    return folder


def _has_more_rows(model: Any, base: str) -> bool:
    """Return whether the model has embeddings that its base does not have, so that an adapter alone is not enough."""
    from transformers import AutoConfig

    published = AutoConfig.from_pretrained(base).get_text_config().vocab_size
    return bool(model.get_input_embeddings().num_embeddings > published)


def _save_adapter(model: Any, role: str, folder: Path, base: str) -> None:
    from safetensors.torch import save_file

    activate(model, role)
    weights = read_adapter(model, role)
    # safetensors stores only contiguous tensors
    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, folder / _WEIGHTS)
    # a copy: the export must not change the config of the model in training
    shape = copy.deepcopy(model.peft_config[role])
    shape.base_model_name_or_path, shape.inference_mode = base, True
    shape.save_pretrained(str(folder))


_PLAIN = "TokenizersBackend"
"""Name that transformers gives to the generic class of tokenizers defined by their tokenizer.json."""
_WEIGHTS = "adapter_model.safetensors"
"""File name that peft gives to an adapter's weights."""


def _copy_without_adapters(model: Any) -> Any:
    """Return a copy of the base under the adapters."""
    return copy.deepcopy(model).unload()
