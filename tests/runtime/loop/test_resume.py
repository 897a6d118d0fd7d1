import asyncio
import logging
import os
import sys
import textwrap
from dataclasses import replace

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde import jsonplus
from tests import warm

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError, EnvironmentCrashed, UnknownName
from hardwon.runtime.agent import Agent
from hardwon.runtime.policies.episodic import EpisodicPolicy

PATH = ("go east", "wait", "wait", "go east", "go west", "go east", "go east", "go east")


@pytest.fixture
def start(rooms, script):
    """Makes an agent with an empty library of its own."""
    opened = []

    def make(saver, *, policy=None, world=None, **options):
        library = ExperienceLibrary.open(":memory:")
        opened.append(library)
        return Agent(policy or script(*PATH), library, world or rooms(), checkpointer=saver, **options)

    yield make
    for library in opened:
        library.close()


def bare(result):
    """A trajectory without the id it was given by chance."""
    return replace(result.trajectory, id="")


def interrupt(agent, after):
    """Begin an episode and drop it after so many stages; whether it was still running."""
    running = agent.stream(seed=3, thread_id="t")
    try:
        return all(next(running, None) is not None for _ in range(after))
    finally:
        running.close()


def test_an_episode_may_be_interrupted_anywhere(start):
    """After any stage: resumed by a fresh agent, it ends as if nothing had happened."""
    expected = bare(start(InMemorySaver()).run(seed=3, thread_id="t"))
    stages = 2 + 9 * len(expected.steps)
    for after in (*range(1, 12), *range(stages - 8, stages + 1)):  # of the first step, and of the last
        saver = InMemorySaver()
        assert interrupt(start(saver), after)
        resumed = start(saver)
        assert bare(resumed.resume("t")) == expected, f"interrupted after stage {after}"
        assert resumed.library.episodes.count() <= 1


def test_chance_and_optimism_go_on_too(start):
    """Episodic control with exploration: the same choices after as without the interruption."""
    whole = start(InMemorySaver(), policy=EpisodicPolicy(), max_steps=12)
    expected = bare(whole.run(seed=3, thread_id="t"))
    for after in (5, 17, 40, 77):
        saver = InMemorySaver()
        interrupt(start(saver, policy=EpisodicPolicy(), max_steps=12), after)
        resumed = start(saver, policy=EpisodicPolicy(), max_steps=12).resume("t")
        assert bare(resumed) == expected


def test_a_reading_policy_is_told_the_same(start, script):
    """What was recalled in a situation is kept with the episode: the same hints after as without the interruption."""

    def agent(saver):
        made = start(saver, policy=script(*PATH, reads="text"))
        for colour in ("red", "blue", "green"):
            made.library.add(Item("insight", f"in the {colour} room go to the golden room", score=len(colour) / 10))
        return made

    expected = bare(agent(InMemorySaver()).run(seed=3, thread_id="t"))
    assert len({tuple(step.why.recalled) for step in expected.steps}) > 1
    for after in (6, 14, 15, 32, 33, 50):
        saver = InMemorySaver()
        interrupt(agent(saver), after)
        assert bare(agent(saver).resume("t")) == expected


KILLED = textwrap.dedent(
    """
    import os, sys, time
    from langgraph.checkpoint.sqlite import SqliteSaver
    from hardwon.memory import ExperienceLibrary, State
    from hardwon.runtime.agent import Agent
    from hardwon.runtime.policies.episodic import EpisodicPolicy

    folder, name, fatal = sys.argv[1], sys.argv[2], int(sys.argv[3])

    class Tower:
        "Six floors; the lift breaks the whole process at one of its runs."
        name, runs = "tower", 0
        def reset(self, task="", seed=0):
            self.floor = 0
            return self.state("")
        def step(self, action):
            Tower.runs += 1
            if Tower.runs == fatal:
                time.sleep(0.3)  # the steps of an agent are on the disk after 0.1 s
                os._exit(9)
            self.floor = max(0, self.floor + (1 if action == "up" else -1))
            won = self.floor == 5
            return self.state(f"You go {action}."), float(won), won, {"success": won}
        def admissible(self, state): return ["down", "up"]
        def clone(self): return Tower()
        def close(self): pass
        def state(self, told):
            return State(f"You are on floor {'abcdef'[self.floor]}.", {"floor": self.floor}, task="rise", feedback=told)

    checkpoints = SqliteSaver.from_conn_string(f"{folder}/{name}.checkpoints.db")
    with ExperienceLibrary.open(f"{folder}/{name}.db") as library, checkpoints as saver:
        agent = Agent(EpisodicPolicy(), library, Tower(), checkpointer=saver, seed=2)
        result = agent.resume("t") if sys.argv[4] == "resume" else agent.run(seed=1, thread_id="t")
        steps = [(step.action, step.pre.observation, step.keys, step.reward) for step in result.trajectory.steps]
        print(result.success, library.episodes.count(), len(library.admin.verify()), steps)
    """
)


@pytest.mark.parametrize("is_resumed_at_once", [True, False])
def test_a_killed_process_is_gone_on_with(tmp_path, is_resumed_at_once):
    """The process dies inside a step; another one finishes the episode, which equals one that was not killed.

    Its steps are an episode of unknown outcome for whoever opens the library before.
    """

    def run(*arguments):
        command = [sys.executable, "-c", KILLED, str(tmp_path), *arguments]
        return warm.run(command, capture_output=True, text=True, check=False)

    whole = run("whole", "0", "run")
    killed = run("killed", "4", "run")
    assert (whole.returncode, killed.returncode, killed.stdout) == (0, 9, "")
    beginning = () if is_resumed_at_once else read_rows(tmp_path / "killed.db")
    assert [row[1:] for row in beginning] == ([] if is_resumed_at_once else [(None, "abandoned", 3)])
    resumed = run("killed", "0", "resume")
    assert resumed.stdout == whole.stdout
    assert whole.stdout.startswith("True 1 0 ")
    assert resumed.stderr == ""
    ((ref, *row),), ((_, *expected),) = (read_rows(tmp_path / f"{name}.db") for name in ("killed", "whole"))
    assert row == expected
    assert not beginning or beginning[0][0] == ref


def read_rows(path):
    """The id, the outcome, the ending and the number of steps of each episode of a library."""
    with ExperienceLibrary.open(path) as library:
        return [(row["id"], row["success"], row["ending"], row["n_steps"]) for row in library.episodes.find()]


@pytest.mark.parametrize("ending", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_a_run_that_broke_off_is_an_episode_until_it_is_resumed(start, rooms, script, tmp_path, ending):
    """The whole run takes the place of its beginning, under the same id."""
    saver, expected = InMemorySaver(), bare(start(InMemorySaver()).run(seed=3, thread_id="t"))
    with ExperienceLibrary.open(tmp_path / "a.db") as library:
        agent = Agent(script(*PATH[:3], ending("no")), library, rooms(), checkpointer=saver)
        if ending is GeneratorExit:
            interrupt(agent, 29)
        else:
            with pytest.raises(ending):
                agent.run(seed=3, thread_id="t")
    ((ref, *row),) = read_rows(tmp_path / "a.db")
    assert row == [None, ending.__name__, 3]
    with ExperienceLibrary.open(tmp_path / "a.db") as library:
        with pytest.raises(ZeroDivisionError):  # before its next step
            Agent(script(ZeroDivisionError()), library, rooms(), checkpointer=saver).resume("t")
        assert bare(Agent(script(*PATH), library, rooms(), checkpointer=saver).resume("t")) == expected
        assert library.admin.verify() == []
    assert read_rows(tmp_path / "a.db") == [(ref, True, "success", len(expected.steps))]


def test_a_resumed_run_without_a_step_of_its_own_takes_the_place_of_its_beginning(start, rooms, script):
    """The environment breaks at once, so both have the same steps."""
    saver = InMemorySaver()
    agent = start(
        saver,
        policy=script(*PATH[:3], ZeroDivisionError()),
        world=rooms(faults={7: EnvironmentCrashed("gone")}),
        retries=0,
    )
    with pytest.raises(ZeroDivisionError):
        agent.run(seed=3, thread_id="t")
    agent.policy.actions = PATH
    result = agent.resume("t")
    (row,) = agent.library.episodes.find()
    assert (row["id"], row["ending"], row["n_steps"]) == (result.trajectory.id, "environment_crash", 3)


def test_a_finished_episode_is_returned_as_it_was(start, rooms):
    """Nothing is run, nothing is recorded again."""
    saver, world = InMemorySaver(), rooms()
    agent = start(saver, world=world)
    result = agent.run(seed=3, thread_id="t")
    ran = len(world.ran)
    again = agent.resume("t")
    assert again.trajectory == result.trajectory
    assert (again.usage, again.thread_id) == (result.usage, "t")
    assert len(world.ran) == ran
    assert agent.library.episodes.count() == 1


def test_an_episode_is_resumed_by_awaiting(start, script):
    """With a checkpointer that can only be awaited, too."""
    aio = pytest.importorskip("langgraph.checkpoint.sqlite.aio")
    expected = bare(start(InMemorySaver()).run(seed=3, thread_id="t"))

    async def die_and_rise():
        async with aio.AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            killed = script(*PATH[:3], ZeroDivisionError())
            with pytest.raises(ZeroDivisionError):
                await start(saver, policy=killed).arun(seed=3, thread_id="t")
            resumed = start(saver)
            result = await resumed.aresume("t")
            assert (await resumed.aresume("t")).trajectory == result.trajectory
            with pytest.raises(UnknownName):
                await resumed.aresume("x")
            return result

    assert bare(asyncio.run(die_and_rise())) == expected


def test_an_unknown_thread_is_named(start):
    """With what to do."""
    with pytest.raises(UnknownName, match=r"The checkpointer has no episode under thread 'x'\. Start one with run"):
        start(InMemorySaver()).resume("x")


def test_without_a_checkpointer_nothing_is_resumed(start):
    """The message has the argument."""
    with pytest.raises(ConfigError, match=r"resume needs a checkpointer: Agent\(\.\.\., checkpointer="):
        start(None).resume("t")


def test_an_environment_that_comes_back_elsewhere_is_detected(start, rooms):
    """Going on from a wrong place would be worse than stopping."""
    saver, moved = InMemorySaver(), rooms()
    interrupt(start(saver), 15)

    def elsewhere(task, seed):
        moved.at = 2
        return moved.state()

    moved.reset = elsewhere
    with pytest.raises(EnvironmentCrashed, match=r"not deterministic: .* back to the state of step 1"):
        start(saver, world=moved).resume("t")


def test_an_environment_may_be_restored_instead(start, rooms):
    """Where actions must not be repeated; it is told of all that were run, the last one included."""
    expected = bare(start(InMemorySaver()).run(seed=3, thread_id="t"))
    for after, known in ((15, 1), (16, 1), (17, 2), (18, 2), (19, 2)):
        saver, world = InMemorySaver(), rooms()
        told: list[str] = []

        def restore(task, seed, steps, told=told, world=world):
            told.extend(step.action for step in steps)
            world.at = sum({"go east": 1, "go west": -1}.get(step.action, 0) for step in steps)
            return world.state()

        interrupt(start(saver), after)
        world.restore = restore
        assert bare(start(saver, world=world).resume("t")) == expected
        assert told == list(PATH[:known])
        assert len(world.ran) == len(PATH) - known


def test_what_died_while_it_was_being_kept_is_kept_once(start, monkeypatch):
    """Between the library's write and the last checkpoint: resumed, the episode is there once."""
    saver = InMemorySaver()
    agent = start(saver)
    evolve = agent.library.evolve
    monkeypatch.setattr(agent.library, "evolve", lambda: sys.exit("killed"))
    with pytest.raises(SystemExit):
        agent.run(seed=3, thread_id="t")
    monkeypatch.setattr(agent.library, "evolve", evolve)
    assert agent.resume("t").success
    assert agent.library.episodes.count() == 1
    assert len(agent.library.episodes.find()) == 1


def test_a_retry_is_resumed_under_the_first_thread(start, rooms):
    """Whoever asks knows one thread id, whichever attempt was running."""
    saver = InMemorySaver()
    crash = EnvironmentCrashed("gone")
    world = rooms(faults={2: crash, 5: KeyboardInterrupt()})
    agent = start(saver, world=world)
    with pytest.raises(KeyboardInterrupt):
        agent.run(seed=3, thread_id="t")
    result = agent.resume("t")
    assert (result.success, result.trajectory.meta["attempt"]) == (True, 1)
    assert agent.library.episodes.count() == 1


def test_a_crash_after_resuming_is_tried_again(start, rooms):
    """As in an episode that was not interrupted."""
    saver = InMemorySaver()
    interrupt(start(saver), 15)
    result = start(saver, world=rooms(faults={3: EnvironmentCrashed("gone")})).resume("t")
    assert (result.success, result.trajectory.meta["attempt"]) == (True, 1)


@pytest.mark.parametrize("serde", [None, jsonplus.JsonPlusSerializer(allowed_msgpack_modules=None)])
def test_checkpoints_are_read_without_a_warning(start, caplog, monkeypatch, serde):
    """Our records are told to LangGraph's serializer, whether it lets in everything or nothing."""
    monkeypatch.setattr(jsonplus, "_warned_unregistered_types", set())
    monkeypatch.setattr(jsonplus, "_warned_blocked_types", set())
    saver = InMemorySaver(serde=serde)
    agent = start(saver)
    with caplog.at_level(logging.WARNING):
        expected = agent.run(seed=3, thread_id="t").trajectory
        assert agent.resume("t").trajectory == expected
        interrupt(start(saver), 15)
        assert agent.resume("t").success
    assert caplog.messages == []


def test_the_caller_s_checkpointer_is_left_as_it_is(start):
    """It may serve other graphs."""
    saver = InMemorySaver()
    serde = saver.serde
    start(saver).run(thread_id="t")
    assert saver.serde is serde
    assert os.environ.get("LANGGRAPH_STRICT_MSGPACK") is None
