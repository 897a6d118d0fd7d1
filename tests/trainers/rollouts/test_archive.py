"""Exploration from an archive of states."""

from tests.trainers.corridor import Corridor

from hardwon.trainers.config.schema import ExploreConfig
from hardwon.trainers.rollouts.archive import Archive, explore_archive
from hardwon.trainers.rollouts.explore import Explorer


def test_the_shorter_path_to_a_state_is_kept():
    archive = Archive()
    archive.add("hall", tuple("abcde"))
    archive.add("hall", tuple("abc"))
    archive.add("hall", tuple("abcd"))
    assert archive.paths == {"hall": ("a", "b", "c")}


def test_the_state_chosen_least_often_is_next_and_the_newest_of_several():
    archive = Archive()
    for name in "ab":
        archive.add(name, ())
    assert [archive.choose() for _ in range(4)] == ["b", "a", "b", "a"]


def test_with_only_the_root_there_is_the_empty_path():
    paths = explore_archive(Corridor(), ("", 0), trials=0, steps=5, seed=0, solves=lambda _: True)
    assert paths == [()]


def test_it_finds_the_prize_and_plays_the_same_again():
    explorer = Explorer(Corridor(), ExploreConfig(policy="archive", steps=6, tries=60))
    again = Explorer(Corridor(), ExploreConfig(policy="archive", steps=6, tries=60))
    for seed in range(3):
        best = explorer.source("", seed)
        assert best is not None
        assert best.success
        assert [s.action for s in best.steps] == [s.action for s in again.explored(("", seed))[-1].steps]
    explorer.close()
    again.close()
