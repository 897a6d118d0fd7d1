import re
from dataclasses import replace

import pytest

from hardwon.apps.render.views import EFFECTS, build_effect_rows, format_usefulness, list_changes
from hardwon.apps.shared.common import excerpt
from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory


@pytest.fixture
def episode_id(learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        return library.episodes.find(limit=1)[0]["id"]


def test_an_episode_on_paper_tells_value_evidence_and_outcome(hardwon, learnt, episode_id):
    printed = hardwon("memory", "show", learnt, episode_id).stdout
    for word in ("saw", "expected a return of", "rests on", "step:", "happened", "diagnosis", episode_id):
        assert word in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80


def test_brief_is_a_line_a_step(hardwon, hardwon_json, learnt, episode_id):
    steps = hardwon_json("memory", "show", learnt, episode_id)["episode"]["steps"]
    printed = hardwon("memory", "show", learnt, episode_id, "--brief").stdout
    assert all(f"step:{step['id']}" in printed for step in steps)


def test_an_item_on_paper_tells_why_and_how_it_fared(hardwon, hardwon_json, learnt):
    rule = hardwon_json("memory", "guardrails", learnt)["guardrails"][0]["id"]
    printed = hardwon("memory", "show", learnt, rule).stdout
    assert all(part in printed for part in ("Why it exists", "Effect", "History", "forbids"))


def test_a_command_of_several_lines_is_shown_as_it_can_be_run(hardwon, tmp_path):
    """Other texts of an item are on one line, and control characters are shown."""
    command = "cat <<'EOF' > a.txt\n  one\nEOF"
    with ExperienceLibrary.open(tmp_path / "lib.db") as library:
        ref = library.add(Item("insight", f"First `{command}`", "one\n  two \x1b[2J")).item_id
    printed = hardwon("memory", "show", tmp_path / "lib.db", ref).stdout
    assert [line.strip() for line in printed.splitlines()[2:4]] == ["one", "EOF`"]
    assert "First `cat <<'EOF' > a.txt\n" in re.sub(" +\n", "\n", printed)
    assert "one two" in printed


def test_a_remedy_of_another_value_names_its_call_once(hardwon, own):
    call = 'book(date="{1}")'
    with ExperienceLibrary.open(own) as library:
        ref = library.add(Item("remedy", "write date as digits", forbids=call, steps=(call,), repairs="tool_error"))
    printed = hardwon("memory", "show", own, ref.item_id).stdout
    assert printed.count("book(") == 1
    assert "in place of  " not in printed


def test_evidence_is_state_action_outcome(hardwon, hardwon_json, learnt):
    rule = hardwon_json("memory", "guardrails", learnt)["guardrails"][0]["id"]
    printed = hardwon("memory", "show", learnt, rule).stdout
    evidence = printed[printed.index("Why it exists") : printed.index("Effect")]
    assert re.findall(r"^  (saw|did|then) ", evidence, re.MULTILINE)[:3] == ["saw", "did", "then"]


def test_a_skill_on_paper_has_its_steps_and_its_verification(hardwon, own):
    skill = Item(
        "skill", "open the box, then eat", when_to_use="hungry", when_not_to_use="full", condition={"text": "a box"},
        steps=("open box", "eat apple"), verify={"text": "you eat"},
    )  # fmt: skip
    with ExperienceLibrary.open(own) as library:
        ref = library.add(skill).item_id
    printed = hardwon("memory", "show", own, ref).stdout
    for words in ("hungry", "full", 'the text says "a box"', "1. `open box`", "2. `eat apple`", '"you eat"', "person"):
        assert words in printed


def test_an_attempt_on_paper_names_the_steps_behind_its_counts(hardwon, learnt):
    printed = hardwon("memory", "show", learnt, "attempt:1").stdout
    assert all(part in printed for part in ("attempt:1 `", "Outcomes", "Best step", "Newest steps", "step:"))


def test_usefulness_is_told_with_its_interval():
    known = {"shown": 24, "withheld": 11, "difference": 0.125, "low": -0.05, "high": 0.3}
    assert format_usefulness(known).startswith("Useful by +0.12 (95% interval -0.05 to +0.30): 24 episodes")


def test_usefulness_that_is_not_known_says_what_it_takes():
    known = {"shown": 24, "withheld": 0, "difference": None, "low": None, "high": None}
    assert "is unknown" in format_usefulness(known)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_nothing_is_wider_than_the_page(hardwon, hardwon_json, learnt, episode_id, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    rule = hardwon_json("memory", "guardrails", learnt)["guardrails"][0]["id"]
    for shown in (["ls"], ["ls", "--episodes"], ["clusters"], ["guardrails"], ["stats"], ["search", "apple"]):
        printed = hardwon("memory", shown[0], learnt, *shown[1:]).stdout
        assert max(map(len, printed.splitlines())) <= width
    for ref in (rule, episode_id, "step:1", "attempt:1"):
        assert max(map(len, hardwon("memory", "show", learnt, ref).stdout.splitlines())) <= width


def test_a_step_on_paper_is_told_whole(hardwon, hardwon_json, learnt, episode_id):
    step = hardwon_json("memory", "show", learnt, episode_id)["episode"]["steps"][0]
    printed = " ".join(hardwon("memory", "show", learnt, f"step:{step['id']}").stdout.split())
    assert step["observation"] in printed


def test_text_of_a_library_is_printed_as_it_is(hardwon, own):
    """Markup and terminal codes in an observation are words, not commands."""
    here = State("[bold]a [T] room[/bold] \x1b[31mred\x1b[0m")
    with ExperienceLibrary.open(own) as library:
        ref = library.record(Trajectory("look", (Step(here, "wait", here, Diagnosis(True)),), True))
    printed = hardwon("memory", "show", own, ref).stdout
    assert "[bold]a [T] room[/bold]" in printed
    assert "\x1b" not in printed


def test_an_excerpt_is_one_line_cut_after_a_word():
    assert excerpt("a\n b\tc") == "a b c"
    assert excerpt("one two three", 9) == "one two …"


def test_the_table_of_effects_says_what_an_item_does_in_each_world():
    """A row per world, in the order of its columns; what is not known is a dash."""
    known = {"name": "hotel", "shown": 24, "withheld": 11, "difference": -0.42, "low": -0.61, "high": -0.23}
    unknown = {"name": "train", "shown": 2, "withheld": 0, "difference": None, "low": None, "high": None}
    rows = build_effect_rows([{**known, "masked": True}, {**unknown, "masked": False}])
    assert dict(zip(EFFECTS, rows[0], strict=True)) == {
        "world": "hotel",
        "shown": 24,
        "withheld": 11,
        "effect": "-0.42",
        "90% interval": "-0.61 to -0.23",
        "in use": "masked: harmful here",
    }
    assert rows[1] == ("train", 2, 0, "-", "-", "yes")


def test_the_table_of_effects_is_printed(hardwon, path, episode):
    """By `hardwon memory show`, for an item that was shown and withheld in a world."""
    with ExperienceLibrary.open(path) as library:
        ref = library.add(Item("insight", "look behind the wooden drawer")).item_id
        for number in range(12):
            made = episode(task="bake the bread", success=number % 2 == 0)
            why = {"recalled" if number % 2 else "withheld": [ref]}
            library.record(replace(made, steps=tuple(replace(step, why=why) for step in made.steps)))
    printed = hardwon("memory", "show", path, ref).stdout
    table = printed[printed.index("90% interval") :]
    row = next(line for line in table.splitlines() if "bake" in line)
    assert re.search(r"\b6 +6 +-0\.75 +-1\.00 to -0\.\d\d +masked: harmful here", row), row


def test_many_situations_are_counted_instead_of_listed(hardwon, own):
    names = tuple(f"situation{number}" for number in range(7))
    with ExperienceLibrary.open(own) as library:
        ref = library.add(Item("strategy", "Ask first", signatures=names)).item_id
    page = " ".join(hardwon("memory", "show", own, ref).stdout.split())
    assert "situations 7" in page
    assert "situation5" not in page


def test_scores_in_a_row_are_one_change():
    """An item that was used a hundred times has a history of a few lines."""
    scored = [("scored", {"score": [0.5, 0.6]}), ("scored", {"score": [0.6, 0.62]})]
    ops = [("added", {"score": 0.5}), *scored, ("pinned", {"pinned": True}), scored[1]]
    changes = [{"seq": seq, "at": "", "op": op, "detail": detail} for seq, (op, detail) in enumerate(ops)]
    listed = [(change["seq"], fields) for change, fields in list_changes(changes)]
    assert listed == [(0, ""), (2, "score: 0.500 to 0.620"), (3, "pinned: True"), (4, "score: 0.600 to 0.620")]
