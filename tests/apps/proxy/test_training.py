"""From a proxy's token file to an update: the tokens of served calls, grades of the library, and a trained policy."""

import asyncio
import contextlib
import json
import threading

import pytest
import torch
from tests.apps.proxy.conftest import TOOLS, wait_for
from tests.trainers.folder_base import build_chat_model, save_base

from hardwon.memory.errors import ConfigError
from hardwon.trainers import train
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.engines.base_models import load_tokenizer
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.player import Player
from hardwon.trainers.programs.gateway import Gateway
from hardwon.trainers.programs.prompts import ProgramPrompts
from hardwon.trainers.programs.run import ProgramRun
from hardwon.trainers.prompting.template import ChatTemplate


@contextlib.contextmanager
def serving_policy(base):
    """Serve a base as the policy of one long episode, and yield its URL and the episode."""
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(base)
    gateway = Gateway(
        LocalEngine(build_chat_model(tokenizer), tokenizer),
        ProgramPrompts(ChatTemplate(tokenizer)),
        max_tokens=12,
        context=None,
    )
    run = ProgramRun(Spec("train", 0), "sk-secret-key", gateway.open_record(), max_calls=1000)
    ready, ending = threading.Event(), threading.Event()

    async def serve():
        gateway.open(run)
        async with gateway.serve():
            ready.set()
            while not ending.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield gateway.url, run
    finally:
        ending.set()
        thread.join(60)


def play(client, task):
    """Play an agent that must call a tool once, and return the id of its episode."""
    messages = [{"role": "user", "content": task}]
    response = client.chat.completions.with_raw_response.create(
        model="m", messages=messages, tools=TOOLS, tool_choice="required", max_tokens=100
    )
    message = response.parse().choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]
    client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
    return response.headers["x-hardwon-episode"]


@pytest.fixture
def recorded(tmp_path, proxied, library):
    """Record four graded episodes of one task through the proxy, and return settings that learn from them."""
    base, file = save_base(tmp_path / "base"), tmp_path / "tokens.jsonl"
    extra = {"logprobs": True, "return_token_ids": True}
    with serving_policy(base) as (url, run):
        client = proxied(url=url, tokens=file, extra_body=extra, outcome="unknown")
        episodes = [play(client, "Refund Ada's order.") for _ in range(4)]
        wait_for(lambda: len(library.episodes.find()) == 4 and len(file.read_text().splitlines()) == 8, 60)
    for number, episode in enumerate(episodes):
        library.grade(episode, success=number % 2 == 0)
    settings = {
        "environment": {"name": "program"},
        "program": {"recorded": str(file), "library": str(tmp_path / "work.db")},
        "tasks": {"train": {"seeds": "0-0"}},
        "model": {"base": str(base), "adapter": 4, "device": "cpu"},
        "arms": {"control": 4},
        "roles": {"policy": {"learner": {"lr": 0.01}, "credit": {"name": "grpo"}}},
        "eval": {"every": 0},
        "run": {"iterations": 2, "groups": 1, "save_every": 1, "out": str(tmp_path / "run")},
    }
    return settings, run


def test_a_token_file_trains_the_policy(recorded, tmp_path, monkeypatch):
    settings, run = recorded
    kept, real = [], Player.play

    async def keep(self, *args, **options):
        kept.append(await real(self, *args, **options))
        return kept[-1]

    monkeypatch.setattr(Player, "play", keep)
    train(settings)
    first = kept[0]
    assert [rollout.trajectory.success for rollout in first] == [True, False, True, False]
    rows = [row for rollout in first for row in rollout.rows]
    assert [row.completion for row in rows] == [call.tokens for call in run.calls], "as they were sampled"
    assert [row.prompt for row in rows] == [call.prompt for call in run.calls]
    assert [any(row.mask) for row in rows] == [False, True] * 4, "a grammar bound the first answer of each episode"
    for row, call in zip(rows, run.calls, strict=True):
        assert row.logprobs == pytest.approx(call.logprobs)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["policy/grad_norm"] > 0 for line in lines if line["kind"] == "train")


def test_tokens_of_another_model_are_refused(recorded, tmp_path):
    settings, _ = recorded
    file = tmp_path / "tokens.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "logprobs": [0.0] * len(line["logprobs"])}) + "\n" for line in lines))
    with pytest.raises(ConfigError, match="another model"):
        train(settings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"program.library": "''"}, "no outcomes"),
        ({"tasks.train.seeds": "0-3"}, "has 1 tasks"),
        ({"program.command": "agent"}, "needs either"),
        ({"eval.every": 2}, "eval.every"),
        ({"program.timeout_s": 3}, "program.command reads"),
    ],
)
def test_settings_of_recorded_episodes(tmp_path, change, words):
    file = tmp_path / "tokens.jsonl"
    request = {"messages": [{"role": "user", "content": "go"}]}
    line = {"episode": "e", "request": request, "message": {"content": "x"}, "finish_reason": "stop"}
    file.write_text(json.dumps({**line, "prompt_token_ids": [1], "token_ids": [2], "logprobs": [-1.0]}) + "\n")
    settings = {
        "environment": {"name": "program"},
        "program": {"recorded": str(file), "library": str(tmp_path / "work.db")},
        "tasks": {"train": {"seeds": "0-0"}},
        "model": {"base": str(save_base(tmp_path / "base")), "adapter": 4, "device": "cpu"},
        "eval": {"every": 0},
        "run": {"iterations": 1, "groups": 1, "out": str(tmp_path / "run")},
    }
    from hardwon.memory import ExperienceLibrary

    ExperienceLibrary.open(tmp_path / "work.db").close()
    with pytest.raises(ConfigError, match=words):
        train(settings, [f"{path}={value}" for path, value in change.items()])


def test_a_file_without_tokens_names_the_option(tmp_path):
    from hardwon.trainers.programs.recorded import read_token_log

    file = tmp_path / "tokens.jsonl"
    file.write_text(json.dumps({"episode": "e", "logprobs": [-1.0]}) + "\n")
    with pytest.raises(ConfigError, match="return_token_ids"):
        read_token_log(file)
