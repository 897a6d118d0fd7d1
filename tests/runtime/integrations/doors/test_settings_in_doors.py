"""A setting with a wrong value is refused at once, by its name, its value and what to give."""

from typing import Any

import pytest

from hardwon.memory import HardwonError, Trajectory
from hardwon.memory.errors import ConfigError, WrongType
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, HardwonStore, RetrievalGuidance, remember
from hardwon.runtime.agent import Agent
from hardwon.runtime.environments.tools.environment import ToolEnvironment


def middleware(library, **options: Any):
    ExperienceMiddleware(library, **options)


def functions(library, **options: Any):
    FunctionEpisode(library, **{"task": "Act.", **options})


def decorator(library, **options: Any):
    remember(**options)(lambda order: order)


def store(library, **options: Any):
    HardwonStore(library, **options)


def act(order: str) -> str:
    """Act."""
    return order


def environment(_, **options: Any):
    ToolEnvironment([act], **options)


def agent(library, **options: Any):
    Agent("episodic", library, ToolEnvironment([act]), **options)


WRONG: list[tuple[Any, str, Any]] = [
    (middleware, "grader", 3), (middleware, "grader", "exact"), (middleware, "arm", "contol"), (middleware, "arm", 3),
    (middleware, "learn", "yes"), (middleware, "guardrails", "blok"), (middleware, "guardrails", 3),
    (middleware, "guidance", "retrieval"), (middleware, "guidance", RetrievalGuidance), (middleware, "place", "sytem"),
    (middleware, "recall_k", "5"), (middleware, "recall_k", -1), (middleware, "seed", "a"),
    (middleware, "trust", "trustd"), (middleware, "extractor", 3), (middleware, "namespace", "user"),
    (functions, "task", None), (functions, "task", 3), (functions, "guardrails", "wran"), (functions, "guidance", 3),
    (functions, "recall_k", 5.5), (functions, "recall_k", -1), (functions, "extractor", "gpt"),
    (functions, "meta", "v1"), (functions, "meta", {1: 2}),
    (decorator, "failed", 3), (decorator, "failed", "error"), (decorator, "name", 3), (decorator, "skip", "order"),
    (decorator, "skip", ["ordr"]), (decorator, "skip", 3),
    (store, "index", 3), (store, "index", {"field": ["a"]}), (store, "index", {"fields": "text"}), (store, "ttl", 5),
    (store, "ttl", {"defalt_ttl": 5}), (store, "ttl", {"default_ttl": "5"}),
    (environment, "grader", 3), (environment, "call_timeout_s", "30"), (environment, "shown_calls", "8"),
    (agent, "arm", "Control"), (agent, "level", "stp"), (agent, "learn", "no"), (agent, "guardrails", "blck"),
    (agent, "max_steps", "9"), (agent, "max_steps", 0), (agent, "recall_k", -1), (agent, "recall_k", "5"),
    (agent, "seed", "a"), (agent, "retries", -1), (agent, "step_timeout_s", "x"), (agent, "planner", "skilz"),
    (agent, "planner", 3), (agent, "withhold", "x"), (agent, "strategies", 3), (agent, "extractor", "gpt"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "name", "value"), WRONG)
def test_a_wrong_setting_is_named_with_its_value(library, call, name, value):
    with pytest.raises(HardwonError) as refused:
        call(library, **{name: value})
    words = str(refused.value)
    assert name.removesuffix("s") in words
    told = value[0] if isinstance(value, list) else value
    assert repr(told)[:40] in words or (isinstance(value, dict) and next(iter(value)) in words)
    assert any(
        step in words for step in ("give ", "use ", "There are", "which is no parameter", "at least", "supported")
    )


@pytest.mark.parametrize("outcome", ["good", [1], 3, float("nan"), None])
def test_a_grade_that_is_none_is_refused(library, outcome):
    episode = FunctionEpisode(library, "Act.")
    if outcome is None:
        episode.grade(outcome)
        return
    with pytest.raises(ConfigError, match="outcome is"):
        episode.grade(outcome)


@pytest.mark.parametrize("function", [3, "refund", int])
def test_what_is_no_function_with_parameters_is_not_decorated(function):
    with pytest.raises(ConfigError, match=r"give a function|decorate a function"):
        remember(function)


def test_an_object_of_another_class_may_stand_in_its_place(library):
    """What it can do is not known before it is called."""

    class Guide:
        """A guidance of the user's own, of which only a part is written."""

    ExperienceMiddleware(library, guidance=Guide())  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="guidance is <object"):
        ExperienceMiddleware(library, guidance=object())  # type: ignore[arg-type]


def test_labels_of_episodes_are_free(library):
    """The arm of a recorded episode is a word of the user's own."""
    assert library.record(Trajectory("Act.", (), None, arm="contol"))
