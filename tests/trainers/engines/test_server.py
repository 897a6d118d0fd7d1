"""The engine over a vLLM server, against a fake one that a tiny model answers for."""

import asyncio
import gzip
import json
import pickle
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.clients.misbehaving import http, misbehaving
from tests.trainers.fake_vllm import MODEL, SHAPE, FakeVllm, logits_of, serving

from hardwon.memory.errors import (
    AdapterRefused,
    ConfigError,
    EngineFailure,
    EngineUnreachable,
    HardwonError,
    UnknownName,
)
from hardwon.trainers.algorithms.samples import Sample, pack_samples
from hardwon.trainers.engines import server, vllm_client
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.engines.served_weights import write_adapter
from hardwon.trainers.engines.server import ServerEngine
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.models.adapters import add_adapter
from hardwon.trainers.models.tiny import build_model
from hardwon.trainers.roles.base import weights_of

TRIE = Trie([(10, 11, 2), (10, 12, 13, 2), (14, 2)])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVllm]:
    monkeypatch.setattr(vllm_client, "PAUSE_S", 0.0)
    with serving() as made:
        yield made


@pytest.fixture
def engine(fake: FakeVllm) -> Iterator[ServerEngine]:
    made = ServerEngine(fake.url, None, roles=("policy", "extractor"))
    yield made
    made.close()


def served(made, requests):
    async def ask():
        return await asyncio.gather(*(made.generate(request) for request in requests))

    return asyncio.run(ask())


def adapter(folder: Path, seed: int = 0) -> Path:
    """A peft folder."""
    model = add_adapter(build_model(200, SHAPE), "policy", 4, seed=seed)
    weights: Any = weights_of(model, "policy")
    return write_adapter(weights, folder)


def completions(fake: FakeVllm) -> list[dict[str, Any]]:
    return [body for path, body in fake.asked if path == "/v1/completions"]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_choices_are_those_of_the_local_engine(engine, temperature):
    """The same chance, the same tokens, masks and allowed sets; log-probabilities to 1e-5."""
    asked = [
        [Request((5, n), allowed=TRIE, temperature=temperature, chance=random.Random(n)) for n in range(8)]
        for _ in range(2)
    ]
    here, there = served(LocalEngine(MODEL, None), asked[0]), served(engine, asked[1])
    assert len({one.tokens for one in here}) > (temperature > 0)
    for ours, theirs in zip(here, there, strict=True):
        assert (ours.tokens, ours.mask, ours.allowed) == (theirs.tokens, theirs.mask, theirs.allowed)
        assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-5)


def test_greedy_takes_the_answer_with_the_highest_sum_not_the_likeliest_first_token(fake, engine, monkeypatch):
    """All places at which answers part are asked for, each with the same prompt before it."""
    logprobs = {(5,): {10: -0.5, 14: -1.0}, (5, 10): {11: -0.7, 12: -0.7}}

    async def score(self, adapter, prompt, ids):
        asked.append(prompt)
        return [logprobs[prompt][token] for token in ids]

    asked: list[Any] = []
    monkeypatch.setattr(vllm_client.VllmClient, "score", score)
    (one,) = served(engine, [Request((5,), allowed=TRIE, temperature=0.0)])
    assert sorted(asked) == [(5,), (5, 10)]
    assert one.tokens == (14, 2)
    assert one.mask == (True, False)
    monkeypatch.setattr(server, "MAX_PLACES", 1)
    (other,) = served(engine, [Request((5,), allowed=TRIE, temperature=0.0)])
    assert other.tokens[0] == 10


def test_only_real_branches_are_asked_for(engine, fake):
    """A sole action costs no request; one with two branches two, each of what was said so far."""
    served(engine, [Request((5,), allowed=Trie([(10, 11, 2)]))])
    assert not completions(fake)
    (one,) = served(engine, [Request((5,), allowed=Trie([(10, 11, 2), (10, 12, 2)]))])
    (asked,) = completions(fake)
    assert (asked["prompt"], asked["logprob_token_ids"], one.mask) == ([5, 10], [11, 12], (False, True, False))


def test_many_allowed_tokens_are_asked_for_in_parts(engine, fake):
    wide = Trie([(token, 2) for token in range(3, 200)])
    (ours,) = served(LocalEngine(MODEL, None), [Request((5,), allowed=wide, chance=random.Random(0))])
    (theirs,) = served(engine, [Request((5,), allowed=wide, chance=random.Random(0))])
    assert sorted(len(body["logprob_token_ids"]) for body in completions(fake)) == [69, 128]
    assert (theirs.tokens, theirs.logprobs) == (ours.tokens, pytest.approx(ours.logprobs, abs=1e-5))


def test_free_completions_are_the_servers_tokens(engine, fake):
    """Token ids and log-probabilities as told, under a seed that chance gives; defaults bend nothing."""
    (one,) = served(engine, [Request((5,), max_tokens=7, stop=(2,), chance=random.Random(3))])
    (asked,) = completions(fake)
    assert (len(one.tokens), set(one.mask), set(one.allowed), one.version) == (7, {True}, {None}, 0)
    assert asked["seed"] == random.Random(3).randrange(2**31)
    assert (asked["top_p"], asked["top_k"], asked["stop_token_ids"], asked["ignore_eos"]) == (1.0, 0, [2], True)


def test_another_temperature_needs_a_server_that_tells_it(engine, fake):
    """Log-probabilities at temperature 1 are not those of what was sampled."""
    hot = Request((5,), max_tokens=3, temperature=2.0)
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        served(engine, [hot])
    fake.processed, other = True, ServerEngine(fake.url, None)
    (one,) = served(other, [hot])
    other.close()
    expected = torch.log_softmax(logits_of((5,))[-1] / 2.0, -1)[one.tokens[0]]
    assert one.logprobs[0] == pytest.approx(float(expected), abs=1e-5)


def test_logprobs_of_streams_are_those_of_the_local_engine(engine):
    """Bound and free tokens, in one stream each."""
    local = LocalEngine(MODEL, None)
    asked = [Request((5, 6), allowed=TRIE, chance=random.Random(2)), Request((5,), max_tokens=4)]
    rows = [
        Sample(request.prompt, said.tokens, said.logprobs, said.mask, said.allowed, "policy", 0, "", "", "", f"{n}", 0)
        for n, (request, said) in enumerate(zip(asked, served(local, asked), strict=True))
    ]
    parts = pack_samples(rows, {"0": [1.0], "1": [1.0]})
    here, there = asyncio.run(local.logprobs(parts, "policy")), asyncio.run(engine.logprobs(parts, "policy"))
    for ours, theirs in zip(here, there, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-5)


def test_an_adapter_is_asked_for_under_its_version(engine, fake, tmp_path):
    engine.load_adapter("policy", 3, adapter(tmp_path / "three"))
    policy, extractor = served(engine, [Request((5,), role, max_tokens=1) for role in ("policy", "extractor")])
    (name,) = fake.adapters
    assert name.startswith("policy-v3-")
    assert (policy.version, extractor.version, engine.versions()) == (3, 0, {"policy": 3, "extractor": 0})
    assert sorted(body["model"] for body in completions(fake)) == sorted([name, "tiny"])


def test_other_weights_of_the_same_version_have_another_name(engine, fake, tmp_path):
    """vLLM's prefix cache goes by name and folder: what it holds of a run before must not be met."""
    engine.load_adapter("policy", 1, adapter(tmp_path / "a", seed=1))
    (before,) = fake.adapters
    engine.load_adapter("policy", 1, adapter(tmp_path / "a", seed=2))
    (after,) = fake.adapters
    assert before != after


def test_an_adapter_that_is_there_already_is_taken_as_it_is(engine, fake, tmp_path):
    """A run that goes on finds what it loaded before it was stopped."""
    engine.load_adapter("policy", 1, adapter(tmp_path))
    again = ServerEngine(fake.url, None)
    again.load_adapter("policy", 1, tmp_path)
    again.close()
    assert len(fake.adapters) == 1


def test_running_requests_keep_their_version_and_then_it_goes(engine, fake, tmp_path):
    """The old adapter is unloaded when its last request is done, not before."""
    engine.load_adapter("policy", 1, adapter(tmp_path / "a", seed=1))
    fake.hold = threading.Event()

    async def swap():
        running = asyncio.create_task(engine.generate(Request((5,), allowed=TRIE)))
        while not completions(fake):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.load_adapter, "policy", 2, adapter(tmp_path / "b", seed=2))
        both = len(fake.adapters)
        fake.hold.set()
        return both, (await running).version, (await engine.generate(Request((5,), max_tokens=1))).version

    assert asyncio.run(swap()) == (2, 1, 2)
    engine.close()
    assert [name[:9] for name in fake.adapters] == ["policy-v2"]


def test_held_weights_stay_loaded_for_the_engines_of_other_processes(engine, fake, tmp_path):
    engine.load_adapter("policy", 1, adapter(tmp_path / "a", seed=1))
    held = engine.hold()
    other = ServerEngine(fake.url, None, roles=("policy",))
    given = pickle.loads(pickle.dumps(held))
    engine.load_adapter("policy", 2, adapter(tmp_path / "b", seed=2))
    made = asyncio.run(other.generate(Request((5,), max_tokens=1), given["policy"]))
    assert (made.version, completions(fake)[-1]["model"][:9]) == (1, "policy-v1")
    assert asyncio.run(engine.generate(Request((5,), max_tokens=1))).version == 2
    assert [name[:9] for name in fake.adapters] == ["policy-v1", "policy-v2"]
    engine.release(held)
    other.close()
    engine.close()
    assert [name[:9] for name in fake.adapters] == ["policy-v2"]


def test_tensors_are_written_for_the_server_to_read(engine, fake):
    """What a role hands over, as it is; the folder is peft's."""
    from peft import PeftModel

    model = add_adapter(build_model(200, SHAPE), "policy", 4, seed=5)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, generator=torch.Generator().manual_seed(0))
    engine.load_adapter("policy", 1, weights_of(model, "policy"))
    (folder,) = fake.adapters.values()
    read = PeftModel.from_pretrained(build_model(200, SHAPE), folder)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.allclose(read(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-6)


def test_all_parameters_of_a_model_cannot_be_swapped(engine):
    with pytest.raises(ConfigError, match="vLLM serves LoRA adapters"):
        engine.load_adapter("policy", 1, MODEL.state_dict())


def test_a_folder_without_an_adapter_is_refused(engine, tmp_path):
    with pytest.raises(ConfigError, match=r"no adapter_config\.json"):
        engine.load_adapter("policy", 1, tmp_path)


def test_what_the_server_says_of_an_adapter_is_told(engine, fake, tmp_path):
    """The version stays what it was."""
    fake.faults = [(400, {"error": {"message": "LoRA rank 4 is greater than max_lora_rank 2."}})]
    with pytest.raises(AdapterRefused, match=r"rank 4 is greater .* --max-lora-rank"):
        engine.load_adapter("policy", 1, adapter(tmp_path))
    assert engine.versions()["policy"] == 0


def test_a_server_that_may_not_load_adapters_says_how_to_start_it(engine, fake, tmp_path):
    fake.faults = [(404, {"detail": "Not Found"})]
    with pytest.raises(AdapterRefused, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
        engine.load_adapter("policy", 1, adapter(tmp_path))


def test_a_server_that_is_not_there_is_named(fake):
    made = ServerEngine("http://127.0.0.1:9/v1", None, model="tiny")
    with pytest.raises(EngineUnreachable, match=r"http://127.0.0.1:9/v1 cannot be reached .* 5 attempts"):
        served(made, [Request((5,))])
    made.close()


def test_a_busy_server_is_asked_again(engine, fake):
    engine._client._model, fake.faults = "tiny", [(503, "busy"), (429, "later")]
    (one,) = served(engine, [Request((5,), max_tokens=2)])
    assert (len(one.tokens), len(completions(fake))) == (2, 3)


def test_a_model_that_the_server_does_not_have_is_named_with_those_it_has(fake):
    made = ServerEngine(fake.url, None, model="tinny")
    with pytest.raises(UnknownName, match=r"unknown model of http.*'tinny'. Did you mean 'tiny'"):
        served(made, [Request((5,))])
    made.close()


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ((401, {"error": "Unauthorized"}), ConfigError, "api_key"),
        ((400, {"error": {"message": "prompt is too long"}}), EngineFailure, "prompt is too long"),
        ((404, {"detail": "Not Found"}), EngineFailure, "with /v1"),
        ((200, "<html>hello"), EngineFailure, "with /v1"),
    ],
)
def test_what_is_refused_is_told_once(engine, fake, fault, kind, says):
    engine._model, fake.faults = "tiny", [fault]
    with pytest.raises(kind, match=says):
        served(engine, [Request((5,))])
    assert len(fake.asked) == 1


def test_a_server_too_old_to_tell_chosen_tokens_is_named(engine, fake):
    fake.knows_scores = False
    with pytest.raises(EngineFailure, match=r"vLLM 0.32 or newer"):
        served(engine, [Request((5,), allowed=TRIE)])


def test_the_key_is_sent(fake):
    made = ServerEngine(fake.url, None, api_key="secret")
    assert made._client.headers["Authorization"] == "Bearer secret"
    made.close()


def test_it_serves_one_event_loop_after_another(engine):
    """A policy that does not await asks from a loop of its own every time."""
    asked = [Request((5,), max_tokens=2, temperature=0.0) for _ in range(2)]
    assert served(engine, asked[:1]) == served(engine, asked[1:])


@pytest.mark.parametrize(
    ("request_", "says"), [(Request((5,), "guide"), "role 'guide'"), (Request(()), "at least one token")]
)
def test_what_cannot_be_served_is_refused(engine, request_, says):
    with pytest.raises(ConfigError, match=says):
        served(engine, [request_])


def reply(status: int, content: bytes, **headers: str) -> bytes:
    return bytes(http(status, content, **{"Content_Type": "application/json", **headers}))


def choice(**fields: Any) -> bytes:
    logprobs = {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:10": -0.5, "token_id:14": -1.0}]}
    return reply(200, json.dumps({"choices": [{"token_ids": [10], "logprobs": logprobs, **fields}]}).encode())


DEEP = b"[" * 200_000 + b"]" * 200_000
ANSWERS = {
    "html": reply(200, b"<html>Log in</html>", Content_Type="text/html"),
    "redirect": reply(307, b'{"choices": []}', Location="http://127.0.0.1:9/"),
    "no content": b"HTTP/1.1 204 X\r\nConnection: close\r\n\r\n",
    "empty": reply(200, b""),
    "list": reply(200, b"[1]"),
    "other fields": reply(200, b'{"message": "hello"}'),
    "no choices": reply(200, b'{"choices": [], "data": []}'),
    "null": reply(200, b'{"choices": null, "data": null}'),
    "words": reply(200, b'{"choices": "abc", "data": "abc"}'),
    "deep": reply(200, DEEP),
    "deep error": reply(500, DEEP),
    "torn": reply(200, b'{"choices": [')[:-3],
    "gzip": reply(200, gzip.compress(b" " * 1_000_000), Content_Encoding="gzip"),
    "huge": reply(200, b" " * 300_000),
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "NaN": choice(logprobs={"token_logprobs": [float("nan")], "top_logprobs": [{"token_id:10": float("nan")}]}),
    "word for a number": choice(token_ids=["ten"]),
    "no logprobs": choice(logprobs=None, prompt_logprobs=None),
    "fewer logprobs": choice(token_ids=[10, 11], prompt_logprobs=[None], logprobs={"token_logprobs": [-1.0]}),
    **{
        f"wait {text}": reply(429, b"{}", Retry_After=text)
        for text in ("Wed, 21 Oct 2099 07:28:00 GMT", "1e9", "-5", "nan")
    },
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_client, "PAUSE_S", 0.0)
    monkeypatch.setattr(vllm_client, "MOST_BYTES", 250_000)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_something_else_is_an_error_that_names_the_server(name, short, tmp_path):
    with misbehaving(ANSWERS[name]) as url:
        for model in ("tiny", None):
            made = ServerEngine(url, None, model=model)
            rows = [Sample((1,), (2, 3), (0.0, 0.0), (True, True), (None, None), "policy", 0, "", "", "", "0", 0)]
            stream = pack_samples(rows, {"0": [1.0]})[0]
            for call in (
                lambda made=made: served(made, [Request((5,), max_tokens=1)]),
                lambda made=made: served(made, [Request((5,), allowed=TRIE)]),
                lambda made=made, stream=stream: asyncio.run(made.logprobs([stream], "policy")),
                lambda made=made: made.load_adapter("policy", 1, adapter(tmp_path / "adapter")),
            ):
                with pytest.raises(HardwonError, match=url):
                    call()
            made.close()


def test_an_answer_that_comes_slowly_ends_in_time():
    content = reply(200, b" " * 2_000)
    with misbehaving([content[at : at + 1] for at in range(len(content))]) as url:
        made = ServerEngine(url, None, model="tiny", timeout_s=0.1)
        with pytest.raises(EngineUnreachable, match=f"{url} did not answer within"):
            served(made, [Request((5,))])
        made.close()
