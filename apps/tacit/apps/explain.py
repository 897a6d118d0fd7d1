"""Why the agent did what it did, and why the library says what it says: plain values, no printing.

A step rests on an estimate, which rests on earlier steps; an item rests on the steps that are its
evidence. Both are followed to what happened then. The same values are printed, sent as JSON, and
shown by whatever else wants to explain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from tacit.memory import ExperienceLibrary, Item, State, Step
from tacit.memory.errors import UnknownName
from tacit.memory.wording import condition_words, key_words

What = Literal["item", "episode", "step"]
STEP = "step:"
"""Begins what names a step: `step:1234`."""
_AT_ONCE = 500
"""Steps read by one query."""
_KNOWN_WHY = frozenset({"value", "n", "key", "like", "explored", "blocked", "recalled", "trajectory"})


def resolve(library: ExperienceLibrary, ref: str) -> tuple[What, str]:
    """What an id, or an unambiguous beginning of one, names. Raises UnknownName."""
    if ref.startswith(STEP) and ref.removeprefix(STEP).isdigit():
        return "step", ref.removeprefix(STEP)
    items = [item.id for item in library.items(status=None, sort="new")]
    episodes = [row["id"] for row in library.trajectories()]
    known: list[tuple[What, str]] = [*(("item", name) for name in items), *(("episode", name) for name in episodes)]
    matching = [one for one in known if ref and one[1].startswith(ref)]
    exact = [one for one in matching if one[1] == ref]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        several = ", ".join(name for _, name in matching[:5])
        raise UnknownName(f"{ref!r} is the beginning of {len(matching)} ids: {several}. Give more of it.")
    raise UnknownName.of("item or episode", ref, [*items[:10], *episodes[:10]])


def explain(library: ExperienceLibrary, ref: str) -> dict[str, Any]:
    """An item, an episode or a step, whichever `ref` names: {"item": ...}, {"episode": ...} or {"step": ...}."""
    what, name = resolve(library, ref)
    if what == "item":
        return {"item": explain_item(library, name)}
    if what == "episode":
        return {"episode": explain_episode(library, name)}
    found = library.steps([int(name)])
    if not found:
        raise UnknownName(f"there is no {STEP}{name} here. Find steps with: tacit memory show {library.path} EPISODE")
    return {"step": explain_steps(library, found)[0]}


def explain_episode(library: ExperienceLibrary, episode_id: str) -> dict[str, Any]:
    """How an episode went, step by step, and why each action was chosen."""
    episode = library.trajectory(episode_id)
    recorded = {row["id"]: row["recorded_at"] for row in library.trajectories()}
    return {
        "id": episode.id,
        "task": episode.task,
        "success": episode.success,
        "score": episode.score,
        "total_reward": episode.total_reward,
        "ending": episode.ending,
        "arm": episode.arm,
        "seed": episode.seed,
        "recorded_at": recorded[episode.id],
        "meta": dict(episode.meta),
        "steps": explain_steps(library, episode.steps),
    }


def explain_item(library: ExperienceLibrary, item_id: str) -> dict[str, Any]:
    """What an item says, the steps it was made of, how those who got it fared, and its history."""
    item = library.get(item_id)
    usages = library.usages(item.id)
    return {
        **asdict(item),
        "condition_words": condition_words(item.condition, item.forbids or "") if item.condition else None,
        "evidence": past_steps(library, item.provenance),
        "fared": fared(usages),
        "usages": usages,
        "history": library.history(item.id),
    }


def explain_steps(library: ExperienceLibrary, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Every step with its reasons followed to the steps and items behind them."""
    referred = {ref for step in steps for ref in step.why.get("like", ())}
    past = {step["id"]: step for step in past_steps(library, sorted(referred))}
    named = {ref for step in steps for mode in ("blocked", "recalled") for ref in step.why.get(mode, ())}
    items = {item.id: item for item in library.items(status=None) if item.id in named} if named else {}
    return [_explained(step, past, items) for step in steps]


def _explained(step: Step, past: Mapping[int, dict[str, Any]], items: Mapping[str, Item]) -> dict[str, Any]:
    why = step.why
    return {
        "id": step.id,
        "episode": why.get("trajectory"),
        "t": step.t,
        "location": step.pre.location,
        "observation": step.pre.observation,
        "facts": dict(step.pre.facts),
        "notes": list(step.pre.notes),
        "signature": step.pre.signature,
        "action": step.action,
        "reward": step.reward,
        "return_to_go": step.return_to_go,
        "happened": happened(step.pre, step.post),
        "diagnosis": asdict(step.diagnosis),
        "why": {
            "explored": bool(why.get("explored")),
            "value": why.get("value"),
            "n": why.get("n"),
            "key": why.get("key"),
            "key_words": key_words(why["key"], step.action) if why.get("key") else [],
            "rests_on": [past[ref] for ref in why.get("like", ()) if ref in past],
            "blocked": [_said(ref, items) for ref in dict.fromkeys(why.get("blocked", ()))],
            "recalled": [_said(ref, items) for ref in dict.fromkeys(why.get("recalled", ()))],
            "policy": {name: value for name, value in why.items() if name not in _KNOWN_WHY},
        },
    }


def _said(ref: str, items: Mapping[str, Item]) -> dict[str, Any]:
    """An item in a line: what it forbids and when, or its title."""
    item = items.get(ref)
    if item is None:
        return {"id": ref, "kind": None, "says": "not in this library any more"}
    says = item.title
    if item.kind == "guardrail":
        says = f"do not `{item.forbids}` when {condition_words(item.condition, item.forbids or '')} ({item.body})"
    return {"id": item.id, "kind": item.kind, "says": says}


def past_steps(library: ExperienceLibrary, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Earlier steps by id, a few words each: where, what was done, what came of it."""
    won = {row["id"]: row["success"] for row in library.trajectories()}
    return [
        {
            "id": step.id,
            "episode": step.why["trajectory"],
            "episode_success": None if (success := won.get(step.why["trajectory"])) is None else bool(success),
            "t": step.t,
            "location": step.pre.location,
            "observation": step.pre.observation,
            "action": step.action,
            "happened": happened(step.pre, step.post),
            "reward": step.reward,
            "return_to_go": step.return_to_go,
            "failure": step.diagnosis.failure.value,
        }
        for chunk in _chunks(ids)
        for step in library.steps(chunk)
    ]


def _chunks(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE))


def happened(pre: State, post: State) -> str:
    """What an action led to: the environment's answer, else what is different."""
    if post.feedback:
        return post.feedback
    if post.location != pre.location:
        return f"now in the {post.location}"
    return "nothing changed" if post.observation == pre.observation else post.observation


def fared(usages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per way of use and arm: how many steps and episodes, how many of these succeeded, and the control's mean."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for usage in usages:
        groups.setdefault((usage["mode"], usage["arm"]), []).append(usage)
    return [
        {"mode": mode, "arm": arm, "steps": len(group), **_outcomes(group)}
        for (mode, arm), group in sorted(groups.items())
    ]


def _outcomes(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ended = {usage["trajectory_id"]: usage for usage in group}
    control = [usage["control_outcome"] for usage in ended.values() if usage["control_outcome"] is not None]
    return {
        "episodes": len(ended),
        "succeeded": sum(bool(usage["outcome"]) for usage in ended.values()),
        "control_mean": sum(control) / len(control) if control else None,
    }


def guardrails(library: ExperienceLibrary, status: str | None = "active") -> list[dict[str, Any]]:
    """Every guardrail: what it forbids, when, on what evidence, and how often it blocked an action."""
    return [
        {
            "id": item.id,
            "forbids": item.forbids,
            "when": condition_words(item.condition, item.forbids or ""),
            "condition": item.condition,
            "because": item.body,
            "evidence": len(item.provenance),
            "confidence": item.confidence,
            "blocked": sum(usage["mode"] == "blocked" for usage in library.usages(item.id)),
            "status": item.status,
            "pinned": item.pinned,
        }
        for item in library.items(["guardrail"], status=status, sort="confidence")
    ]
