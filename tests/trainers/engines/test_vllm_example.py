"""The examples with SmolLM2 through a vLLM server in a few updates: thoughts, listed actions, tool calls and all roles.

`make test-vllm` runs the files as they are with a real server on the CPU: with SmolLM2 if `models/smollm2` is there,
and otherwise with a base of the same kind that has learned nothing. By default, a server that a small model answers
for takes its place, and other worlds that of TextWorldExpress.
"""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.policies.test_chat_vllm import PYTHON, free_port, wait_until_healthy
from tests.trainers import fake_vllm
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, keep_requests, save_base

from hardwon.trainers.algorithms.samples import Sample
from hardwon.trainers.checkpoint import find
from hardwon.trainers.player import Player
from hardwon.trainers.trainer import train

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "train_smollm2_policy.yaml"
ALL_ROLES = ROOT / "examples" / "train_smollm2.yaml"
THOUGHT = 6
SHORT = (
    "arms.control=2", "arms.retrieved=1", "eval.every=0", "explore.tries=1", "explore.worlds.seeds=0-1",
    "library.explored={train: {fold: train, seeds: 0-1}}", "warmstart=null", "run.iterations=2", "run.groups=2",
    "roles.policy.settings.speech=free", f"roles.policy.settings.speech_tokens={THOUGHT}",
    "roles.policy.settings.max_tokens=60",
)  # fmt: skip
"""What makes the example short, and lets its policy think."""
CORRIDOR = ("environment.name=tests.trainers.corridor:Corridor", "environment.game=null", "environment.params=''")
CALLS = (
    "environment.name=tests.trainers.engines.desk:BankClient", "environment.game=null", "environment.params=''",
    "library.explored={}", "arms={control: 3}", "guidance={}",
)  # fmt: skip
"""A world whose actions are tool calls."""
CALLS_OF_ALL = (
    "environment.name=tests.trainers.engines.desk:PatientDesk", "environment.game=null", "environment.params=''",
    "environment.max_steps=2", "explore.policy=gold",
)  # fmt: skip
"""Another one, with a second call after a wrong one, and solutions to explore: each role has something to decide."""
STAGE_1 = (
    "arms.retrieved=2", "arms.guided=2", "roles.extractor.settings.distil=1", "roles.guide.settings.distil=1",
    "roles.admission.settings.distil=1", "roles.extractor.settings.ready=1", "roles.guide.settings.ready=1",
    "roles.admission.settings.ready=1", "run.save_every=1",
)  # fmt: skip
"""Settings that make stage 1 and the batches of the other roles short."""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Trains the example: `run(base, *overrides)` returns the samples of each iteration."""
    batches: list[list[Sample]] = []
    play = Player.play

    async def watched(self: Player, *worlds: Any, **options: Any) -> Any:
        rollouts = await play(self, *worlds, **options)
        batches.append([row for rollout in rollouts for row in rollout.rows])
        return rollouts

    def train_example(base: Path, *overrides: str, example: Path = EXAMPLE) -> list[list[Sample]]:
        batches.clear()
        monkeypatch.setattr(Player, "play", watched)
        report = train(example, (*SHORT, f"model.base={base}", f"run.out={tmp_path / 'run'}", *overrides))
        assert report.iterations == 2
        return batches

    return train_example


def check_thoughts(batches, base):
    """Check that each row has a thought without a control token, and an action under the version of its iteration."""
    controls = set(build_chat_tokenizer().added_tokens_decoder) if base.name == "base" else set()
    assert batches
    for row in (row for batch in batches for row in batch):
        thought = [at for at, possible in enumerate(row.allowed) if possible is None]
        assert len(thought) <= THOUGHT
        assert all(row.mask[at] for at in thought)
        assert not controls & {row.completion[at] for at in thought}
        assert thought == [*range(len(thought))]
        assert len(row.completion) > len(thought)
    assert any(possible is None for batch in batches for row in batch for possible in row.allowed)


def test_the_example_thinks_and_acts_through_a_server(run, tmp_path):
    base = save_base(tmp_path / "base")
    with fake_vllm.serving(build_chat_model(build_chat_tokenizer())) as server:
        batches = run(base, f"engine.url={server.url}", *CORRIDOR)
        adapters = [body["lora_name"] for path, body in server.asked if path == "/v1/load_lora_adapter"]
    check_thoughts(batches, base)
    versions = [{row.version for row in batch} for batch in batches]
    assert all(len(each) == 1 for each in versions)
    assert len(adapters) >= len({version for each in versions for version in each})


def test_the_example_thinks_and_calls_tools(run, tmp_path):
    """In this process: the server of the tests knows no grammar."""
    batches = run(save_base(tmp_path / "base"), *CALLS)
    check_thoughts(batches, tmp_path / "base")
    assert any(row.mask.count(True) < len(row.mask) for batch in batches for row in batch)


def test_all_roles_think_and_call_tools(run, tmp_path, monkeypatch):
    """The file of all roles in this process: its policy samples thoughts and calls, and two take their turns."""
    asked = keep_requests(monkeypatch)
    batches = run(save_base(tmp_path / "base"), *CALLS_OF_ALL, *STAGE_1, example=ALL_ROLES)
    check_thoughts(batches, tmp_path / "base")
    rows = [row for batch in batches for row in batch if row.role == "policy"]
    assert any(row.mask.count(True) < len(row.mask) for row in rows)
    assert {*asked} == {"policy", "extractor", "guide", "admission"}
    saved = find(tmp_path / "run")
    versions = {role: torch.load(saved / f"{role}.pt")["version"] for role in sorted(asked)}
    assert versions["policy"] == 2
    assert sum(versions.values()) == len(versions) + 2, versions


def test_all_roles_train_through_a_server(run, tmp_path):
    base = save_base(tmp_path / "base")
    with fake_vllm.serving(build_chat_model(build_chat_tokenizer())) as server:
        url = f"engine.url={server.url}"
        batches = run(base, url, *CORRIDOR, *STAGE_1, example=ALL_ROLES)
        loaded = [body["lora_name"] for path, body in server.asked if path == "/v1/load_lora_adapter"]
    check_thoughts(batches, base)
    assert {name.partition("-")[0] for name in loaded} == {"policy", "extractor", "guide", "admission"}
    assert len(loaded) > 4  # some were trained, and loaded again


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The folder of a base and the URL of a real vLLM server of it."""
    if not PYTHON.exists():
        pytest.skip("no .venv-vllm; make it with: bash tests/vllm/setup.sh")
    folder = tmp_path_factory.mktemp("vllm")
    pretrained = ROOT / "models" / "smollm2"
    # vLLM's attention on the CPU has no kernel for heads of less than 32 numbers
    base = pretrained if (pretrained / "config.json").is_file() else save_base(folder / "base", hidden=128)
    log, port = folder / "server.log", free_port()
    options = (
        f"--model {base} --host 127.0.0.1 --port {port} --max-model-len 4096 --dtype float32 --enforce-eager "
        "--enable-lora --max-lora-rank 16 --max-loras 4 --max-cpu-loras 8 --logprobs-mode processed_logprobs "
        # vLLM 0.32 on a CPU dies of a seeded request whose prompt it reads in parts
        "--structured-outputs-config.backend guidance --no-enable-chunked-prefill"
    )
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *options.split()],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
            start_new_session=True,
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield base, f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(30)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [(), CALLS], ids=["listed", "calls"])
def test_the_example_trains_through_a_real_server(run, served, world):
    base, url = served
    batches = run(base, f"engine.url={url}", *world)
    check_thoughts(batches, base)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [(), CALLS_OF_ALL], ids=["listed", "calls"])
def test_all_roles_train_through_a_real_server(run, served, world):
    base, url = served
    batches = run(base, f"engine.url={url}", *world, *STAGE_1, example=ALL_ROLES)
    check_thoughts(batches, base)
