"""The page of an episode: its outcome, and the grades that people gave it later."""

import pytest

from hardwon.memory import ExperienceLibrary

pytest.importorskip("nicegui")

from hardwon.apps.dashboard.episode_pages import _render_head
from hardwon.apps.shared.explain import explain_episode


def test_the_outcome_names_each_grade_with_its_correction_and_its_lesson(path, episode):
    with ExperienceLibrary.open(path) as library:
        ref = library.record(episode("open drawer", library=library, success=False))
        library.grade(ref, success=True, why="it was below the table", grader="ann")
        library.grade(ref, instead="look below the table", step=0, grader="bob")
        library.grade(ref, lesson="Look below first.", grader="bob")
        text = str(_render_head(explain_episode(library, ref)))
    for words in (
        "succeeded, score 1.00, by ann",
        ": it was below",
        "instead of step 0: look",
        ": lesson: Look below first.",
    ):
        assert words in text
