import json
import shutil
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hardwon.apps.cli.app import app
from hardwon.memory import ExperienceLibrary, State
from hardwon.runtime.agent import Agent
from hardwon.runtime.interfaces.types import Info
from hardwon.runtime.policies.episodic import EpisodicPolicy


class Pantry:
    """Opening the box and eating the apple succeeds; biting the raw potato ends it; waiting does nothing."""

    name = "pantry"

    def reset(self, task: str = "", seed: int = 0) -> State:
        self.box = "closed"
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        if action == "open box":
            self.box = "open"
            return self._state("The box is open now."), 0.0, False, Info()
        if action == "eat apple" and self.box == "open":
            return self._state("You eat the apple."), 1.0, True, Info(success=True, score=1.0)
        if action == "bite raw potato":
            return self._state("You feel sick."), 0.0, True, Info(lost=True)
        return self._state("Nothing happens."), 0.0, False, Info()

    def admissible(self, state: State) -> list[str]:
        return ["eat apple", "bite raw potato", "open box", "wait"]

    def clone(self) -> "Pantry":
        return Pantry()

    def close(self) -> None:
        pass

    def _state(self, feedback: str) -> State:
        seen = f"You are in the pantry. You see a raw potato and a box that is {self.box}. In it is an apple."
        return State(seen, location="pantry", task="eat the apple", feedback=feedback)


@pytest.fixture(scope="session")
def learnt(tmp_path_factory) -> Path:
    """A library of forty episodes in the pantry, with the items that came of them; only to be read."""
    path: Path = tmp_path_factory.mktemp("learnt") / "library.db"
    with ExperienceLibrary.open(path) as library:
        agent = Agent(EpisodicPolicy(), library, Pantry(), max_steps=10, seed=2)
        for seed in range(40):
            agent.run(seed=seed)
        agent.close()
    return path


@pytest.fixture
def own(learnt, tmp_path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copy(learnt, tmp_path / "own.db"))


@pytest.fixture
def empty(tmp_path) -> Path:
    """A library in which nothing was recorded yet."""
    path: Path = tmp_path / "empty.db"
    ExperienceLibrary.open(path).close()
    return path


@pytest.fixture
def hardwon():
    """Runs a command: hardwon("memory", "ls", path)."""

    def run(*arguments: object, expect: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == expect, (result.output, result.exception)
        return result

    return run


@pytest.fixture
def hardwon_json(hardwon):
    """Runs a command with --json and returns what it printed, parsed."""

    def run(*arguments: object, expect: int = 0) -> Any:
        return json.loads(hardwon(*arguments, "--json", expect=expect).stdout)

    return run


@pytest.fixture
def serving():
    """Serves the API of a library on a port of its own, as `hardwon serve` does: `with serving(path) as url: ...`"""

    @contextmanager
    def serve(path, *, protocol="auto", **options):
        import uvicorn

        from hardwon.apps.http.app import create_app

        config = uvicorn.Config(create_app(path, **options), port=0, log_config=None, access_log=False, http=protocol)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join()

    return serve
