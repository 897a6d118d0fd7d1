"""The page of an episode: its outcome, and the grades that people gave it later."""

from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary, Reasons

pytest.importorskip("nicegui")

from hardwon.apps.dashboard.episode_pages import _read_episodes, _render_head, _render_list
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


def test_an_episode_without_advice_says_so(path, episode):
    """It was drawn, although its arm has memory."""
    with ExperienceLibrary.open(path) as library:
        played = replace(episode("open drawer", library=library), arm="retrieved")
        steps = tuple(replace(step, why=Reasons(advice="withheld")) for step in played.steps)
        heads = [
            str(_render_head(explain_episode(library, library.record(each))))
            for each in (replace(played, id="told"), replace(played, id="not-told", steps=steps, seed=7))
        ]
        listed = str(_render_list(_read_episodes(library), lambda path, **query: path))
    assert "<dd>with memory</dd>" in heads[0]
    assert "<dd>seed 7 · without advice, drawn at random</dd>" in heads[1]
    assert (listed.count(">with memory<"), listed.count(">without advice, drawn at random<")) == (1, 1)
