"""A pretrained base in small: byte-level BPE, ChatML, tied embeddings, no spare rows. It has not learned anything."""

from pathlib import Path
from typing import Any

TEXTS = (
    "You are an agent that acts in an environment, one action per turn, until the task is done.",
    "Answer with exactly one action and nothing else. Admissible actions: 1. go east 2. go west 3. take coin",
    "What is seen now: <observation> You are in the kitchen. The chest is not locked. </observation>",
    "system user assistant hint silent keep skip share hold put the fork in the drawer: rewarded",
)
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' + messages[0]['content'] + '\n<tools>' }}"
    "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}"
    "{% elif messages[0]['role'] == 'system' %}{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% for message in messages %}{% if message['role'] == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + message['content'] + '\n</tool_response><|im_end|>\n' }}"
    "{% elif message['role'] != 'system' %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ '\n' if message['content'] }}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template with the tool form of Hermes and Qwen."""
TOOL_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>")


def build_chat_tokenizer(template: str = CHATML, *, size: int = 420, more: tuple[str, ...] = ()) -> Any:
    """Return a fast tokenizer with a chat template; `more` are control tokens that are not special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator([text for text in TEXTS for _ in range(4)], trainer)
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in more])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=template,
    )


def build_chat_model(tokenizer: Any, *, hidden: int = 32, layers: int = 2, seed: int = 0) -> Any:
    """Return a Llama of some thousand parameters with exactly one embedding row per token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval()


def let_end(model: Any, tokenizer: Any) -> Any:
    """Return the model, which ends an answer of twelve tokens about every second time and samples no other control."""
    import torch

    bias = torch.zeros(len(tokenizer))
    bias[[*tokenizer.added_tokens_decoder]] = -30.0
    bias[tokenizer.eos_token_id] = 3.0
    model.lm_head.bias = torch.nn.Parameter(bias)
    return model


def save_base(folder: Path, *, hidden: int = 32, template: str = CHATML, more: tuple[str, ...] = ()) -> Path:
    """Write the base as a folder, as `model.base` takes it; it has four heads."""
    tokenizer = build_chat_tokenizer(template, more=more)
    build_chat_model(tokenizer, hidden=hidden).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def keep_requests(monkeypatch):
    """Return the prompts that local engines are asked from now on, by role."""
    from hardwon.trainers.engines.local import LocalEngine

    asked: dict[str, list[tuple[int, ...]]] = {}
    original = LocalEngine.generate

    async def generate(self, request):
        asked.setdefault(request.role, []).append(request.prompt)
        return await original(self, request)

    monkeypatch.setattr(LocalEngine, "generate", generate)
    return asked


def build_settings(folder: Path, **sections: Any) -> dict[str, Any]:
    """Return settings of a run in the corridor with a base and adapters; sections replace those of the same name."""
    return {
        "environment": {"name": "tests.trainers.corridor:Corridor", "max_steps": 4},
        "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-103"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
        "model": {"base": str(save_base(folder / "base")), "adapter": 2},
        "roles": {"policy": {}},
        "eval": {"every": 0},
        "run": {"iterations": 0, "out": str(folder / "run"), "threads": 1},
        **sections,
    }
