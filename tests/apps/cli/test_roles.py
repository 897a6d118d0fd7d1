"""Trained roles on the command line: `hardwon run`, `hardwon team` and `hardwon serve` with --roles."""

import asyncio
import json
import shutil
from dataclasses import asdict, replace
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from tests.trainers.corridor import Corridor, Walks
from tests.trainers.folder_base import keep_requests, save_base
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.apps.cli.team import run_team
from hardwon.apps.experiment import ExperimentPlan, run_plan
from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.app import create_app
from hardwon.apps.shared.trained import open_roles, open_server_roles
from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.wire import plain
from hardwon.runtime import Agent, ExperienceMiddleware
from hardwon.runtime.interfaces.arms import CONTROL, Arm
from hardwon.runtime.teams.sharing_policy import Choice, SharingInput
from hardwon.trainers.config.loading import of
from hardwon.trainers.player import Player
from hardwon.trainers.roles.admission import EngineAdmission, Member
from hardwon.trainers.roles.guides.speech import query_of
from hardwon.trainers.rollouts.rollout import Spec, TokenPolicy, enter_episode
from hardwon.trainers.serving import load_roles
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

WORLD = "tests.trainers.corridor:Corridor"


RECALL = 2
"""Items of a recall in training; an agent's own default is another."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """The settings of a run with four roles of a small chat model."""
    folder = tmp_path_factory.mktemp("base")
    return {
        "environment": {"name": WORLD, "max_steps": 4},
        "explore": {"worlds": {"seeds": "0-2"}, "steps": 5, "tries": 1},
        "model": {"base": str(save_base(folder / "base")), "adapter": 2},
        "arms": {"control": 1, "library": 2, "guided": 2},
        "guidance": {"guided": "role"},
        "library": {"recall": RECALL},
        "roles": {
            "policy": {},
            "guide": {"settings": {"distil": 0}},
            "extractor": {},
            "admission": {},
        },
        "eval": {"every": 0, "temperature": 0},
        "run": {"iterations": 0, "groups": 1, "out": str(folder / "run")},
    }


@pytest.fixture(scope="module")
def export(settings, tmp_path_factory):
    """An export of four roles that have learned nothing."""
    folder = tmp_path_factory.mktemp("run")
    train(settings, export=folder / "export")
    return folder / "export"


@pytest.fixture
def session(settings, tmp_path):
    """Opens the training session of the roles, on a copy of a library, with other sections: `session(path)`."""
    opened: list[Session] = []

    def open_session(library=None, **changes):
        path = {} if library is None else {"path": str(library)}
        config = of({**settings, **changes, "library": {**settings["library"], **path}})
        opened.append(Session.open(config, tmp_path / f"session{len(opened)}"))
        return opened[-1]

    yield open_session
    for each in opened:
        each.close()


@pytest.fixture
def requests(monkeypatch):
    """The prompts that engines are asked, by role."""
    return keep_requests(monkeypatch)


def remember(path, *, seeds):
    """Record episodes in a library, without an extractor."""
    with ExperienceLibrary.open(path) as library:
        agent = Agent(cast(Any, Walks()), library, Corridor(), max_steps=4)
        for seed in seeds:
            agent.run("train", seed)
        agent.close()
    return path


def plan(out, **changes):
    settings = {
        "environment": WORLD,
        "game": None,
        "params": "",
        "episodes": 2,
        "checkpoints": (0, 2),
        "train_seeds": tuple(range(6)),
        "eval_fold": "",
        "eval_seeds": (100, 101),
        "arms": ("random", "empty", "step"),
        "policy": "episodic",
        "library": str(out / "library.db"),
        "seeds": (0,),
        "max_steps": 4,
    }
    return ExperimentPlan(**{**settings, **changes})


def test_in_a_run_each_role_reads_what_it_reads_in_training(export, session, requests, tmp_path):
    rows = run_plan(
        plan(tmp_path, roles=str(export), episodes=6, checkpoints=(6,), arms=("empty", "step")), tmp_path, jobs=1
    )
    assert {row["arm"] for row in rows if row["phase"] == "test"} == {"empty", "step"}
    produced, trainer = dict(requests), session(tmp_path / "library.db")
    requests.clear()

    player = Player(trainer)
    asyncio.run(player.play([("", 100), ("", 101)], {Arm(CONTROL): 1}, salt="x", temperature=0.0))
    player.close()
    alone = requests.pop("policy")
    assert set(alone) <= set(produced["policy"])

    asyncio.run(trainer.roles["guide"].choose([Spec("", seed, "guided") for seed in (100, 101)]))
    asked = set(requests.pop("guide"))
    assert asked
    assert asked <= set(produced["guide"])

    for row in trainer.library.episodes.find():
        assert trainer.library.episodes.get(row["id"]).meta["policy"] == "tokens"
        asyncio.run(trainer.roles["extractor"]._read_finished(row["id"], ""))
    assert {*requests["extractor"]} == {*produced["extractor"]}


@pytest.mark.parametrize("memory", ["library", "items", "episodes"])
def test_in_a_run_a_policy_without_a_guide_reads_the_memory_of_its_training(
    settings, session, requests, tmp_path, memory
):
    """Token by token, and nothing else: the recalled steps beside the items were read in no episode of training."""
    alone = {"arms": {"control": 1, "recalling": 2}, "guidance": {"recalling": memory}, "roles": {"policy": {}}}
    settings = {**settings, **alone, "run": {**settings["run"], "out": str(tmp_path / "run")}}
    train(settings, export=tmp_path / "export")
    how = {"episodes": 12, "train_seeds": tuple(range(12)), "checkpoints": (12,), "arms": ("step",)}
    rows = run_plan(plan(tmp_path, roles=str(tmp_path / "export"), **how), tmp_path, jobs=1)
    produced, trainer = requests.pop("policy"), session(tmp_path / "library.db", **alone)

    player = Player(trainer)
    recalling = {Arm("recalling", memory=memory): 1}
    asyncio.run(player.play([("", seed) for seed in (100, 101)], recalling, salt="x", temperature=0.0))
    player.close()
    trained = requests["policy"]
    assert len(trained) >= sum(row["steps"] for row in rows if row["phase"] == "test") > 0
    assert sorted(trained) == sorted(produced[-len(trained) :])  # the tests come after the episodes that it learns from
    if memory == "episodes":
        assert not any(row["blocked"] for row in rows)  # nor while it learns


def test_an_experiment_of_an_earlier_version_goes_on(tmp_path):
    """Its plan has no roles."""
    small = plan(tmp_path, episodes=0, checkpoints=(0,), arms=("random",), eval_seeds=(100,))
    before = run_plan(small, tmp_path, jobs=1)
    saved = json.loads((tmp_path / "plan.json").read_text())
    del saved["roles"]
    (tmp_path / "plan.json").write_text(json.dumps(saved))
    assert run_plan(small, tmp_path, jobs=1) == before


@pytest.mark.parametrize(("memory", "plans", "guarded"), [("library", True, False), ("episodes", False, False)])
def test_in_a_run_a_policy_has_the_planner_and_the_guardrails_of_its_training(
    settings, tmp_path, monkeypatch, memory, plans, guarded
):
    """Only where it recalls, and not beside raw episodes, which were shown without plans."""
    alone = {"arms": {"control": 1, "recalling": 2}, "guidance": {"recalling": memory}, "roles": {"policy": {}}}
    library = {"recall": RECALL, "planner": "demonstrations", "guardrails": False}
    run = {**settings["run"], "out": str(tmp_path / "run")}
    train({**settings, **alone, "library": library, "run": run}, export=tmp_path / "export")
    made = []

    class Spy(Agent):
        def __init__(self, *parts, **options):
            made.append((str(options["arm"]), options.get("planner"), options.get("guardrails")))
            super().__init__(*parts, **options)

    monkeypatch.setattr("hardwon.runtime.agent.Agent", Spy)
    run_plan(plan(tmp_path, roles=str(tmp_path / "export"), arms=("empty", "step")), tmp_path, jobs=1)
    with_memory = {(planner, guards) for arm, planner, guards in made if "empty" not in arm}
    assert with_memory == {("demonstrations" if plans else None, guarded)}
    assert {planner for arm, planner, _ in made if "empty" in arm} == {None}


@pytest.fixture
def short(monkeypatch):
    """Episodes of members of a team that take few steps."""
    monkeypatch.setattr("hardwon.apps.cli.team_errands.MAX_STEPS", 6)


@pytest.mark.usefixtures("short")
def test_a_member_of_a_team_reads_and_shares_as_it_was_trained(export, session, requests, tmp_path):
    result = run_team(WORLD, 1, "none", "rule", 3, 0.0, tmp_path / "bank.db", roles=export, first=False)
    produced, trainer = dict(requests), session()
    requests.clear()

    policy = TokenPolicy(trainer.engine, trainer.prompts, temperature=0.0)
    admission = EngineAdmission(trainer.engine, trainer.prompts)
    agent = Agent(policy, trainer.library, Corridor(), learn=False, guardrails=False, recall_k=0, max_steps=6)
    with trainer.library.admin.bank("a task") as bank:
        member = Member("member", agent, admission, bank)
        enter_episode(Spec("", 3, salt="x"))
        asyncio.run(member.arun("", 3))
        member.close()
    assert requests["policy"] == produced["policy"]
    # the last step is shared after the end, while others may still be at work
    assert requests["admission"] == produced["admission"][: len(requests["admission"])]
    assert requests["admission"]
    assert [one.candidate.value for one in result.shared] == [
        EngineAdmission.value([each.step for each in result.shared[: n + 1]]) for n in range(len(result.shared))
    ]


@pytest.mark.usefixtures("short")
def test_a_trained_policy_is_shown_what_another_member_found(export, tmp_path, monkeypatch):
    from hardwon.trainers.serving import ServedPolicy

    seen = []
    original = ServedPolicy._decide

    async def decide(self, context):
        seen.append(context)
        return await original(self, context)

    monkeypatch.setattr(ServedPolicy, "_decide", decide)
    monkeypatch.setattr("hardwon.runtime.teams.reading.extract_words", lambda text: {"prize"})
    shares_all = replace(cast(Any, open_roles(export)), admission=None)
    monkeypatch.setattr("hardwon.apps.cli.team.open_roles", lambda folder: shares_all)
    run_team(WORLD, 2, "all", "rule", 3, 0.0, tmp_path / "bank.db", roles=export, first=False)
    assert any(context.guidance for context in seen)
    assert not any("pull" in action for context in seen for action in context.actions)


@pytest.mark.usefixtures("short")
def test_guide_and_extractor_serve_the_members_of_a_team_with_a_library(export, session, requests, tmp_path, capsys):
    path = remember(tmp_path / "library.db", seeds=(3, 4))
    before = session(shutil.copy(path, tmp_path / "before.db"))
    run_team(WORLD, 2, "none", "rule", 8, 0.0, path, roles=export, first=False)
    produced, after = dict(requests), session(path)
    requests.clear()
    asyncio.run(before.roles["guide"].choose([Spec("", 8, "guided")]))
    assert requests["guide"]
    assert set(requests["guide"]) <= set(produced["guide"])
    episodes = [after.library.episodes.get(row["id"]) for row in after.library.episodes.find()]
    own = [episode.id for episode in episodes if episode.meta["policy"] == "tokens"]
    assert len(own) == 2
    for episode in own:
        asyncio.run(after.roles["extractor"]._read_finished(episode, ""))
    assert {*requests["extractor"]} == {*produced["extractor"]}
    assert "does not use" not in capsys.readouterr().err

    requests.clear()
    run_team(WORLD, 1, "none", "rule", 8, 0.0, tmp_path / "bank.db", roles=export, first=False, keeps=False)
    assert set(requests) == {"policy", "admission"}
    assert "does not use the roles guide, extractor of this export" in capsys.readouterr().err


def test_a_command_names_the_roles_that_it_does_not_use(export, hardwon, tmp_path, capsys):
    open_server_roles(export, "guidance", "extractor")
    said = capsys.readouterr().err
    assert said == f"{export}: this command does not use the roles policy, admission of this export.\n"
    few = ("--episodes=0", "--arms=random", "--train-seeds=0-1", "--eval-seeds=100-100", "--max-steps=2", "--json")
    done = hardwon("run", WORLD, "--roles", export, "--out", tmp_path / "out", *few)
    assert "does not use the roles admission of this export" in done.stderr
    assert json.loads(done.stdout)["roles"] == str(export)


def test_a_server_does_not_serve_the_guidance_of_a_policy(export, tmp_path):
    """Its clients have policies of their own."""
    folder = tmp_path / "export"
    shutil.copytree(export, folder, ignore=shutil.ignore_patterns("guide"))
    manifest = json.loads((folder / "roles.json").read_text())
    (folder / "roles.json").write_text(json.dumps({**manifest, "guidance": "episodes"}))
    assert open_roles(folder).guidance is not None
    assert open_server_roles(folder, "guidance", "extractor").guidance is None
    assert open_server_roles(folder, "guidance", "extractor").extractor is not None


def test_a_server_answers_with_the_lines_of_the_guide(export, tmp_path):
    class Guide:
        def propose(self, context):
            from hardwon.runtime.guidance.base import Hint

            return Hint(f"go there\n{len(context.recollection.items)} recalled")

    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        library.add(Item("insight", "the prize is in the golden room", source="person"))
    with serve(tmp_path / "library.db", guidance=Guide()) as client:
        answer = client.post("/v1/recall", json={"text": "where is the prize in the golden room?"}).json()
    assert answer["lines"] == ["go there", "1 recalled"]
    assert open_server_roles(export, "guidance") is open_roles(export)


def serve(path, **options):
    return TestClient(create_app(path, **options), base_url="http://127.0.0.1:8420")


def test_the_guide_of_a_server_reads_what_it_reads_in_training(export, session, requests, tmp_path):
    path = tmp_path / "library.db"
    with ExperienceLibrary.open(path) as library:
        library.add(Item("insight", "the prize is in the golden room", source="person"))
    trainer, seen = session(path), Corridor().reset("", 100)
    asyncio.run(trainer.roles["guide"].choose([Spec("", 100, "guided")]))
    (trained, *_) = requests.pop("guide")
    asked = {"state": asdict(seen), "k": RECALL, "actions": dict.fromkeys(Corridor().admissible(seen), "")}
    with serve(path, guidance=open_roles(export).guidance) as client:
        assert client.post("/v1/recall", json=asked).status_code == 200
    assert requests["guide"][0] == trained


def test_the_extractor_of_a_server_reads_what_it_reads_in_training(export, session, requests, tmp_path):
    with ExperienceLibrary.open(remember(tmp_path / "source.db", seeds=(3, 4))) as library:
        episodes = [library.episodes.get(row["id"]) for row in library.episodes.find()]
    with serve(tmp_path / "library.db", extractor=open_roles(export).extractor) as client:
        sent = [plain(Trajectory, episode) for episode in episodes]
        assert client.post("/v1/episodes", json={"episodes": sent}).status_code == 200
        cast(Any, client.app).state.reader.wait()
        assert 'hardwon_extractor_episodes_total{result="read"} 2.0' in client.get("/metrics").text
    produced, trainer = requests.pop("extractor"), session(tmp_path / "library.db")
    for episode in episodes:
        asyncio.run(trainer.roles["extractor"]._read_finished(episode.id, ""))
    assert {*requests["extractor"]} == {*produced}


def test_the_middleware_asks_the_guide_and_the_extractor_as_in_training(export, session, requests, tmp_path):
    from langchain.agents import create_agent
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    @tool
    def book(table: int) -> str:
        """Book a table."""
        if table == 4:
            raise ValueError("table 4 is taken")
        return f"booked {table}"

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **_):
            return self

    def run(library, tables, **options):
        calls = [{"name": "book", "args": {"table": table}, "id": str(table)} for table in tables]
        script = iter([AIMessage("", tool_calls=[call]) for call in calls] + [AIMessage("Done.")])
        middleware = ExperienceMiddleware(library, **options)
        agent = create_agent(cast(Any, Model(messages=script)), [book], middleware=[middleware])
        agent.invoke(cast(Any, {"messages": [("user", "Book a table.")]}))

    contexts: list[Any] = []
    roles: Any = open_roles(export)

    class Heard:
        def propose(self, context):
            contexts.append(context)
            return roles.guidance.propose(context)

    path = tmp_path / "library.db"
    with ExperienceLibrary.open(path) as library:
        run(library, [7])
        run(library, [6], guidance=Heard(), extractor=roles.extractor, recall_k=roles.recall_k)
    produced, trainer = dict(requests), session(path)
    requests.clear()
    queries = [query_of(context) for context in contexts]
    asked = [trainer.roles["guide"].speaker.prompt(one[0]) for one in queries if one]
    assert asked
    assert [prompt for prompt in produced["guide"] if prompt in asked] == asked
    newest = trainer.library.episodes.find()[0]["id"]
    asyncio.run(trainer.roles["extractor"]._read_finished(newest, ""))
    assert {*requests["extractor"]} == {*produced["extractor"]}


def test_a_server_without_a_role_that_it_uses_is_refused(export, tmp_path):
    shutil.copytree(export, tmp_path / "export")
    for name in ("guide", "extractor"):
        shutil.rmtree(tmp_path / "export" / name)
    with pytest.raises(ConfigError, match=r"none of the roles that this command uses: guide, extractor. Train one"):
        open_server_roles(tmp_path / "export", "guidance", "extractor")
    assert open_server_roles(tmp_path / "export", "guidance", "admission").admission is not None
    assert open_server_roles(None, "guidance").guidance is None


def test_evolve_reads_episodes_with_a_trained_extractor(export, hardwon, hardwon_json, monkeypatch, tmp_path):
    """Each recorded episode is read once, and a second call reads none."""
    path = remember(tmp_path / "library.db", seeds=(0, 3))
    asked = keep_requests(monkeypatch)
    hardwon_json("memory", "evolve", path, "--roles", export)
    questions = len(asked["extractor"])
    assert questions > 0
    hardwon_json("memory", "evolve", path, "--roles", export)
    assert len(asked["extractor"]) == questions
    shutil.copytree(export, tmp_path / "export")
    shutil.rmtree(tmp_path / "export" / "extractor")
    refused = hardwon("memory", "evolve", path, "--roles", tmp_path / "export", expect=2)
    assert "none of the roles that this command uses: extractor" in refused.stderr


ENTRY = {"team": "red", "key": "blue room: go west -> the prize", "value": "green room : go west ."}


def test_the_admission_of_a_server_reads_what_it_reads_in_training(export, session, requests, tmp_path):
    trainer = session()
    keys = ("blue room: wait -> nothing",)
    admission = EngineAdmission(trainer.engine, trainer.prompts)
    asyncio.run(admission.decide(SharingInput("find the prize", keys, "go west", ENTRY["key"], ENTRY["value"])))
    (trained,) = requests.pop("admission")
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        library.admin.bank("find the prize").put("red", keys[0], "nothing")
    with serve(tmp_path / "library.db", admission=load_roles(export).admission) as client:
        assert client.post("/v1/bank/entries?task=find the prize", json=ENTRY).status_code == 200
    assert requests["admission"] == [trained]


class Doorkeeper:
    """An admission that takes nothing of rooms, and counts what it is asked."""

    name = "doorkeeper"

    def __init__(self):
        self.asked = []

    async def decide(self, candidate):
        self.asked.append(candidate)
        return Choice("room" not in candidate.key, 1.0)


def test_a_bank_takes_what_the_admission_of_its_server_lets_in(tmp_path):
    keeper, bank = Doorkeeper(), "/v1/bank/entries?task=find the prize"
    with serve(tmp_path / "library.db", admission=keeper) as client:
        assert client.post(bank, json=ENTRY).json() == {"id": None}
        entry = client.post(bank, json={**ENTRY, "key": "go west -> the prize"}).json()["id"]
        assert [one["id"] for one in client.get(bank).json()["entries"]] == [entry]
        assert client.post(bank, json=ENTRY).json() == {"id": None}
    assert [candidate.keys for candidate in keeper.asked] == [(), (), ("go west -> the prize",)]
    assert (keeper.asked[0].action, keeper.asked[0].value) == ("blue room: go west", ENTRY["value"])


def test_who_may_not_write_is_refused_before_the_admission_is_asked(tmp_path):
    keeper = Doorkeeper()
    with ExperienceLibrary.open(tmp_path / "library.db"):
        tokens = Tokens.beside(tmp_path / "library.db")
    headers = {"Authorization": f"Bearer {tokens.add('reader')}"}
    with serve(tmp_path / "library.db", admission=keeper, tokens=tokens) as client:
        assert client.post("/v1/bank/entries?task=t", json=ENTRY, headers=headers).status_code == 403
    assert not keeper.asked


def test_a_run_takes_a_device(export, tmp_path):
    settings = ["--roles", str(export), "--episodes", "0", "--eval-seeds", "0", "--max-steps", "1"]
    call = ["run", WORLD, *settings, "--arms", "empty", "--out", str(tmp_path / "out"), "--device", "cuda:7"]
    refused = CliRunner().invoke(app, call)
    assert refused.exit_code == 2
    assert "device is 'cuda:7'" in refused.stderr
    assert not (tmp_path / "out").exists()
