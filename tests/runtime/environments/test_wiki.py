"""The environment `wiki`: questions over an invented encyclopedia (after SearchGym)."""

import random

import pytest

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime import Agent
from hardwon.runtime.environments import open_environment
from hardwon.runtime.environments.wiki import RELATIONS, Wiki, build_pages, draw_question, search_pages


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_the_path_of_a_question_leads_to_its_answer(hops):
    """Worked example: search and open for every relation, then the answer; nothing shorter is offered."""
    world = Wiki(hops)
    state = world.reset("dev", 7)
    solution = world.solve()
    assert len(solution) == 2 * hops + 1
    for action in solution[:-1]:
        assert action in world.admissible(state)
        state, reward, done, info = world.step(action)
        assert (reward, done, info) == (0.0, False, {})
    assert solution[-1] in world.admissible(state)
    _, reward, done, info = world.step(solution[-1])
    assert (reward, done, info["success"], info["score"]) == (1.0, True, True, 1.0)


def test_every_question_can_be_answered_by_search():
    pages = build_pages()
    rng = random.Random(0)
    for hops in (1, 2, 3, 4):
        question = draw_question(pages, hops, rng)
        assert all(name in search_pages(pages, name) for name in question.path)
        for name, following in zip(question.path, question.path[1:], strict=False):
            assert following in [other for _, other in pages[name].links]


def test_every_entity_has_one_of_each_relation_of_its_kind():
    for page in build_pages(40).values():
        expected = [relation for kind, relation, _ in RELATIONS if kind == page.kind]
        assert [relation for relation, _ in page.links] == expected


def test_the_same_fold_and_seed_ask_the_same():
    """And another fold asks about the same encyclopedia."""
    one, other = Wiki(), Wiki()
    assert one.reset("train", 3) == other.reset("train", 3) == one.clone().reset("train", 3)
    assert one.reset("train", 3) != one.reset("dev", 3)
    assert build_pages() == build_pages()
    assert build_pages(world=1) != build_pages()


def test_what_cannot_be_done_says_so():
    world = Wiki()
    world.reset()
    assert world.step("dance")[3]["invalid"]
    assert world.step("open Nowhere")[3]["error"]
    unlisted = next(name for name in build_pages() if name not in world.reset().task)
    assert world.step(f"open {unlisted}")[3]["error"]  # a page must be found before it is opened
    assert world.step("search qqqq")[0].observation == "Found: nothing."
    _, reward, done, info = world.step("answer Nowhere")
    assert (reward, done, info["success"], info["lost"]) == (0.0, True, False, True)


def test_it_is_opened_by_name():
    assert open_environment("wiki", game="3").reset("dev", 1).task.startswith("What is the ")
    with pytest.raises(UnknownName):
        open_environment("wiki", game="9")
    with pytest.raises(ConfigError, match="entities"):
        open_environment("wiki", params="entities=many")
    with pytest.raises(ConfigError, match="8 or more"):
        open_environment("wiki", params="entities=3")
    with pytest.raises(ConfigError, match="hops"):
        Wiki(5)


def test_an_agent_learns_to_search():
    """One relation: after some episodes it is answered more often than by an agent without a library."""
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent("episodic", library, Wiki(1, entities=12), max_steps=12)
        for seed in range(60):
            agent.run("train", seed)
        frozen = Agent("episodic", library, Wiki(1, entities=12), max_steps=12, learn=False)
        learned = sum(bool(frozen.run("dev", seed).success) for seed in range(20))
        with ExperienceLibrary.open(":memory:") as empty:
            plain = Agent("episodic", empty, Wiki(1, entities=12), max_steps=12, learn=False)
            assert learned > sum(bool(plain.run("dev", seed).success) for seed in range(20))


def test_a_relation_leads_to_a_page_of_its_kind():
    pages = build_pages(40)
    leads_to = {relation: kind for _, relation, kind in RELATIONS}
    assert all(pages[name].kind == leads_to[relation] for page in pages.values() for relation, name in page.links)


def test_no_page_is_on_a_path_twice():
    pages, rng = build_pages(), random.Random(1)
    paths = [draw_question(pages, 4, rng).path for _ in range(40)]
    assert [path for path in paths if len(set(path)) < len(path)] == []


def test_only_an_answer_ends_the_episode_and_says_whether_it_is_right():
    world = Wiki()
    world.reset("dev", 7)
    assert [world.step(action)[2] for action in ("dance", "open Nowhere", "search x")] == [False] * 3
    assert world.step("answer Nowhere")[0].observation == "That is wrong."
    assert world.step(world.solve()[-1])[0].observation == "That is right."
