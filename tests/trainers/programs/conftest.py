"""A program that is an agent of its own, and settings of a run that trains it on a base from a folder."""

import shlex
import sys
from typing import Any

import pytest
from tests.trainers.folder_base import save_base

AGENT = """
import os, sys
import openai

client = openai.OpenAI(max_retries=0)      # its base URL and its key are in the environment
messages = [{"role": "user", "content": f"You are in room {os.environ['HARDWON_SEED']}."}]
texts = []
for question in ("go east", "take coin"):
    answer = client.chat.completions.create(model="gpt-5", messages=messages, max_tokens=8)
    texts.append(answer.choices[0].message.content)
    messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": question}]
client.post("/outcome", body={"outcome": len("".join(texts)) % 2}, cast_to=object)
"""


@pytest.fixture
def base(tmp_path):
    return save_base(tmp_path / "base")


@pytest.fixture
def program(tmp_path, base):
    """Make settings of a run: `program(AGENT, timeout_s=5)`; other sections by their names with `sections`."""

    def make(source: str = AGENT, *, sections: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
        path = tmp_path / "agent.py"
        path.write_text(source, encoding="utf-8")
        command = f"{shlex.quote(sys.executable)} {shlex.quote(str(path))}"
        given: dict[str, Any] = {
            "environment": {"name": "program", "max_steps": 6},
            "program": {"command": command, "timeout_s": 120, **settings},
            "tasks": {"train": {"seeds": "0-7"}, "eval": {"seeds": "90-91"}},
            "explore": {"worlds": {"seeds": "0-1"}},
            "model": {"base": str(base), "adapter": 4, "device": "cpu"},
            "arms": {"control": 4},
            "roles": {"policy": {"learner": {"lr": 0.01}, "credit": {"name": "grpo"}}},
            "eval": {"every": 0},
            "run": {"iterations": 1, "groups": 1, "save_every": 1, "out": str(tmp_path / "run")},
        }
        for name, values in (sections or {}).items():
            given[name] = {**given.get(name, {}), **values}
        return given

    return make


@pytest.fixture
def rollouts(monkeypatch):
    """Collect the rollouts that runs play from now on."""
    from hardwon.trainers.player import Player

    kept: list[Any] = []
    play = Player.play

    async def keep(self, *args, **options):
        played = await play(self, *args, **options)
        kept.extend(played)
        return played

    monkeypatch.setattr(Player, "play", keep)
    return kept
