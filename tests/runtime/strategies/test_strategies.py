"""Strategies: whole settings, of which one is chosen for every episode (EGuR, arXiv:2511.11519): row 35."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime import Agent
from hardwon.runtime.planning.plans import SkillPlanner
from hardwon.runtime.planning.search_planner import SearchPlanner
from hardwon.runtime.strategies.guide import StrategyChoice, StrategyGuide, StrategyTrial, read_trials
from hardwon.runtime.strategies.nodes import NodesByStrategy
from hardwon.runtime.strategies.strategy import Strategy, load_strategies

A, B = Strategy(name="A"), Strategy(name="B")
NOW = State("now", task="bake")


def remember(library, strategy, successes, n, tokens=0, task="bake", environment="house"):
    step = Step(NOW, "wait", NOW, Diagnosis(True))
    for at in range(n):
        meta = {"strategy": strategy, "prompt_tokens": tokens, "environment": environment, "calls": 1}
        library.record(Trajectory(task, (step,), at < successes, float(at < successes), meta=meta))


@pytest.fixture
def library():
    with ExperienceLibrary.open(":memory:") as opened:
        yield opened


def test_graded_outcomes_take_the_place_of_success(library):
    """No episode succeeds: B is the better one by its rewards, and A by the scores that do not count here."""
    step = Step(State("x"), "go", State("x"), Diagnosis(True), 0.5)
    for name, steps, score in (("A", (step,), 0.9), ("B", (step, step), 0.1)):
        meta = {"strategy": name, "outcome": "reward"}
        library.record(Trajectory("bake", steps, False, score, meta=meta))
    guide = StrategyGuide([A, B], price=0)
    assert guide.score(read_trials(library)) == pytest.approx({"A": 0.5, "B": 1.0})


def test_success_less_the_price_of_tokens_decides(library):
    """Worked example, row 35: A 8/10 at 1,000 tokens, B 9/10 at 10,000, price .05: 0.75 and 0.4, so A."""
    remember(library, "A", 8, 10, tokens=1000)
    remember(library, "B", 9, 10, tokens=10_000)
    guide = StrategyGuide([B, A], price=0.05)
    assert guide.score(read_trials(library)) == pytest.approx({"A": 0.75, "B": 0.4})
    assert guide.choose("bake", library) == StrategyChoice("A")
    assert StrategyGuide([B, A], price=0).choose("bake", library) == StrategyChoice("B")


def test_one_strategy_is_the_agent_with_its_settings(library, workshop):
    """Degenerate case, row 35: the same actions as those of an agent without strategies."""

    def play(**settings):
        agent = Agent("episodic", library, workshop(), learn=False, max_steps=15, **settings)
        return [step.action for step in agent.run(seed=3).trajectory.steps]

    assert play(strategies=[A]) == play()
    assert StrategyGuide([A]).choose("bake", library, learns=True) == StrategyChoice("A")


def test_episodes_of_another_task_do_not_move_the_choice(library):
    """Invariance, row 35: as soon as there are enough episodes of the task itself."""
    remember(library, "A", 4, 4)
    remember(library, "B", 0, 4)
    remember(library, "B", 50, 50, task="brew")
    guide = StrategyGuide([A, B])
    assert guide.choose("bake", library) == StrategyChoice("A")
    assert guide.choose("brew", library) == StrategyChoice("B")
    assert guide.choose("a new one", library) == StrategyChoice("A")  # 4 of 4 in all; B is 50 of 54


def test_episodes_of_another_environment_and_of_strangers_do_not_count(library):
    remember(library, "B", 9, 9, environment="elsewhere")
    guide = StrategyGuide([A, B])
    assert guide.choose("bake", library, "house") == StrategyChoice("A")
    assert guide.choose("bake", library, "house", learns=True) == StrategyChoice("A")  # neither was tried


def test_a_learning_agent_tries_all_and_settles_on_the_best(library, workshop):
    """Fed by the agent's own episodes; with a step too few, the goal cannot be reached."""
    strategies = [
        Strategy(name="short", max_steps=1),
        Strategy(name="long", planner="skills"),
        Strategy(name="blind", policy="random", max_steps=2),
    ]
    agent = Agent("episodic", library, workshop(goal="table"), strategies=strategies, max_steps=30)
    for seed in range(25):
        agent.run(seed=seed)
    played = [trial.strategy for trial in read_trials(library)]
    assert {*played} == {"short", "long", "blind"}
    assert played.count("long") > 15
    frozen = Agent("episodic", library, workshop(goal="table"), strategies=strategies, learn=False)
    result = asyncio.run(frozen.arun(seed=99))
    assert result.trajectory.meta["strategy"] == "long"
    assert result.success
    policies = {row["meta"]["strategy"]: row["meta"]["policy"] for row in library.episodes.find()}
    assert policies["blind"] == "random"
    assert policies["long"] == "episodic"
    agent.close()


def test_a_chat_model_gets_the_settings_of_its_strategy(library, workshop, scripted, monkeypatch):
    from hardwon.runtime.policies import chat

    model = scripted(*["gather wood"] * 9)
    monkeypatch.setattr(chat, "open_model", lambda *_, **__: model)
    careful = Strategy(name="careful", policy="openai:any", instructions="Check twice.", context="report", best_of=2)
    result = Agent("random", library, workshop(goal="wood"), strategies=[careful], learn=False).run()
    assert result.success
    assert "Check twice." in model.seen[0][0].content


def test_strategies_are_read_from_a_file(tmp_path):
    file = tmp_path / "strategies.toml"
    file.write_text('[plain]\n[far]\npolicy = "lookahead"\nmax_steps = 30\n')
    assert load_strategies(file) == (Strategy(name="plain"), Strategy(name="far", policy="lookahead", max_steps=30))


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("", ConfigError, "no strategies"),
        ("x = 1", ConfigError, "table"),
        ("[a\n", ConfigError, "TOML"),
        ("[a]\nmost = 1", UnknownName, "most"),
        ('[a]\nrecall_k = "5"', ConfigError, "number"),
        ("[a]\nrecall_k = true", ConfigError, "number"),
        ("[a]\nrecall_k = 0", ConfigError, "1 or more"),
        ('[a]\nplanner = "none"', UnknownName, "planner"),
        ('[a]\ninstructions = "Hurry."', ConfigError, "chat model"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path, text, error, match):
    file = tmp_path / "strategies.toml"
    file.write_text(text)
    with pytest.raises(error, match=match):
        load_strategies(file)


def test_names_are_unique_and_a_team_needs_an_agent_without_strategies(library, workshop):
    with pytest.raises(ConfigError, match="own name"):
        StrategyGuide([A, A])
    with pytest.raises(ConfigError, match="team"):
        Agent("episodic", library, workshop(), strategies=[A, B]).joined(None, lambda world: world)  # type: ignore[arg-type]
    assert StrategyTrial("A", "bake", 1.0, 0) == StrategyTrial("A", "bake", 1.0, 0)


def test_a_price_is_not_negative():
    with pytest.raises(ConfigError, match="use 0 or more"):
        StrategyGuide([A, B], price=-1.0)


def test_a_learning_agent_gives_a_bonus_to_what_was_rarely_played(library):
    """Worked example: A 6 of 10 and B 1 of 2, so .6 + .5 sqrt(ln 12 / 10) = .85 and .5 + .5 sqrt(ln 12 / 2) = 1.06."""
    remember(library, "A", 6, 10)
    remember(library, "B", 1, 2)
    guide = StrategyGuide([A, B])
    choices = guide.choose("bake", library), guide.choose("bake", library, learns=True)
    assert [choice.strategy for choice in choices] == ["A", "B"]


def test_the_tokens_of_an_episode_are_those_read_and_those_written(library):
    meta = {"strategy": "A", "prompt_tokens": 100, "completion_tokens": 50, "calls": 1}
    library.record(Trajectory("bake", (Step(NOW, "wait", NOW, Diagnosis(True)),), True, 1.0, meta=meta))
    assert [trial.tokens for trial in read_trials(library)] == [150]


def test_settings_of_a_chat_model_need_one_by_name():
    for policy, named in (("", "'of the agent'"), ("episodic", "'episodic'")):
        with pytest.raises(ConfigError, match=f"sets instructions for the policy {named}"):
            Strategy(name="x", policy=policy, instructions="Look first.")


class Fake:
    """The nodes of one strategy, and their base, which begins with this update."""

    def __init__(self, planner=None, **update):
        self.planner, self.update, self.closed = planner, update, 0
        self.library, self.settings = "library", SimpleNamespace(learn=True)
        self.live = {"t": SimpleNamespace(environment=SimpleNamespace(name="house"))}

    def begin(self, episode):
        return self.update

    def observe(self, episode):
        return {"observed": self}

    def close(self):
        self.closed += 1


class Chooses:
    """A guide that chooses the same strategy always."""

    def __init__(self, name):
        self.name, self.asked = name, []

    def choose(self, task, library, environment, *, learns):
        self.asked.append((task, library, environment, learns))
        return StrategyChoice(self.name)


@pytest.mark.parametrize(("update", "task"), [({"state": NOW}, "bake"), ({"failed": "it broke"}, "a split")])
def test_a_strategy_is_chosen_by_the_task_of_the_first_state(update, task):
    """Without a state, as where the environment broke, by what the episode was begun with."""
    guide: Any = Chooses("A")
    variants: Any = {"A": Fake(), "B": Fake(planner="skills")}
    base: Any = Fake(**update)
    episode: Any = {"thread": "t", "task": "a split"}
    begun = NodesByStrategy(base, variants, {}, guide).begin(episode)
    assert (begun["strategy"], begun["skills"], guide.asked) == ("A", None, [(task, "library", "house", True)])
    guide.name = "B"
    assert NodesByStrategy(base, variants, {}, guide).begin(episode)["skills"] == {}


def test_the_stages_are_those_of_the_strategy_and_all_are_closed():
    variants: Any = {"A": Fake(), "B": Fake()}
    base: Any = Fake()
    guide: Any = Chooses("A")
    nodes = NodesByStrategy(base, variants, {}, guide)
    assert nodes.observe({"strategy": "B"}) == {"observed": variants["B"]}
    for name in ("_observe", "_begin_with", "fly"):
        with pytest.raises(AttributeError):
            getattr(nodes, name)
    nodes.close()
    assert [fake.closed for fake in (base, *variants.values())] == [1, 1, 1]


def test_a_strategy_without_a_planner_has_that_of_the_agent(library, workshop):
    strategies = [A, Strategy(name="looks", planner="search")]
    agent = Agent("episodic", library, workshop(), planner="skills", strategies=strategies)
    nodes: Any = agent._nodes
    planners = {name: type(variant.planner) for name, variant in nodes.variants.items()}
    assert planners == {"A": SkillPlanner, "looks": SearchPlanner}
    agent.close()
