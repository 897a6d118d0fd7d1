import asyncio
import gc
import threading
import time
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest

from hardwon.memory import ExperienceLibrary, Failure, Item
from hardwon.memory.errors import ConfigError, EnvironmentCrashed, UnknownName
from hardwon.memory.retrieval import task_recall
from hardwon.runtime.agent import Agent, as_policy
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.policies.episodic import EpisodicPolicy, RandomPolicy


@pytest.fixture
def agent(library, rooms, script):
    """Makes an agent that does as it is told in a world of rooms."""

    def make(*actions, world=None, instead=None, reads="values", **options):
        policy = script(*actions or ("go east",), instead=instead, reads=reads)
        return Agent(policy, library, world or rooms(), **{"max_steps": 10, **options})

    return make


def failures(result):
    """The label of every step."""
    return [step.diagnosis.failure for step in result.trajectory.steps]


def test_an_episode_is_run_and_recorded(agent, library):
    """Its outcome, its steps, and the row in the library."""
    result = agent().run("fold", seed=3)
    assert (result.success, result.score, result.trajectory.ending) == (True, 1.0, "success")
    assert [step.action for step in result.trajectory.steps] == ["go east"] * 4
    kept = library.episodes.get(result.trajectory.id)
    assert (kept.task, kept.seed, kept.arm, kept.score) == ("go to the golden room", 3, "retrieved", 1.0)
    assert kept.meta == {"environment": "rooms", "policy": "script", "attempt": 0, "episode": 0, "split": "fold"}


def test_every_step_is_a_recall(agent, library, monkeypatch):
    """On the state it is in; by task, the episodes are chosen once."""
    spy = Mock(wraps=library.recall)
    monkeypatch.setattr(library, "recall", spy)
    result = agent().run()
    assert [call.args[0] for call in spy.call_args_list] == [step.pre for step in result.trajectory.steps]


def test_by_task_episodes_are_chosen_once(agent, library, monkeypatch):
    """Whatever the number of steps."""
    agent().run()
    spy = Mock(wraps=task_recall._similar_episodes)
    monkeypatch.setattr(task_recall, "_similar_episodes", spy)
    agent(level="task").run()
    assert spy.call_count == 1


def test_without_learning_nothing_is_written(agent, library):
    """No episode, no item, no change of any kind."""
    library.add(Item("insight", "the red room is a room"))
    changes = library._file.store.rows("SELECT count(*) FROM changes")
    result = agent(learn=False, reads="text").run()
    assert (result.success, result.trajectory.id) == (True, "")
    assert library._file.store.rows("SELECT count(*) FROM changes") == changes
    assert library.episodes.count() == 0


def test_the_same_seeds_give_the_same_episodes(tmp_path, rooms):
    """On another day, in another file."""

    def episodes(name):
        with ExperienceLibrary.open(tmp_path / name) as library:
            agent = Agent(EpisodicPolicy(), library, rooms(), max_steps=15, seed=5)
            return [replace(agent.run(seed=seed).trajectory, id="") for seed in range(8)]

    assert episodes("one.db") == episodes("two.db")


def forbid(library, action, see="red"):
    """A guardrail against an action where this is seen."""
    library.add(Item("guardrail", "no", "it hurts", condition={"text": see}, forbids=action, confidence=0.9))


def test_a_forbidden_action_never_reaches_the_environment(agent, library, rooms):
    """systems.md §3: guardrail blocks before execution: 0 calls in 100 tries; a replan follows, another action runs."""
    forbid(library, "wait")
    world = rooms()
    result = agent("wait", instead="go west", world=world, max_steps=100, learn=False).run()
    assert Counter(world.ran) == {"go west": 100}
    assert [len(step.why.blocked) for step in result.trajectory.steps] == [1] * 100
    assert result.blocked == 100


def test_a_frozen_agent_tries_a_forbidden_action_after_hours_only(agent, library, rooms, monkeypatch):
    """A frozen evaluation takes no trial by refusals; a process that lives for days does not refuse for good."""
    forbid(library, "wait")
    for hours, tried in ((0, False), (2, True)):
        later = time.time() + hours * 3600
        monkeypatch.setattr("hardwon.memory.guardrails.probation.clock", lambda later=later: later)
        world = rooms()
        agent("wait", instead="go west", world=world, max_steps=20, learn=False).run()
        assert ("wait" in world.ran) is tried


def test_it_runs_where_it_is_not_forbidden(agent, library, rooms):
    """systems.md §3: the action outside the condition still runs; the condition is asked in every state."""
    forbid(library, "wait", see="blue")
    world = rooms()
    agent("wait", "go east", "wait", "go east", "go east", "go east", instead="go east", world=world).run()
    assert world.ran[:3] == ["wait", "go east", "go east"]


def test_a_policy_that_insists_is_blocked(agent, library, rooms):
    """The step is recorded as blocked, the environment is not called, the episode goes on."""
    forbid(library, "wait")
    world = rooms()
    result = agent("wait", "go east", "go east", "go east", "go east", world=world).run()
    assert failures(result) == [Failure.BLOCKED, *[Failure.NONE] * 4]
    assert result.trajectory.steps[0].diagnosis.evidence == "it hurts"
    assert world.ran == ["go east"] * 4
    assert result.success


def test_where_all_is_forbidden_the_choice_stands(agent, library, rooms):
    """Something must be done."""
    world = rooms(actions=["go east"])
    forbid(library, "go east")
    assert agent(world=world).run().success
    assert world.ran == ["go east"] * 4


def test_guardrails_may_be_switched_off(agent, library, rooms):
    """For a control."""
    world = rooms()
    forbid(library, "go east")
    assert agent(world=world, guardrails=False).run().success


def test_trouble_is_told_once(agent):
    """The policy is asked for another plan when it goes in circles, once, and keeps the steps it has."""
    told = agent("go east", "go west", max_steps=8)
    result = told.run()
    replans = [context.replan for context in told.policy.seen]
    assert sum(replan is not None for replan in replans) == 1
    assert "circles" in next(filter(None, replans))
    for context in told.policy.seen:
        prefix = result.trajectory.steps[: len(context.history)]
        assert all(kept is step for kept, step in zip(context.history, prefix, strict=True))


def test_a_policy_failure_is_a_failed_step(agent, rooms, no_idea):
    """Recorded as such, without an action; the episode goes on."""
    world = rooms()
    result = agent(no_idea, "go east", "go east", "go east", "go east", world=world).run()
    assert failures(result) == [Failure.POLICY_ERROR, *[Failure.NONE] * 4]
    assert result.trajectory.steps[0].diagnosis.evidence == "no idea"
    assert result.success
    assert len(world.ran) == 4


def test_another_error_of_the_policy_is_not_hidden(agent):
    """A bug is a bug."""
    with pytest.raises(ZeroDivisionError):
        agent(ZeroDivisionError("bug")).run()


CRASH = EnvironmentCrashed("the power went")


def test_a_crash_is_tried_again_on_a_fresh_environment(agent, library, rooms):
    """The second attempt counts; the first one is kept for audit only."""
    result = agent(world=rooms(faults={2: CRASH})).run()
    assert (result.success, result.trajectory.meta["attempt"]) == (True, 1)
    assert library.episodes.count() == 1
    excluded = [row for row in library.episodes.find() if row["success"] is None]
    assert [(row["ending"], row["n_steps"], row["meta"]["failed"]) for row in excluded] == [
        ("environment_crash", 1, "the power went")
    ]


def test_a_crash_that_stays_excludes_the_episode(agent, library, rooms):
    """Never a zero: no values, no words, no score, no items come of it."""
    ref = library.add(Item("insight", "the red room is a room", score=0.8)).item_id
    result = agent(world=rooms(faults={2: CRASH, 4: CRASH}), reads="text").run()
    assert (result.success, result.trajectory.ending) == (None, "environment_crash")
    assert library.episodes.count() == 0
    assert library._file.caught_up().statistics.values.cells == {}
    assert library._file.store.rows("SELECT * FROM words") == []
    assert library.items.get(ref).score == 0.8
    assert library.admin.stats()["excluded"] == 2


def test_an_attempt_that_broke_is_paid_for(agent, rooms):
    """A result costs what all its attempts did."""
    paid = agent(world=rooms(faults={2: CRASH}))
    decide = paid.policy.decide
    paid.policy.decide = lambda context: replace(decide(context), usage=ModelUsage(10, 1, 0.5, 1))
    assert paid.run().usage == ModelUsage(60, 6, 3.0, 6)


def test_a_hang_is_a_crash_that_takes_long(agent, library, rooms):
    """The environment is left behind after the time it has; a fresh one goes on."""
    release = threading.Event()
    world = rooms(faults={1: release.wait, 3: release.wait})
    begun = time.monotonic()
    result = agent(world=world, step_timeout_s=0.1).run()
    release.set()
    assert (result.success, result.trajectory.ending) == (None, "environment_hang")
    assert time.monotonic() - begun < 30
    assert library.episodes.count() == 0


def test_many_episodes_share_one_process(library, rooms, script):
    """Twenty at once: each has its own environment, and all are kept."""

    policy = script("go east", "go east", "go west")

    async def slowly(context):
        await asyncio.sleep(0.001)
        return policy.decide(context)

    policy.adecide = slowly
    agent = Agent(policy, library, rooms(), max_steps=12)

    async def all_of_them():
        return await asyncio.gather(*(agent.arun(seed=seed) for seed in range(20)))

    results = asyncio.run(all_of_them())
    assert [result.success for result in results] == [True] * 20
    assert {len(result.trajectory.steps) for result in results} == {8}
    assert [result.trajectory.seed for result in results] == list(range(20))
    assert library.episodes.count() == 20
    assert library.admin.verify() == []


def test_threads_may_run_one_agent(agent, library):
    """Four at once, each its own episode."""
    shared = agent()
    results = []
    threads = [threading.Thread(target=lambda: results.append(shared.run())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.success for result in results] == [True] * 4
    assert library.episodes.count() == 4


def test_one_thread_id_is_one_episode_at_a_time(agent):
    """Two would mix their states."""
    shared = agent()
    begun = shared.stream(thread_id="t")
    next(begun)
    with pytest.raises(ConfigError, match="already runs under thread 't'"):
        shared.run(thread_id="t")
    begun.close()
    assert shared.run(thread_id="t").success


def test_an_awaited_stream_has_the_events_of_a_stream(agent):
    one = agent(learn=False)
    expected = [event.stage for event in one.stream()]

    async def read():
        return [event.stage async for event in one.astream()]

    assert expected[-1] == "finish"
    assert asyncio.run(read()) == expected


def test_closing_closes_the_environments_alone(agent, library):
    """The library is the caller's."""
    one = agent()
    one.run()
    one.close()
    assert library.episodes.count() == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("episodic", EpisodicPolicy), ("random", RandomPolicy), (RandomPolicy(), RandomPolicy)]
)
def test_a_policy_may_be_named(name, kind):
    """Or given."""
    assert isinstance(as_policy(name), kind)


def test_an_unknown_policy_names_those_there_are():
    """With the one that was meant."""
    with pytest.raises(UnknownName, match=r"unknown policy 'episodc'\. Did you mean 'episodic'"):
        as_policy("episodc")


def test_an_episode_needs_a_step(agent):
    """The message says how many."""
    with pytest.raises(ConfigError, match="max_steps is 0; an episode needs at least 1"):
        agent(max_steps=0)


def test_one_environment_serves_all_episodes_unless_it_broke(library, rooms, script):
    clones: list[object] = []

    def clone():
        clones.append(rooms())
        return clones[-1]

    world = rooms()
    world.clone = clone
    agent = Agent(script("go east"), library, world, learn=False)
    for seed in range(3):
        agent.run(seed=seed)
    assert clones == []


# ---- ends

ENDS = {
    "run": lambda agent: agent.run(),
    "arun": lambda agent: asyncio.run(agent.arun()),
    "stream": lambda agent: list(agent.stream()),
}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("end", ENDS)
def test_an_episode_that_an_error_ends_is_recorded_with_an_unknown_outcome(agent, library, end, error):
    """Nobody else has its steps. The error reaches the caller, and the agent plays on."""
    broken = agent("go east", "go east", error("password: hunter22"))
    with pytest.raises(error):
        ENDS[end](broken)
    (row,) = library.episodes.find()
    episode = library.episodes.get(row["id"])
    is_cancelled = end == "arun" and not issubclass(error, Exception)  # an interrupt cancels the task around it
    assert episode.ending == ("CancelledError" if is_cancelled else error.__name__)
    assert (episode.success, episode.task) == (None, "go to the golden room")
    assert [step.action for step in episode.steps] == ["go east"] * 2
    assert "hunter22" not in repr(episode)
    broken.policy.actions = ("go east",)
    assert broken.run().success
    assert len(library.episodes.find()) == 2


def test_a_stream_that_is_left_is_recorded_with_an_unknown_outcome(agent, library):
    for event in agent().stream():
        if event.stage == "diagnose":
            break
    gc.collect()
    (row,) = library.episodes.find()
    assert (row["success"], row["ending"], row["n_steps"]) == (None, "GeneratorExit", 1)


def test_an_episode_that_was_stored_is_not_stored_again(agent, library, monkeypatch):
    monkeypatch.setattr(library, "evolve", Mock(side_effect=RuntimeError("the disk is full")))
    with pytest.raises(RuntimeError):
        agent().run()
    assert [row["success"] for row in library.episodes.find()] == [True]


def test_an_episode_that_nobody_records_is_not_stored_at_an_error(agent, library):
    with pytest.raises(RuntimeError):
        agent("go east", RuntimeError("no"), learn=False).run()
    assert library.episodes.find() == []
