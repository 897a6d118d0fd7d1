"""What the tests of every portion share: a library of their own and a way to make episodes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tacit.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory

settings.register_profile("tacit", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("tacit")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's library is."""
    return tmp_path / "experience.db"


@pytest.fixture
def library(path: Path) -> Iterator[ExperienceLibrary]:
    """An empty library in a file of its own."""
    with ExperienceLibrary.open(path) as opened:
        yield opened


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """Makes an episode that takes these actions in one place: `episode("open drawer", reward=1.0)`."""

    def make(
        *actions: str,
        see: str = "You see a wooden drawer. It is closed.",
        task: str = "find the spoon",
        reward: float = 1.0,
        success: bool | None = True,
        failure: Failure = Failure.NONE,
        library: ExperienceLibrary | None = None,
        **fields: object,
    ) -> Trajectory:
        pre = State(see, task=task)
        post = State("You see a wooden drawer. It is open.", task=task)
        judged = Diagnosis(failure is Failure.NONE, failure)
        steps = [
            Step(pre, action, post, judged, reward, t, library.keys(pre, action) if library else ("*", action))
            for t, action in enumerate(actions or ("open drawer",))
        ]
        return Trajectory(task, tuple(steps), success, **fields)  # type: ignore[arg-type]

    return make
