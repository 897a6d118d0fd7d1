"""Count the tokens of the admissible actions in a message: the whole list with numbers, and lists of changes.

python apps/benchmarks/training/action_lists.py models/smollm2 alfworld pick_and_place_simple
python apps/benchmarks/training/action_lists.py models/smollm2 textworld cookingworld --params "numLocations=3"
"""

import argparse
from typing import Any

from transformers import AutoTokenizer

from hardwon.runtime import open_environment
from hardwon.runtime.llm import prompts
from hardwon.runtime.llm.action_lists import describe_actions


def list_offers(environment: Any, seed: int) -> list[tuple[str, ...]]:
    """Return the admissible actions at each step of the environment's own solution."""
    state, offers = environment.reset("train", seed), []
    for action in environment.gold_path():
        offers.append(tuple(sorted(environment.admissible(state))))
        state, _, over, _ = environment.step(action)
        if over:
            break
    return offers


def main() -> None:
    """Print the tokens of a list in the first message and, on average, in a later one."""
    parser = argparse.ArgumentParser(description="Count the tokens of the admissible actions in a message.")
    for name in ("model", "environment", "game"):
        parser.add_argument(name)
    parser.add_argument("--params", default="")
    parser.add_argument("--games", type=int, default=20)
    given = parser.parse_args()
    tokenizer: Any = AutoTokenizer.from_pretrained(given.model)
    environment = open_environment(given.environment, game=given.game, params=given.params)
    counts: dict[str, list[int]] = {}
    for seed in range(given.games):
        before: tuple[str, ...] = ()
        for turn, actions in enumerate(list_offers(environment, seed)):
            offer, changes = describe_actions(actions, before)
            before, where = offer.actions, "later" if turn else "first"
            for form, text in (("full", prompts.choice_prompt(actions)), ("changes", changes)):
                ids = tokenizer(text, add_special_tokens=False).input_ids
                counts.setdefault(f"{form}, {where} message", []).append(len(ids))
    for name, numbers in counts.items():
        print(f"{name}: {sum(numbers) / len(numbers):.0f} tokens ({len(numbers)} messages)")
    environment.close()


if __name__ == "__main__":
    main()
