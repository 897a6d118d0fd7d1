"""What the dashboard counts and writes, without a browser: figures, curves, markup, runs that are followed."""

import asyncio
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, strategies as st

from hardwon.apps.dashboard import (
    charts,
    episode_pages,
    figures,
    frame,
    item_pages,
    lessons,
    login,
    overview_page,
    run_pages,
    search_page,
)  # fmt: skip
from hardwon.apps.dashboard.item_pages import _render_evidence
from hardwon.apps.dashboard.login import _restrict_path
from hardwon.apps.dashboard.markup import count, linked, shorten, table, tag
from hardwon.apps.dashboard.run_pages import experiment, training
from hardwon.apps.http.access.auth import LOCAL, Caller, Tokens
from hardwon.apps.http.state import runs
from hardwon.apps.render.failures import name_failure
from hardwon.apps.render.views import describe_end, describe_step
from hardwon.apps.shared.explain import explain
from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, Reasons, State, Step, Trajectory
from hardwon.memory.errors import LibraryForbidden, UnknownName
from hardwon.memory.upkeep.figures import measure_items


def world(arm, success, seed=0):
    return {"arm": arm, "success": success, "task": "t", "seed": seed, "n_steps": 1}


# ---- figures


def test_harm_is_memory_failing_where_going_without_it_succeeded():
    """Two worlds played both ways, and one that was not."""
    rows = [world("control", 1), world("retrieved", 0), world("control", 0, 1), world("retrieved", 1, 1)]
    told = figures.harm([*rows, world("retrieved", 0, 2)])
    assert told == {"pairs": 2, "harmed": 1, "helped": 1, "share": 0.5}


def test_harm_is_not_known_without_a_control():
    assert figures.harm([world("retrieved", 0)])["share"] is None


def test_arms_have_an_interval_around_their_share():
    (only,) = figures.arms([world("step", n % 2, n) for n in range(40)])
    assert only["memory"]
    assert only["low"] < only["share"] == 0.5 < only["high"]


def test_growth_counts_items_in_use_then():
    recorded = [{"recorded_at": f"2026-01-0{day}"} for day in (1, 2, 3)]
    in_use = [("2026-01-01", 1), ("2026-01-02", 0)]
    assert figures.growth(recorded, []) == [[1, 0], [2, 0], [3, 0]]
    assert figures.growth(recorded, in_use) == [[1, 1], [2, 0], [3, 0]]


def test_growth_ends_with_the_items_in_use_now():
    """Count those that were learned from the last episode, which are admitted after it."""
    recorded = [{"recorded_at": f"2026-01-0{day}"} for day in (1, 2)]
    assert figures.growth(recorded, [("2026-01-01", 1), ("2026-01-03", 2), ("2026-01-04", 6)]) == [[1, 1], [2, 6]]


def test_every_cause_of_failure_has_words():
    assert not [failure for failure in Failure if failure != Failure.NONE and name_failure(failure) == failure]


def test_cells_name_their_column():
    """A phone shows a row as a block, in which each value stands after its label."""
    assert 'data-label="score"' in table(("lesson", "score"), [("look", 1.0)], caption="Lessons")


@given(st.integers(0, 5000))
def test_curve_of_any_length_ends_at_its_end(n):
    points = figures._spread(n)
    assert len(points) <= 200
    assert points[-1:] == ([n] if n else [])


def test_overview_of_a_learnt_library(learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        told = figures.overview(library)
        assert told["episodes"] == library.admin.stats()["episodes"]
        assert told["steps"] == library.admin.stats()["steps"]
        assert figures.latency(library)["n"] > 0


def test_tests_of_the_run_are_found_beside_its_library(own):
    arms = {"step": {"success_rate": 0.5, "ci95": [0.1, 0.9], "harm_rate": 0.0, "steps": 3.0, "blocked": 0.0}}
    with ExperienceLibrary.open(own) as library:
        assert figures.experiment(library) == []
        own.with_name("result.json").write_text(json.dumps({"library": str(own), "arms": arms}), encoding="utf-8")
        assert [one["arm"] for one in figures.experiment(library)] == ["step"]
        own.with_name("result.json").write_text("{", encoding="utf-8")
        assert figures.experiment(library) == []


def test_curves_run_over_time_or_over_episodes():
    rows = [{"recorded_at": f"2026-01-0{day}T00:00:00+00:00"} for day in (1, 2, 3)]
    points = [[1, 0.5], [3, 1.0]]
    assert figures.date_points(points, rows, by_time=False) == points
    first, last = figures.date_points(points, rows, by_time=True)
    assert last[0] - first[0] == 2 * 86_400_000
    assert charts.lines({"a": [first, last]}, x="time", y="share", is_time=True)["xAxis"]["type"] == "time"


def test_of_episodes_of_one_second_a_curve_over_time_has_one_point():
    """A line between them would be vertical; a line without a length was not drawn at all."""
    rows = [{"recorded_at": "2026-01-01T00:00:00+00:00"}] * 40
    assert len(figures.date_points([[at, at] for at in range(1, 41)], rows, by_time=True)) == 1
    assert figures.date_points([[1, 1], [40, 7]], rows, by_time=True)[0][1] == 7


def test_the_names_of_many_curves_stand_above_the_chart():
    def top(names):
        chart = charts.lines({name: [[0, 0]] for name in names}, x="episodes", y="share")
        return chart["grid"]["top"], chart["media"][0]["option"]["grid"]["top"]

    assert top("a") == (34, 34)
    assert top("abc") == (34, 59)
    assert top("abcd") == (59, 59)


def test_spending_compares_only_tasks_that_were_played_both_ways():
    """An easy task that was only played with memory is no saving; episodes without a count of tokens are left out."""

    def spent(arm, task, tokens):
        return {**world(arm, 1), "task": task, "meta": {"prompt_tokens": tokens} if tokens else {}}

    rows = [spent("control", "a", 1000), spent("retrieved", "a", 400), spent("retrieved", "b", 1)]
    (tokens, steps) = figures.spending([*rows, spent("retrieved", "a", None)])
    assert (tokens["unit"], tokens["with"], tokens["without"], tokens["saved"]) == ("tokens", 400, 1000, 600)
    assert (steps["unit"], steps["n"]) == ("steps", 2)
    assert figures.spending([spent("retrieved", "a", 5)]) == []


def test_arms_have_plain_words():
    assert figures.name_group("control") == "without memory"
    assert figures.name_group("retrieved") == "with memory"
    assert figures.name_group("my-own-group") == "my-own-group"


def record_uses(library, item, mode, outcomes):
    """Record episodes in which an item was shown or withheld."""
    for number, success in enumerate(outcomes):
        state = State("a room", task="t")
        why = Reasons.of({"recalled" if mode == "recalled" else "withheld": [item]})
        step = Step(state, "wait", state, Diagnosis(True), why=why)
        library.record(Trajectory("t", (step,), success, id=f"{mode}-{item}-{number}"))


def test_a_lesson_is_a_sentence_with_an_example_and_no_card_is_empty(tmp_path):
    def link(path, **query):
        return path

    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        nothing = lessons.render_lessons(lessons.find_lessons(library), link)
        here = State("a room with a chest", task="t")
        library.record(Trajectory("t", (Step(here, "wait", here, Diagnosis(True)),), True))
        library.add(Item("insight", "Look first", "It worked 9 times.", provenance=(1,)))
        page = lessons.render_lessons(lessons.find_lessons(library), link)
        assert figures.overview(library)["advice"].startswith("not measured yet")
    assert nothing.count("<h2>") == page.count("<h2>") == 1
    assert "No lesson yet" in nothing
    assert "Look first. It worked 9 times." in page
    assert "Example: <code>wait</code> in: a room with a chest" in page


def test_lessons_are_sorted_by_what_they_are_worth(tmp_path):
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        good = library.add(Item("insight", "look before you leap")).item_id or ""
        bad = library.add(Item("insight", "run through every door")).item_id or ""
        library.add(Item("insight", "from a stranger", trust="untrusted", source="client"))
        for item, shown, withheld in ((good, True, False), (bad, False, True)):
            record_uses(library, item, "recalled", [shown] * 12)
            record_uses(library, item, "withheld", [withheld] * 12)
        found = lessons.find_lessons(library)
        assert (
            library.admin.query(measure_items)[good]["difference"]
            == library.items.usefulness(good)["difference"]
            == 1.0
        )
    assert [one["id"] for one in found["useful"]] == [good]
    assert [one["id"] for one in found["harmful"]] == [bad]
    assert [one["says"] for one in found["waiting"]] == ["from a stranger"]
    assert {good, bad} <= {one["id"] for one in found["newest"]}
    assert "success -100 points (12 episodes with it, 12 without)" in found["harmful"][0]["words"]
    page = lessons.render_lessons(found, lambda path, **query: path)
    assert page.index("Newest lessons") < page.index("Most useful") < page.index("Making things worse")


def test_a_strategy_that_took_part_in_choices_is_not_called_unused(tmp_path, monkeypatch):
    """It was never shown itself, but its steps stand behind an estimate; `memory ls` counts such uses, too."""
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        strategy = library.add(Item("strategy", "wait first")).item_id
        assert lessons.find_lessons(library)["newest"][0]["words"] == "has not taken part in a choice yet"
        monkeypatch.setattr(lessons, "find_estimates", lambda library, items: {strategy: {"one", "two"}})
        words = lessons.find_lessons(library)["newest"][0]["words"]
    assert words == "decided a choice in 2 episodes, not compared yet"


def test_a_guardrail_whose_refusals_were_wrong_makes_things_worse():
    wrong, _ = lessons._judge("guardrail", {"blocked": 9, "overridden": 6, "worked": 6})
    right, words = lessons._judge("guardrail", {"blocked": 9, "overridden": 6, "worked": 0})
    assert wrong < 0 < right
    assert words == "refused 9 actions; 0 of 6 worked when let through"


def test_search_finds_lessons_steps_and_episodes(own, episode):
    with ExperienceLibrary.open(own) as library:
        library.record(episode("shake drawer", library=library))
        library.add(Item("insight", "never shake a drawer"))
        found = search_page.find_everything(library, "shake drawer")
        (newest,) = library.episodes.find(limit=1)
        assert found["items"][0].what.title == "never shake a drawer"
        assert "shake drawer" in [hit.what.action for hit in found["steps"]]
        assert search_page.find_everything(library, newest["id"])["episodes"] == [newest]
        assert not any(search_page.find_everything(library, "").values())


class Place:
    """An element of a page that collects what is added inside of it."""

    def __init__(self, added):
        self.added = added

    def classes(self, names):
        return self

    def clear(self):
        self.added.clear()

    __enter__ = __exit__ = lambda self, *what: None


@pytest.mark.parametrize("answer", ["everything", UnknownName("it is gone")], ids=["found", "failed"])
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_a_page_that_takes_long_says_so_and_is_filled_in(monkeypatch, seconds, answer):
    """One that does not has its contents at once; an error is a page of its own, or stands in the page."""
    added: list[str] = []
    timers: list[Any] = []
    timer = SimpleNamespace(element=lambda _: Place(added), timer=lambda *_, **__: timers.append(_[1]))
    for name, value in {"PATIENCE": 0.05, "framed": nullcontext, "ui": timer, "html": added.append}.items():
        monkeypatch.setattr(frame, name, value if name != "framed" else lambda *_: nullcontext())

    async def read(what):
        await asyncio.sleep(seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def visit():
        room: Any = SimpleNamespace(read=read)
        await frame.show(room, "Lessons", "/items", lambda library: answer, added.append)
        seen.extend(added)
        for fill in timers:
            await fill()

    seen: list[str] = []
    if seconds or answer == "everything":
        asyncio.run(visit())
        assert seen == ["everything"] if not seconds else "Reading the library" in "".join(seen)
        assert added == ["everything"] if answer == "everything" else "It is gone" in "".join(added)
    else:
        with pytest.raises(UnknownName):
            asyncio.run(visit())


@pytest.mark.parametrize(("theme", "expected"), [("", "prefers-color-scheme: dark"), ("dark", "color-scheme: dark;")])
def test_the_server_writes_the_theme_into_the_page(theme, expected):
    assert expected in frame.build_style(theme)
    assert "color-scheme: dark;" not in frame.build_style("light")
    assert "--ground: #0d1117" in frame.build_style("dark").partition("@media (prefers-color-scheme: dark)")[2]


def test_the_choice_of_colors_is_a_strict_cookie_and_leads_to_this_server_alone(tmp_path):
    api = FastAPI()
    login.add(api, Tokens(tmp_path / "tokens"))
    client = TestClient(api)
    answer = client.post("/theme", data={"theme": "dark", "next": "/items?kind=skill"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/items?kind=skill")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("hardwon_theme=dark;")
    assert "samesite=strict" in cookie
    other = client.post("/theme", data={"theme": "pink", "next": "https://evil.example"}, follow_redirects=False)
    assert other.headers["location"] == "/"
    assert "set-cookie" not in other.headers


@pytest.mark.parametrize(
    ("allowed", "names", "chosen"),
    [
        (None, ["acme", "default"], "default"),
        (None, ["acme", "globex"], "acme"),
        (("globex",), ["acme", "default", "globex"], "globex"),
        (None, [], "default"),
    ],
)
def test_a_visitor_without_a_namespace_sees_one_that_exists(allowed, names, chosen):
    """A library of customers has no namespace `default`, and its address leads to a page."""
    assert frame._choose_namespace(replace(LOCAL, namespaces=allowed), lambda: names) == chosen


def test_a_damaged_library_is_explained_by_the_page():
    def refuse():
        raise LibraryForbidden("it is gone")

    assert frame._choose_namespace(LOCAL, refuse) == "default"


# ---- markup


@given(st.text())
def test_any_text_stays_text(text):
    assert "<script" not in tag("p", f"<script>{text}", title=f'"><script>{text}')


def test_ids_are_links_and_actions_are_code():
    told = linked("do not `eat {1}`: step:12 and gu-0123456789ab", lambda path: f"/x{path}")
    assert "<code>eat {1}</code>" in told
    assert '<a href="/x/steps/12">step:12</a>' in told
    assert '<a href="/x/items/gu-0123456789ab">' in told


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "javascript:alert(1)", "/\\evil", ""])
def test_login_leads_to_this_server_alone(path):
    assert _restrict_path(path) == "/"
    assert _restrict_path("/items?a=b") == "/items?a=b"


# ---- runs


def test_metrics_become_a_curve_for_each_kind():
    rows = [
        {"iteration": 1, "kind": "train", "loss": 1.0, "note": "x", "none": None},
        {"iteration": 1, "kind": "eval", "loss": 2.0},
    ]
    assert training(rows) == {"loss": {"train": [[1, 1.0]], "eval": [[1, 2.0]]}}


def test_arm_that_learns_nothing_is_drawn_to_the_end():
    def row(arm, trained, success):
        return {"phase": "test", "arm": arm, "trained": trained, "success": success, "steps": 5}

    told = experiment([row("empty", 0, False), row("step", 0, False), row("step", 10, True)])
    curves = told["Share of unseen tasks that were solved"]
    assert curves == {"with an empty memory": [[0, 0.0], [10, 0.0]], "memory, every step": [[0, 0.0], [10, 1.0]]}


def test_tail_gives_every_whole_line_once(tmp_path):
    """Also after a run that goes on from a checkpoint has made its file shorter."""
    path = tmp_path / "metrics.jsonl"
    tail = runs.Tail(path)
    assert tail.lines() == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"', encoding="utf-8")
    assert tail.lines() == ['{"a": 1}', '{"a": 2}']
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\nno json\n', encoding="utf-8")
    assert tail.lines() == ['{"a": 3}']
    path.write_text('{"a": 1}\n', encoding="utf-8")
    assert tail.lines() == ['{"a": 1}']


def test_run_is_one_of_the_folder(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    (tmp_path / "runs" / "a" / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    assert runs.find_run(tmp_path / "runs", "a")[0] == "train"
    for name in ("..", "../runs/a", "/etc", "b"):
        with pytest.raises(UnknownName):
            runs.find_run(tmp_path / "runs", name)


def test_last_of_an_odd_number_of_figures_fills_its_row_on_a_telephone():
    """Half a row would be a blank band."""
    from hardwon.apps.dashboard.frame import STYLE

    narrow = STYLE.partition("@media (max-width: 760px)")[2]
    assert ".figures > :last-child:nth-child(odd) { grid-column: 1 / -1; }" in narrow


def guarded(library, episode, failure, words):
    """An item page's section of a guardrail whose evidence failed like this, and the lines of its newest step."""
    for _ in range(5):
        told = episode("shake drawer", library=library, failure=failure, success=False)
        (step,) = told.steps
        library.record(replace(told, steps=(replace(step, diagnosis=replace(step.diagnosis, evidence=words)),)))
    library.evolve()
    guard = next(item for item in library.items.find(["guardrail"]) if item.forbids == "shake drawer")
    section = "".join(map(str, _render_evidence(explain(library, guard.id)["item"], lambda path, **query: path)))
    newest = explain(library, library.episodes.find(limit=1)[0]["id"])["episode"]["steps"][-1]
    return section, dict(describe_step(newest, None))


def test_item_page_says_why_the_evidence_failed(own, episode):
    with ExperienceLibrary.open(own) as library:
        section, _ = guarded(library, episode, Failure.TOOL_ERROR, "permission denied")
    assert "Failures in its evidence: the tool reported an error" in section
    assert "permission denied" in section


def test_steps_that_a_person_rejected_read_not_run(own, episode):
    """On the page of the item that rests on them, and in the replay."""
    with ExperienceLibrary.open(own) as library:
        section, lines = guarded(library, episode, Failure.REJECTED, "not on a Friday")
    assert "not run: a person refused it (not on a Friday)" in section
    assert "not run: a person refused it (not on a Friday)" in " ".join(map(str, lines.values()))


def test_steps_that_a_guardrail_blocked_read_not_run(own, episode):
    with ExperienceLibrary.open(own) as library:
        library.record(episode("shake drawer", library=library, failure=Failure.BLOCKED, success=False))
        newest = explain(library, library.episodes.find(limit=1)[0]["id"])["episode"]["steps"][-1]
    assert "not run: a guardrail refused it" in " ".join(map(str, dict(describe_step(newest, None)).values()))


def test_an_empty_library_shows_the_line_that_connects_an_agent():
    """One for LangChain, MCP, the proxy and logs, with the path of the library."""
    page = overview_page._render_empty("my library.db")
    lines = re.findall(r"<pre><code>(.*?)</code></pre>", page)
    assert len(lines) == 6
    assert all("my library.db" in line for line in lines)
    for words in (
        "ExperienceMiddleware(",
        "hardwon mcp",
        "hardwon proxy",
        "hardwon hook install",
        "hardwon memory import",
    ):
        assert any(words in line for line in lines)


async def _write_as(rights, library):
    caller = Caller("id", "visitor", None, frozenset(rights))
    shelf = SimpleNamespace(read_only=False, reading=lambda name: nullcontext(library))
    room = frame.Room(FastAPI(), caller, "default")
    room.api.state.shelf, room.api.state.tokens = shelf, [caller]
    return await room.write(lambda opened: opened)


def test_a_visitor_who_may_not_write_changes_nothing_whatever_the_page_sends():
    """Buttons are left out for such a visitor; the check does not rely on it."""
    assert asyncio.run(_write_as({"read", "log", "write"}, "library")) == "library"
    with pytest.raises(LibraryForbidden):
        asyncio.run(_write_as({"read", "log"}, "library"))


def test_ids_made_at_the_same_time_are_told_apart():
    refs = ["0192f0c1a2b37c4d8e5f0000000000a1", "0192f0c1a2b37c4d8e5f0000000000a2", "own-name", ""]
    assert len({shorten(ref) for ref in refs}) == 4
    with ExperienceLibrary.open(":memory:") as library:
        refs = library.record_many([Trajectory("t", (), True) for _ in range(5)])
    assert len({shorten(ref) for ref in refs}) == 5, "ids of one process end alike"
    assert all(ref.startswith(shorten(ref).partition("…")[0]) for ref in refs), "the beginning is a prefix for commands"
    assert shorten("own-name") == "own-name"


def test_a_count_begins_at_zero():
    axis = charts.lines({"lessons": [(1, 1), (40, 1)]}, x="episodes", y="lessons", is_count=True)["yAxis"]
    assert (axis["min"], axis["minInterval"]) == (0, 1)


def test_numbers_of_things_agree_with_their_noun():
    assert [count(n, "lesson") for n in (0, 1, 2400)] == ["0 lessons", "1 lesson", "2,400 lessons"]


def test_commands_in_the_text_of_an_empty_table_are_code():
    assert "<code>hardwon serve</code>" in table(("run",), [], caption="Runs", empty="Try `hardwon serve`.")


def test_an_episode_that_a_plan_was_adapted_from_is_a_link():
    ref = "0192f0c1a2b37c4d8e5f0000000000a1"
    assert f'href="/episodes/{ref}"' in linked(f"episode:{ref}", lambda path, **query: path)


def test_error_pages_lead_to_every_list_and_leave_long_lists_of_names_out():
    def render(words):
        return bytes(frame._render_error(404, words, "").body).decode()

    long = render(f"unknown episode 'x'. There are: {', '.join('abcdefghij' for _ in range(30))}.")
    assert "Unknown episode &#x27;x&#x27;.<" in long
    assert all(f'href="{path}"' in long for path in frame.PAGES)
    assert 'action="/search"' in long
    assert "There are: acme, default." in render("unknown namespace 'x'. There are: acme, default.")
    assert "Overview" not in login._render_page("/"), "that link leads to the login again"


def test_a_page_that_a_damaged_row_breaks_is_an_error_page():
    async def build(room):
        raise TypeError("a bytes-like object is required, not 'int'")

    room: Any = SimpleNamespace(theme="")
    answer = asyncio.run(frame._build(build, room, {}))
    assert answer is not None
    assert answer.status_code == 500
    assert "hardwon memory verify" in bytes(answer.body).decode()


@pytest.mark.parametrize(
    ("success", "ending", "words"),
    [
        (True, "success", "succeeded"),
        (False, "failed", "failed"),
        (False, "task_lost", "failed: the task was lost"),
        (None, "excluded", "excluded"),
        (None, "done", "excluded"),
    ],
)
def test_the_end_of_an_episode_is_named_once_and_in_words(success, ending, words):
    assert describe_end({"success": success, "ending": ending}) == words


def test_pages_of_an_empty_library_lead_to_the_line_that_connects_an_agent():
    def link(path, **query):
        return path

    assert "The overview has the line" in episode_pages._render_list([], link)
    assert "No episode matches" in episode_pages._render_list([], link, is_filtered=True)
    assert "The overview has the line" in item_pages._render_list([], [], [], link, is_filtered=False)
    assert "No lesson matches" in item_pages._render_list([], [], [], link, is_filtered=True)


@pytest.mark.parametrize(
    ("query", "is_wanted"),
    [
        ({}, True),
        ({"text": "ORDER refund"}, True),
        ({"text": "refund parcel"}, False),
        ({"ended": "failed"}, True),
        ({"ended": "excluded"}, False),
        ({"played": "control"}, True),
        ({"played": "retrieved", "ended": "failed"}, False),
    ],
)
def test_episodes_are_filtered_by_task_outcome_and_arm(query, is_wanted):
    row = {"task": "Refund the last order.", "success": 0, "arm": "control"}
    assert episode_pages._is_wanted(row, {"text": "", "ended": "", "played": "", **query}) is is_wanted


def test_a_list_of_runs_shows_what_came_out(tmp_path):
    arms = {"empty": {"success_rate": 0.1}, "step": {"success_rate": 0.96}}
    run = {"kind": "run", "lines": 3}
    assert run_pages._describe_result(tmp_path, run) == "no result yet, 3 lines"
    (tmp_path / "result.json").write_text(json.dumps({"arms": arms}))
    assert run_pages._describe_result(tmp_path, run) == "with an empty memory: 10%; memory, every step: 96%"
    lines = [{"iteration": n, "kind": "train", "loss": 1 / (n + 1), "reward": n / 4} for n in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"itera')
    assert run_pages._describe_result(tmp_path, {**run, "kind": "train"}) == "iteration 2: reward 0.5, loss 0.333"


def test_the_gain_is_a_sentence_of_the_tests_if_there_are_some():
    arms = [{"arm": "empty", "success_rate": 0.1}, {"arm": "step", "success_rate": 0.96}]
    sentence = overview_page._describe_gain({"tested": arms, "advice": "not measured yet"})
    assert "solves 96% when it asks this library at every step, and 10% with an empty one" in sentence
    assert overview_page._describe_gain({"tested": [], "advice": "not measured yet"}) == "Not measured yet."


def test_the_verbs_that_people_ask_for_lead_where_they_are_done():
    """In the namespace that is open."""
    card = overview_page._render_verbs(lambda path, **query: f"{path}?namespace=shop", "shop")
    for path in ("/episodes", "/items", "/v1/export"):
        assert f'href="{path}?namespace=shop"' in card
    for verb in ("Why was I told", "Does it help", "Prune", "Reset one", "Only for this project", "Take it along"):
        assert verb in card


def test_a_lesson_has_an_example_of_what_was_done_and_where(learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        (step, *_) = library.episodes.get(library.episodes.find(limit=1)[0]["id"]).steps
        examples = lessons.find_examples(library, [step.id, None, 10**9])
    assert examples[0].startswith(f"`{step.action}` in: {step.pre.observation[:20]}")
    assert examples[1:] == ["", ""]
