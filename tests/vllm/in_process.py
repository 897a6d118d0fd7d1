"""Runs in vLLM's environment: completions by VllmEngine, before and after an adapter, as JSON.

python in_process.py ASKED.json ANSWERS.json
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from hardwon.memory.errors import HardwonError
from hardwon.trainers.algorithms.samples import Sample, pack_samples
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.engines.vllm import VllmEngine


def plain(said: Completion) -> dict[str, Any]:
    """What the test compares."""
    return {
        "tokens": said.tokens,
        "logprobs": said.logprobs,
        "mask": said.mask,
        "allowed": said.allowed,
        "version": said.version,
    }


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """The answers, by name."""
    engine = VllmEngine(
        asked["model"], max_rank=8, dtype="float32", enforce_eager=True, max_model_len=256, disable_log_stats=True
    )
    prompt, actions = tuple(asked["prompt"]), Trie(asked["actions"])

    async def answers() -> list[Completion]:
        return await asyncio.gather(
            engine.generate(Request(prompt, max_tokens=4, temperature=0.0)),
            engine.generate(Request(prompt, max_tokens=4, temperature=2.0, chance=random.Random(1))),
            *(engine.generate(Request(prompt, allowed=actions, chance=random.Random(n))) for n in range(8)),
        )

    told: dict[str, Any] = {"words": engine.tokenizer.decode(list(prompt))}
    told["before"] = [plain(said) for said in asyncio.run(answers())]
    for version, folder in enumerate(asked["adapters"], 1):
        engine.load_adapter("policy", version, folder)
    after = asyncio.run(answers())
    told["after"] = [plain(said) for said in after]
    rows = [
        Sample(prompt, said.tokens, said.logprobs, said.mask, said.allowed, "policy", 0, "", "", "", str(n), 0)
        for n, said in enumerate(after)
    ]
    parts = pack_samples(rows, {row.trace: [1.0] for row in rows})
    told["logprobs"] = asyncio.run(engine.logprobs(parts, "policy"))
    told["refused"] = []
    for call in (
        lambda: asyncio.run(engine.generate(Request((5,) * 300))),
        lambda: engine.load_adapter("policy", 9, asked["too_large"]),
    ):
        try:
            call()
        except HardwonError as error:
            told["refused"].append([type(error).__name__, str(error)])
    engine.close()
    return told


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text("utf-8")))), encoding="utf-8")
