"""Tiny language models for CPU experiments and tests: a word tokenizer and a Qwen2 of a few million parameters.

They are built in this process; nothing is downloaded.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hardwon.memory.errors import ConfigError

SPECIAL = ("<pad>", "<unk>", "<end>", "<task>", "<memory>", "<see>", "<at>", "<act>", "<item>", "<keep>", "<skip>")
_PIECE = r"[a-z0-9'_-]+|[^\sa-z0-9]"


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """The shape of a tiny model."""

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 384
    context: int = 2048

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "intermediate", "context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads is {self.heads} and kv_heads {self.kv_heads}; use a kv_heads that divides heads.")
        if (size := self.hidden // self.heads) % 2 or not size:  # rotary positions turn pairs of numbers
            raise ConfigError(f"hidden is {self.hidden} and heads {self.heads}; use an even hidden / heads.")


def build_tokenizer(texts: Iterable[str], special: Sequence[str] = SPECIAL) -> Any:
    """Return a transformers tokenizer whose vocabulary is the lower-cased words of the texts."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # sorted: token ids must not depend on the order of a set, which differs between processes
    words = sorted({word for text in texts for word in re.findall(_PIECE, text.lower())})
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), behavior="removed", invert=True)
    tokenizer.add_special_tokens(list(special))
    tokenizer_class: Any = PreTrainedTokenizerFast
    return tokenizer_class(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<end>", bos_token=None
    )


def build_model(vocabulary: int, config: TinyConfig | None = None, *, seed: int = 0) -> Any:
    """Return a float32 Qwen2ForCausalLM with random weights, determined by the seed."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = config or TinyConfig()
    # Restore the generator afterwards: building a model must not change the caller's random numbers.
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.context,
            tie_word_embeddings=True,
            pad_token_id=SPECIAL.index("<pad>"),
            eos_token_id=SPECIAL.index("<end>"),
        )
    )
    torch.random.set_rng_state(state)
    model.eval()  # type: ignore[no-untyped-call]
    return model
