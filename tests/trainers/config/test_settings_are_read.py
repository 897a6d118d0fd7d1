"""Every setting of a training run is read by something that runs: none is accepted and then ignored."""

import dataclasses
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hardwon.trainers.algorithms.imitation import Examples, WarmStart
from hardwon.trainers.algorithms.settings import LearnerSettings, LossSettings
from hardwon.trainers.config import policy, roles, schema
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.schema import EngineConfig
from hardwon.trainers.engines import factory, server
from hardwon.trainers.models.tiny import TinyConfig
from hardwon.trainers.roles.admission import AdmissionSettings
from hardwon.trainers.roles.extractor import ExtractorSettings
from hardwon.trainers.roles.guides.role import GuideSettings
from hardwon.trainers.trainer import train
from hardwon.trainers.workers import pool

SECTIONS: list[Any] = [
    *(
        kind
        for kind in vars(schema).values()
        if dataclasses.is_dataclass(kind) and getattr(kind, "__module__", "") == schema.__name__
        if kind is not schema.ProgramConfig  # no program plays here
    ),
    *(roles.RoleConfig, roles.CreditConfig),
    *(LearnerSettings, LossSettings, Examples, WarmStart, TinyConfig),
    *(policy.PolicySettings, ExtractorSettings, GuideSettings, AdmissionSettings),
]
"""The classes of all sections of the settings."""
ELSEWHERE = ("config/parsing.py", "config/checks.py", "/dataclasses.py", "/copy.py", "<string>")
"""Files that copy, print, compare or check settings: what only they read changes nothing."""
CHECKS = ("__post_init__", "_at_least", "check_least", "check_positive")
"""Functions that do so in other files."""
SETTINGS: dict[str, Any] = {
    "environment": {"name": "tests.trainers.corridor:Corridor", "max_steps": 4},
    "tasks": {"train": {"seeds": "0-5"}, "eval": {"seeds": "100-101"}},
    "explore": {"worlds": {"seeds": "0-2"}, "steps": 6, "tries": 2},
    "model": {"adapter": 2, "tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
    "arms": {"control": 2, "library": 2, "guided": 2},
    "guidance": {"guided": "role"},
    "warmstart": {"examples": {"copies": 1}, "learning": {"updates": 1}},
    "roles": {
        "policy": {
            "learner": {"denominator": "constant", "minibatches": 2},
            "loss": {"kl": 0.1, "old": "trainer"},
        },
        "guide": {"settings": {"distil": 1, "ready": 1}},
        "extractor": {"settings": {"samples": 2, "pairs": 2, "tokens": 8, "ready": 1, "distil": 1}},
        "admission": {"settings": {"ready": 1, "teams": 2, "runs": 2, "worlds": 1, "steps": 3}},
    },
    "eval": {"every": 4, "copies": 1},
    "run": {"iterations": 4, "groups": 1},
}


@pytest.fixture
def reads(monkeypatch):
    """The settings that are read, as (class, field), by code that uses them."""
    seen: set[tuple[type, str]] = set()
    for kind in SECTIONS:
        names = frozenset(field.name for field in dataclasses.fields(kind))

        def get(self, name, kind=kind, names=names):
            if name in names:
                code = sys._getframe(1).f_code
                if not code.co_filename.endswith(ELSEWHERE) and code.co_name not in CHECKS:
                    seen.add((kind, name))
            return object.__getattribute__(self, name)

        monkeypatch.setattr(kind, "__getattribute__", get)
    return seen


def open_remote_engines(monkeypatch, tmp_path):
    """Open the engines of other programs, which a run on this machine does not have."""
    monkeypatch.setattr(factory, "_has_tokens", lambda base, tokenizer: True)
    monkeypatch.setattr(server, "ServerEngine", lambda *args, **options: None)
    roles = {name: role for name, role in SETTINGS["roles"].items() if name != "guide"}
    arms = {"control": 2, "library": 2}
    config = of(
        {**SETTINGS, "model": {"base": "models/smollm2", "adapter": 2}, "roles": roles, "arms": arms, "guidance": {}}
    )
    engine = EngineConfig(url="http://127.0.0.1:1/v1")
    factory.open_engine(replace(config, engine=engine), None, None, tmp_path)


def open_workers(monkeypatch):
    """Open rollout workers, for which a run needs Ray."""
    cluster = SimpleNamespace(put=lambda value: value)
    monkeypatch.setattr(pool, "RayCluster", lambda workers: cluster)
    config = of({**SETTINGS, "rollouts": {"workers": 2}})
    pool.open_pool(SimpleNamespace(config=config, tokenizer=None, context=None, engine=None, out=Path()))


def test_every_setting_is_read(reads, monkeypatch, tmp_path):
    train({**SETTINGS, "run": {**SETTINGS["run"], "out": str(tmp_path / "run")}})
    open_remote_engines(monkeypatch, tmp_path)
    open_workers(monkeypatch)
    policy.PolicySettings(speech="free").build_prompts()  # a tiny base cannot think
    assert Examples(renamed=0.5).renamed == 0.5  # nor read messages
    unread = [
        f"{kind.__name__}.{field.name}"
        for kind in SECTIONS
        for field in dataclasses.fields(kind)
        if (kind, field.name) not in reads
    ]
    assert not unread, ", ".join(unread)
