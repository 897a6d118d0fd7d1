"""States of an episode between two nodes of the loop, for tests of single nodes."""

from dataclasses import replace
from typing import Any

from hardwon.memory import Item, State
from hardwon.runtime.interfaces.usage import ModelUsage

RED = State("You are in the red room.", task="go to the golden room")


def episode(**fields) -> Any:
    """An episode's state after `observe`, before anything was decided."""
    state = {
        "thread": "t",
        "task": "",
        "seed": 0,
        "episode": 0,
        "attempt": 0,
        "state": RED,
        "steps": (),
        "actions": ("go east", "go west", "wait"),
        "forbidden": {},
        "blocked": (),
        "replans": 0,
        "decision": None,
        "outcome": None,
        "usage": ModelUsage(),
        "hint": None,
        "hints": {},
        "drawn": {},
        "plan": None,
        "skills": {},
        "new_situation": True,
        "success": False,
        "score": 0.0,
    }
    return {**state, **fields}


def settings(nodes, **fields):
    """The same nodes with other settings."""
    return replace(nodes, settings=replace(nodes.settings, **fields))


def forbid(library, *actions):
    """Guardrails against these actions in the red room."""
    for action in actions:
        library.add(Item("guardrail", f"no {action}", condition={"text": "red"}, forbids=action, confidence=0.9))
