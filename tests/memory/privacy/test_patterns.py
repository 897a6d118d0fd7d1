"""Patterns that are compiled at their first use."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import hardwon.memory
import hardwon.runtime.interfaces.endings
import hardwon.runtime.interfaces.error_texts
from hardwon.memory.patterns import _LatePattern, compile_late, read_table


def test_a_pattern_is_compiled_when_it_is_used(monkeypatch):
    compiled, compile_now = set(), re.compile

    def count(*given):
        compiled.add(given)
        return compile_now(*given)

    monkeypatch.setattr(re, "compile", count)
    late = compile_late(r"(?P<word>[a-z]+)-(\d)", re.I)
    assert not compiled
    match = late.search("see AB-3 and c-4")
    assert match is not None
    assert (match["word"], late.sub("x", "a-1 b"), late.findall("a-1 b-2")) == ("AB", "x b", [("a", "1"), ("b", "2")])
    assert (late.groups, late.pattern, late.flags) == (2, r"(?P<word>[a-z]+)-(\d)", compile_now("", re.I).flags)
    assert compiled == {(r"(?P<word>[a-z]+)-(\d)", re.I)}


def test_patterns_of_bytes_are_compiled_too():
    assert compile_late(rb"\d+").findall(b"1 22") == [b"1", b"22"]


def test_a_name_that_no_pattern_has_is_refused():
    with pytest.raises(AttributeError, match="find"):
        getattr(compile_late("a"), "find")  # noqa: B009 - the type has no such name


def test_every_pattern_of_the_library_is_valid():
    """A mistake would otherwise show at the first use only."""
    tables = [vars(module) for name, module in [*sys.modules.items()] if name.startswith("hardwon.")]
    late = [value for table in tables for value in table.values() if isinstance(value, _LatePattern)]
    assert len(late) > 50
    assert all(pattern.pattern for pattern in late)


def test_tables_are_read_as_toml():
    files = [file for package in (hardwon.memory, hardwon.runtime) for file in _list_tables(package)]
    assert len(files) > 3
    for file in files:
        assert read_table(str(file), file.name) == tomllib.loads(file.read_text(encoding="utf-8")), file.name


def _list_tables(package):
    return sorted(Path(package.__file__).parent.rglob("*.toml"))
