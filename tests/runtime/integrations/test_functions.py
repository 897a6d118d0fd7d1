"""`remember` and `FunctionEpisode`: experience for plain functions, which never costs a call."""

import asyncio
import logging

import pytest

from hardwon.memory import ExperienceLibrary, Failure, Item, Verdict
from hardwon.memory.errors import CallForbidden, ConfigError
from hardwon.memory.parts.episodes import LibraryEpisodes
from hardwon.runtime import FunctionEpisode, remember
from hardwon.runtime.integrations.functions import to_plain
from hardwon.runtime.integrations.tool_run import SOURCE

TASK = "Refund Ada's order."


@remember
def refund(order: str) -> str:
    if order == "last":
        raise LookupError("no such order")
    return f"{order} was refunded"


@pytest.fixture
def library(tmp_path):
    with ExperienceLibrary.open(tmp_path / "work.db") as opened:
        yield opened


def only_episode(library):
    (row,) = library.episodes.find()
    return library.episodes.get(row["id"])


def play(library, task=TASK):
    with FunctionEpisode(library, task) as episode:
        with pytest.raises(LookupError):
            refund("last")
        assert refund("A-1") == "A-1 was refunded"
    return episode


def test_calls_become_steps_with_their_outcomes(library):
    episode = play(library)
    stored = only_episode(library)
    assert stored.id == episode.id
    assert stored.task == TASK
    assert [step.action for step in stored.steps] == ['refund(order="last")', 'refund(order="A-1")']
    assert [step.diagnosis.success for step in stored.steps] == [False, True]
    assert "LookupError: no such order" in stored.steps[0].diagnosis.evidence
    assert stored.success is True


def test_coroutine_functions_are_recorded_too(library):
    @remember(name="find_table")
    async def find(city: str) -> list[str]:
        await asyncio.sleep(0)
        return [city]

    async def run():
        async with FunctionEpisode(library, "Find tables."):
            return await asyncio.gather(find("Rome"), find("Oslo"))

    assert asyncio.run(run()) == [["Rome"], ["Oslo"]]
    actions = {step.action for step in only_episode(library).steps}
    assert actions == {'find_table(city="Rome")', 'find_table(city="Oslo")'}


def test_concurrent_episodes_stay_apart(library):
    @remember
    async def note(text: str) -> str:
        await asyncio.sleep(0.01)
        return text

    async def run(task):
        async with FunctionEpisode(library, task):
            await note(task)
            await note(task)

    async def run_both():
        await asyncio.gather(run("one"), run("two"))

    asyncio.run(run_both())
    episodes = [library.episodes.get(row["id"]) for row in library.episodes.find()]
    assert {episode.task: {step.action for step in episode.steps} for episode in episodes} == {
        "one": {'note(text="one")'},
        "two": {'note(text="two")'},
    }


def test_later_episodes_begin_with_what_earlier_ones_found(library):
    assert FunctionEpisode(library, TASK).hint == ""
    for n in range(3):
        play(library, f"Refund order {n}.")
    with FunctionEpisode(library, "Refund order 7.") as episode:
        assert episode.hint.endswith(SOURCE)
        assert "refund" in episode.hint


def test_a_function_outside_an_episode_is_called_as_it_is(library):
    assert refund("A-1") == "A-1 was refunded"
    with pytest.raises(LookupError):
        refund("last")
    assert library.episodes.count() == 0
    assert refund.__name__ == "refund"


def test_an_exception_ends_the_episode_as_a_failure_and_reaches_the_caller(library):
    with pytest.raises(LookupError, match="no such order"), FunctionEpisode(library, TASK):
        refund("last")
    stored = only_episode(library)
    assert (stored.success, stored.ending) == (False, "LookupError")


@pytest.mark.parametrize(("outcome", "success", "score"), [(True, True, 1.0), (0.5, False, 0.5), (None, None, 0.0)])
def test_a_grade_takes_precedence(library, outcome, success, score):
    with FunctionEpisode(library, TASK) as episode:
        refund("A-1")
        episode.grade(outcome)
    stored = only_episode(library)
    assert (stored.success, stored.score) == (success, score)
    with pytest.raises(ConfigError, match="2"):
        episode.grade(2)


def test_results_can_report_failures_and_parameters_can_be_left_out(library):
    @remember(skip=("key",), failed=lambda result: result["status"] >= 400)
    def fetch(url: str, key: str) -> dict[str, int]:
        return {"status": 404}

    with FunctionEpisode(library, "Fetch the page."):
        fetch("/page", key="sk-secret")
    (step,) = only_episode(library).steps
    assert step.action == 'fetch(url="/page")'
    assert step.diagnosis.success is False


def test_methods_and_objects_have_stable_actions(library):
    class BankClient:
        @remember
        def file(self, paper: object, *more: object) -> None:
            return None

    with FunctionEpisode(library, "File it."):
        BankClient().file(object(), {1, 2})
    assert only_episode(library).steps[0].action == 'file(paper="<object>", more=[[1, 2]])'


def forbid(library):
    library.add(
        Item(
            "guardrail", "Never refund the last order", "It is always wrong.", "When asked for a refund",
            forbids='refund(order="last")', condition={"text": "Request"}, confidence=0.9,
        )
    )  # fmt: skip


def test_guardrails_warn_by_default(library, caplog):
    forbid(library)
    with caplog.at_level(logging.WARNING), FunctionEpisode(library, TASK) as episode, pytest.raises(LookupError):
        refund("last")
    assert len(episode.warnings) == 1
    assert "Experience warns of this call" in caplog.text


def test_with_warnings_even_a_repeated_failure_runs_and_its_step_says_so(library):
    forbid(library)
    with FunctionEpisode(library, TASK) as episode:
        for _ in range(2):
            with pytest.raises(LookupError):
                refund("last")
    (item,) = library.items.find()
    assert len(episode.warnings) == 2
    assert [step.why.overridden for step in only_episode(library).steps] == [(item.id,), (item.id,)]


def test_guardrails_can_block(library):
    forbid(library)
    with FunctionEpisode(library, TASK, guardrails="block"):
        with pytest.raises(CallForbidden, match="experience forbids"):
            refund("last")
        refund("A-1")
    assert only_episode(library).steps[0].diagnosis.failure is Failure.BLOCKED


def test_a_library_that_fails_costs_no_call(library, monkeypatch, caplog):
    monkeypatch.setattr(LibraryEpisodes, "keys", lambda *_, **__: 1 / 0)
    for name in ("recall", "check", "record"):
        monkeypatch.setattr(ExperienceLibrary, name, lambda *_, **__: 1 / 0)
    with FunctionEpisode(library, TASK) as episode:
        assert episode.hint == ""
        assert refund("A-1") == "A-1 was refunded"
    assert "the program continues without it" in caplog.text


def test_the_trial_of_a_guardrail_runs_although_guardrails_block(library, monkeypatch):
    forbid(library)
    (item,) = library.items.find()
    verdict = Verdict(True, item.id, "no", trial=True, items=(item.id,))
    monkeypatch.setattr(ExperienceLibrary, "enforce", lambda *_, **__: verdict)
    with FunctionEpisode(library, TASK, guardrails="block"), pytest.raises(LookupError):
        refund("last")
    (step,) = only_episode(library).steps
    assert step.why.trial == (item.id,)


def test_an_episode_inside_another_one_ends_and_the_outer_one_goes_on(library):
    with FunctionEpisode(library, "Outer.") as outer:
        with FunctionEpisode(library, "Inner.") as inner:
            refund("A-1")
        refund("A-2")
        refund("A-3")
    assert [len(library.episodes.get(episode.id).steps) for episode in (outer, inner)] == [2, 1]


def test_an_episode_is_entered_once(library):
    episode = play(library)
    with pytest.raises(ConfigError, match="entered before"), episode:
        pass


def test_results_are_shown_as_text_and_nothing_is_none(library):
    @remember
    def look(at: str) -> str | None:
        return at or None

    with FunctionEpisode(library, "Look."):
        look("a cat")
        look("")
    assert [step.post.feedback for step in only_episode(library).steps] == ["a cat", ""]


@pytest.mark.parametrize(("result", "error"), [("no money", "no money"), ("", "error")])
def test_a_result_that_reports_a_failure_is_its_error_and_no_outage(library, result, error):
    @remember(failed=lambda _: True)
    def pay() -> object:
        return result

    with FunctionEpisode(library, "Pay."):
        pay()
    (step,) = only_episode(library).steps
    assert (step.diagnosis.failure, step.diagnosis.evidence) == (Failure.TOOL_ERROR, error)


@pytest.mark.parametrize(
    ("value", "depth", "plain"),
    [
        ({"b", "a"}, 9, ["a", "b"]),
        ([2, 1], 9, [2, 1]),
        ((3, (2, 1)), 9, [3, [2, 1]]),
        ([[1]], 1, ["[1]"]),
        ({"a": {"b": 1}}, 1, {"a": "{'b': 1}"}),
    ],
)
def test_values_become_json_as_deep_as_is_shown(value, depth, plain):
    """The order of a list is kept, and that of a set is fixed."""
    assert to_plain(value, depth) == plain


def test_wrong_uses_are_named():
    with pytest.raises(ConfigError, match="generator"):

        @remember
        def numbers():
            yield 1

    with pytest.raises(ConfigError, match="'secret', which is no parameter"):
        remember(skip=("secret",))(refund)


def test_a_call_that_does_not_fit_fails_like_the_function(library, caplog):
    with FunctionEpisode(library, TASK), pytest.raises(TypeError, match="missing 1 required"):
        refund()  # type: ignore[call-arg]
    assert library.episodes.count() == 0
    with FunctionEpisode(library, TASK):
        with pytest.raises(TypeError):
            refund()  # type: ignore[call-arg]
        refund("A-1")
    assert len(only_episode(library).steps) == 1
    assert caplog.text == ""
