"""Compare public behavior with the files beside this one: signatures, commands, the schema, a recall, a training run.

A difference is either a mistake or a decision. After a decision, write the files anew and read the diff:

    HARDWON_FREEZE=1 python -m pytest tests/frozen
"""

import inspect
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import hardwon.memory
import hardwon.runtime
import hardwon.trainers
from hardwon.apps.cli.app import app
from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory

HERE = Path(__file__).parent
TIMES = ("seconds", "tokens_per_second", "cpu_s")


def compare(name: str, text: str) -> None:
    """Compare a text with the frozen file of that name, or write the file where the environment asks for it."""
    file = HERE / name
    if os.environ.get("HARDWON_FREEZE"):
        file.write_text(text, encoding="utf-8")
    assert text.splitlines() == file.read_text(encoding="utf-8").splitlines(), name


# ---- public names


def describe_signature(value: Any) -> str:
    """Return a signature without the modules that its types are defined in; addresses are left out as well."""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r"<function ([\w.<>]+) at 0x\w+>", r"<\1>", text)
    return re.sub(r"\b(?:hardwon|collections|typing|pathlib|langgraph|langchain\w*)\.(?:\w+\.)*", "", text)


def describe_members(cls: type) -> Iterator[str]:
    """Yield the public methods, properties and constants of a class that its own code or a base of ours defines."""
    for name in sorted(dir(cls)):
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if name.startswith("_") or owner is None or not owner.__module__.startswith("hardwon."):
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property):
            yield f"    {name}: property"
        elif isinstance(member, (staticmethod, classmethod)):
            yield f"    {name}{describe_signature(member.__func__)} [{type(member).__name__}]"
        elif inspect.isfunction(member):
            yield f"    {name}{describe_signature(member)}"
        else:
            yield f"    {name}"


def describe_names(package: Any) -> Iterator[str]:
    """Yield every name of `__all__` with its signature, and what a class offers below it."""
    for name in sorted(package.__all__):
        value = getattr(package, name)
        yield f"{package.__name__}.{name}{describe_signature(value) if callable(value) else ''}"
        if inspect.isclass(value):
            yield from describe_members(value)


def test_public_names_and_signatures():
    packages = (hardwon.memory, hardwon.runtime, hardwon.trainers)
    compare("public.txt", "\n".join(line for package in packages for line in describe_names(package)))


# ---- commands


def describe_commands(command: Any, path: str) -> Iterator[str]:
    """Yield a command, its help and its parameters, and the same for the commands below it."""
    yield f"{path}: {' '.join((command.help or '').split())}"
    for parameter in command.params:
        names = "/".join((*parameter.opts, *parameter.secondary_opts))
        words = [f"required={parameter.required}", f"default={parameter.default!r}", f"count={parameter.nargs}"]
        text = re.sub(r"<function ([\w.<>]+) at 0x\w+>", r"<\1>", " ".join(words))
        sentence = " ".join((getattr(parameter, "help", "") or "").split())
        yield f"    {names} {parameter.type_descriptor.annotation} {text}: {sentence}"
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from describe_commands(below, f"{path} {name}")


def test_commands_and_their_options():
    compare("commands.txt", "\n".join(describe_commands(typer.main.get_command(app), "hardwon")))


# ---- the file


def test_schema_of_a_library(path):
    """Names of tables and columns are read by other programs."""
    ExperienceLibrary.open(path).close()
    with sqlite3.connect(path) as db:
        rows = db.execute("select sql from sqlite_master where sql is not null order by type, name").fetchall()
        versions = [
            f"-- {name}: {db.execute(f'pragma {name}').fetchone()[0]}" for name in ("application_id", "user_version")
        ]
    compare("schema.sql", "\n".join([*versions, *(" ".join(sql.split()) + ";" for (sql,) in rows)]))


# ---- one recall


def build_house(library: ExperienceLibrary) -> None:
    """Record forty episodes of a house with three rooms, in which a closed door and an anvil make actions fail."""
    hall, lit = "You are in the hall. The cellar door is {}.", "You are in the cellar. You see a {}."
    for number in range(40):
        task, coin = f"fetch the {('coin', 'ring', 'cup')[number % 3]}", ("coin", "ring", "cup")[number % 3]
        closed, opened = (State(hall.format(word), location="hall", task=task) for word in ("closed", "open"))
        cellar = State(lit.format(coin), location="cellar", task=task)
        shut = Diagnosis(False, Failure.PRECONDITION, evidence="The door is closed.")
        steps = (
            Step(closed, "go down", closed, shut),
            Step(closed, "lift anvil", closed, Diagnosis(False, Failure.PRECONDITION, evidence="It is too heavy.")),
            Step(closed, "open cellar door", opened, Diagnosis(True)),
            Step(opened, "go down", cellar, Diagnosis(True)),
            Step(cellar, f"take {coin}", cellar, Diagnosis(True), reward=1.0),
        )
        library.record(
            Trajectory(task, steps[number % 2 :], success=True, score=1.0, ending="success", id=f"e{number}")
        )


def test_recall_and_evolution_of_a_small_library(path):
    """One recall of a known situation, one of a new one, one of a text, and what evolution admits."""
    with ExperienceLibrary.open(path) as library:
        build_house(library)
        admitted = [
            (one.status, library.items.get(one.item_id).kind, library.items.get(one.item_id).title)
            for one in library.evolve().admissions
            if one.item_id is not None
        ]
        known = State("You are in the hall. The cellar door is closed.", location="hall", task="fetch the coin")
        new = State("You are in the hall. The oak door is closed. It is dark.", location="hall", task="fetch the hat")
        actions = ("go down", "open cellar door", "lift anvil", "sing")
        answers: dict[str, Any] = {"admitted": admitted}
        for name, question in (("known", known), ("new", new), ("text", "how do I get into the cellar?")):
            found: Any = library.recall(question, actions=dict.fromkeys(actions, ""))
            answers[name] = {
                "items": [(one.what.kind, one.what.title, round(one.similarity, 4)) for one in found.items],
                "steps": [(one.what.action, one.what.reward, round(one.similarity, 4)) for one in found.steps],
                "estimates": {action: [round(e.value, 4), e.n] for action, e in sorted(found.estimates.items())},
                "filled": found.filled,
            }
        answers["checks"] = {
            action: (library.check(known, action).allowed, library.check(known, action).cause) for action in actions
        }
    compare("recall.json", json.dumps(answers, indent=1, ensure_ascii=False))


# ---- one training run


def test_training_run(tmp_path, monkeypatch):
    """Three iterations in the corridor: the same worlds, the same losses to four digits."""
    monkeypatch.syspath_prepend(str(HERE.parent / "trainers"))
    torch.set_num_threads(1)
    out = tmp_path / "run"
    settings = {
        "environment": {"name": "corridor:Corridor", "max_steps": 6},
        "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-103"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
        "model": {"tiny": {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}},
        "arms": {"control": 3, "experience": 3},
        "roles": {"policy": {"learner": {"lr": 0.003}, "credit": {"name": "gigpo"}}},
        "warmstart": {"learning": {"updates": 5, "batch": 4}},
        "eval": {"every": 0, "copies": 1},
        "run": {"iterations": 3, "groups": 3, "out": str(out), "threads": 1},
    }
    hardwon.trainers.train(settings)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [
        {
            # what rounding left of a zero, such as 1e-9, is another number on another CPU
            name: round(float(f"{value:.4g}"), 7) + 0.0 if isinstance(value, float) else value
            for name, value in row.items()
            if not name.endswith(TIMES)
        }
        for row in rows
    ]
    compare("training.json", json.dumps(kept, indent=1, sort_keys=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experience.db"
