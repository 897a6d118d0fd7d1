"""Planning with a served library: the same lookahead values and demonstrations as with the file, by the same rights."""

import random

import pytest
from tests.apps.http.test_remote import served

from hardwon.apps.http.access.auth import Tokens
from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, LibraryForbidden
from hardwon.memory.remote import RemoteLibrary
from hardwon.memory.situations.episode_map import EpisodeMap, Trail
from hardwon.runtime import Agent

TASK = "put the lamp on the desk"
HALL = State("A hall. A lamp is here.", task=TASK, location="hall")
ROOM = State("A room. A desk is here.", task=TASK, location="room")
IN_HALL, IN_ROOM = ("go north", "take lamp", "wait"), ("go south", "put lamp on desk", "wait")


def play(seed, *, success=True):
    chosen = random.Random(seed).random() < 0.5
    steps = (
        Step(HALL, "wait" if chosen else "take lamp", HALL, Diagnosis(True), t=0, admissible=IN_HALL),
        Step(HALL, "take lamp", HALL, Diagnosis(True), t=1, admissible=IN_HALL),
        Step(HALL, "go north", ROOM, Diagnosis(True), t=2, admissible=IN_HALL),
        Step(ROOM, "put lamp on desk", ROOM, Diagnosis(True), reward=float(success), t=3, admissible=IN_ROOM),
    )
    return Trajectory(TASK, steps, success, float(success), seed=seed, meta={"environment": "house"})


@pytest.fixture
def file(tmp_path):
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        for seed in range(25):
            library.record(play(seed))
    return tmp_path / "library.db"


def walk():
    """The map of an episode that went from the hall to the room, back, and to the room again."""
    episode = EpisodeMap()
    north = Step(HALL, "go north", ROOM, Diagnosis(True), admissible=IN_HALL)
    south = Step(ROOM, "go south", HALL, Diagnosis(True), admissible=IN_ROOM)
    for step in (north, south, north):
        episode.add(step)
    return episode


def test_lookahead_values_are_those_of_the_file(file):
    with (
        served(file, read_only=True) as url,
        RemoteLibrary(url, raw=True) as far,
        ExperienceLibrary.open(file) as near,
    ):
        here = far.look_ahead(ROOM, IN_ROOM, walk())
        assert here == near.look_ahead(ROOM, IN_ROOM, walk())
        assert here.by_action["put lamp on desk"].gain > 0.5
        assert here.elsewhere
        assert far.look_ahead(HALL, IN_HALL) == near.look_ahead(HALL, IN_HALL)


def test_without_raw_no_action_of_others_is_shown(tmp_path):
    """At other places the answer has the actions that the caller saw there, and no forms of recorded ones.

    Others put a vase on the shelf in their halls. The caller saw a shelf in the hall and has got a vase since.
    """
    in_hall = ("go north", "touch shelf")
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        for n in range(25):
            hall = State(f"Hall {n}. A shelf.", task=TASK, location="hall")
            among = ("put vase on shelf", *in_hall)
            steps = (
                Step(hall, "put vase on shelf", hall, Diagnosis(True), t=0, reward=0.5, admissible=among),
                Step(hall, "go north", ROOM, Diagnosis(True), t=1, admissible=among),
                Step(ROOM, "drop vase", ROOM, Diagnosis(True), t=2, reward=0.5, admissible=("go south", "drop vase")),
            )
            library.record(Trajectory(TASK, steps, True, 1.0, meta={"environment": "house"}))
    episode = EpisodeMap()
    north = Step(HALL, "go north", ROOM, Diagnosis(True), admissible=in_hall)
    for step in (north, Step(ROOM, "go south", HALL, Diagnosis(True), admissible=("go south", "drop vase")), north):
        episode.add(step)
    here = State("A room.", task=TASK, location="room", facts={"inventory": ["vase"]})
    shown = {}
    with served(tmp_path / "library.db", read_only=True) as url:
        for raw in (False, True):
            with RemoteLibrary(url, raw=raw) as far:
                lookahead = far.look_ahead(here, ("go south", "drop vase"), episode)
                assert set(lookahead.by_action) == {"go south", "drop vase"}
                shown[raw] = {one.action for one in lookahead.elsewhere}
    assert "put vase on shelf" in shown[True]
    assert shown[False] == shown[True] - {"put vase on shelf"} == {"touch shelf"}


def test_a_map_that_was_sent_is_the_same_map():
    episode = walk()
    assert EpisodeMap.of(episode.trace()).trace() == episode.trace()
    assert EpisodeMap.of(Trail()).trace() == EpisodeMap().trace()


def test_a_map_does_not_grow_with_the_length_of_the_episode():
    """Tries in states that were left for good are not sent."""
    episode = EpisodeMap()
    for n in range(200):
        state = State(f"A hall. The clock shows {n}.", task=TASK, location="hall")
        episode.add(Step(state, "wait", state, Diagnosis(True), t=n, admissible=IN_HALL))
    assert len(episode.trace().tried) == 1


def test_no_item_is_ranked_beside_a_served_library(file):
    with served(file) as url, RemoteLibrary(url) as far, pytest.raises(ConfigError, match="open its file"):
        far.recall("where is it?", beside=Item("insight", "it is in the hall"))


def test_demonstrations_are_those_of_the_file(file):
    with served(file, trust="trusted") as url, RemoteLibrary(url, raw=True) as far:
        with ExperienceLibrary.open(file) as near:
            expected = near.episodes.index_demonstrations("house", IN_HALL).list_demonstrations(TASK)
        assert far.episodes.index_demonstrations("house").list_demonstrations(TASK) == expected
        assert expected
        far.record(play(99, success=False))
        far.record(play(100))
        assert len(far.episodes.index_demonstrations("house").list_demonstrations(TASK)) == len(expected) + 1
        assert far.episodes.index_demonstrations("another").list_demonstrations(TASK) == []
        assert len(far.episodes.index_demonstrations().list_demonstrations(TASK)) == len(expected) + 1


def test_a_planner_that_needs_episodes_word_for_word_says_so(file, rooms):
    with served(file) as url, RemoteLibrary(url) as far:
        agent = Agent("episodic", far, rooms(), planner="demonstrations", max_steps=3)
        with pytest.raises(ConfigError, match="raw=True"):
            agent.run(seed=0)
        agent.close()


def test_a_token_without_the_right_log_reads_neither(file):
    token = Tokens.beside(file).add("agent", record=True, read=True, log=False)
    with served(file) as url, RemoteLibrary(url, token, raw=True) as far:
        with pytest.raises(LibraryForbidden):
            far.episodes.index_demonstrations("house")
        with pytest.raises(LibraryForbidden):
            far.look_ahead(ROOM, IN_ROOM)
    with served(file) as url, RemoteLibrary(url, token) as general:
        assert general.look_ahead(ROOM, IN_ROOM).by_action
