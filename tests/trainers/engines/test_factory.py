"""The engine of the settings: where a run generates, and under which version."""

from pathlib import Path
from typing import Any

import pytest
from tests.trainers.corridor import COLOURS
from tests.trainers.fake_vllm import MODEL, serving

from hardwon.memory.errors import ConfigError
from hardwon.trainers import metrics, train
from hardwon.trainers.models.tiny import SPECIAL, build_tokenizer
from hardwon.trainers.player import Player


@pytest.fixture
def base(tmp_path: Path) -> str:
    """A folder with the model that the fake server has, and a tokenizer of the corridor's words."""
    folder = tmp_path / "base"
    MODEL.save_pretrained(folder)
    words = f"you are in the {' '.join(COLOURS)} room find the prize go east go west wait : ."
    build_tokenizer([words]).save_pretrained(str(folder))
    return str(folder)


def test_a_server_generates_under_the_version_that_was_pushed_to_it(corridor, base, monkeypatch):
    """Adapters are pushed after every update by version, and the rows say under which they were sampled."""
    versions: list[set[int]] = []
    play = Player.play

    async def watched(self: Player, *worlds: Any, **how: Any) -> Any:
        rollouts = await play(self, *worlds, **how)
        versions.append({row.version for rollout in rollouts for row in rollout.rows})
        return rollouts

    monkeypatch.setattr(Player, "play", watched)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with serving() as fake:
        settings = corridor(
            model={"base": base, "adapter": 4, "prompt": "compact"},
            engine={"url": fake.url},
            arms={"control": 2},
            warmstart=None,
            roles={"policy": {"learner": {"lr": 0.01}, "loss": {"entropy": 0.01}}},
            run={"iterations": 2, "rerolls": 0, "groups": 2},
        )
        report = train(settings)
        sampled = list(dict.fromkeys(body["model"] for path, body in fake.asked if path == "/v1/completions"))
        pushed = [body["lora_name"] for path, body in fake.asked if path == "/v1/load_lora_adapter"]
    assert fake.keys == {"Bearer secret"}
    assert versions == [{1}, {2}]
    assert [name.split("-")[:2] for name in sampled] == [["policy", "v1"], ["policy", "v2"]]
    assert [name.split("-")[1] for name in pushed] == ["v1", "v2", "v3"]
    assert len({name.split("-")[2] for name in pushed}) == 3
    assert all(line["tokens_per_second"] > 0 for line in metrics.read(Path(report.out)))


def test_a_run_goes_on_with_another_engine(corridor, base, monkeypatch):
    """Where it generates is no part of what a run is."""
    settings = corridor(
        model={"base": base, "adapter": 4, "prompt": "compact"},
        arms={"control": 2},
        warmstart=None,
        run={"iterations": 1, "groups": 1},
    )
    train(settings)
    with serving() as fake:
        report = train(settings, ["run.iterations=2", f"engine.url={fake.url}"], resume=True, quiet=True)
        assert [path for path, _ in fake.asked if path == "/v1/load_lora_adapter"]
    assert report.iterations == 2


def test_a_base_without_the_words_that_mark_a_transcript_is_written_to_be_served(corridor, base, tmp_path):
    """The server's would not know their ids."""
    from transformers import PreTrainedTokenizerFast

    plain: Any = PreTrainedTokenizerFast
    words = [f"word{n}" for n in range(200 - len(SPECIAL))]
    tokenizer = build_tokenizer(words, special=("<pad>", "<unk>", "<s>"))
    assert isinstance(tokenizer, plain)
    tokenizer.save_pretrained(base)
    settings = corridor(
        model={"base": base, "adapter": 4, "prompt": "compact"},
        engine={"url": "http://127.0.0.1:1/v1"},
    )
    with pytest.raises(ConfigError, match="start the server with it"):
        train(settings)
    assert (tmp_path / "run" / "base" / "config.json").exists()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"engine": {"url": "http://x/v1"}, "model": {"base": "b"}}, "set a rank"),
        ({"engine": {"url": "http://x/v1"}, "model": {"adapter": 4}}, "no server can serve it"),
    ],
)
def test_engines_that_cannot_work_are_refused(corridor, settings, told):
    with pytest.raises(ConfigError, match=told):
        train(corridor(**settings))
