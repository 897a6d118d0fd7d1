"""The loop as LangGraph graphs: one node a stage, or all the steps of an episode in one node.

Both run the same functions along the same routes. A checkpointer, a stream and Studio want to see
the stages; a rollout wants its steps without the two milliseconds that nine nodes cost. What waits
for a model (`decide`, and where they ask one `guide`, `plan` and `finish`) is awaited in an asynchronous graph.
"""

import copy
from collections.abc import Awaitable, Callable
from typing import Any, cast

from hardwon.memory import Diagnosis, Estimate, Failure, Hit, Item, Recollection, State, Step, Summary, Trajectory
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.types import Decision, Usage
from hardwon.runtime.planning.plans import Plan, PlannedStep

from .nodes import ROUTES, TARGETS, Nodes
from .state import EpisodeState, Update

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
"""The stages of a step that may wait: for a model, or an environment that takes its time."""
LASTING = (
    "state",
    "steps",
    "hints",
    "withheld",
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
"""What the steps leave to whoever asks for the episode."""
RECORDS = (
    Decision,
    Diagnosis,
    Estimate,
    Failure,
    Hint,
    Hit,
    Item,
    Plan,
    PlannedStep,
    Recollection,
    State,
    Step,
    Summary,
    Trajectory,
    Usage,
)
"""The types of which an `EpisodeState` is made."""


def build_graph(nodes: Nodes, *, fused: bool, asynchronous: bool = False, checkpointer: Any = None) -> Any:
    """A compiled graph over the nodes, from `begin` to `finish`."""
    from langgraph.graph import END, START, StateGraph

    graph = cast(Any, StateGraph(EpisodeState))
    graph.add_edge("finish", END)
    graph.add_node("begin", nodes.begin)
    graph.add_node("finish", nodes.afinish if asynchronous else nodes.finish)
    graph.add_edge(START, "begin")
    if fused:
        graph.add_node("steps", _asteps(nodes) if asynchronous else _steps(nodes))
        graph.add_edge("begin", "steps")
        graph.add_edge("steps", "finish")
    else:
        for stage in STAGES[1:-1]:
            awaited = asynchronous and stage in AWAITED
            graph.add_node(stage, getattr(nodes, f"a{stage}" if awaited else stage))
        for stage, route in ROUTES.items():
            graph.add_conditional_edges(stage, route, list(TARGETS[stage]))
    return graph.compile(checkpointer=_reads_records(checkpointer), name="hardwon")


def _reads_records(checkpointer: Any) -> Any:
    """The checkpointer, told that our records may be in a checkpoint; else LangGraph warns of each, and will refuse.

    A serializer that lets everything in, as the default does, lets in our records alone.
    """
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    serde = getattr(checkpointer, "serde", None)
    if not isinstance(serde, JsonPlusSerializer):
        return checkpointer
    ours = [(record.__module__, record.__name__) for record in RECORDS]
    if serde.with_msgpack_allowlist([("hardwon", "anything")]) is not serde:
        return checkpointer.with_allowlist(ours)
    checkpointer = copy.copy(checkpointer)
    checkpointer.serde = JsonPlusSerializer(pickle_fallback=serde.pickle_fallback, allowed_msgpack_modules=ours)
    return checkpointer


def _steps(nodes: Nodes) -> Callable[[EpisodeState], Update]:
    stages = {stage: getattr(nodes, stage) for stage in STAGES}

    def steps(episode: EpisodeState) -> Update:
        """observe to record, until the episode is over."""
        state: Any = dict(episode)
        stage = ROUTES["begin"](state)
        while stage != "finish":
            state.update(stages[stage](state))
            stage = ROUTES[stage](state)
        return {key: state[key] for key in LASTING if key in state}

    return steps


def _asteps(nodes: Nodes) -> Callable[[EpisodeState], Awaitable[Update]]:
    stages = {stage: getattr(nodes, stage) for stage in STAGES}
    awaited = {stage: getattr(nodes, f"a{stage}") for stage in AWAITED}

    async def steps(episode: EpisodeState) -> Update:
        """observe to record, awaiting the policy, until the episode is over."""
        state: Any = dict(episode)
        stage = ROUTES["begin"](state)
        while stage != "finish":
            state.update(await awaited[stage](state) if stage in awaited else stages[stage](state))
            stage = ROUTES[stage](state)
        return {key: state[key] for key in LASTING if key in state}

    return steps
