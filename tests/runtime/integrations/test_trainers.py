"""Environments for TRL and verifiers, and those of TRL here. The packages are used if they are installed."""

import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.corridor import Corridor

from hardwon.memory.errors import ConfigError
from hardwon.runtime.integrations.text_episode import TextEpisode
from hardwon.runtime.integrations.trl import build_trl_factory, open_trl_environment

CORRIDOR = "tests.trainers.corridor:Corridor"


def test_an_episode_is_text():
    episode = TextEpisode(Corridor(), max_steps=9)
    text = episode.begin("", seed=0)
    assert "blue room" in text
    assert "go west" in text
    assert "find the prize" in episode.rules
    assert "names no action" in episode.answer("I do not know.")
    last = episode.answer("2")  # the actions are listed in order: go east, go west, wait
    assert (episode.is_over, episode.success, episode.score) == (True, True, 1.0)
    assert last
    with pytest.raises(ConfigError, match="over"):
        episode.answer("1")
    assert [step.action for step in episode.steps] == ["go west"]


def test_an_episode_ends_at_its_limit_also_if_nothing_is_an_action():
    episode = TextEpisode(Corridor(), max_steps=2)
    episode.begin()
    episode.answer("hm")
    episode.answer("hm")
    assert (episode.is_over, episode.score) == (True, 0.0)


def test_the_factory_has_the_form_of_trl():
    """TRL takes every public method but `reset` and `get_reward` for a tool, and needs types and descriptions."""
    instance = build_trl_factory(CORRIDOR, max_steps=4)()
    public = {name for name, _ in inspect.getmembers(type(instance), inspect.isfunction) if name[0] != "_"}
    assert public == {"reset", "act", "get_reward"}
    assert "blue room" in instance.reset(prompt=[], task="", seed=0, other=1)
    assert "is over" in instance.act("go west")
    assert instance.get_reward() == 1.0
    assert "is over" in instance.act("go west")
    instance.reset(seed=3)
    assert instance.get_reward() == 0.0


class Counter:
    """A TRL environment: count to the number of the row."""

    def reset(self, goal, **columns):
        self.goal, self.count = goal, 0

    def add(self, number: int) -> str:
        """Add to the count.

        Args:
            number: What to add.
        """
        self.count += number
        return str(self.count)

    def get_reward(self) -> float:
        return float(self.count == self.goal)


def test_an_environment_of_trl_can_be_played_here():
    environment = open_trl_environment(Counter, [{"prompt": "Count to 3.", "goal": 3}, {"goal": 5}])
    for seed, score in ((0, 1.0), (1, 0.0)):
        environment.reset("Count.", seed)
        environment.step("add(number=1)")
        environment.step("add(number=2)")
        _, reward, done, info = environment.step('finish(answer="done")')
        assert (reward, done, info["success"]) == (score, True, score == 1.0)
    environment.close()


TRAIN = """
import sys, torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from tests.trainers.folder_base import build_chat_tokenizer, build_chat_model
from hardwon.runtime.integrations.trl import build_trl_factory

torch.manual_seed(0)
tokenizer = build_chat_tokenizer(qwen3_chat_template, more=("<tool_call>", "</tool_call>", "<think>", "</think>"))
model = build_chat_model(tokenizer)
rows = [{"prompt": [{"role": "user", "content": "Play."}], "task": "", "seed": seed} for seed in range(2)]
config = GRPOConfig(sys.argv[1], max_steps=1, per_device_train_batch_size=2, num_generations=2, use_cpu=True,
                    max_completion_length=8, report_to=[], save_strategy="no", bf16=False)
trainer = GRPOTrainer(model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
                      environment_factory=build_trl_factory("tests.trainers.corridor:Corridor", max_steps=4))
trainer.train()
assert [tool.__name__ for tool in trainer.tools] == ["act"], trainer.tools
assert "HardwonEnv" in trainer.reward_func_names
"""


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed")
def test_trl_trains_in_our_environment(tmp_path):
    ran = subprocess.run([sys.executable, "-c", TRAIN, str(tmp_path)], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="verifiers is not installed")
def test_verifiers_plays_our_environment(tmp_path, monkeypatch):
    import asyncio

    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import environment_class, load_taskset

    from hardwon.runtime.integrations.verifiers import HardwonConfig, HardwonTaskset, HardwonVerifiersEnv

    (tmp_path / "own_games.py").write_text(
        "from hardwon.runtime.integrations.verifiers import *\n"
        "from hardwon.runtime.integrations.verifiers import __all__\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    taskset = load_taskset(HardwonConfig(id="own_games", environment=CORRIDOR, seeds=3, max_steps=4))
    assert isinstance(taskset, HardwonTaskset)
    assert environment_class("own_games") is HardwonVerifiersEnv
    tasks = list(taskset)
    assert [task.data.seed for task in tasks] == [0, 1, 2]
    assert "blue room" in tasks[0].data.prompt

    class Interaction:
        """Answers as the seat of verifiers does."""

        def __init__(self):
            self.turns, self.trace = [], self
            self.rewards = {}

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        def record_reward(self, name, value, weight):
            self.rewards[name] = value

        async def turn(self, text=None):
            self.turns.append(text)
            return type("Segment", (), {"terminated": False, "last_reply": "go west"})()

    interaction = Interaction()
    agents = type("Agents", (), {"player": type("P", (), {"interaction": lambda self, task: interaction})()})()
    environment: Any = None
    asyncio.run(HardwonVerifiersEnv.run(environment, tasks[1], agents))
    assert interaction.rewards == {"score": 1.0}
    assert len(interaction.turns) == 2
    assert issubclass(HardwonVerifiersEnv, vf.Env)


VF_EVAL = """#!{python}
import json, pathlib, sys
folder = pathlib.Path("outputs/run")
folder.mkdir(parents=True)
rewards = {{"score": {{"score": 0.5, "weight": 2.0}}, "form": {{"score": 1.0, "weight": 0.25}}}}
trace = {{"ok": "wrong" not in sys.argv, "rewards": rewards}}
(folder / "traces.jsonl").write_text(json.dumps({{"arguments": sys.argv[1:], "traces": [trace]}}))
"""


def find_block(language, word):
    """Return the one block of the page that has a word."""
    page = (Path(__file__).parents[3] / "docs" / "trainers.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S) if word in text]
    return block


LETTERS = """
import verifiers.v1 as vf

class LettersTaskset(vf.Taskset[vf.Task[vf.TaskData, vf.State, vf.TaskConfig], vf.TasksetConfig]):
    def load(self):
        yield self.task_type(vf.TaskData(name="one", prompt="Write."), self.config.task)

__all__ = ["LettersTaskset"]
"""


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="verifiers is not installed")
@pytest.mark.parametrize(("taskset", "seat"), [("games", "player"), ("letters", "agent")])
def test_verifiers_takes_the_settings_of_the_page(taskset, seat, tmp_path, monkeypatch):
    """The seat of a game has its own name; an environment without a seat of its own has the usual one."""
    from verifiers.v1.cli.eval.main import main

    (tmp_path / "games.py").write_text(find_block("py", "HardwonVerifiersEnv"))
    (tmp_path / "letters.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if taskset == "games":
        command = find_block("console", "vf-eval games").replace("\\\n", "")
        words = shlex.split(command)[2:]  # after the prompt and the name
    else:
        ran: list[list[str]] = []
        monkeypatch.setattr(subprocess, "run", lambda command, **options: ran.append(command))
        monkeypatch.setenv("HARDWON_SEED", "0")
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
        with pytest.raises(ValueError, match="not enough values"):  # nothing ran, so there is no trace
            exec(compile(find_block("py", "vf-eval"), "verifiers_program.py", "exec"), {"__name__": "__main__"})
        words = [word.replace("your_environment", taskset) for word in ran[0][1:]]
    main([*words, "--dry-run", "--output-dir", str(tmp_path / "out")])
    (written,) = tmp_path.glob("out/**/eval.json")
    assert json.loads(written.read_text())["env"][seat]["harness"]["id"] == "null"


@pytest.mark.parametrize("seed", ["3", "wrong"])
def test_the_program_of_the_page_reports_the_reward_of_verifiers(seed, tmp_path, monkeypatch):
    """With a stand-in for `vf-eval`, which writes the file that verifiers 0.4 writes."""
    openai = pytest.importorskip("openai")
    program = find_block("py", "vf-eval")
    (tmp_path / "vf-eval").write_text(VF_EVAL.format(python=sys.executable))
    (tmp_path / "vf-eval").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HARDWON_SEED", seed)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    reports: list[Any] = []
    monkeypatch.setattr(openai.OpenAI, "post", lambda self, path, *, body, cast_to: reports.append((path, body)))
    if seed == "wrong":
        with pytest.raises(SystemExit, match="the rollout failed"):
            exec(compile(program, "verifiers_program.py", "exec"), {"__name__": "__main__"})
        assert reports == [], "an episode that broke is no zero"
        return
    exec(compile(program, "verifiers_program.py", "exec"), {"__name__": "__main__"})
    assert reports == [("/outcome", {"outcome": 1.25})]
