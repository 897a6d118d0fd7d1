"""Measure the memory and the time of one forward and backward pass, with and without gradient checkpointing.

    python examples/experiments/activation_memory.py models/smollm2 --tokens 256,1024,2048

Each pass runs in its own process, on the CPU, with a LoRA of rank 16 and one sequence whose last eighth is trained.
Memory is the peak of the process less what it had before the pass.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import psutil


def measure(base: str, tokens: int, *, recompute: bool) -> dict[str, float]:
    """Return the megabytes per token and the CPU seconds of one pass in this process."""
    from hardwon.trainers.algorithms.learner import Learner, LearnerSettings
    from hardwon.trainers.algorithms.samples import PackedSequence
    from hardwon.trainers.algorithms.settings import LossSettings
    from hardwon.trainers.config.schema import ModelConfig
    from hardwon.trainers.engines.base_models import load_base
    from hardwon.trainers.models.adapters import add_adapter, parameters_of

    model, tokenizer = load_base(base, ModelConfig(base=base, adapter=16, device="cpu"))
    model = add_adapter(model, "policy", 16)
    settings = LearnerSettings(recompute=recompute, budget=tokens)
    learner = Learner(model, parameters_of(model, "policy"), settings, role="policy")
    ids = tuple(10 + at % (len(tokenizer) - 20) for at in range(tokens))
    trained = tuple(at >= tokens - tokens // 8 for at in range(tokens))
    zeros = (0.0,) * tokens
    sequence = PackedSequence(ids, trained, zeros, tuple(map(float, trained)), (None,) * tokens, "policy", "one", 0)
    before, begun = psutil.Process().memory_info().rss, time.process_time()
    learner.step([sequence], LossSettings(kind="imitation"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    return {"megabytes_per_token": (peak - before) / 1e6 / tokens, "cpu_seconds": time.process_time() - begun}


def main() -> None:
    """Measure every number of tokens twice and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="folder of a model")
    parser.add_argument("--tokens", default="256,1024,2048")
    parser.add_argument("--alone", choices=["keep", "recompute"], help="one pass in this process, printed as JSON")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given.base, int(given.tokens), recompute=given.alone == "recompute")))
        return
    print("| tokens | kept, MB per token | CPU s | recomputed, MB per token | CPU s |\n|---|---|---|---|---|")
    for tokens in given.tokens.split(","):
        row = [tokens]
        for how in ("keep", "recompute"):
            command = [sys.executable, __file__, given.base, "--tokens", tokens, "--alone", how]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            figures = json.loads(told.splitlines()[-1])
            row += [f"{figures['megabytes_per_token']:.2f}", f"{figures['cpu_seconds']:.1f}"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
