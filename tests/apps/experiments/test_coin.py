import json
import random
from types import SimpleNamespace

import pytest
import typer
from examples.experiments import coin, coin_figures, coin_worlds
from examples.experiments.coin_extractor import EpisodeTable
from examples.experiments.coin_policy import compare_paired, rotate_directions
from examples.experiments.coin_worlds import (
    BACK,
    GAME,
    PATIENCE,
    collect_walks,
    find_best,
    format_either_way,
    format_way,
    format_way_without_take,
    format_wrong_way,
    list_offers,
    open_game,
)
from typer.testing import CliRunner

from hardwon.runtime.environments.textworld import TextWorldExpress
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.models.tiny import build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.rollouts.rollout import Spec

WORLDS = [("train", seed) for seed in range(6)]


def test_what_is_reported_was_neither_trained_nor_tuned_in():
    taught = {*coin_worlds.DEMOS, *coin_worlds.WORLDS, *coin_worlds.TUNING}
    assert not taught & {*coin_worlds.ACTED_IN, *coin_worlds.KEPT_IN}
    assert not {*coin_worlds.ACTED_IN} & {*coin_worlds.KEPT_IN}


@pytest.fixture(scope="module")
def looks():
    """Exploring walks of six worlds."""
    return collect_walks(WORLDS, patience=PATIENCE)


def test_a_game_that_is_remembered_is_the_game():
    game, real, chance = open_game(), TextWorldExpress(*GAME), random.Random(0)
    for world in WORLDS[:2] * 2:
        state, over = game.reset(*world), False
        known = real.reset(*world)
        while not over:
            assert (state.location, game.admissible(state)) == (known.location, real.admissible(known))
            action = chance.choice(game.admissible(state))
            (state, reward, over, info), (known, *asked) = game.step(action), real.step(action)
            assert [reward, over, info] == asked
    game.close()
    real.close()


def test_the_way_goes_straight_to_the_coin(looks):
    game = open_game()
    for world, look in looks.items():
        game.reset(*world)
        for part in format_way(look).removesuffix(" .").split(" . "):
            *_, info = game.step(part.split(" : ")[1])
        assert info["success"]
        assert format_way(look).startswith(format_way_without_take(look))
        assert format_either_way(look) in (format_way(look), format_way_without_take(look))
    game.close()


def test_a_wrong_way_makes_no_right_move(looks):
    for look in looks.values():
        right, wrong = (text.split(" . ") for text in (format_way(look), format_wrong_way(look, random.Random(0))))
        assert all("take" in one or one != other for one, other in zip(right, wrong, strict=True))


def test_the_best_of_the_ways_leads_to_the_coin(looks):
    for look in looks.values():
        if look.steps[-1].pre.location != look.steps[0].pre.location:
            assert find_best(look).text in list_offers(look)
            assert "coin" in find_best(look).seen.observation


def test_a_turned_world_has_other_names_for_directions_and_no_other_words():
    transcript = CompactFormat(build_tokenizer(["kitchen", *BACK]))
    ids = transcript.tokenizer("kitchen north south east west").input_ids
    n = len(ids)
    stream = PackedSequence(tuple(ids), (False,) * n, (0.0,) * n, (0.0,) * n, (None,) * n, "policy", "a", 0)
    for seed in range(8):
        room, *names = transcript.tokenizer.decode(
            rotate_directions(stream, transcript, random.Random(seed)).tokens
        ).split()
        assert room == "kitchen"
        assert sorted(names) == sorted(BACK)
        assert BACK[names[0]] == names[1]
        assert BACK[names[2]] == names[3]


def test_differences_are_taken_world_by_world():
    """Means .75 and .25; differences 1 and 0, whose mean has the standard error 0.5."""
    figures = compare_paired({("a", 0): [1, 1], ("a", 1): [1, 0]}, {("a", 0): [0, 0], ("a", 1): [1, 0]})
    assert figures == {"success": 0.75, "to_base": 0.5, "se": pytest.approx(0.5)}


def test_what_was_played_of_a_text_is_taken_in_turn():
    """Two episodes that are drawn four times count twice each."""
    played = EpisodeTable.__new__(EpisodeTable)
    played.ended = {(("train", 1), None): [True, False]}
    rollouts = played.play([Spec("train", 1, "control", copy) for copy in range(4)])
    assert [rollout.trajectory.success for rollout in rollouts] == [True, False, True, False]


def test_a_stage_that_is_in_the_folder_is_not_run_again(tmp_path, monkeypatch):
    ran: list[int] = []

    def stage(ground, seed, out):
        ran.append(seed)
        return {"cpu_s": 1.5}

    monkeypatch.setitem(coin.STAGES, "A", stage)
    monkeypatch.setattr("examples.experiments.coin_policy.build_data", lambda: SimpleNamespace())
    app = typer.Typer()
    app.command()(coin.main)
    for seeds in ("0", "0,1"):
        result = CliRunner().invoke(app, [str(tmp_path), "--stages", "A", "--seeds", seeds, "--json"])
    assert ran == [0, 1]
    assert json.loads(result.stdout) == {"A": {"0": {"cpu_s": 1.5}, "1": {"cpu_s": 1.5}}}


def test_a_table_has_a_column_for_each_seed_and_their_mean():
    one = {"right": {"success": 1.0, "to_base": 0.25, "se": 0.05}, "cpu_s": 2.0, "curve": [1]}
    two = {"right": {"success": 0.9, "to_base": 0.15, "se": 0.03}, "cpu_s": 3.0, "curve": [1]}
    assert coin_figures.format_tables({"A": {"0": one, "1": two}}).splitlines()[4:6] == [
        "| right | 1.000 (+0.250 ± 0.050) | 0.900 (+0.150 ± 0.030) | 0.950 (+0.200 ± 0.040) |",
        "| cpu s | 2.000 | 3.000 | 2.500 |",
    ]


def test_curves_are_means_of_points_in_a_row():
    assert coin_figures.smooth([0, 0, 0, 0, 5, 10]) == [1, 3]
