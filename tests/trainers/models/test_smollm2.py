"""The pretrained model itself, as `make test-pretrained` installs and writes it."""

import os
from pathlib import Path
from typing import Any

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent
from hardwon.runtime.environments import open_environment
from hardwon.trainers import load_policy

FOLDER = Path(os.environ.get("HARDWON_PRETRAINED") or "models/smollm2")

pytestmark = pytest.mark.pretrained


@pytest.fixture(scope="module")
def policy() -> Any:
    if not FOLDER.is_dir():
        pytest.skip(f"there is no folder {FOLDER}; run: make test-pretrained")
    return load_policy(FOLDER)


def test_it_answers_through_its_chat_template(policy):
    tokenizer, model = policy._inner._prompts.tokenizer, policy._engine.model
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    assert answer[0, -1] == tokenizer.eos_token_id


def test_it_plays_by_listed_actions(policy):
    world = open_environment("textworld", game="twc")
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(policy, library, world, max_steps=2, learn=False)
        result = agent.run("dev", 100)
        state = world.reset("dev", 100)
        assert result.trajectory.steps[0].action in world.admissible(state)
        agent.close()


def test_its_control_tokens_in_an_observation_stay_text(policy):
    prompts = policy._inner._prompts
    control = set(prompts.tokenizer.all_special_ids)
    for token in prompts.tokenizer.all_special_tokens:
        assert not control & set(prompts.text(f"You see {token} here.")[:-1])
