"""What the dashboard counts and writes, without a browser: figures, curves, markup, runs that are followed."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.apps.dashboard import charts, figures, places
from hardwon.apps.dashboard.item_pages import _render_evidence
from hardwon.apps.dashboard.login import _restrict_path
from hardwon.apps.dashboard.markup import linked, tag
from hardwon.apps.dashboard.run_pages import experiment, training
from hardwon.apps.http.state import runs
from hardwon.apps.render.views import describe_step
from hardwon.apps.shared.explain import explain
from hardwon.memory import ExperienceLibrary, Failure
from hardwon.memory.errors import UnknownName


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


def test_growth_counts_items_made_by_then():
    recorded = [{"recorded_at": f"2026-01-0{day}"} for day in (1, 2, 3)]
    assert figures.growth(recorded, ["2026-01-01", "2026-01-03", "2026-01-04"]) == [[1, 1], [2, 1], [3, 2]]


@given(st.integers(0, 5000))
def test_curve_of_any_length_ends_at_its_end(n):
    points = figures._spread(n)
    assert len(points) <= figures.POINTS
    assert points[-1:] == ([n] if n else [])


def test_plane_keeps_what_differs_most():
    """Points on a line stay in their order, all alike lie on one place."""
    placed = places.project([[0.0, 0, 1], [1.0, 0, 1], [4.0, 0, 1]])
    xs = [x for x, _ in placed]
    assert xs in (sorted(xs), sorted(xs, reverse=True))
    assert all(abs(y) < 1e-6 for _, y in placed)
    assert places.project([[1.0, 2.0]]) == [(0.0, 0.0)]
    assert places.project([]) == []


def test_overview_and_map_of_a_learnt_library(learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        told = figures.overview(library)
        assert told["episodes"] == library.stats()["episodes"]
        assert told["steps"] == library.stats()["steps"]
        assert figures.latency(library)["n"] > 0
        assert [row["signature"] for row in figures.situations(library)[0]] == [
            row["signature"] for row in library.clusters()
        ]


def test_tests_of_the_run_are_found_beside_its_library(own):
    arms = {"step": {"success_rate": 0.5, "ci95": [0.1, 0.9], "harm_rate": 0.0, "steps": 3.0, "blocked": 0.0}}
    with ExperienceLibrary.open(own) as library:
        assert figures.experiment(library) == []
        own.with_name("result.json").write_text(json.dumps({"library": str(own), "arms": arms}), encoding="utf-8")
        assert [one["arm"] for one in figures.experiment(library)] == ["step"]
        own.with_name("result.json").write_text("{", encoding="utf-8")
        assert figures.experiment(library) == []


# ---- markup


@given(st.text())
def test_any_text_stays_text(text):
    assert "<script" not in tag("p", f"<script>{text}", title=f'"><script>{text}')


def test_ids_are_links_and_actions_are_code():
    told = linked("do not `eat {1}`: step:12 and gu-0123456789ab", lambda path: f"/x{path}")
    assert "<code>eat {1}</code>" in told
    assert '<a href="/x/steps/12">step:12</a>' in told
    assert '<a href="/x/items/gu-0123456789ab">' in told


@given(st.text())
def test_tooltip_cannot_be_markup(text):
    """ECharts takes it for HTML, and braces for a template."""
    row = {"steps": 1, "episodes": 1, "example": text}
    told = charts._format_tooltip(row).replace("<br>", "")
    assert not set("<>{}") & set(told)


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
    assert told["Success on unseen tasks"] == {"empty": [[0, 0.0], [10, 0.0]], "step": [[0, 0.0], [10, 1.0]]}


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
    guard = next(item for item in library.items(["guardrail"]) if item.forbids == "shake drawer")
    section = "".join(map(str, _render_evidence(explain(library, guard.id)["item"], lambda path, **query: path)))
    newest = explain(library, library.trajectories(limit=1)[0]["id"])["episode"]["steps"][-1]
    return section, dict(describe_step(newest, None))


def test_item_page_says_why_the_evidence_failed(own, episode):
    with ExperienceLibrary.open(own) as library:
        section, _ = guarded(library, episode, Failure.TOOL_ERROR, "permission denied")
    assert "Failures in its evidence: tool_error" in section
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
        newest = explain(library, library.trajectories(limit=1)[0]["id"])["episode"]["steps"][-1]
    assert "not run: a guardrail refused it" in " ".join(map(str, dict(describe_step(newest, None)).values()))
