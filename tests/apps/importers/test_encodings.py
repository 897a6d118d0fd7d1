"""Files as PowerShell and editors of Windows save them, through every reader of a file that a person gives."""

import codecs
import gzip
import json
import os
import threading
from pathlib import Path

import pytest

from hardwon.apps import importers
from hardwon.apps.coding_agents.install import _read as read_settings
from hardwon.apps.shared.item_files import read_file
from hardwon.memory.errors import ConfigError
from hardwon.runtime.strategies.strategy import load_strategies
from hardwon.trainers.config import loading
from hardwon.trainers.methods.inspo import read_instructions
from hardwon.trainers.rollouts.paths import read_paths
from hardwon.trainers.sources.judged import read_checklists

MARKS = {
    "utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
}  # fmt: skip
TALK = {
    "messages": [
        {"role": "user", "content": "Grüße 漢字 🙂"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "found"},
    ]
}
LINES = json.dumps(TALK, ensure_ascii=False) + "\r\n" + json.dumps({**TALK, "reward": 1}, ensure_ascii=False) + "\r\n"
DOCUMENT = json.dumps([TALK], ensure_ascii=False, indent=2)
ITEM = "---\nid: i-1\nkind: insight\ntitle: Look first\n---\nLook before you take.\n"


def save(path: Path, text: str, encoding: str) -> Path:
    path.write_bytes(MARKS[encoding] + text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("text", [LINES, DOCUMENT], ids=["lines", "document"])
def test_a_log_is_read(tmp_path, encoding, text):
    _, logged = importers.read(save(tmp_path / "log.jsonl", text, encoding))
    assert [episode.task for episode in logged] == ["Grüße 漢字 🙂"]


@pytest.mark.parametrize("encoding", MARKS)
def test_a_log_in_a_pipe_is_read(tmp_path, encoding):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=save, args=(pipe, LINES, encoding))
    writer.start()
    _, logged = importers.read(pipe)
    writer.join()
    assert [episode.task for episode in logged] == ["Grüße 漢字 🙂"]


@pytest.mark.parametrize("encoding", MARKS)
def test_an_export_is_recognized_and_read(tmp_path, library, encoding):
    line = json.dumps({"episode": {"id": "e-1", "task": "Grüße", "success": True, "steps": []}}, ensure_ascii=False)
    path = save(tmp_path / "export.jsonl", line + "\n", encoding)
    assert importers.read(path)[0] == "hardwon"
    assert library.admin.import_jsonl(path) == 1


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda path: read_file(path, "item.md", {}), ITEM),
        (loading.load, (Path(__file__).parents[3] / "examples" / "train_coin.yaml").read_text(encoding="utf-8")),
        (load_strategies, '[plain]\npolicy = "episodic"\n'),
        (read_settings, '{"hooks": {}}'),
        (read_paths, '[{"task": "train", "seed": 7, "actions": ["take coin"]}]'),
        (read_instructions, "Look before you take.\n"),
        (read_checklists, '{"Open it.": [{"name": "door", "question": "Is it open?"}]}'),
    ],
    ids=["item", "config", "strategies", "settings", "paths", "instructions", "checklists"],
)
def test_a_file_of_another_kind_is_read(tmp_path, encoding, read, text):
    plain = tmp_path / "plain"
    plain.write_text(text, encoding="utf-8")
    assert repr(read(save(tmp_path / "file", text, encoding))) == repr(read(plain))


@pytest.mark.parametrize("text", [LINES, DOCUMENT], ids=["lines", "document"])
@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda text: text.encode("utf-16-le"), "looks compressed, or like UTF-16 without a byte order mark"),
        (lambda text: gzip.compress(text.encode()), "looks compressed, or like UTF-16 without a byte order mark"),
        (lambda text: text.encode("latin-1", "replace"), "not UTF-8|invalid bytes in UTF8"),
    ],
    ids=["utf-16", "gzip", "latin-1"],
)
def test_a_file_that_is_no_utf_8_is_told_so(tmp_path, text, write, why):
    path = tmp_path / "log.jsonl"
    path.write_bytes(write(text))
    with pytest.raises(ConfigError, match=why):
        importers.read(path)


def test_values_that_stand_one_after_the_other_in_a_line_are_read(tmp_path):
    path = tmp_path / "log.jsonl"
    talks = [{"messages": [{"role": "user", "content": task}, *TALK["messages"][1:]]} for task in "ab"]
    path.write_text("".join(map(json.dumps, talks)))
    assert [episode.task for episode in importers.read(path)[1]] == ["a", "b"]


def test_a_cut_character_is_named(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(codecs.BOM_UTF16_LE + LINES.encode("utf-16-le")[:-1])
    with pytest.raises(ConfigError, match="not UTF-16"):
        importers.read(path)
