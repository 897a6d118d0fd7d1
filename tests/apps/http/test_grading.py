"""Late grades over HTTP: by whoever may write, and by an agent for the episodes that it recorded itself."""

from dataclasses import replace
from typing import Any

import pytest

from hardwon.apps.http.access.auth import Tokens
from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, LibraryForbidden, UnknownName
from hardwon.memory.remote import RemoteLibrary


def test_a_grade_needs_the_right_to_write_or_the_own_episode(tmp_path, episode, serving):
    path = tmp_path / "graded.db"
    with ExperienceLibrary.open(path) as library:
        library.record(episode("open drawer", id="foreign"))
    tokens = Tokens(tmp_path / "tokens")
    boss, agent, reader = (
        tokens.add("boss", write=True), tokens.add("agent", read=True, record=True), tokens.add("reader"),
    )  # fmt: skip
    with serving(path, tokens=tokens) as url:
        with RemoteLibrary(url, agent) as library:
            ref = library.record(replace(episode("open drawer", success=None, reward=0.0), id="own"))
            grade = library.grade(ref, success=True, instead="pull drawer", grader="ann")
            assert (grade.success, grade.previous_success, grade.grader) == (True, None, "token:agent/ann")
            assert "quarantined" in str(grade.admission)
            assert library.grade(ref, success=True, instead="pull drawer", grader="ann").is_new is False
            for name in ("foreign", "nobody"):
                with pytest.raises(UnknownName, match="you recorded no episode"):
                    library.grade(name, success=False)
            with pytest.raises(LibraryForbidden):
                library.episodes.grades(ref)
        with RemoteLibrary(url, reader) as library, pytest.raises(LibraryForbidden):
            library.grade("own", success=False)
        with RemoteLibrary(url, boss) as library:
            assert library.grade("foreign", success=False, why="it was wrong").grader == "token:boss"
            assert library.episodes.get("foreign").success is False
            assert [one.why for one in library.episodes.grades("foreign")] == ["it was wrong"]
            with pytest.raises(UnknownName):
                library.grade("nobody", success=False)
            odd: tuple[Any, ...] = ("\ud800", 5, None)  # refused here, because a path cannot hold them
            for value in odd:
                with pytest.raises(ConfigError, match="id "):
                    library.grade(value, success=False)
            with pytest.raises(ConfigError, match="score is 1 for a failure"):
                library.grade("foreign", success=False, score=1.0)
            with pytest.raises(ConfigError, match="says nothing"):
                library.grade("foreign")
