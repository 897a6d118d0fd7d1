"""The loop as LangGraph graphs: one node a stage, or the stages of a step in one node.

Both run the same functions along the same routes. A checkpointer, a stream and Studio want to see
the stages; a rollout wants its steps for a tenth of a millisecond rather than two.
"""

import copy
from collections.abc import Awaitable, Callable
from typing import Any, cast

from tacit.memory import Diagnosis, Estimate, Failure, Hit, Item, Recollection, State, Step, Trajectory

from .guidance import Hint
from .loop import ROUTES, TARGETS, EpisodeState, Nodes
from .protocols import Decision, Usage

STAGES = ("begin", "observe", "signature", "recall", "guide", "decide", "guard", "act", "diagnose", "record", "finish")
LASTING = ("state", "steps", "hints", "replan", "usage", "score", "success", "ending", "failed", "trajectory")
"""What a step leaves to the next one."""
RECORDS = (Decision, Diagnosis, Estimate, Failure, Hint, Hit, Item, Recollection, State, Step, Trajectory, Usage)
"""The types of which an `EpisodeState` is made."""


def build_graph(nodes: Nodes, *, fused: bool, asynchronous: bool = False, checkpointer: Any = None) -> Any:
    """A compiled graph over the nodes, from `begin` to `finish`."""
    from langgraph.graph import END, START, StateGraph

    graph = cast(Any, StateGraph(EpisodeState))
    graph.add_edge("finish", END)
    graph.add_node("begin", nodes.begin)
    graph.add_node("finish", nodes.finish)
    graph.add_edge(START, "begin")
    if fused:
        graph.add_node("step", _astep(nodes) if asynchronous else _step(nodes), destinations=("step", "finish"))
        graph.add_edge("begin", "step")
    else:
        for stage in STAGES[1:-1]:
            graph.add_node(stage, nodes.adecide if asynchronous and stage == "decide" else getattr(nodes, stage))
        for stage, route in ROUTES.items():
            graph.add_conditional_edges(stage, route, list(TARGETS[stage]))
    return graph.compile(checkpointer=_reads_records(checkpointer), name="tacit")


def _reads_records(checkpointer: Any) -> Any:
    """The checkpointer, told that our records may be in a checkpoint; else LangGraph warns of each, and will refuse.

    A serializer that lets everything in, as the default does, lets in our records alone.
    """
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    serde = getattr(checkpointer, "serde", None)
    if not isinstance(serde, JsonPlusSerializer):
        return checkpointer
    ours = [(record.__module__, record.__name__) for record in RECORDS]
    if serde.with_msgpack_allowlist([("tacit", "anything")]) is not serde:
        return checkpointer.with_allowlist(ours)
    checkpointer = copy.copy(checkpointer)
    checkpointer.serde = JsonPlusSerializer(pickle_fallback=serde.pickle_fallback, allowed_msgpack_modules=ours)
    return checkpointer


def _step(nodes: Nodes) -> Callable[[EpisodeState], Any]:
    stages = {stage: getattr(nodes, stage) for stage in STAGES}

    def step(episode: EpisodeState) -> Any:
        """observe to record, in one node."""
        state: Any = dict(episode)
        stage = _first(episode)
        while stage not in ("step", "finish"):
            state.update(stages[stage](state))
            stage = _next(stage, state)
        return _onward(stage, state)

    return step


def _astep(nodes: Nodes) -> Callable[[EpisodeState], Awaitable[Any]]:
    stages = {stage: getattr(nodes, stage) for stage in STAGES}

    async def step(episode: EpisodeState) -> Any:
        """observe to record, in one node, awaiting the policy."""
        state: Any = dict(episode)
        stage = _first(episode)
        while stage not in ("step", "finish"):
            state.update(await nodes.adecide(state) if stage == "decide" else stages[stage](state))
            stage = _next(stage, state)
        return _onward(stage, state)

    return step


def _first(episode: EpisodeState) -> str:
    return "record" if episode.get("failed") else "observe"


def _next(stage: str, state: EpisodeState) -> str:
    following = ROUTES[stage](state)
    return "step" if stage == "record" and following == "observe" else following


def _onward(stage: str, state: dict[str, Any]) -> Any:
    """Only what the next step needs is written: every channel costs LangGraph time."""
    from langgraph.types import Command

    return Command(goto=stage, update={key: state[key] for key in LASTING if key in state})
