"""Roles that leave the trainer: each reads in production the tokens that it read in training."""

import asyncio
import json
import re
import shutil
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.trainers.corridor import Corridor, Walks
from tests.trainers.folder_base import build_settings, keep_requests, save_base

from hardwon.apps.shared.trained import check_policy, open_policy
from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Add, Return
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.teams.sharing_policy import SharingInput as Shared
from hardwon.trainers.config.loading import of
from hardwon.trainers.engines.base import Completion
from hardwon.trainers.engines.base_models import select_device
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.exports import MANIFEST, choose_guidance
from hardwon.trainers.gating.item_guidance import ItemGuidance
from hardwon.trainers.gating.pasted import PastedEpisodes
from hardwon.trainers.models.pretrained import locate_base
from hardwon.trainers.player import Player
from hardwon.trainers.roles.admission import EngineAdmission
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.serving import Roles, load_roles as load
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

ROLES = {
    "policy": {},
    "guide": {"settings": {"distil": 0, "length": 7}},
    "extractor": {},
    "admission": {},
}
CONTROL = Arm("control")


def load_roles(folder, **options) -> Any:
    """Load an export; the roles are untyped, because each of them may be missing."""
    found: Roles = load(folder, **options)
    return found


@pytest.fixture(scope="module", params=["chat", "compact"])
def exported(request, tmp_path_factory):
    """An export of four roles before any update, with the session that trained them: (folder, session, base)."""
    folder = tmp_path_factory.mktemp(request.param)
    base = save_base(folder / "base") if request.param == "chat" else "tiny"
    settings = {
        "environment": {"name": "tests.trainers.corridor:Corridor", "max_steps": 4},
        "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-103"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
        "model": {
            "base": str(base),
            "adapter": 2,
            "tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16},
        },
        "arms": {"control": 1, "library": 2, "guided": 2},
        "guidance": {"guided": "role"},
        "library": {"recall": 3},
        "roles": ROLES,
        "eval": {"every": 0, "copies": 1, "temperature": 0},
        "run": {"iterations": 0, "groups": 1, "save_every": 2, "out": str(folder / "run")},
    }
    train(settings, export=folder / "export")
    session = Session.open(of(settings), folder / "again")
    yield folder / "export", session, base
    session.close()


@pytest.fixture
def requests(monkeypatch):
    """The prompts that engines are asked, by role."""
    return keep_requests(monkeypatch)


def remember(library, seeds=(3, 4)):
    """Record an episode of each of some seeds, by a scripted walk to the prize."""
    for seed in seeds:
        world = Corridor()
        world.reset("", seed)
        agent = Agent(cast(Any, Walks("go west" if world.goal == 0 else "go east")), library, Corridor(), max_steps=4)
        agent.run("", seed)
        agent.close()
    library.evolve()


def test_an_export_has_every_role_and_an_agent_runs_with_them(exported):
    folder, _, _ = exported
    roles = load_roles(folder)
    assert roles.names == ("policy", "guide", "extractor", "admission")
    with ExperienceLibrary.open(":memory:") as library:
        remember(library)
        before = library.episodes.count()
        agent = Agent(
            roles.policy, library, Corridor(), guidance=roles.guidance, extractor=roles.extractor, max_steps=4
        )
        result = agent.run("", 7)
        asyncio.run(agent.arun("", 8))
        agent.close()
        assert library.episodes.count() == before + 2
    assert all(step.action for step in result.trajectory.steps)


def test_an_export_ranks_the_choices_of_another_policy(exported):
    """By the name that commands take; before any update nothing is likelier than for the base."""
    folder, _, _ = exported
    policy = open_policy(f"ranked@{folder}:random")
    check_policy(f"ranked@{folder}:random")
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(policy, library, Corridor(), learn=False, max_steps=3)
        (step, *_) = agent.run("", 7).trajectory.steps
        agent.close()
    assert step.why.value == pytest.approx(0.0, abs=1e-4)
    assert step.why.count == 3
    assert step.action in step.why.extra["proposals"]
    for wrong, match in (
        (f"ranked@{folder}", "no policy to rank"),
        (f"ranked@{folder.parent}:random", "not an export"),
    ):
        with pytest.raises(ConfigError, match=match):
            check_policy(wrong)


def test_the_policy_reads_what_it_read_in_a_rollout(exported, requests):
    folder, session, _ = exported
    player = Player(session)
    asyncio.run(player.play([("", 7)], {CONTROL: 1}, salt="x", temperature=0.0))
    player.close()
    trained = requests.pop("policy")
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(load_roles(folder).policy, library, Corridor(), arm=CONTROL, learn=False, max_steps=4)
        agent.run("", 7)
        agent.close()
    assert requests["policy"] == trained
    assert trained


def test_the_guide_reads_the_recollection_that_it_reads_in_training(exported, requests):
    folder, session, base = exported
    if base == "tiny":
        pytest.skip("a compact guide is trained on walks")
    remember(session.library)
    guide = session.roles["guide"]
    asyncio.run(guide.choose([Spec("", 7, "guided")]))
    (trained, *_) = requests.pop("guide")
    agent = Agent(
        load_roles(folder).policy,
        session.library,
        Corridor(),
        guidance=load_roles(folder).guidance,
        recall_k=load_roles(folder).recall_k,
        learn=False,
        max_steps=4,
    )
    agent.run("", 7)
    agent.close()
    assert requests["guide"][0] == trained
    text = session.tokenizer.decode(list(trained))
    assert "<recalled>\n1. -" in text


def test_the_extractor_reads_the_episode_that_it_read_in_training(exported, requests, monkeypatch):
    """Its most probable answer is the addition of a lesson, or why there is none."""
    folder, session, _ = exported
    with ExperienceLibrary.open(":memory:") as library:
        remember(library, seeds=(3,))
        episode = library.episodes.get(library.episodes.find()[0]["id"])
    (written,) = asyncio.run(session.roles["extractor"]._writer.write(episode, greedy=True))
    trained = requests.pop("extractor")
    extractor = load_roles(folder).extractor
    (answer,) = extractor.extract(episode, ())
    assert requests["extractor"] == trained
    assert trained
    assert answer == (
        Return(f"no lesson was written: {written.problem}") if written.item is None else Add(written.item)
    )
    assert extractor.extract(Trajectory("", (), True, id="none"), ()) == [Return("the episode has no steps")]
    lesson = session.prompts.text("go east")

    async def write(self, request):
        n = len(lesson)
        return Completion(lesson, (0.0,) * n, (True,) * n, (None,) * n, 0)

    monkeypatch.setattr(LocalEngine, "generate", write)
    (added,) = extractor.extract(episode, ())
    assert (added.item.title, added.item.provenance) == ("go east", tuple(step.id for step in episode.steps))


def test_admission_reads_the_step_that_it_read_in_training(exported, requests):
    folder, session, _ = exported
    candidate = Shared("find the prize", ("red: west",), "go east", "blue: east", "the prize is east")
    choice = asyncio.run(EngineAdmission(session.engine, session.prompts).decide(candidate))
    trained = requests.pop("admission")
    served = asyncio.run(load_roles(folder).admission.decide(candidate))
    assert requests["admission"] == trained
    assert (served.admit, served.p) == (choice.admit, pytest.approx(choice.p, abs=1e-4))


def test_only_the_roles_that_are_there_are_returned(exported, tmp_path):
    shutil.copytree(exported[0], tmp_path / "export")
    for name in ("guide", "admission"):
        shutil.rmtree(tmp_path / "export" / name)
    assert load_roles(tmp_path / "export").names == ("policy", "extractor")


def test_the_limits_of_training_hold_in_production(exported):
    folder, session, _ = exported
    roles = load_roles(folder)
    assert roles.recall_k == session.config.library.recall == 3
    assert roles.policy._inner._context == session.context
    assert roles.guidance._inner._speaker._most == session.roles["guide"].speaker._most == 7


def test_what_is_not_an_export_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not an export of trained roles"):
        load_roles(tmp_path)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(ConfigError, match="is not an export of trained roles"):
        load_roles(tmp_path)


def change(folder, tmp_path, **values):
    """Return a copy of an export with other values in its manifest."""
    shutil.copytree(folder, tmp_path / "export")
    path = tmp_path / "export" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return tmp_path / "export"


def test_another_base_is_refused(exported, tmp_path):
    with pytest.raises(ConfigError, match="was trained on another base"):
        load_roles(change(exported[0], tmp_path, base="0123"))


def test_an_export_finds_its_base_from_another_folder(tmp_path, monkeypatch):
    """The base was named by a relative path; a moved base is named by a line of the manifest."""
    monkeypatch.chdir(tmp_path)
    base = save_base(tmp_path / "models" / "base")
    settings = build_settings(tmp_path, eval={"every": 0, "copies": 1})
    train({**settings, "model": {"base": "models/base", "adapter": 2}}, export="export")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    export = tmp_path / "export"
    manifest = json.loads((export / MANIFEST).read_text())
    assert manifest["model"]["base"] == str(base)
    assert json.loads((export / "policy" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    assert load_roles(export).names == ("policy",)

    base.rename(tmp_path / "moved")
    line = rf"Set model.base in {re.escape(str(export / MANIFEST))} to the folder of the base"
    with pytest.raises(ConfigError, match=rf"there is no folder {re.escape(str(base))}\. {line}"):
        load_roles(export)
    manifest["model"]["base"] = str(tmp_path / "moved")
    (export / MANIFEST).write_text(json.dumps(manifest))
    assert load_roles(export).names == ("policy",)


def test_a_relative_base_of_an_earlier_export_is_found_where_it_was_written(exported, tmp_path, monkeypatch):
    folder, _, base = exported
    if base == "tiny":
        pytest.skip("the base is in the export")
    model = json.loads((folder / MANIFEST).read_text())["model"]
    older = change(folder, tmp_path, model={**model, "base": "my/models/base"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"tried the folder {re.escape(str(tmp_path))}/my/models/base and my/models"):
        load_roles(older)
    (tmp_path / "my" / "models").mkdir(parents=True)
    (tmp_path / "my" / "models" / "base").symlink_to(base)
    assert load_roles(older).names == tuple(ROLES)


def test_names_of_the_hub_and_a_base_of_the_run_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("tiny", "here/base"):
        (tmp_path / folder).mkdir(parents=True)
    located = [locate_base(name) for name in ("org/model", "tiny", "here/base", str(tmp_path / "here/base"))]
    assert located == ["org/model", "tiny", *[str(tmp_path / "here/base")] * 2]


@pytest.mark.parametrize(
    ("guidance", "kind", "served"),
    [
        ({}, "library", None),
        ({"library": "items"}, "items", ItemGuidance),
        ({"library": "episodes"}, "episodes", PastedEpisodes),
        ({"library": "experience"}, "guide", None),  # the first arm that recalls
        ({"library": "experience", "guided": "role"}, "experience", None),
        ({"library": "none", "guided": "items"}, "items", ItemGuidance),
    ],
)
def test_the_guidance_of_the_first_arm_that_recalls_is_served(exported, tmp_path, guidance, kind, served):
    """Without the guide; with it, the guide decides."""
    arms = SimpleNamespace(arms={"control": 1, "library": 2, "guided": 2})
    arms.get_guidance = lambda arm: {"control": "none", "guided": "guide", **guidance}.get(arm, arm)
    assert choose_guidance(cast(Any, arms)) == kind
    folder = change(exported[0], tmp_path, guidance=kind)
    assert "guide" in load_roles(folder).names
    shutil.rmtree(folder / "guide")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        roles = load_roles(folder)
    assert "guide" not in roles.names
    assert roles.guidance is None if served is None else isinstance(roles.guidance, served)
    assert roles.guardrails is (kind != "episodes")  # an arm of raw episodes is trained without them
    said = [str(one.message) for one in caught if "cannot be served" in str(one.message)]
    assert len(said) == (kind == "experience")
    assert all("a path that the run explored" in line for line in said)


def test_other_instructions_are_refused(exported, tmp_path):
    folder = change(exported[0], tmp_path, instructions={"version": 0, "digest": "x"})
    if exported[2] == "tiny":
        assert load_roles(folder).names  # compact prompts have no instructions
        return
    with pytest.raises(ConfigError, match="trained with version 0"):
        load_roles(folder)


def test_another_format_of_the_manifest_is_refused(exported, tmp_path):
    with pytest.raises(ConfigError, match="has format 99"):
        load_roles(change(exported[0], tmp_path, format=99))


def test_an_episode_keeps_its_tokens_until_too_many_are_open(exported, monkeypatch):
    policy = load_roles(exported[0]).policy
    assert policy is not None
    # in the module of this very class: a test before may have imported the package anew
    monkeypatch.setitem(type(policy)._decide.__globals__, "READ", 1)
    world = Corridor()
    context = Context(world.reset("", 7), ("go east", "go west"), thread="a")
    policy.decide(context)
    policy.decide(replace(context, thread="b"))
    assert [name.partition("/")[0] for name, _ in policy._engine._sessions] == ["b"]


@pytest.mark.parametrize("device", ["cuda:7", "cud", "", "meta"])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(ConfigError, match=rf"device is '{device}', which cannot be used here .*Use cpu, cuda or auto"):
        select_device(device)
