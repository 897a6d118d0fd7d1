"""The engine over a real vLLM server: what the trainer changes, they sample.

They run in an environment of their own, made by `bash tests/vllm/setup.sh`; then
`python -m pytest -m vllm tests/trainers/engines/test_vllm.py`. No GPU, no network, a minute or two.
"""

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.policies.test_chat_vllm import PYTHON, free_port, wait_until_healthy
from tests.trainers.corridor import COLOURS, Corridor

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import AdapterRefused, EngineFailure, UnknownName
from hardwon.runtime import Agent
from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import PackedSequence, Sample, pack_samples
from hardwon.trainers.config.schema import ModelConfig
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.engines.base_models import export
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.engines.server import ServerEngine
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.models.adapters import add_adapter, parameters_of
from hardwon.trainers.models.tiny import build_model, build_tokenizer
from hardwon.trainers.player import Player
from hardwon.trainers.prompting.chat_model import EngineChatModel
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.base import weights_of
from hardwon.trainers.rollouts.rollout import Spec, TokenPolicy, collect
from hardwon.trainers.trainer import train

ROOT = Path(__file__).parents[3]
TEXTS = [f"you are in the {' '.join(COLOURS)} room find the prize go east go west wait eat the apple system user"]
TEMPLATE = "{% for message in messages %}<see> {{ message['content'] }} <end> {% endfor %}<act>"
TOLERANCE = 1e-4
"""Between vLLM's log-probabilities and the local engine's, both in float32."""


@dataclass(frozen=True)
class Trained:
    """A base, and a policy's adapter after two updates by the trainer's Learner, each saved as it was."""

    base: Path
    tokenizer: Any
    prompt: tuple[int, ...]
    actions: tuple[tuple[int, ...], ...]
    taught: tuple[tuple[int, ...], ...]
    """What the prompt was taught to be answered with, by version."""
    folders: tuple[Path, ...]
    """Of the adapters, by version."""
    weights: dict[str, Any]
    """Of the last one, as tensors."""
    too_large: Path
    """An adapter of a rank that is not served."""

    def local(self, version: int) -> LocalEngine:
        """The local engine with the same weights."""
        model = build_model(len(self.tokenizer))
        if version:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(self.folders[version - 1]), adapter_name="policy").eval()
        return LocalEngine(model, self.tokenizer)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = build_tokenizer(TEXTS)
    tokenizer.chat_template = TEMPLATE
    model = build_model(len(tokenizer))
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(str(folder / "base"))

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    prompt = ids("<task> find the prize <see> you are in the red room <act>")
    taught = (ids("go west <end> <end>"), ids("eat the apple <end>"))
    model = add_adapter(model, "policy", 4)
    learner = Learner(model, parameters_of(model, "policy"), LearnerSettings(lr=1e-2), role="policy")
    folders = []
    for version, answer in enumerate(taught, 1):
        for _ in range(40):
            learner.step([_lesson(prompt, answer)], LossSettings(kind="imitation"))
        there = folder / str(version)
        folders.append(export(model, tokenizer, "policy", there, ModelConfig(adapter=4)))
    large = add_adapter(build_model(len(tokenizer)), "policy", 16)
    return Trained(
        folder / "base",
        tokenizer,
        prompt,
        (ids("go east <end>"), ids("go west <end>"), ids("eat the apple <end>"), ids("eat the prize <end>")),
        taught,
        tuple(folders),
        dict(weights_of(model, "policy")),  # type: ignore[arg-type]
        export(large, tokenizer, "policy", folder / "large", ModelConfig(adapter=16)),
    )


def _lesson(prompt: tuple[int, ...], answer: tuple[int, ...]) -> PackedSequence:
    n = len(answer)
    row = Sample(prompt, answer, (0.0,) * n, (True,) * n, (None,) * n, "policy", 0, "", "", "", "t", 0)
    (stream,) = pack_samples([row], {"t": [1.0]})
    return stream


@pytest.fixture(scope="module")
def url(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM server of the base that loads adapters, as long as the tests of this file run."""
    if not PYTHON.exists():
        pytest.skip("no .venv-vllm; make it with: bash tests/vllm/setup.sh")
    log, port = tmp_path_factory.mktemp("vllm") / "server.log", free_port()
    options = f"--model {trained.base} --host 127.0.0.1 --port {port} --served-model-name tiny --max-model-len 1024"
    adapters = "--enable-lora --max-lora-rank 8 --max-loras 2 --max-cpu-loras 4"
    command = f"{PYTHON} -m vllm.entrypoints.openai.api_server {options} --enforce-eager --dtype float32 {adapters}"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command.split(), stdout=output, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
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


def _environment() -> dict[str, str]:
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {**os.environ, **settings, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


@pytest.fixture
def engine(url: str, trained: Trained) -> Iterator[ServerEngine]:
    made = ServerEngine(url, trained.tokenizer)
    yield made
    made.close()


def served(made: Any, requests: list[Request]) -> list[Completion]:
    async def ask() -> list[Completion]:
        return list(await asyncio.gather(*(made.generate(request) for request in requests)))

    return asyncio.run(ask())


def greedy(trained: Trained) -> list[Request]:
    return [Request(trained.prompt, max_tokens=4, temperature=0.0)]


def choices(trained: Trained, number: int = 16) -> list[Request]:
    actions = Trie(trained.actions)
    return [Request(trained.prompt, allowed=actions, chance=random.Random(n)) for n in range(number)]


def agree(found: list[Completion], expected: list[Completion]) -> None:
    for theirs, ours in zip(found, expected, strict=True):
        assert (theirs.tokens, theirs.mask, theirs.allowed) == (ours.tokens, ours.mask, ours.allowed)
        assert theirs.logprobs == pytest.approx(ours.logprobs, abs=TOLERANCE)


# -- a server ---------------------------------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_an_update_by_the_trainer_changes_what_the_server_samples(engine, trained):
    """systems.md §5: an adapter updated by the Learner is what is sampled, under the version on the completion."""
    seen = []
    for version in (0, 1, 2):
        if version:
            engine.load_adapter("policy", version, trained.folders[version - 1])
        (said,) = served(engine, greedy(trained))
        agree([said], served(trained.local(version), greedy(trained)))
        seen.append((said.version, said.tokens))
    (_, untaught), *after = seen
    assert untaught not in trained.taught
    assert after == [(1, trained.taught[0]), (2, trained.taught[1])]


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [0, 2])
def test_choices_are_the_local_engines_for_the_same_adapter(engine, trained, version):
    """Exact among the allowed tokens: the same chance draws the same actions."""
    if version:
        engine.load_adapter("policy", version, trained.folders[version - 1])
    found = served(engine, choices(trained))
    agree(found, served(trained.local(version), choices(trained)))
    assert {said.version for said in found} == {version}
    assert len({said.tokens for said in found}) > 1 or version


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_logprobs_of_streams_are_the_local_engines(engine, trained):
    engine.load_adapter("policy", 1, trained.folders[0])
    said = served(engine, [*choices(trained, 4), *greedy(trained)])
    rows = [
        Sample(trained.prompt, one.tokens, one.logprobs, one.mask, one.allowed, "policy", 1, "", "", "", f"{n}", 0)
        for n, one in enumerate(said)
    ]
    parts = pack_samples(rows, {row.trace: [1.0] for row in rows})
    here = asyncio.run(trained.local(1).logprobs(parts, "policy"))
    there = asyncio.run(engine.logprobs(parts, "policy"))
    for stream, ours, theirs in zip(parts, here, there, strict=True):
        assert theirs == pytest.approx(ours, abs=TOLERANCE)
        assert theirs == pytest.approx(stream.logprobs, abs=TOLERANCE)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_requests_that_run_during_an_update_keep_their_version(engine, trained):
    """Their answers are the old weights', later ones the new ones'; then the old adapter is gone."""
    engine.load_adapter("policy", 1, trained.folders[0])
    long = [Request(trained.prompt, max_tokens=500, temperature=0.0) for _ in range(4)]

    async def swap() -> list[Completion]:
        running = [asyncio.create_task(engine.generate(request)) for request in long]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.load_adapter, "policy", 2, trained.weights)  # tensors, as a role has them
        assert not any(task.done() for task in running)
        new = await engine.generate(greedy(trained)[0])
        return [*await asyncio.gather(*running), new]

    *old, new = asyncio.run(swap())
    assert {(said.version, said.tokens[:4]) for said in old} == {(1, trained.taught[0])}
    assert (new.version, new.tokens) == (2, trained.taught[1])
    asyncio.run(asyncio.sleep(0.5))
    loaded = [model["id"] for model in httpx.get(f"{engine.base_url}/models").json()["data"]]
    assert not [name for name in loaded if name.startswith("policy-v1-")]


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_rollouts_through_the_runtime_carry_the_version(engine, trained):
    """Episodes side by side; every row is of the version that the server sampled under."""
    prompts = CompactFormat(trained.tokenizer)
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(TokenPolicy(engine, prompts), library, Corridor(), learn=False, max_steps=4)
        versions = []
        for version in (1, 2):
            engine.load_adapter("policy", version, trained.folders[version - 1])
            specs = [Spec("train", seed, salt=str(version)) for seed in range(4)]
            rollouts = asyncio.run(collect({"control": agent}, engine, specs))
            assert not any(rollout.failed for rollout in rollouts)
            rows = [row for rollout in rollouts for row in rollout.rows]
            versions.append({row.version for row in rows})
            parts = pack_samples(rows, {rollout.trajectory.id: [1.0] * len(rollout.rows) for rollout in rollouts})
            for ours, stream in zip(asyncio.run(trained.local(version).logprobs(parts, "policy")), parts, strict=True):
                assert ours == pytest.approx(stream.logprobs, abs=TOLERANCE)
        agent.close()
    assert versions == [{1}, {2}]


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_run_trains_what_the_server_samples(url, trained, corridor, monkeypatch):
    """`train` with engine.url: what it updates is sampled by the server, under the version on the rows."""
    played: list[list[PackedSequence]] = []
    play, weights = Player.play, list[dict[str, Any]]()

    async def watched(self: Player, *worlds: Any, **how: Any) -> Any:
        rollouts = await play(self, *worlds, **how)
        rows = [row for rollout in rollouts for row in rollout.rows]
        played.append(pack_samples(rows, {rollout.trajectory.id: [1.0] * len(rollout.rows) for rollout in rollouts}))
        now: Any = self._session.roles["policy"].weights()
        weights.append({name: value.clone() for name, value in now.items()})
        return rollouts

    monkeypatch.setattr(Player, "play", watched)
    settings = corridor(
        model={"base": str(trained.base), "adapter": 4, "prompt": "compact"},
        engine={"url": url},
        arms={"control": 3},
        warmstart=None,
        roles={"policy": {"learner": {"lr": 0.05}, "loss": {"entropy": 0.01}}},
        run={"iterations": 3, "rerolls": 0},
    )
    train(settings)
    assert [{stream.version for stream in parts} for parts in played] == [{1}, {2}, {3}]
    local = LocalEngine(add_adapter(build_model(len(trained.tokenizer)), "policy", 4), trained.tokenizer)
    for version, (parts, then) in enumerate(zip(played, weights, strict=True), 1):
        local.load_adapter("policy", version, then)
        for ours, stream in zip(asyncio.run(local.logprobs(parts, "policy")), parts, strict=True):
            assert ours == pytest.approx(stream.logprobs, abs=TOLERANCE)
    stale = asyncio.run(local.logprobs(played[0], "policy"))  # under the last weights: not what was sampled first
    pairs = [
        pair for ours, part in zip(stale, played[0], strict=True) for pair in zip(ours, part.logprobs, strict=True)
    ]
    assert max(abs(ours - theirs) for ours, theirs in pairs) > 100 * TOLERANCE


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_trained_adapter_acts_as_a_chat_model(engine, trained):
    engine.load_adapter("policy", 2, trained.folders[1])
    answer = EngineChatModel(engine=engine, seed=0, max_tokens=8).bind(only=["go west", "eat the apple"]).invoke("you")
    assert answer.text in ("go west", "eat the apple")
    assert answer.response_metadata["version"] == 2


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_what_the_server_refuses_is_told(engine, trained, tmp_path):
    with pytest.raises(AdapterRefused, match="--max-lora-rank"):
        engine.load_adapter("policy", 9, trained.too_large)
    with pytest.raises(EngineFailure, match=r"refused with status 400: .*1024"):
        served(engine, [Request((5,) * 1100)])
    other = ServerEngine(engine.base_url, trained.tokenizer, model="tinny")
    with pytest.raises(UnknownName, match="Did you mean 'tiny'"):
        served(other, greedy(trained))
    other.close()
    (said,) = served(engine, greedy(trained))
    assert said.version == 0


def _read(said: Any) -> Completion:
    allowed = tuple(None if ids is None else tuple(ids) for ids in said["allowed"])
    return Completion(tuple(said["tokens"]), tuple(said["logprobs"]), tuple(said["mask"]), allowed, said["version"])


def _heated(local: LocalEngine, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> list[float]:
    """Log-probabilities at temperature 2 by one forward pass."""
    import torch

    with torch.inference_mode():
        logits = local.model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    rows = torch.log_softmax(logits / 2.0, -1)
    return [float(rows[at, token]) for at, token in enumerate(tokens)]
