"""Processes and environments of other systems; no network."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.environments import NotInstalled, python_of
from benchmarks.peers.processes import Phase, ScriptDied


def test_installer_is_quoted():
    """Its own last words, not only that it failed."""
    with pytest.raises(NotInstalled, match=r"^not installed: ERROR: no such thing$"):
        environments._run([sys.executable, "-c", "import sys; sys.exit('ERROR: no such thing\\nnotice: ...')"])


def test_environment_is_made_once_and_again_when_its_requirements_change(tmp_path, monkeypatch):
    made = []

    def make(command):
        made.append(command)
        (tmp_path / "langmem" / "bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "langmem" / "bin" / "python").touch()

    monkeypatch.setattr(environments, "_run", make)
    python_of("langmem", tmp_path, lambda _: None)
    first = len(made)
    python_of("langmem", tmp_path, lambda _: None)
    assert len(made) == first > 0
    monkeypatch.setitem(environments.REQUIREMENTS, "langmem", ("langmem==0",))
    python_of("langmem", tmp_path, lambda _: None)
    assert len(made) == 2 * first


def start(folder, limit_s=60.0):
    return Phase(Path(sys.executable), ("no_such_script", ""), "rank", folder / "x", folder, (), limit_s)


def test_phase_that_takes_too_long_is_stopped(tmp_path):
    with start(tmp_path, 0.0) as phase, pytest.raises(ScriptDied, match=r"rank: stopped after 0 s"):
        list(phase.events())


def test_script_that_dies_is_quoted(tmp_path):
    with start(tmp_path) as phase, pytest.raises(ScriptDied, match=r"No module named 'peers\.no_such_script'"):
        list(phase.events())


def test_a_line_that_a_dead_process_did_not_read_hides_nothing(tmp_path):
    """The line stays in the buffer of the pipe, and closing the pipe would raise in place of the process's own end."""
    with start(tmp_path) as phase:
        phase._process.wait()
        phase.go()
        with pytest.raises(ScriptDied):
            phase.until("ready")
