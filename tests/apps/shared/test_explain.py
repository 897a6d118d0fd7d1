from dataclasses import replace

import pytest
from tests.runtime.conftest import Workshop
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.apps.render.views import describe_step, format_failures, format_probation
from hardwon.apps.shared.explain import (
    describe_effect,
    describe_item,
    describe_outcome,
    explain,
    resolve,
    summarize_blocks,
)
from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import UnknownName
from hardwon.memory.reasons import Reasons
from hardwon.runtime import Agent


@pytest.fixture
def library(learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as opened:
        yield opened


@pytest.fixture
def reasoned(library):
    """The newest step that was chosen by its value, as the episode explains it."""
    for row in library.episodes.find():
        for step in explain(library, row["id"])["episode"]["steps"]:
            if step["why"]["rests_on"]:
                return step
    raise AssertionError("no step was chosen by its value")


def test_an_episode_says_what_each_step_rests_on(library, reasoned):
    """From the value of an action to the steps it is made of, and what happened in them."""
    why = reasoned["why"]
    assert why["value"] is not None
    assert why["n"] >= len(why["rests_on"])
    assert why["key_words"][0].startswith("`")
    assert all(past["happened"] and past["episode"] for past in why["rests_on"])
    assert {past["id"] for past in why["rests_on"]} == {
        step.id for step in library.episodes.steps([p["id"] for p in why["rests_on"]])
    }


def test_what_was_blocked_names_the_guardrail_and_its_words(library):
    episodes = (explain(library, row["id"])["episode"] for row in library.episodes.find())
    blocked = next(item for e in episodes for step in e["steps"] for item in step["why"]["blocked"])
    item = library.items.get(blocked["id"])
    assert item.kind == "guardrail"
    assert blocked["says"] == f"{item.title} ({item.body})"


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ({"around": ""}, "Do not `shake` (It broke.)"),
        ({"all": []}, "Do not `shake` (It broke.)"),
        ({"around": "0: raw"}, 'Do not `shake` when the text says "raw" (It broke.)'),
    ],
)
def test_what_a_person_forbids_is_a_sentence(condition, says):
    item = Item("guardrail", "Mind the glass", "It broke.", forbids="shake", condition=condition, id="gu-1")
    assert describe_item("gu-1", {"gu-1": item})["says"] == says


def test_an_item_says_why_it_exists_and_how_it_fared(library):
    rule = next(item for item in library.items.find(["guardrail"]) if library.items.usages(item.id))
    assert (rule.forbids or "").startswith("bite ")
    told = explain(library, rule.id)["item"]
    assert [step["id"] for step in told["evidence"]] == list(rule.provenance)
    assert all(step["failure"] == "task_lost" for step in told["evidence"])
    assert told["fared"][0]["mode"] == "blocked"
    assert told["fared"][0]["arm"] == "retrieved"
    assert told["history"][0]["op"] == "added"


def test_a_step_is_found_by_its_number(library, reasoned):
    assert explain(library, f"step:{reasoned['id']}")["step"] == reasoned


def test_a_beginning_of_an_id_is_enough(library):
    newest = library.episodes.find(limit=1)[0]["id"]
    assert resolve(library, newest[:12]) == ("episode", newest)


def test_a_beginning_of_several_ids_asks_for_more(learnt):
    with ExperienceLibrary.open(learnt, read_only=True) as library:
        start = library.items.find()[0].id[:1]
        with pytest.raises(UnknownName, match=r"is the prefix of .* Give a longer prefix"):
            resolve(library, start)


def test_a_retired_item_is_still_explained(own):
    with ExperienceLibrary.open(own) as library:
        item = library.items.find()[0]
        library.items.retire(item.id, "for the test")
        assert explain(library, item.id)["item"]["status"] == "retired"


def test_what_happened_is_the_answer_else_the_difference():
    here = State("a hall", location="hall")
    assert describe_effect(here, State("a hall", location="hall", feedback="You wait.")) == "You wait."
    assert describe_effect(here, State("a cellar", location="cellar")) == "now in the cellar"
    assert describe_effect(State("a hall"), State("a dark hall")) == "a dark hall"
    assert describe_effect(here, here) == "nothing changed"


def test_every_count_of_an_attempt_names_its_steps(library):
    """systems.md §3: every claim resolves to ids."""
    for summary in library.episodes.summaries():
        told = explain(library, f"attempt:{summary.id}")["attempt"]
        counts = {name: len(steps) for name, steps in told["evidence"].items()}
        assert counts == {"worked": summary.n - sum(summary.failures.values()), **summary.failures}
        assert told["best_step"]["id"] == summary.best


@pytest.mark.parametrize("ref", ["step:x", "step:-1", f"step:{10**30}", "attempt:0", "attempt:x", "", "%"])
def test_what_does_not_exist_is_an_unknown_name(library, ref):
    with pytest.raises(UnknownName):
        explain(library, ref)


def test_a_guardrail_is_as_precise_as_its_overrides_say():
    """What was overridden and failed, it was right to block; of what was only blocked, nobody knows."""
    usage = {"trajectory_id": "a", "arm": "retrieved", "control_outcome": None}
    blocked = {**usage, "mode": "blocked", "outcome": 1.0}
    failed, worked = ({**usage, "mode": "overridden", "outcome": outcome} for outcome in (0.0, 1.0))
    told = summarize_blocks([blocked, blocked, failed, failed, failed, worked])
    assert (told["blocked"], told["overridden"], told["worked"], told["precision"]) == (2, 4, 1, 0.75)
    assert summarize_blocks([blocked])["precision"] is None


def test_a_guardrail_says_why_its_evidence_failed_and_when_it_is_tried_next(own, episode):
    """Causes with counts and words, refusals, and the next trial."""
    with ExperienceLibrary.open(own) as library:
        for _ in range(5):
            told = episode("shake drawer", library=library, failure=Failure.TOOL_ERROR, success=False)
            step = told.steps[0]
            step = replace(step, diagnosis=replace(step.diagnosis, evidence="permission denied"))
            library.record(replace(told, steps=(step,)))
        library.evolve()
        guard = next(item for item in library.items.find(["guardrail"]) if item.forbids == "shake drawer")
        library.enforce(episode().steps[0].pre, "shake drawer")
        item = explain(library, guard.id)["item"]
    times = len(item["provenance"])  # it may be made before the last of them
    assert times >= 4
    assert item["failures"] == [{"cause": "tool_error", "times": times, "words": "permission denied"}]
    standing = item["probation"]
    assert (standing["in_force"], standing["refused"], standing["next_trial_after_refusals"]) == (True, 1, 4)
    assert format_failures(item["failures"]) == (
        f'Failures in its evidence: the tool reported an error {times} times ("permission denied").'
    )
    assert format_probation(standing).startswith(
        "In force. All calls, also of runs that were not recorded: refused once; let through as a trial 0 times. Next"
    )


def test_what_an_agent_read_in_a_result_is_listed_in_words(tmp_path):
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        state, why = State("A shop."), {"copied": ["a-1", "b-2"]}
        step = Step(state, 'pay(to="a-1")', state, Diagnosis(True), why=Reasons.of(why))
        library.record(Trajectory("pay", (step,), True))
        (ref,) = (step.id for step in library.episodes.get(library.episodes.find()[0]["id"]).steps)
        assert ("read in a result", "a-1, b-2") in list(describe_step(explain(library, f"step:{ref}")["step"], None))


def test_a_step_that_was_not_run_does_not_read_as_happened(episode):
    (step,) = episode("shake drawer", failure=Failure.BLOCKED).steps
    assert describe_outcome(step) == "not run: a guardrail refused it (no reason is given)"
    (step,) = episode("shake drawer", failure=Failure.REJECTED).steps
    assert describe_outcome(step) == "not run: a person refused it (no reason is given)"


def test_a_step_of_a_skill_names_its_chain_and_the_skill(tmp_path):
    """`hardwon memory show` says of which chain an action is the first link, and which skill it came from."""
    path = tmp_path / "library.db"
    with ExperienceLibrary.open(path) as opened:
        skill = Item("skill", "Make a table.", steps=("gather wood", "craft table"))
        opened.add(skill)
        agent = Agent("episodic", opened, Workshop(goal="table"), planner="skills")
        # in some episodes the skill is withheld at random
        results = [agent.run(seed=seed) for seed in range(4)]
        followed = next(result for result in results if result.trajectory.steps[0].why.skills)
        assert followed.trajectory.steps[0].why.extra["plan"] == "gather wood, then craft table"
        first, second = explain(opened, followed.trajectory.id)["episode"]["steps"]
        title = opened.items.get(first["why"]["skills"][0]["id"]).title
        assert first["why"]["skills"][0]["says"] == title
        lines = dict(describe_step(first, None))
        assert lines["plan"] == "gather wood, then craft table"
        assert lines["followed"].startswith("skill ")
        assert title in lines["followed"]
        assert second["why"]["policy"]["plan"] == "craft table"
    shown = CliRunner().invoke(app, ["memory", "show", str(path), f"step:{first['id']}"]).output
    assert "gather wood, then craft table" in " ".join(shown.split())
    assert title in " ".join(shown.split())


def test_a_step_of_a_lookahead_value_says_in_words_what_it_is_for(own, episode):
    """Its parts are one sentence, a way elsewhere is a chain, and what the step made possible is listed."""
    steps = list(episode("open drawer", "take spoon").steps)
    extra = {"gain": 0.3, "unlock": 0.55, "lost": 0.02, "plan": "go north, then read note"}
    steps[0] = replace(steps[0], why=Reasons(value=0.8, count=7, extra=extra), admissible=("open drawer", "wait"))
    steps[1] = replace(steps[1], admissible=("take spoon", *map(str, range(6)), "wait"))
    with ExperienceLibrary.open(own) as library:
        ref = library.record(replace(episode("open drawer"), steps=tuple(steps), id=""))
        first, second = explain(library, ref)["episode"]["steps"]
        assert first["opened"] == ["take spoon", "0", "1", "2", "3", "4", "5"]
        assert second["opened"] == []
        lines = dict(describe_step(first, None))
        assert lines["because"] == (
            "best lookahead value, 0.80 times the median reward, from 7 similar steps: brings 0.30 at once, opens or "
            "improves later actions by 0.55, lost the task in 2%"
        )
        assert lines["plan"] == "go north, then read note"
        assert lines["made possible"] == "take spoon, 0, 1, 2, 3, and 2 more"
        assert "gain" not in lines
        assert explain(library, f"step:{first['id']}")["step"]["opened"] == first["opened"]
        hopeful = {**first, "why": {**first["why"], "policy": {**extra, "promise": 0.25}}}
        words = dict(describe_step(hopeful, None))
        assert words["because"] == lines["because"] + "; a try could show 0.25 more"
        assert "promise" not in words
        rough = {**first, "why": {**first["why"], "n": 0}}
        assert "steps that are only roughly similar" in dict(describe_step(rough, None))["because"]
