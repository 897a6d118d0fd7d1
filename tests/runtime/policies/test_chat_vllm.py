"""ChatPolicy against a real vLLM server with a tiny random model: its nonsense becomes an action.

The server runs in an environment of its own, made by `bash tests/vllm/setup.sh`; then
`python -m pytest -m vllm tests/runtime/policies/test_chat_vllm.py`. No GPU, no network, about a minute.
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardwon.memory import ExperienceLibrary, Item, Recollection, State, Step
from hardwon.memory.errors import PolicyFailure
from hardwon.memory.records import Failure
from hardwon.runtime.agent import Agent
from hardwon.runtime.interfaces.types import Context, Info
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.llm import prompts
from hardwon.runtime.policies.chat import ChatPolicy

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PYTHON = Path(__file__).parents[3] / ".venv-vllm" / "bin" / "python"
ACTIONS = ("eat apple", "go north", "open the blue door")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def context(**changes: Any) -> Context:
    state = State("You are in a kitchen.", task="find the map")
    return replace(Context(state, ACTIONS, Recollection(), None, {}, (), WorkingMemory(), random.Random(0)), **changes)


class Corridor:
    """Four rooms in a row; the map is in the last one. A spring in the floor of each goes off when jumped on."""

    name = "corridor"

    def reset(self, task: str = "", seed: int = 0) -> State:
        self.room = 0
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        self.room = max(0, self.room + {"go east": 1, "go west": -1}.get(action, 0))
        won = self.room == 3
        return self._state(f"You {action}."), float(won), won, Info(success=won, score=self.room / 3)

    def admissible(self, state: State) -> list[str]:
        return ["go east", "go west", "jump"]

    def clone(self) -> "Corridor":
        return Corridor()

    def close(self) -> None:
        pass

    def _state(self, feedback: str) -> State:
        return State(
            f"You are in room {'ABCD'[self.room]}.", {"room": "ABCD"[self.room]}, feedback=feedback, task="find the map"
        )


def build_model(path: Path) -> Path:
    """A random Qwen2 of about a million parameters, and a tokenizer trained on our own prompts."""
    pytest.importorskip("torch", reason="needs the train extra")
    transformers = pytest.importorskip("transformers", reason="needs the train extra")
    tokenizers = pytest.importorskip("tokenizers", reason="needs the train extra")
    import torch

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bpe = tokenizers.ByteLevelBPETokenizer()
    corpus = [prompts.system_prompt("find the map"), prompts.turn_prompt(context()), Path(__file__).read_text("utf-8")]
    bpe.train_from_iterator(corpus, vocab_size=1024, min_frequency=1, special_tokens=special)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    config = transformers.Qwen2Config(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_until_healthy(url: str, server: "subprocess.Popen[bytes]", log: Path, seconds: float = 540) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"vLLM did not get ready (exit status {server.poll()}):\n{log.read_text('utf-8', 'replace')[-4000:]}")


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM server of a tiny random model, as long as the tests of this file run."""
    if not PYTHON.exists():
        pytest.skip("no .venv-vllm; make it with: bash tests/vllm/setup.sh")
    folder = tmp_path_factory.mktemp("vllm")
    model, port, log = build_model(folder / "tiny"), free_port(), folder / "server.log"
    options = f"--model {model} --host 127.0.0.1 --port {port} --served-model-name tiny --max-model-len 2048"
    command = f"{PYTHON} -m vllm.entrypoints.openai.api_server {options} --enforce-eager --dtype float32".split()
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | settings, start_new_session=True
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(30)


def policy(base_url: str, **options: Any) -> ChatPolicy:
    settings = {"max_tokens": 32, "timeout_s": 120, "temperature": 1.0, "seed": 0, **options}
    return ChatPolicy("openai:tiny", base_url=base_url, api_key="none", **settings)


def test_nonsense_is_constrained_to_an_admissible_action(base_url):
    decision = policy(base_url, structured="choice").decide(context())
    assert decision.action in ACTIONS
    assert decision.why.extra["answer"] == decision.action
    assert (decision.why.extra["repaired"], decision.why.extra["attempts"]) == (True, 2)


def test_without_the_constraint_the_same_nonsense_is_a_failure(base_url):
    with pytest.raises(PolicyFailure, match="3 × it is not one action of the list"):
        policy(base_url, structured="never").decide(context())


def test_standard_structured_output_works_too(base_url):
    decision = policy(base_url, structured="auto", max_tokens=400).decide(context())
    assert decision.action in ACTIONS
    assert decision.why.extra["answer"].lstrip().startswith("{")


def test_the_constraint_leaves_out_what_was_refused(base_url):
    refused = {"eat apple": "it is poisoned", "go north": "the guard sleeps there"}
    decision = policy(base_url, structured="choice").decide(context(forbidden=refused))
    assert decision.action == "open the blue door"


def test_the_tokens_are_those_the_server_counted(base_url):
    decision = policy(base_url, structured="choice", price_usd_per_million=(1.0, 2.0)).decide(context())
    usage = decision.usage
    assert "tokens_estimated" not in decision.why.extra
    assert usage.calls == 2
    assert usage.prompt_tokens > 200
    assert 32 < usage.completion_tokens < 64
    assert usage.cost_usd == pytest.approx((usage.prompt_tokens + 2 * usage.completion_tokens) / 1e6)


def test_a_free_form_answer_is_its_first_line(base_url):
    decision = policy(base_url).decide(context(actions=()))
    assert decision.action in decision.why.extra["answer"]


def test_many_episodes_share_the_server(base_url):
    async def together() -> list[str]:
        chat = policy(base_url, structured="choice")
        decisions = await asyncio.gather(*(chat.adecide(context()) for _ in range(16)))
        return [decision.action for decision in decisions]

    assert set(asyncio.run(together())) <= set(ACTIONS)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[ExperienceLibrary]:
    with ExperienceLibrary.open(tmp_path / "experience.db") as opened:
        yield opened


def test_a_whole_episode_runs_and_is_recorded(base_url, library):
    agent = Agent(policy(base_url, structured="choice"), library, Corridor(), max_steps=12)
    result = agent.run(seed=0)
    agent.close()
    recorded = library.episodes.get(result.trajectory.id)
    assert 3 <= len(recorded.steps) <= 12
    assert {step.action for step in recorded.steps} <= {"go east", "go west", "jump"}
    assert Failure.POLICY_ERROR not in {step.diagnosis.failure for step in recorded.steps}
    assert result.usage.calls == sum(step.why.extra["attempts"] for step in recorded.steps)
    assert recorded.meta["prompt_tokens"] == result.usage.prompt_tokens > 200 * len(recorded.steps)


def test_a_guardrail_holds_against_the_model(base_url, library):
    rail = Item("guardrail", "no jumping", condition={"text": "You are in room"}, forbids="jump", confidence=0.9)
    library.add(rail)
    agent = Agent(policy(base_url, structured="choice", seed=None), library, Corridor(), max_steps=12)
    steps: list[Step] = []
    while len(steps) < 100 and not any(step.why.blocked for step in steps):  # until the model tries it
        steps += agent.run(seed=len(steps)).trajectory.steps
    agent.close()
    assert any(step.why.blocked for step in steps)
    assert {step.action for step in steps} <= {"go east", "go west"}


def test_episodes_run_side_by_side(base_url, library):
    async def together() -> list[int]:
        agent = Agent(policy(base_url, structured="choice"), library, Corridor(), max_steps=6)
        results = await asyncio.gather(*(agent.arun(seed=seed) for seed in range(4)))
        agent.close()
        return [len(result.trajectory.steps) for result in results]

    assert all(3 <= steps <= 6 for steps in asyncio.run(together()))
    assert library.episodes.count() == 4


def test_a_model_the_server_does_not_have_is_not_asked_for_twice(base_url):
    chat = ChatPolicy("openai:large", base_url=base_url, api_key="none")
    with pytest.raises(PolicyFailure, match=r"in 1 of at most 3 requests: 1 × .*NotFoundError"):
        chat.decide(context())


def test_a_server_that_is_not_there_is_a_failure_in_time():
    chat = policy(f"http://127.0.0.1:{free_port()}/v1", sleep=lambda seconds: None)
    with pytest.raises(PolicyFailure, match=r"3 × .*ConnectionError"):
        chat.decide(context())
