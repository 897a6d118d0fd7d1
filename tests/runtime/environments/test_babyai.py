"""BabyAI in words, on the real levels: a hand-checked room, every refusal, and the shipped bot."""

import importlib
import re
import subprocess
import sys
from typing import Any

import pytest

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments.babyai import ACTIONS, BabyAI, iter_visible, levels

pytest.importorskip("minigrid")

BOT: Any = importlib.import_module("minigrid.utils.baby_ai_bot")
GRID: Any = importlib.import_module("minigrid.minigrid_env")
NAMES = {number: name for name, number in ACTIONS.items()}


@pytest.fixture
def room():
    """Two rooms, a locked yellow door between them, the agent beside it; checked by eye against MiniGrid's map.

    WGWGWGWGWGWGWGWGWGWGWG
    WG  KY  VVWGBP      WG      V: the agent, looking down
    WG        LY        WG
    WG        WG        WG
    WG        WG        WG
    WGWGWGWGWGWGWGWGWGWGWG
    """
    environment = BabyAI("UnlockPickup")
    environment.reset("train", seed=1)
    return environment


def act(environment: BabyAI, actions: str):
    """Take several actions; the state and info after the last one."""
    state, info = None, None
    for action in actions.split():
        state, _, _, info = environment.step(action)
    return state, info


def test_a_view_is_told_nearest_first(room):
    """Things with their state, colour and place; walls ahead and beside; what is carried."""
    state = room.reset("train", seed=1)
    assert state.observation == (
        "You see a locked yellow door 1 step ahead and 1 step to the left. You see a yellow key 2 steps to the right. "
        "A wall is 4 steps ahead. A wall is directly to the left. You carry nothing."
    )
    assert state.task == "pick up the purple box"
    assert state.feedback == ""


def test_facts_are_two_words_and_a_list(room):
    """The scalars are context for guardrails; the list says what is where."""
    assert room.reset("train", seed=1).facts == {
        "front": "clear",
        "carrying": "nothing",
        "seen": ["locked yellow door: 1 ahead 1 left", "yellow key: 2 right"],
    }


def test_a_wall_ahead_is_a_fact(room):
    """`front` is what a step forward would run into."""
    state, _ = act(room, "left left")
    assert state.facts["front"] == "wall"
    assert "A wall is directly ahead." in state.observation


def test_walking_into_a_wall_says_so(room):
    """The step changes nothing and the reason is in words."""
    before, _ = act(room, "left left")
    state, info = act(room, "forward")
    assert info["invalid"] == "You cannot go forward: a wall is in the way."
    assert state.feedback == info["invalid"]
    assert state.observation == before.observation


def test_walking_into_a_closed_door_says_so(room):
    """As for walls; the door has its state and colour."""
    _, info = act(room, "forward left forward")
    assert info["invalid"] == "You cannot go forward: a locked yellow door is in the way."


def test_picking_up_nothing_says_so(room):
    """There must be something in front."""
    assert act(room, "pickup")[1]["invalid"] == "You cannot pick anything up: nothing is in front of you."


def test_picking_up_a_wall_says_so(room):
    """And something that can be carried."""
    assert act(room, "left pickup")[1]["invalid"] == "You cannot pick up a wall."


def test_dropping_nothing_says_so(room):
    """Empty hands have nothing to drop."""
    assert act(room, "drop")[1]["invalid"] == "You cannot drop anything: you carry nothing."


def test_toggling_nothing_says_so(room):
    """Toggle needs a door or a box in front."""
    assert act(room, "toggle")[1]["invalid"] == "You cannot toggle anything: nothing is in front of you."
    assert act(room, "left toggle")[1]["invalid"] == "You cannot toggle a wall."


def test_a_locked_door_without_its_key_says_which_key(room):
    """The missing precondition is named."""
    assert act(room, "forward left toggle")[1]["invalid"] == (
        "You cannot open a locked yellow door without a yellow key."
    )


def test_with_the_key_the_door_opens(room):
    """Fetching the key, unlocking, and closing again are told and change the facts."""
    state, info = act(room, "right forward pickup")
    assert (state.feedback, state.facts["carrying"]) == ("You pick up the yellow key.", "yellow key")
    assert "invalid" not in info
    state, _ = act(room, "left left forward right forward left toggle")
    assert (state.feedback, state.facts["front"]) == ("You unlock and open the yellow door.", "open door")
    assert "You see an open yellow door 1 step ahead." in state.observation
    assert act(room, "toggle")[0].feedback == "You close the yellow door."
    assert act(room, "toggle")[0].feedback == "You open the yellow door."


def test_a_full_cell_cannot_be_dropped_into(room):
    """An open door is no place for a key; the floor is."""
    act(room, "right forward pickup left left forward right forward left toggle")
    assert act(room, "drop")[1]["invalid"] == "You cannot drop the yellow key here: an open yellow door is in the way."
    state, info = act(room, "left left drop")
    assert (state.feedback, state.facts["front"]) == ("You drop the yellow key.", "key")
    assert "invalid" not in info


def test_picking_up_with_full_hands_says_what_is_carried():
    """The box of the mission cannot be taken while the key is held."""
    environment = BabyAI("UnlockPickup")
    environment.reset("train", seed=1)
    environment._world.carrying = environment._world.grid.get(2, 1)
    environment._world.grid.set(2, 1, None)
    environment._world.agent_pos, environment._world.agent_dir = (6, 2), 3
    _, info = act(environment, "pickup")
    assert info["invalid"] == "You cannot pick up a purple box: you already carry a yellow key."


def test_opening_a_box_says_what_was_in_it():
    """A toggled box is gone, and what it held is in its place."""
    environment = BabyAI("KeyInBox")
    environment.reset("train", seed=0)
    world = environment._world
    at = next(i for i, thing in enumerate(world.grid.grid) if thing is not None and thing.type == "box")
    x, y = at % world.width, at // world.width
    world.agent_pos, world.agent_dir = (x - 1, y), 0
    world.grid.set(x - 1, y, None)
    colour, key = world.grid.get(x, y).color, world.grid.get(x, y).contains
    state, _ = act(environment, "toggle")
    assert state.feedback == f"You open the {colour} box: a {key.color} key was in it."
    assert state.facts["front"] == "key"


def test_an_action_that_does_not_exist_lists_those_that_do(room):
    """Nothing happens in the world."""
    _, info = act(room, "jump")
    assert info["invalid"] == ("'jump' is not an action. The actions are: left, right, forward, pickup, drop, toggle.")


def test_all_six_actions_are_always_admissible(room):
    """Sorted single words, MiniGrid's own."""
    state = room.reset()
    assert room.admissible(state) == ["drop", "forward", "left", "pickup", "right", "toggle"]


@pytest.mark.parametrize("level", ["GoToLocal", "PickupLoc", "PutNextLocal", "OpenDoor", "UnlockPickup", "BossLevel"])
def test_the_shipped_bot_solves_it_by_our_actions_and_we_see_what_minigrid_sees(level):
    """Success is a reward of 1 however late; every view on the way holds the same cells as MiniGrid's."""
    environment = BabyAI(level)
    environment.reset("train", seed=5)
    world = environment._world
    bot, action, done = BOT.BabyAIBot(world), None, False
    while not done:
        action = bot.replan(action)
        _, reward, done, info = environment.step(NAMES[int(action)])
        grid, visible = GRID.MiniGridEnv.gen_obs_grid(world)
        expected = {
            (6 - j, i - 3, grid.get(i, j).encode())
            for i in range(7)
            for j in range(7)
            if visible[i, j] and grid.get(i, j) is not None and (i, j) != (3, 6)
        }
        assert {(ahead, right, thing.encode()) for ahead, right, thing in iter_visible(world)} == expected
    assert (reward, info["success"], info["lost"], info["score"]) == (1.0, True, False, 1.0)


def test_a_late_success_is_worth_as_much():
    """The level's own time limit and its discount do not apply."""
    environment = BabyAI("GoToObj")
    environment.reset("train", seed=2)
    for _ in range(300):
        _, _, done, _ = environment.step("drop")
        assert not done
    bot, action, done = BOT.BabyAIBot(environment._world), None, False
    while not done:
        action = bot.replan(action)
        _, reward, done, _ = environment.step(NAMES[int(action)])
    assert reward == 1.0


def test_a_mission_that_cannot_be_solved_any_more_is_lost():
    """Opening the wrong door first, where the order matters."""
    environment = BabyAI("OpenRedBlueDoorsDebug")
    state = environment.reset("train", seed=0)
    world = environment._world
    second = "blue" if state.task.startswith("open the red") else "red"
    at = next(i for i, thing in enumerate(world.grid.grid) if thing and thing.type == "door" and thing.color == second)
    x, y = at % world.width, at // world.width
    world.agent_pos, world.agent_dir = ((x + 1, y), 2) if world.grid.get(x + 1, y) is None else ((x - 1, y), 0)
    _, reward, done, info = environment.step("toggle")
    assert (reward, done, info["lost"], info["success"]) == (0.0, True, True, False)
    with pytest.raises(ConfigError, match="call reset first"):
        environment.step("left")


def test_positions_are_part_of_the_signature():
    """In a grid, where things are is the situation: a step nearer is another one."""
    environment = BabyAI("GoToObj")
    seen = {environment.reset("train", seed).signature for seed in range(20)}
    assert len(seen) > 10


def test_the_same_seed_is_the_same_world_in_any_process():
    """Neither the environment's past nor the hash seed of Python matters."""
    code = (
        "from hardwon.runtime.environments.babyai import BabyAI\n"
        "environment = BabyAI('GoToLocal')\n"
        "print([environment.reset('dev', seed).signature for seed in range(5)])"
    )
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", code]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"})
    environment = BabyAI("GoToLocal")
    environment.reset("train", 3)
    assert elsewhere.stdout == f"{[environment.reset('dev', seed).signature for seed in range(5)]}\n"
    assert elsewhere.stderr == ""


def test_folds_are_disjoint_worlds():
    """The same index in another fold is another seed."""
    environment = BabyAI("GoToLocal")
    worlds = [{environment.reset(fold, seed).observation for seed in range(10)} for fold in ("train", "dev", "test")]
    assert len(set.union(*worlds)) > 20


def test_rejected_draws_print_nothing(capfd):
    """MiniGrid prints when it throws a draw away; standard output is for results."""
    environment = BabyAI("PutNextLocal")
    for seed in range(20):
        environment.reset("train", seed)
    assert capfd.readouterr() == ("", "")


def test_levels_are_known_by_short_and_by_whole_names():
    """All of MiniGrid's BabyAI levels, also one whose version is not 0."""
    assert {"GoToLocal", "BossLevel", "GoToObjS6"} <= set(levels())
    assert BabyAI("BabyAI-GoToLocal-v0").name == BabyAI("GoToLocal").name == "babyai/GoToLocal"


def test_an_unknown_level_lists_the_levels():
    """With the nearest one."""
    with pytest.raises(UnknownName, match=re.escape("unknown level 'GotoLocal'. Did you mean 'GoToLocal'?")):
        BabyAI("GotoLocal")


@pytest.mark.parametrize(
    ("fold", "seed", "error"), [("train", -1, ConfigError), ("dev", 10**6, ConfigError), ("x", 0, UnknownName)]
)
def test_folds_and_seeds_that_do_not_exist_are_refused(fold, seed, error):
    """The message names those that do."""
    with pytest.raises(error, match=r"0 to 999999|dev, test, train"):
        BabyAI("GoToLocal").reset(fold, seed)


def test_words_that_are_no_action_change_nothing():
    environment = BabyAI("GoToLocal")
    before = environment.reset("train", 0)
    state, reward, done, info = environment.step("dance")
    assert (state.observation, reward, done) == (before.observation, 0.0, False)
    assert (info["success"], info["lost"], info["score"]) == (False, False, 0.0)
    assert info["invalid"].startswith("'dance' is not an action.")
