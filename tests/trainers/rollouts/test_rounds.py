"""Rounds of a composer: the budget holds, and paths are checked by playing them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers import train
from hardwon.trainers.algorithms.composers import Composer, ComposerParts
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.rollouts.paths import Demonstrations, check_origins, read_paths
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.rollouts.rounds import play_rounds


class Endless(Composer):
    """Asks for two episodes more in every round."""

    def more(self, done):
        return [Spec("", 0, copy=len(done) + n) for n in range(2)]


def test_a_composer_never_plays_more_than_its_budget(episode):
    async def collect(specs):
        return [Rollout(episode(), (), spec.group) for spec in specs]

    async def read(rollouts):
        return rollouts

    composer = Endless(ComposerParts())
    specs = [Spec("", 0, copy=copy) for copy in range(5)]
    assert len(asyncio.run(play_rounds(composer, specs, collect, read))) == 5
    fewer = Fewer(ComposerParts())
    assert len(asyncio.run(play_rounds(fewer, specs, collect, read))) == 5


class Fewer(Endless):
    """The same, after two episodes."""

    def begin(self, specs, iteration=0):
        return list(specs[:2])


class Uneven(Composer):
    """Gives the first group one episode more, and leaves one to the last."""

    budget = 2.0

    def begin(self, specs, iteration=0):
        groups = list(dict.fromkeys(spec.group for spec in specs))
        sizes = {groups[0]: 4, groups[-1]: 1}
        copies = [replace(specs[0], copy=9)]
        return [spec for spec in [*copies, *specs] if spec.copy == 9 or spec.copy < sizes.get(spec.group, 3)]


def test_groups_of_other_sizes_stay_apart(corridor, monkeypatch):
    """Fault 2 of the trainer: the rollouts of a task instance are found by their group, not by the arms' numbers."""
    groups = []

    def watch(self, group):
        groups.append([rollout.group for rollout in group])
        return True

    monkeypatch.setattr("hardwon.trainers.loop.open_composer_of", lambda session: Uneven(ComposerParts()))
    monkeypatch.setattr("hardwon.trainers.roles.base.PolicyRole.wants", watch)
    train(corridor(arms={"control": 3}, run={"iterations": 1, "rerolls": 0}, warmstart=None))
    groups = groups[:3]  # after them, the role looks at all at once
    assert [len(group) for group in groups] == [4, 3, 1]
    assert all(len({*group}) == 1 for group in groups)
    assert len({group[0] for group in groups}) == 3


GOLD = ["go west", "dance", "go east", "go east", "go east", "go east"]


class TestPaths:
    @pytest.fixture
    def world(self, rooms):
        def clone(self):
            return solved(self.ran, self.faults, self.actions)

        solved: Any = type("Solved", (rooms,), {"gold_path": lambda self: GOLD, "clone": clone})
        return solved()

    def test_an_action_that_is_not_admissible_is_left_out(self, world):
        found: Any = Demonstrations(world, ("gold",), lambda task, seed: None).find("", 0)
        assert [step.action for step in found.steps] == [action for action in GOLD if action != "dance"]
        assert found.success

    def test_a_path_that_does_not_win_is_no_demonstration(self, world, monkeypatch):
        monkeypatch.setattr(type(world), "gold_path", lambda self: GOLD[:3])
        paths = Demonstrations(world, ("gold",), lambda task, seed: None)
        assert paths.find("", 0) is None
        assert paths.counts == {"none": 1}

    def test_origins_are_asked_in_order_and_once(self, world, tmp_path):
        import json

        file = tmp_path / "paths.json"
        file.write_text(json.dumps([{"task": "", "seed": 1, "actions": ["go east"] * 4}]), encoding="utf-8")
        paths: Any = Demonstrations(world, (str(file), "gold"), lambda task, seed: None)
        assert len(paths.find("", 1).steps) == 4
        assert len(paths.find("", 2).steps) == 5
        assert paths.find("", 1) is paths.find("", 1)
        assert paths.counts == {str(file): 1, "gold": 1}

    def test_a_world_without_solutions_is_refused(self, rooms):
        with pytest.raises(ConfigError, match="no gold_path"):
            check_origins(rooms(), ("gold",))

    def test_a_file_that_is_none_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="explored, gold, or a JSON"):
            read_paths(str(tmp_path / "missing.json"))
