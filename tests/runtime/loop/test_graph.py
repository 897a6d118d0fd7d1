import asyncio
from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import EnvironmentCrashed
from hardwon.runtime.agent import Agent
from hardwon.runtime.loop.graph import RECORDS, STAGES, build_graph
from hardwon.runtime.loop.nodes import ROUTES
from hardwon.runtime.loop.state import EpisodeState
from hardwon.runtime.policies.episodic import EpisodicPolicy

langgraph = pytest.importorskip("langgraph.checkpoint.memory")


def bare(trajectory):
    """A trajectory without the id it was given by chance."""
    return replace(trajectory, id="")


def run(agent, how, seed):
    """One episode, the fast way, stage by stage, or awaited."""
    if how == "awaited":
        return bare(asyncio.run(agent.arun(seed=seed)).trajectory)
    if how == "run":
        return bare(agent.run(seed=seed).trajectory)
    if how == "streamed":
        return bare(list(agent.stream(seed=seed))[-1].update["trajectory"])

    async def streamed():
        return [event async for event in agent.astream(seed=seed)]

    return bare(asyncio.run(streamed())[-1].update["trajectory"])


def learning(folder, rooms, how, checkpointer=None):
    """Four episodes of one agent that learns, from an empty library."""
    with ExperienceLibrary.open(folder / f"{how}{bool(checkpointer)}.db") as library:
        agent = Agent(EpisodicPolicy(), library, rooms(), max_steps=8, checkpointer=checkpointer, seed=1)
        return [run(agent, how, seed) for seed in range(4)]


def test_all_graphs_give_the_same_episodes(tmp_path, rooms):
    """In one node or stage by stage, called or awaited, checkpointed or not: the same seeds, the same steps."""
    expected = learning(tmp_path, rooms, "run")
    assert len({episode.steps for episode in map(freeze, expected)}) > 1
    for how in ("streamed", "awaited", "astreamed"):
        assert learning(tmp_path, rooms, how) == expected
    for how in ("run", "awaited"):
        assert learning(tmp_path, rooms, how, langgraph.InMemorySaver()) == expected


def freeze(trajectory):
    """With steps that can be put into a set."""
    return replace(trajectory, steps=tuple(step.action for step in trajectory.steps))


def test_the_stages_come_in_order(library, rooms, script):
    """Every stage of every step, and `finish` at the end."""
    agent = Agent(script("go east"), library, rooms())
    stages = [event.stage for event in agent.stream()]
    assert stages == ["begin", *(stage for stage in STAGES[1:-1] * 4 if stage != "plan"), "finish"]


def test_an_awaited_policy_is_awaited(library, rooms, script):
    """`adecide` is called, not `decide` in a thread."""

    policy, called = script("go east"), script("go east")

    async def awaited(context):
        await asyncio.sleep(0)
        return called.decide(context)

    policy.adecide = awaited
    assert asyncio.run(Agent(policy, library, rooms()).arun()).success
    assert (len(called.seen), policy.seen) == (4, [])

    async def stream():
        return [event async for event in Agent(policy, library, rooms()).astream()]

    assert asyncio.run(stream())[-1].update["trajectory"].success
    assert (len(called.seen), policy.seen) == (8, [])


@pytest.mark.parametrize("fused", [True, False])
def test_a_crash_leads_to_the_end(library, rooms, script, fused):
    """In both graphs, also when it comes before the first step."""
    for at in (0, 1, 3):
        world = rooms(faults={at: EnvironmentCrashed("gone")})
        if at == 0:
            world.reset = lambda task, seed: (_ for _ in ()).throw(EnvironmentCrashed("gone"))
        checkpointer = None if fused else langgraph.InMemorySaver()
        agent = Agent(script("go east"), library, world, retries=0, checkpointer=checkpointer)
        trajectory = agent.run().trajectory
        assert (trajectory.success, trajectory.ending, len(trajectory.steps)) == (
            None,
            "environment_crash",
            max(0, at - 1),
        )


def test_the_drawing_has_every_stage(library, rooms, script):
    """What Studio shows is what runs."""
    nodes = Agent(script("wait"), library, rooms())._nodes
    drawn = build_graph(nodes, fused=False, asynchronous=False).get_graph()
    assert set(STAGES) <= set(drawn.nodes)
    assert {edge.source for edge in drawn.edges} >= set(ROUTES)


def test_every_record_of_a_checkpoint_is_known():
    """A type that an episode's state holds and RECORDS lacks would be refused by LangGraph one day."""
    from langgraph._internal._serde import collect_allowlist_from_schemas

    known = {(record.__module__, record.__name__) for record in RECORDS}
    held = {key for key in collect_allowlist_from_schemas(schemas=[EpisodeState]) if key[0].startswith("hardwon")}
    assert {key for key in held if key[1] not in ("EpisodeState", "Info")} <= known
