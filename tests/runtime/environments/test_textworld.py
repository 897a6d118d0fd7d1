"""TextWorldExpress, on the real engine: folds, seeds, parameters, observations and steps."""

import random
import threading

import pytest

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.environments.textworld import FOLDS, GAMES, TextWorldExpress

pytest.importorskip("textworld_express")


def played(environment: TextWorldExpress, seed: int, steps: int = 25, **elsewhere: TextWorldExpress) -> list[object]:
    """What an episode of seeded random actions shows; `elsewhere` is stepped in between."""
    rng = random.Random(seed)
    told: list[object] = []
    state = environment.reset("train", seed)
    told.append((state.observation, state.task))
    for other in elsewhere.values():
        other.reset("train", seed)
    for _ in range(steps):
        actions = environment.admissible(state)
        if not actions:
            break
        state, reward, done, info = environment.step(rng.choice(actions))
        told.append((state.observation, state.feedback, reward, done, sorted(info.items()), actions))
        if done:
            break
        for other in elsewhere.values():
            here = other.admissible(state)
            if here and not other._over:
                other.step(random.choice(here))
    return told


@pytest.mark.parametrize("game", GAMES)
def test_every_game_begins_and_goes_on(game):
    """Each of the eight games shows something, says its task, and can be acted in."""
    environment = TextWorldExpress(game)
    state = environment.reset("dev", seed=1)
    after, reward, done, info = environment.step(environment.admissible(state)[0])
    assert state.observation
    assert state.task
    assert state.feedback == ""
    assert after.task == state.task
    assert isinstance(reward, float)
    assert isinstance(done, bool)
    assert 0.0 <= info["score"] <= 1.0


def test_the_games_are_those_of_the_engine():
    """Our list, which is there without starting Java, is the engine's."""
    from textworld_express import GAME_NAMES

    assert sorted(GAMES) == sorted(GAME_NAMES)


@pytest.mark.parametrize("game", [game for game in GAMES if game != "sorting"])
def test_the_gold_path_succeeds_with_a_total_reward_of_one(game):
    """The rewards of an episode that is solved add up to the whole score."""
    environment = TextWorldExpress(game)
    environment.reset("train", seed=3)
    total = 0.0
    for action in environment.gold_path():
        _, reward, done, info = environment.step(action)
        total += reward
        if done:
            break
    assert done
    assert info == {"success": True, "lost": False, "score": 1.0}
    assert total == pytest.approx(1.0)


def test_admissible_actions_are_sorted_and_only_those_that_do_something():
    """What merely repeats the observation is left out, and nothing is listed twice."""
    environment = TextWorldExpress("mapreader")
    actions = environment.admissible(environment.reset())
    assert actions == sorted(set(actions))
    assert not {"look around", "inventory", "task"} & set(actions)
    assert "read map" in actions


def test_a_state_tells_room_inventory_location_and_facts():
    """The observation is the room and what is held, as the engine prints it, without stray spaces."""
    state = TextWorldExpress("mapreader", "numLocations=4").reset("train", seed=3)
    assert state.observation.startswith(f"You are in the {state.location}.")
    assert state.observation.endswith("\nInventory:\n  a map")
    assert " \n" not in state.observation
    assert state.facts == {"inventory": ["a map"]}


def test_an_empty_inventory_is_an_empty_list():
    """Holding nothing is a fact too."""
    assert TextWorldExpress("coin").reset().facts == {"inventory": []}


def test_rooms_have_signatures_of_their_own():
    """Two rooms seen with the same inventory are different situations."""
    environment = TextWorldExpress("mapreader")
    state = environment.reset("train", seed=3)
    moved, *_ = environment.step(next(action for action in environment.admissible(state) if action.startswith("move")))
    assert moved.facts == state.facts
    assert moved.signature != state.signature


def test_an_answer_that_is_only_the_room_is_not_told_twice():
    """Moving is answered by the new room, which the observation shows already."""
    environment = TextWorldExpress("mapreader")
    state = environment.reset("train", seed=3)
    moved, *_ = environment.step(next(action for action in environment.admissible(state) if action.startswith("move")))
    assert moved.location != state.location
    assert moved.feedback == ""


def test_simon_says_shows_what_simon_said_also_after_nonsense():
    """A game without rooms shows its instruction, and goes on showing it until it is followed."""
    environment = TextWorldExpress("simonsays")
    state = environment.reset("train", seed=3)
    assert state.observation == "Simon says, 'slice grape'."
    assert environment.step("dance")[0].observation == state.observation
    assert environment.step("slice grape")[0].observation == "Simon says, 'jump up and down'."


def test_simon_says_from_memory_shows_what_was_done():
    """With memorization=1 the instruction is given once; later states differ by what has been done."""
    environment = TextWorldExpress("simonsays", "memorization=1, gameLength=3")
    assert "in order" in environment.reset("train", seed=3).observation
    assert environment.step("slice grape")[0].observation == "You did: slice grape."
    assert environment.step("jump up and down")[0].observation == "You did: slice grape. jump up and down."


def test_a_wrong_step_of_simon_says_loses():
    """The engine's penalty is the reward; the score stays within [0, 1]."""
    environment = TextWorldExpress("simonsays")
    state = environment.reset("train", seed=3)
    wrong = next(action for action in environment.admissible(state) if action != "slice grape")
    _, reward, done, info = environment.step(wrong)
    assert (reward, done) == (-1.0, True)
    assert info == {"success": False, "lost": True, "score": 0.0}


def test_an_action_that_is_not_understood_says_so():
    """The engine gives no reason; the words name the action and one that is near."""
    environment = TextWorldExpress("coin")
    before = environment.reset("train", seed=3)
    state, reward, done, info = environment.step("take the coin")
    assert info["invalid"] == "'take the coin' is not an action that can be taken here now. Did you mean 'take coin'?"
    assert state.feedback == info["invalid"]
    assert (state.observation, reward, done) == (before.observation, 0.0, False)


def test_an_action_that_the_engine_refuses_gives_its_reason():
    """A closed door is the engine's own reason."""
    environment = TextWorldExpress("coin")
    environment.reset("train", seed=3)
    assert environment.step("move north")[3]["invalid"] == "You can't move there, the door is closed."


def test_case_and_spaces_of_an_action_do_not_matter():
    """The engine wants exact letters; language models do not always give them."""
    environment = TextWorldExpress("coin")
    environment.reset("train", seed=3)
    _, reward, done, info = environment.step("  Take   Coin ")
    assert (reward, done, info["success"]) == (1.0, True, True)


def test_stepping_without_an_episode_is_an_error_of_the_caller():
    """Before the first reset and after the end there is nothing to act in."""
    environment = TextWorldExpress("coin")
    with pytest.raises(ConfigError, match="call reset first"):
        environment.step("take coin")
    environment.reset("train", seed=3)
    environment.step("take coin")
    with pytest.raises(ConfigError, match="call reset first"):
        environment.step("take coin")


def test_the_same_seed_gives_the_same_episode():
    """In one environment after another episode, and in another environment."""
    environment = TextWorldExpress("twc")
    first = played(environment, 5)
    played(environment, 6)
    assert played(environment, 5) == first
    assert played(environment.clone(), 5) == first


@pytest.mark.parametrize("game", ["coin", "sorting"])
def test_environments_are_independent(game):
    """Acting in one changes nothing in another of the same episode. (In sorting the engine would share things.)"""
    environment = TextWorldExpress(game)
    alone = played(environment, 4)
    assert played(environment, 4, other=TextWorldExpress(game)) == alone
    environment.close()


def test_environments_may_run_in_threads():
    """Many at once play the same episodes as one after the other."""
    alone = [played(TextWorldExpress("coin"), seed) for seed in range(4)]
    together: dict[int, list[object]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: together.update({seed: played(TextWorldExpress("coin"), seed)}))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(4)] == alone


def test_index_and_the_engines_own_seed_are_the_same_episode():
    """dev 7 and dev 10007 name one episode."""
    environment = TextWorldExpress("mapreader")
    assert environment.reset("dev", 7) == environment.reset("dev", 10_007)


def test_no_task_is_the_train_fold():
    """The protocol's default task is a fold too."""
    environment = TextWorldExpress("mapreader")
    assert environment.reset("", 7) == environment.reset("train", 7)


def test_folds_are_disjoint_episodes():
    """The same index in another fold is another episode."""
    environment = TextWorldExpress("mapreader")
    tasks = {fold: {environment.reset(fold, seed).observation for seed in range(5)} for fold in FOLDS}
    assert not tasks["train"] & tasks["dev"] | tasks["train"] & tasks["test"] | tasks["dev"] & tasks["test"]


@pytest.mark.parametrize(
    ("fold", "seed", "valid"),
    [
        ("train", 1000, "0 to 999"),
        ("train", -1, "0 to 999"),
        ("dev", 5000, "10000 to 10999"),
        ("test", 10_000, "20000"),
    ],
)
def test_a_seed_outside_of_its_fold_is_refused(fold, seed, valid):
    """The message names the seeds that exist."""
    with pytest.raises(ConfigError, match=valid):
        TextWorldExpress("coin").reset(fold, seed)


def test_an_unknown_fold_lists_the_folds():
    """A typo is answered by what there is."""
    with pytest.raises(UnknownName, match=r"unknown fold 'trian'\. Did you mean 'train'\?"):
        TextWorldExpress("coin").reset("trian")


def test_an_unknown_game_lists_the_games():
    """Before anything is started."""
    with pytest.raises(UnknownName, match=r"unknown game 'coinn'\. Did you mean 'coin'\?"):
        TextWorldExpress("coinn")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("numLocations=abc", "numLocations is 'abc'; it takes a whole number"),
        ("numLocations=2.5", "numLocations is '2.5'; it takes a whole number"),
        ("numLocations", "'numLocations' is not a parameter"),
        ("numLocations: 3", "write: numLocations=5"),
        ("includeDoors=2", "includeDoors is 2; it takes 0"),
        ("numLocations=3, numLocations=4", "given twice"),
    ],
)
def test_parameters_that_the_engine_would_silently_ignore_are_refused(params, words):
    """The engine takes them for its defaults, so they are read here first."""
    with pytest.raises(ConfigError, match=words):
        TextWorldExpress("coin", params)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("foo=3", r"coin has no parameter 'foo'\. Its parameters: numLocations, numDistractorItems"),
        ("numLocations=99", r"less than or equal to 11 \(specified value = 99\)"),
    ],
)
def test_parameters_that_the_game_refuses_raise_its_words(params, words):
    """The engine knows its names and ranges best."""
    with pytest.raises(ConfigError, match=words):
        TextWorldExpress("coin", params).reset()


def test_parameters_change_the_game():
    """One room without doors has nowhere to go."""
    environment = TextWorldExpress("coin", "numLocations=1, includeDoors=0")
    assert environment.params == "numLocations=1, includeDoors=0"
    assert "To the" not in environment.reset().observation


def test_a_closed_environment_can_be_reset():
    """Closing twice is fine, and not the end."""
    environment = TextWorldExpress("coin")
    environment.reset()
    environment.close()
    environment.close()
    assert environment.reset().observation


def test_an_instruction_is_the_state_and_what_else_is_said_is_the_message():
    """In the game of Simon there is nothing to see."""
    environment = TextWorldExpress("simonsays")
    state = environment.reset("train", 0)
    right = next(action for action in environment.admissible(state) if action in state.observation)
    state, *_ = environment.step(right)
    assert state.observation.startswith("Simon says")
    assert state.feedback == ""
    wrong = next(action for action in environment.admissible(state) if action not in state.observation)
    after, _, done, _ = environment.step(wrong)
    assert (after.observation, after.feedback, done) == (state.observation, "Incorrect!", True)
    environment.close()


def test_java_keeps_the_time_itself():
    assert TextWorldExpress("coin").keeps_time
