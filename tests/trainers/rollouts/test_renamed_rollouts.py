"""Rollouts in which the policy sees things under other names: what it reads, what runs, and which arms have them."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, save_base

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.schema import of
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.player import Player
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.renaming import Names, rename_choices, restore_names, swap_names
from hardwon.trainers.rollouts.rollout import _EPISODE, Spec, TokenPolicy, _Episode
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
ACTIONS = ("go east", "go west", "take coin")
SWAPPED = (("east", "west"), ("west", "east"))
CONTROL, RETRIEVED = Arm("control"), Arm("retrieved", "library")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def play(names, *, turns=4, refused=()):
    """Decide by hand; return the rows and the actions that ran. The first choice of the `refused` turns is refused."""
    policy = TokenPolicy(LocalEngine(build_chat_model(TOKENIZER), TOKENIZER), PROMPTS)
    episode = _Episode(Spec("train", 0, names=names))
    _EPISODE.set(episode)
    history: list[Step] = []
    for n in range(turns):
        state = State(f"You came from the east {n} times.", task="Find the coin.")
        context = Context(state, ACTIONS, guidance="`go east` was rewarded", history=tuple(history), thread="e")
        action = policy.decide(context).action
        if n in refused:
            before, context = action, replace(context, forbidden={action: "it failed here before"})
            action = policy.decide(context).action
            assert action != before
        history.append(Step(state, action, state, Diagnosis(True), t=n, admissible=ACTIONS))
    return episode.collect(history), [step.action for step in history]


def test_the_policy_reads_other_names_and_the_action_with_the_own_name_runs():
    rows, ran = play(SWAPPED, refused=(1,))
    own_rows, _ = play((), refused=(1,))
    assert len(rows) == len(ran)
    text = TOKENIZER.decode(list(rows[-1].prompt))
    assert "You came from the west 3 times." in text
    assert "`go west` was rewarded" in text
    assert "from the east" not in text
    assert "from the east" in TOKENIZER.decode(list(own_rows[-1].prompt))
    rename = swap_names(SWAPPED)
    answers = [TOKENIZER.decode(list(row.completion[:-1])) for row in rows]
    assert answers == [rename(action) for action in ran]
    assert {*ran} & {"go east", "go west"}, "else nothing was renamed"


def test_an_episode_stays_one_sequence_of_what_was_sampled():
    """The answers in a prompt are the sampled tokens, in the other names."""
    rows, _ = play(SWAPPED, refused=(0, 2))
    (sequence,) = pack_samples(rows, {rows[0].trace: [1.0] * len(rows)})
    trained = [token for token, counts in zip(sequence.tokens, sequence.mask, strict=True) if counts]
    assert trained == [t for row in rows for t, counts in zip(row.completion, row.mask, strict=True) if counts]
    for before, after in pairwise(rows):
        so_far = (*before.prompt, *before.completion)
        assert after.prompt[: len(so_far)] == so_far


def test_names_that_stay_change_no_token():
    same = tuple((name, name) for name in ("east", "west", "coin"))
    assert play(same, refused=(1,)) == play((), refused=(1,))


def test_names_are_restored_in_any_text():
    names = Names(("take coat", "put coat in coat hanger", "take hat", "put hat in box", "open box"))
    for seed in range(20):
        pairs = names.draw(random.Random(seed))
        for text in ("Coat on the coat hanger, hat in the BOX.", "raincoat", ""):
            renamed = swap_names(pairs)(text)
            assert restore_names(pairs)(renamed).lower() == text.lower()


def test_a_refused_action_is_refused_under_its_other_name():
    context = Context(State("x"), ACTIONS, forbidden={"go east": "it failed"})
    offer, own = rename_choices(context, SWAPPED)
    assert offer.actions == ("go west", "go east", "take coin")
    assert offer.forbidden == {"go west": "it failed"}
    assert own["go west"] == "go east"


# -- in a run


@pytest.fixture
def settings(tmp_path):
    return {
        "environment": {"name": "tests.trainers.corridor:Corridor", "max_steps": 4},
        "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-103"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
        "model": {"base": str(save_base(tmp_path / "base")), "adapter": 2},
        "arms": {"control": 2, "retrieved": 3},
        "guidance": {"retrieved": "library"},
        "library": {"explored": {"": {"seeds": "20-29"}}, "recall": 3, "renamed": 1.0},
        "roles": {"policy": {"learner": {"lr": 0.001}}},
        "eval": {"every": 0},
        "run": {"iterations": 1, "groups": 2, "rerolls": 0, "out": str(tmp_path / "run")},
    }


def collect(settings, folder, *, learning=True, salt="a", seeds=range(12)):
    """Play both arms; return the names of each episode as pairs of arm and names, and the rollouts."""
    seen = {}
    session = Session.open(of(settings), folder)
    player = Player(session)
    draw = player._draw_names

    def keep(specs, arms):
        drawn = draw(specs, arms)
        seen.update({(spec.group, spec.arm, spec.copy): spec.names for spec in drawn})
        return drawn

    player._draw_names = keep
    try:
        worlds = [("", seed) for seed in seeds]
        played = player.play(worlds, {CONTROL: 1, RETRIEVED: 2}, salt=salt, learning=learning)
        return seen, asyncio.run(played), session.tokenizer
    finally:
        player.close()
        session.close()


def test_arms_that_recall_have_other_names_in_training_alone(settings, tmp_path):
    names, rollouts, tokenizer = collect(settings, tmp_path / "a")
    assert {pairs for (_, arm, _), pairs in names.items() if arm == "control"} == {()}
    drawn = [pairs for (_, arm, _), pairs in names.items() if arm == "retrieved"]
    assert all(drawn)
    assert len({*drawn}) > 1, "groups draw apart"
    for seed in range(12):
        assert names[f"#{seed}", "retrieved", 0] == names[f"#{seed}", "retrieved", 1], "a group is compared"
    swapped = {
        group for (group, arm, _), pairs in names.items() if arm == "retrieved" and dict(pairs)["east"] == "west"
    }
    for rollout in rollouts:
        (*_, last) = rollout.rows
        answer = tokenizer.decode(list(last.completion[:-1]))
        ran = rollout.trajectory.steps[last.turn].action
        is_swapped = rollout.trajectory.arm == "retrieved" and rollout.group in swapped
        assert (answer == ran) == (not is_swapped or ran == "wait")
        assert {step.action for step in rollout.trajectory.steps} <= {"go east", "go west", "wait"}
    evaluated, _, _ = collect(settings, tmp_path / "b", learning=False)
    assert {*evaluated.values()} <= {()}


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_share_is_one_of_groups(settings, tmp_path, share):
    settings["library"]["renamed"] = share
    names, _, _ = collect(settings, tmp_path / "a", seeds=range(24))
    renamed = {group for (group, arm, _), pairs in names.items() if arm == "retrieved" and pairs}
    assert len(renamed) == 0 if share == 0 else 4 <= len(renamed) <= 20


def test_a_run_trains_on_them(settings, tmp_path):
    train(settings)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"success/retrieved"' in metrics


@pytest.mark.parametrize(
    "change",
    [{"arms": {"control": 2, "told": 2}, "guidance": {"told": "experience"}}, {"model": {}}],
    ids=["no arm recalls", "content words"],
)
def test_where_it_does_nothing_it_is_refused(settings, change):
    library = {"renamed": 1.0}
    with pytest.raises(ConfigError, match=r"library\.renamed is 1\.0"):
        of({**settings, "library": library, **change})
