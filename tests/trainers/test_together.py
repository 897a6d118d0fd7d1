"""All four roles in one run: turns, names on rows, kill and resume, and what one role's answer does to another."""

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.learner import Learner
from hardwon.trainers.checkpoint import find
from hardwon.trainers.config.loading import load

from .test_trainer import assert_same, lines, start, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_together.yaml"
ROLES = ("policy", "extractor", "guide", "admission")
TOGETHER: dict[str, Any] = {
    "arms": {"control": 2, "retrieved": 2, "guided": 2},
    "guidance": {"retrieved": "library", "guided": "role"},
    "library": {"recall": 1},
    "roles": {
        "policy": {"phase": 2},
        "extractor": {"settings": {"samples": 2, "pairs": 2, "tokens": 8, "ready": 4, "episodes": 4}},
        "guide": {"loss": {"kl": 0.1}, "settings": {"ready": 2, "distil": 3}},
        "admission": {"settings": {"teams": 2, "runs": 2, "worlds": 1, "ready": 4, "steps": 5}},
    },
}


def turns(out):
    """Which roles were trained in each iteration."""
    return [{name.partition("/")[0] for name in line if name.endswith("/loss")} for line in metrics.read(Path(out))]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Settings of a run with all four roles in the corridor, and the folder of its tests."""
    folder = tmp_path_factory.mktemp("together")
    return folder, {
        "environment": {"name": "corridor:Corridor", "max_steps": 6},
        "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-101"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 2},
        "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
        "warmstart": {"learning": {"updates": 5, "batch": 4}},
        "eval": {"every": 0, "copies": 1},
        "run": {"iterations": 8, "groups": 2, "save_every": 2, "threads": 1, "out": str(folder / "run")},
        **TOGETHER,
    }


@pytest.fixture(scope="module")
def straight(settings):
    """The same run, never stopped; and by role, the versions of the rows that it learnt from."""
    folder, given = settings
    seen: dict[str, set[int]] = {}
    step = Learner.step

    def watched(self: Learner, streams: Any, *more: Any, **how: Any) -> Any:
        for stream in streams:
            seen.setdefault(stream.role, set()).add(stream.version)
        return step(self, streams, *more, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        patch.setattr(Learner, "step", watched)
        torch.set_num_threads(1)
        train(given, [f"run.out={folder / 'straight'}"])
    return folder / "straight", seen


def test_the_example_has_all_four_roles_in_their_order():
    """systems.md §7.6: actor, then extractor, generator, admission; groups with fixed arms."""
    config = load(EXAMPLE)
    assert tuple(config.roles) == ROLES
    assert {config.get_guidance(arm) for arm in config.arms} == {"none", "library", "role"}


def test_one_of_the_four_is_trained_at_a_time(straight):
    """systems.md §7.3: one part a phase, in the order of the settings; the policy's phase is two updates."""
    found = turns(straight[0])
    assert all(len(one) == 1 for one in found)
    assert {name for one in found for name in one} == set(ROLES)
    assert found[:2] == [{"policy"}, {"policy"}]


def test_versions_count_the_turns_of_each_role(straight):
    """One more for every update, from 1 on."""
    saved = {role: torch.load(find(straight[0]) / f"{role}.pt", weights_only=True)["version"] for role in ROLES}
    taken = Counter(name for one in turns(straight[0]) for name in one)
    assert saved == {role: 1 + taken[role] for role in ROLES}


def test_every_row_names_its_role_and_version(straight):
    """systems.md §7.3: the version of who is frozen is stored, so that credit is never mixed."""
    _, seen = straight
    assert set(seen) == {*ROLES}
    assert len(seen["policy"]) > 1


def test_four_roles_that_were_killed_go_on_bit_for_bit(settings, straight, monkeypatch):
    """kill -9 at a random step, in a process of its own: the same weights of all four, and no line twice."""
    folder, given = settings
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    process = start(given, folder, "--quiet")
    wait_for(folder / "run" / "metrics.jsonl", random.randrange(3, 7), process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    train(given, resume=True)
    assert_same(straight[0], folder / "run")
    assert lines(straight[0]) == lines(folder / "run")


def test_what_a_team_keeps_to_itself_is_no_failure_of_the_extractor(straight):
    """systems.md §7.8: the episodes of teams, and what the admission says there, reach no other role."""
    _, seen = straight
    saved = torch.load(find(straight[0]) / "extractor.pt", weights_only=True)["state"]["samples"]
    assert {row["role"] for rows, _ in saved for row in rows} <= {"extractor"}
    assert set(seen) == {*ROLES}
