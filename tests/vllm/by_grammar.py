"""Run by tests/trainers/engines/test_vllm.py inside .venv-vllm: tool calls by grammar with vLLM in this process.

python tests/vllm/by_grammar.py ASKED.json TOLD.json
"""

import asyncio
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.engines.grammar import ToolCalls
from hardwon.trainers.engines.vllm import VllmEngine


def main(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers, as they are."""
    engine = VllmEngine(
        asked["model"], max_rank=8, dtype="float32", enforce_eager=True, max_model_len=256, disable_log_stats=True
    )
    calls, prompt = ToolCalls(engine.tokenizer, asked["tools"]), tuple(asked["prompt"])

    async def answers() -> list[Completion]:
        requests = [Request(prompt, allowed=calls.open_grammar(60), chance=random.Random(n)) for n in range(12)]
        return list(await asyncio.gather(*map(engine.generate, requests)))

    try:
        return [asdict(said) for said in asyncio.run(answers())]
    finally:
        engine.close()


if __name__ == "__main__":
    answered = main(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(answered), encoding="utf-8")
