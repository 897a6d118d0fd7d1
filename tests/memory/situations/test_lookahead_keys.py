"""The keys of lookahead values: what was computed for one state never shows in the keys of another one."""

import random
from dataclasses import replace

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.situations import lookahead_keys
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.familiarity import Familiarity
from hardwon.memory.situations.lookahead_keys import AGAIN, NAMED, SPECIAL, LookaheadKeys
from hardwon.memory.situations.refinements import FULL_NAME

HALL = State(
    "You are in the hall. To the north you see the attic. A red lamp stands on the floor.",
    {"carried": ["a key"]}, location="hall", task="light the lamp", notes=("First rub the lamp with oil.",),
)  # fmt: skip
ATTIC = replace(
    HALL,
    observation="You are in the attic. To the south you see the hall. A red lamp lies on the floor.",
    location="attic",
)
ACTIONS = ("take red lamp", "rub red lamp", "put key on floor", "move north", "wait")
WORDS = frozenset({"stands", "floor", "first", "with", "north", "see"})


def went_north(state=HALL):
    """The map of an episode that went from a state to the attic."""
    episode = EpisodeMap()
    episode.add(Step(state, "move north", ATTIC, Diagnosis(True), admissible=ACTIONS))
    return episode


def test_keys_do_not_depend_on_the_states_before(monkeypatch):
    """Each state differs from the hall in one field; kept keys equal those of a fresh computation."""
    monkeypatch.setattr(lookahead_keys, "STATES", 3)
    states = [
        HALL,
        replace(HALL, notes=()),
        replace(HALL, notes=("Then sell the lamp.",)),
        replace(HALL, facts={"carried": ["a red lamp"]}),
        replace(HALL, facts={}),
        replace(HALL, task="find the key"),
        replace(HALL, observation="You are in the hall."),
        ATTIC,
    ]
    cases = [(state, episode) for state in states for episode in (EpisodeMap(), went_north())]
    fresh = [LookaheadKeys(WORDS).list(state, ACTIONS, episode) for state, episode in cases]
    assert len({tuple(keys) for keys in fresh}) == len(cases)
    used = LookaheadKeys(WORDS)
    for seed in range(20):
        for number in random.Random(seed).sample(range(len(cases)), len(cases)):
            state, episode = cases[number]
            assert used.list(state, ACTIONS, episode) == fresh[number]


def test_a_state_without_notes_facts_and_location_has_keys():
    keys = LookaheadKeys().list(State("Hello."), ("wait", "greet bob"), EpisodeMap())
    assert [columns[AGAIN] for columns in keys] == ["wait | first on", "greet {1} | first on"]
    assert LookaheadKeys().list(State("Hello."), (), EpisodeMap()) == []


def test_a_way_leads_back_from_the_step_on_in_which_it_is_known():
    """The state is the same; the map of the episode has grown."""
    computed = LookaheadKeys()

    def read(episode):
        (keys,) = computed.list(HALL, ("move north",), episode)
        return keys[AGAIN]

    assert read(EpisodeMap()) == "move {1} | first on"
    seen = EpisodeMap()
    seen.add(Step(ATTIC, "wait", ATTIC, Diagnosis(True)))
    assert read(seen) == "move {1} | first back"  # the text names the attic with the direction
    seen.add(Step(HALL, "move north", replace(ATTIC, location="cellar"), Diagnosis(True)))
    assert computed.situate(HALL).find_destinations(["move north"], seen) == ["cellar"]
    assert read(EpisodeMap()) == "move {1} | first on"


def test_only_actions_of_exactly_this_state_were_tried():
    episode = went_north()
    assert episode.list_tried(HALL) == {"move north"}
    assert episode.list_tried(replace(HALL, facts={"carried": []})) == set()
    assert EpisodeMap().list_tried(HALL) == set()


def test_tries_are_those_of_the_state_that_is_given():
    """States are compared by their content, although the last one is kept by its identity."""
    seen = Familiarity()
    seen.add(Step(HALL, "rub red lamp", ATTIC, Diagnosis(True)))
    for _ in range(2):
        assert [seen.tries(state, "rub red lamp") for state in (HALL, ATTIC, replace(HALL))] == [1, 0, 1]
        assert [seen.tries_since_gain(state, "rub red lamp") for state in (HALL, ATTIC)] == [1, 0]
    assert seen.tries(HALL, "wait") == 0


def test_the_last_two_keys_have_the_full_names_of_the_two_before_them():
    """`red lamp` beside `lamp`; an action without attributes or numbers has none."""
    taken, still = LookaheadKeys(WORDS).list(HALL, ("take red lamp", "wait"), EpisodeMap())
    assert taken[NAMED:] == tuple(FULL_NAME + key.replace("take lamp", "take red lamp") for key in taken[SPECIAL:NAMED])
    assert all(taken[SPECIAL:])
    assert still[NAMED:] == ("", "")
