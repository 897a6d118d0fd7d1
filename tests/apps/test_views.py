import pytest

from tacit.apps.doors import excerpt
from tacit.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory


@pytest.fixture
def episode_id(learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        return library.trajectories(limit=1)[0]["id"]


def test_an_episode_on_paper_tells_value_evidence_and_outcome(tacit, learnt, episode_id):
    printed = tacit("memory", "show", learnt, episode_id).stdout
    for word in ("saw", "expected a return of", "rests on", "step:", "happened", "diagnosis", episode_id):
        assert word in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 100


def test_brief_is_a_line_a_step(tacit, tacit_json, learnt, episode_id):
    steps = tacit_json("memory", "show", learnt, episode_id)["episode"]["steps"]
    printed = tacit("memory", "show", learnt, episode_id, "--brief").stdout
    assert all(f"step:{step['id']}" in printed for step in steps)


def test_an_item_on_paper_tells_why_and_how_it_fared(tacit, tacit_json, learnt):
    rule = tacit_json("memory", "ls", learnt, "--kind", "guardrail")[0]["id"]
    printed = tacit("memory", "show", learnt, rule).stdout
    assert all(part in printed for part in ("Why it exists", "How it fared", "History", "forbids"))


def test_a_step_on_paper_is_told_whole(tacit, tacit_json, learnt, episode_id):
    step = tacit_json("memory", "show", learnt, episode_id)["episode"]["steps"][0]
    printed = " ".join(tacit("memory", "show", learnt, f"step:{step['id']}").stdout.split())
    assert step["observation"] in printed


def test_text_of_a_library_is_printed_as_it_is(tacit, own):
    """Markup and terminal codes in an observation are words, not commands."""
    here = State("[bold]a [T] room[/bold] \x1b[31mred\x1b[0m")
    with ExperienceLibrary.open(own) as library:
        ref = library.record(Trajectory("look", (Step(here, "wait", here, Diagnosis(True)),), True))
    printed = tacit("memory", "show", own, ref).stdout
    assert "[bold]a [T] room[/bold]" in printed
    assert "\x1b" not in printed


def test_an_excerpt_is_one_line_cut_after_a_word():
    assert excerpt("a\n b\tc") == "a b c"
    assert excerpt("one two three", 9) == "one two ..."
