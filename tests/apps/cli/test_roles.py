"""Trained roles on the command line: `hardwon run`, `hardwon team` and `hardwon serve` with --roles."""

import json

import pytest
from fastapi.testclient import TestClient

from hardwon.apps.cli.serve import _open_guide
from hardwon.apps.cli.team import run_team
from hardwon.apps.experiment import Plan, run_plan
from hardwon.apps.http.app import create_app
from hardwon.apps.shared.trained import open_roles
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError
from hardwon.trainers.serving import ServedGuidance
from hardwon.trainers.trainer import train

WORLD = "tests.trainers.corridor:Corridor"


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """An export of four tiny roles that have learned nothing."""
    folder = tmp_path_factory.mktemp("run")
    settings = {
        "environment": {"name": WORLD, "max_steps": 4},
        "explore": {"worlds": {"seeds": "0-2"}, "steps": 5, "tries": 1},
        "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
        "arms": {"control": 1, "library": 1, "guided": 2},
        "guidance": {"guided": "role"},
        "roles": {
            "policy": {},
            "guide": {"settings": {"distil": 0}},
            "extractor": {"settings": {"reads": "rollouts"}},
            "admission": {},
        },
        "eval": {"every": 0},
        "run": {"iterations": 0, "groups": 1, "out": str(folder / "run")},
    }
    train(settings, export=folder / "export")
    return folder / "export"


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
    return Plan(**{**settings, **changes})


def test_a_run_learns_with_the_trained_policy_guide_and_extractor(export, tmp_path, monkeypatch):
    heard, original = [], ServedGuidance.propose

    def propose(self, context):
        heard.append(context)
        return original(self, context)

    monkeypatch.setattr(ServedGuidance, "propose", propose)
    rows = run_plan(plan(tmp_path, roles=str(export)), tmp_path, jobs=1)
    assert {row["arm"] for row in rows if row["phase"] == "test"} == {"random", "empty", "step"}
    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        for row in library.trajectories():
            episode = library.trajectory(row["id"])
            assert episode.meta["policy"] == "tokens"
            assert "extraction" in episode.meta
    assert heard


def test_an_experiment_of_an_earlier_version_goes_on(tmp_path):
    """Its plan has no roles."""
    small = plan(tmp_path, episodes=0, checkpoints=(0,), arms=("random",), eval_seeds=(100,))
    before = run_plan(small, tmp_path, jobs=1)
    saved = json.loads((tmp_path / "plan.json").read_text())
    del saved["roles"]
    (tmp_path / "plan.json").write_text(json.dumps(saved))
    assert run_plan(small, tmp_path, jobs=1) == before


def test_members_of_a_team_act_and_share_as_they_were_trained(export, tmp_path):
    result = run_team(WORLD, 2, "none", "rule", 3, 0.0, tmp_path / "bank.db", roles=export, first=False)
    assert result.shared
    assert all(0.0 < step.choice.p < 1.0 for step in result.shared)  # `none` would say 0


def test_a_server_answers_with_the_lines_of_the_guide(export, tmp_path):
    class Guide:
        def propose(self, context):
            from hardwon.runtime.guidance.base import Hint

            return Hint(f"go there\n{len(context.recollection.items)} recalled")

    with ExperienceLibrary.open(tmp_path / "library.db") as library:
        library.add(Item("insight", "the prize is in the golden room", source="person"))
    with TestClient(create_app(tmp_path / "library.db", guidance=Guide()), base_url="http://127.0.0.1:8420") as client:
        answer = client.post("/v1/recall", json={"text": "where is the prize in the golden room?"}).json()
    assert answer["lines"] == ["go there", "1 recalled"]
    assert _open_guide(export) is open_roles(export).guidance


def test_a_folder_without_a_guide_is_refused_by_a_server(export, tmp_path):
    import shutil

    shutil.copytree(export, tmp_path / "export")
    shutil.rmtree(tmp_path / "export" / "guide")
    with pytest.raises(ConfigError, match="has no guide"):
        _open_guide(tmp_path / "export")
    assert _open_guide(None) is None
