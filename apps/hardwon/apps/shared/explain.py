"""Why the agent did what it did, and why the library says what it says: plain values, no printing.

A step rests on an estimate, which rests on earlier steps; an item, and every count of an attempt,
rests on the steps that are its evidence. All are followed to what happened then. The same values are
printed, sent as JSON, and shown by whatever else wants to explain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from hardwon.memory import ExperienceLibrary, Failure, Item, State, Step
from hardwon.memory.errors import UnknownName
from hardwon.memory.guardrails.conditions import MIN_CONFIDENCE
from hardwon.memory.situations.describe import condition_words, key_words

from . import lists

What = Literal["item", "episode", "step", "attempt"]
STEP = "step:"
"""Begins what names a step: `step:1234`."""
ATTEMPT = "attempt:"
"""Begins what names an attempt, the sum of one kind of action in one kind of situation: `attempt:17`."""
NEWEST = 8
"""Steps of an attempt that are told of; the others are named."""
_NUMBERED: Mapping[str, What] = {STEP: "step", ATTEMPT: "attempt"}
_AT_ONCE = 500
"""Steps read by one query."""
_DIGITS = 18
"""A number this long is beyond those that a library gives."""
_KNOWN_WHY = frozenset(
    {
        "value",
        "n",
        "key",
        "like",
        "explored",
        "blocked",
        "recalled",
        "withheld",
        "overrode",
        "skill",
        "planned",
        "trajectory",
    }
)


def resolve(library: ExperienceLibrary, ref: str) -> tuple[What, str]:
    """What an id, or an unambiguous beginning of one, names. Raises UnknownName."""
    for mark, what in _NUMBERED.items():
        if ref.startswith(mark):
            return what, ref.removeprefix(mark)
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
    """What `ref` names: {"item": ...}, {"episode": ...}, {"step": ...} or {"attempt": ...}. Raises UnknownName."""
    what, name = resolve(library, ref)
    match what:
        case "item":
            return {"item": explain_item(library, name)}
        case "episode":
            return {"episode": explain_episode(library, name)}
        case "attempt":
            return {"attempt": explain_attempt(library, name)}
    found = library.steps([_number(name)])
    if not found:
        raise UnknownName(f"there is no {STEP}{name} here. Find steps with: hardwon memory show {library.path} EPISODE")
    return {"step": explain_steps(library, found)[0]}


def _number(text: str) -> int:
    """The number in words; one that nothing has where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else -1


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
        "segments": [asdict(segment) for segment in library.segments(episode.id)],
        "steps": explain_steps(library, episode.steps),
    }


def explain_item(library: ExperienceLibrary, item_id: str) -> dict[str, Any]:
    """What an item says, the steps it was made of, how those who got it fared, what it is worth, and its history."""
    item = library.get(item_id)
    usages = library.usages(item.id)
    return {
        **asdict(item),
        "condition_words": condition_words(item.condition, item.forbids or "") if item.condition else None,
        "verify_words": condition_words(item.verify) if item.verify else None,
        "evidence": past_steps(library, item.provenance),
        "fared": fared(usages),
        **({"estimated": _estimated(library, item)} if item.kind == "strategy" else {}),
        "usefulness": library.usefulness(item.id),
        "effects": [asdict(effect) for effect in library.effects(item.id)],
        **(_guarding(library, item, usages) if item.kind == "guardrail" else {}),
        "usages": usages,
        "history": library.history(item.id),
    }


def _estimated(library: ExperienceLibrary, item: Item) -> int:
    """In how many episodes a strategy was part of the estimate that chose an action."""
    return len(lists.estimates(library, [item]).get(item.id, ()))


def _guarding(library: ExperienceLibrary, item: Item, usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = past_steps(library, item.provenance)
    return {"guarded": guarded(usages), "failures": failures(steps), "probation": probation(library, item)}


def explain_attempt(library: ExperienceLibrary, name: str) -> dict[str, Any]:
    """What came of one kind of action in one kind of situation, and the steps behind every count of it."""
    known = next((summary for summary in library.summaries() if summary.id == _number(name)), None)
    if known is None:
        raise UnknownName(f"there is no {ATTEMPT}{name} here. Find one with: hardwon memory clusters {library.path}")
    every = library.evidence(known.id)
    failed = {failure: library.evidence(known.id, failure) for failure in known.failures}
    worked = sorted(set(every).difference(*failed.values()))
    return {
        **asdict(known),
        "evidence": {"worked": worked, **failed},
        "best_step": past_steps(library, [known.best])[0],
        "newest": past_steps(library, every[-NEWEST:]),
    }


def clusters(library: ExperienceLibrary, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """Situations, the most frequent first, with what came of every kind of action in them."""
    return [
        {**cluster, "attempts": [asdict(summary) for summary in library.summaries(cluster["signature"])]}
        for cluster in library.clusters(limit, offset)
    ]


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
        "happened": outcome(step),
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
            "happened": outcome(step),
            "reward": step.reward,
            "return_to_go": step.return_to_go,
            "failure": step.diagnosis.failure.value,
            "evidence": step.diagnosis.evidence,
        }
        for chunk in _chunks(ids)
        for step in library.steps(chunk)
    ]


def _chunks(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE))


def outcome(step: Step) -> str:
    """What came of a step: what happened; of an action that was not run, that, and who refused it."""
    failure = step.diagnosis.failure
    if failure is Failure.BLOCKED:
        return f"not run: a guardrail refused it ({step.diagnosis.evidence or 'no reason is told'})"
    if failure is Failure.REJECTED:
        return f"not run: a person refused it ({step.diagnosis.evidence or 'no reason is told'})"
    return happened(step.pre, step.post)


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


def guarded(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often a guardrail blocked and was overridden, and what came of it.

    `precision` is the share of the overridden actions that failed, as the guardrail had said; None
    where it was never overridden: what was not done cannot be known to fail.
    """
    blocked = [usage for usage in usages if usage["mode"] == "blocked"]
    overridden = [usage for usage in usages if usage["mode"] == "overridden"]
    known = [usage for usage in overridden if usage["outcome"] is not None]  # an outage tells nothing
    worked = sum(bool(usage["outcome"]) for usage in known)
    ended = _outcomes(blocked)
    return {
        "blocked": len(blocked),
        "episodes": ended["episodes"],
        "succeeded": ended["succeeded"],
        "overridden": len(overridden),
        "worked": worked,
        "precision": 1 - worked / len(known) if known else None,
    }


def failures(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Why the steps behind an item failed: each cause, how often among them, and the words of the newest."""
    causes: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        if step["failure"] != Failure.NONE:
            causes.setdefault(step["failure"], []).append(step)
    return [
        {"cause": cause, "times": len(group), "words": group[-1]["evidence"] or group[-1]["happened"]}
        for cause, group in sorted(causes.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]


def probation(library: ExperienceLibrary, item: Item) -> dict[str, Any]:
    """How a guardrail stands on its probation, and when it is tried next; None where a person pinned it."""
    standing = library.standing(item.id)
    due = None if item.pinned else datetime.fromtimestamp(standing.due_at, UTC).isoformat(timespec="seconds")
    return {
        "in_force": item.status == "active" and item.confidence >= MIN_CONFIDENCE,
        "refused": standing.refused,
        "trials": standing.trials,
        "failed_in_a_row": standing.failed,
        "next_trial_after_refusals": None if item.pinned else max(0, standing.after_refusals - standing.refusals),
        "next_trial_at": due,
    }


def _outcomes(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ended = {usage["trajectory_id"]: usage for usage in group}
    control = [usage["control_outcome"] for usage in ended.values() if usage["control_outcome"] is not None]
    return {
        "episodes": len(ended),
        "succeeded": sum(bool(usage["outcome"]) for usage in ended.values()),
        "control_mean": sum(control) / len(control) if control else None,
    }


def guardrails(library: ExperienceLibrary, status: str | None, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """A page of guardrails: what each forbids, when, on what evidence, and how it proved; see `guarded`."""
    return [
        {
            "id": item.id,
            "forbids": item.forbids,
            "when": condition_words(item.condition, item.forbids or ""),
            "condition": item.condition,
            "because": item.body,
            "granularity": item.granularity,
            "evidence": len(item.provenance),
            "confidence": item.confidence,
            **guarded(library.usages(item.id)),
            "failures": failures(past_steps(library, item.provenance)),
            "probation": probation(library, item),
            "status": item.status,
            "pinned": item.pinned,
        }
        for item in library.items(["guardrail"], status=status, sort="confidence", limit=limit, offset=offset)
    ]
