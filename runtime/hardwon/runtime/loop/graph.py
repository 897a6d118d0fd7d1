"""The loop as LangGraph graphs: one node per stage, or all steps of an episode in one node.

Both forms run the same functions along the same routes. Checkpointers, streams and Studio need one node per stage.
Rollouts use a single node, because nine nodes cost about 2 ms per step. In an asynchronous graph the stages that may
wait for a model or an environment are awaited.
"""

import copy
from collections.abc import Awaitable, Callable
from typing import Any, cast

from hardwon.memory import (
    Diagnosis,
    Estimate,
    Failure,
    Hit,
    Item,
    Reasons,
    Recollection,
    State,
    Step,
    Summary,
    Trajectory,
)
from hardwon.memory.errors import require_extra
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Decision
from hardwon.runtime.interfaces.usage import ModelUsage

from .holdout import DrawnItems
from .nodes import ROUTES, TARGETS
from .state import EpisodeState, StateUpdate

STAGES = (
    "begin",
    "observe",
    "signature",
    "recall",
    "guide",
    "plan",
    "decide",
    "guard",
    "act",
    "diagnose",
    "record",
    "finish",
)
AWAITED = ("guide", "plan", "decide", "act")
"""The stages of a step that may wait for a model or an environment."""
LASTING = (
    "state",
    "steps",
    "hints",
    "drawn",
    "plan",
    "skills",
    "replan",
    "usage",
    "score",
    "success",
    "ending",
    "failed",
    "trajectory",
)
"""The fields of the episode's state that the fused node returns; the others belong to a single step."""
RECORDS = (
    Decision,
    Diagnosis,
    DrawnItems,
    Estimate,
    Failure,
    Hint,
    Hit,
    Item,
    Plan,
    PlannedStep,
    Reasons,
    Recollection,
    State,
    Step,
    Summary,
    Trajectory,
    ModelUsage,
)
"""The record types that occur in an `EpisodeState`."""


def build_graph(nodes: Any, *, fused: bool, asynchronous: bool, checkpointer: Any = None) -> Any:
    """Return a compiled graph over the nodes, from `begin` to `finish`."""
    with require_extra("agent"):
        from langgraph.graph import END, START, StateGraph

    graph = cast(Any, StateGraph(EpisodeState))
    graph.add_edge("finish", END)
    graph.add_node("begin", nodes.begin)
    graph.add_node("finish", nodes.afinish if asynchronous else nodes.finish)
    graph.add_edge(START, "begin")
    if fused:
        graph.add_node("steps", _build_async_steps(nodes) if asynchronous else _build_steps(nodes))
        graph.add_edge("begin", "steps")
        graph.add_edge("steps", "finish")
    else:
        for stage in STAGES[1:-1]:
            awaited = asynchronous and stage in AWAITED
            graph.add_node(stage, getattr(nodes, f"a{stage}" if awaited else stage))
        for stage, route in ROUTES.items():
            graph.add_conditional_edges(stage, route, list(TARGETS[stage]))
    return graph.compile(checkpointer=_allow_records(checkpointer), name="hardwon")


def _allow_records(checkpointer: Any) -> Any:
    """Return the checkpointer with our record types allowed in its serializer.

    Without this LangGraph warns about each of them, and a later version will refuse them. A serializer that allows
    every type, as the default does, is restricted to our records.
    """
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    serde = getattr(checkpointer, "serde", None)
    if not isinstance(serde, JsonPlusSerializer):
        return checkpointer
    allowed = [(record.__module__, record.__name__) for record in RECORDS]
    # A serializer with an allowlist returns an extended copy; one that allows everything returns itself.
    if serde.with_msgpack_allowlist([("hardwon", "anything")]) is not serde:
        return checkpointer.with_allowlist(allowed)
    checkpointer = copy.copy(checkpointer)  # the caller's own checkpointer keeps its serializer
    checkpointer.serde = JsonPlusSerializer(pickle_fallback=serde.pickle_fallback, allowed_msgpack_modules=allowed)
    return checkpointer


def _build_steps(nodes: Any) -> Callable[[EpisodeState], StateUpdate]:
    stages = {stage: getattr(nodes, stage) for stage in STAGES}

    def steps(episode: EpisodeState) -> StateUpdate:
        """Run the stages from observe to record until the episode ends."""
        state: Any = dict(episode)
        stage = ROUTES["begin"](state)
        while stage != "finish":
            state.update(stages[stage](state))
            stage = ROUTES[stage](state)
        return {key: state[key] for key in LASTING if key in state}

    return steps


def _build_async_steps(nodes: Any) -> Callable[[EpisodeState], Awaitable[StateUpdate]]:
    stages = {stage: getattr(nodes, stage) for stage in STAGES}
    awaited = {stage: getattr(nodes, f"a{stage}") for stage in AWAITED}

    async def steps(episode: EpisodeState) -> StateUpdate:
        """Run the stages from observe to record, awaiting those that may wait, until the episode ends."""
        state: Any = dict(episode)
        stage = ROUTES["begin"](state)
        while stage != "finish":
            state.update(await awaited[stage](state) if stage in awaited else stages[stage](state))
            stage = ROUTES[stage](state)
        return {key: state[key] for key in LASTING if key in state}

    return steps
