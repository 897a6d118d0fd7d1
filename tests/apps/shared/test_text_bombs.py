"""Files of nested values and long numbers: each door that reads one names it in a short error, or reads it."""

import pytest

from hardwon.apps import importers
from hardwon.apps.coding_agents.install import install_hooks
from hardwon.apps.shared.checkout import MANIFEST, read_manifest
from hardwon.apps.shared.editing import parse_fields
from hardwon.apps.shared.item_files import read_file
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import HardwonError
from hardwon.runtime.strategies.strategy import load_strategies
from hardwon.trainers.config.loading import load

NUMBERS = {
    "digits": "1" * 5_000,
    "many digits": "1" * 500_000,
    "exponent": "1e999999",
    "hexadecimal": "0x" + "f" * 9_999,
}
JSON = {
    "lists": "[" * 100_000,
    "closed lists": "[" * 50_000 + "]" * 50_000,
    "objects": '{"a":' * 100_000,
    "long text": '"' + "x" * 500_000 + '"',
    **NUMBERS,
}
YAML = {
    **{name: f"seed: {text}" for name, text in NUMBERS.items()},
    "binary": "seed: 0b" + "1" * 9_999,
    "octal": "seed: 0" + "7" * 9_999,
    "base 60": "seed: 1" + ":59" * 30_000,
    "date": "seed: 2001-99-99",
    "long date": "seed: 2001-01-01T00:00:00." + "9" * 9_999,
    "tagged": "seed: !!int '" + "1" * 9_999 + "'",
    "tag": "seed: !!python/object/apply:os.getcwd []",
    "bytes": "seed: !!binary " + "A" * 99_999,
    "long name": "? " + "x" * 5_000 + "\n  : 1",
}
TOML = {
    "lists": "seed = " + "[" * 50_000,
    "tables": "seed = " + "{a=" * 50_000,
    "name": "a" + ".a" * 10_000 + " = 1",
    "spaced name": "a" + " . a" * 10_000 + " = 1",
    "table": "[" + "a." * 10_000 + "a]",
    "date": "seed = 9999-99-99",
    **{name: f"seed = {text}" for name, text in NUMBERS.items()},
}


def import_file(path):
    with ExperienceLibrary.open(":memory:") as library:
        importers.write(library, importers.read(path)[1], source="file")


def import_export(path):
    with ExperienceLibrary.open(":memory:") as library:
        library.admin.import_jsonl(path)


MESSAGE = '{"messages": [{"role": "user", "content": %s}]}'
CALLS = '[{"id": "c", "function": %s}]'
CALL = '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": ' + CALLS + "}]}"
DOORS = {
    "fields": (JSON, "%s", lambda path: parse_fields(path.read_text(encoding="utf-8"), path.name)),
    "checkout": (JSON, '{"format": %s}', lambda path: read_manifest(path.parent)),
    "hooks": (JSON, '{"hooks": %s}', lambda path: install_hooks("claude-code", path, "hook")),
    "message": (JSON, MESSAGE, import_file),
    "call": (JSON, CALL, import_file),
    "session": (JSON, '{"timestamp": %s, "type": "session_meta", "payload": {"id": "s"}}', import_file),
    "export": (JSON, '{"schema": %s}', import_export),
    "item": (YAML, "---\nkind: insight\ntitle: t\ncondition:\n  %s\n---\n", lambda path: read_file(path, "a.md", {})),
    "training": (YAML, "run:\n  %s\n", load),
    "strategies": (TOML, "[plain]\n%s\n", load_strategies),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("door", "name"), [(door, name) for door, (texts, _, _) in DOORS.items() for name in texts])
def test_a_file_that_is_a_bomb_is_refused_in_a_sentence(door, name, tmp_path):
    texts, shape, read = DOORS[door]
    path = tmp_path / (MANIFEST if door == "checkout" else "a.json")
    path.write_text(shape % texts[name])
    try:
        read(path)
        message = ""
    except HardwonError as error:
        message = str(error)
    assert len(message) < 2_000


def test_a_deep_line_of_a_log_is_not_read_as_a_document(tmp_path):
    """That would take memory with the square of its levels."""
    path, levels = tmp_path / "log.jsonl", 5_000
    path.write_text('{"messages": ' + '[{"a":' * levels + "1" + "}]" * levels + '}\n{"messages": []}\n')
    with pytest.raises(HardwonError, match=r"line 1: not JSON .maximum recursion depth"):
        import_file(path)


@pytest.mark.parametrize("value", [text.partition(" ")[2] for text in YAML.values() if text.startswith("seed")])
def test_a_setting_of_the_command_line_is_refused_in_a_sentence(value, tmp_path):
    (tmp_path / "a.yaml").write_text("environment: {name: textworld}\n")
    with pytest.raises(HardwonError) as refused:
        load(tmp_path / "a.yaml", [f"run.seed={value}"])
    assert len(str(refused.value)) < 2_000
