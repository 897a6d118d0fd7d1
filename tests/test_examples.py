"""Every example runs, offline and in seconds, and says what it promises to say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {"quickstart.py", "inspect_library.py", "chat_scripted.py"}


def run(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints, run as a script in an empty folder and without a model's key."""
    environment = {key: value for key, value in os.environ.items() if key != "TACIT_MODEL"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tested():
    """An example that nobody runs is soon one that does not run."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


def test_quickstart_learns_and_its_library_can_be_inspected(tmp_path):
    """The agent wins more games after learning, and the library tells why it acts as it does."""
    told = run("quickstart.py", tmp_path)
    before, after = (int(number) for number in re.findall(r"^(?:before|after): +(\d+) of 20", told, re.MULTILINE))
    assert after > before
    explained = run("inspect_library.py", tmp_path)
    assert "strategy: " in explained
    assert "was expected, from" in explained


def test_inspecting_a_library_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(AssertionError, match=re.escape("examples/quickstart.py makes one")):
        run("inspect_library.py", tmp_path, "nowhere.db")
    assert not (tmp_path / "nowhere.db").exists()


def test_chat_model_is_shown_what_the_first_episode_found_out(tmp_path):
    """Nothing before the first episode, the failed refund before the first step of the second."""
    first, _, second = run("chat_scripted.py", tmp_path).partition("Grace wants")
    assert "experience:" not in first
    failed = 'experience: - in a similar situation, `refund(order="the last one of Ada")` failed'
    assert failed in second.partition('find_order(customer="Grace")')[0]
    assert second.count("was accepted") == 1
