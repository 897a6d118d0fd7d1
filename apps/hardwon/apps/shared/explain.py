"""Explain decisions of the agent and contents of the library as plain values, without printing.

A step is based on an estimate, and an estimate on earlier steps; an item and every count of an attempt are based on
steps as evidence. Explanations follow all of these references. The command line, the HTTP API and the dashboard use
the same values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from hardwon.memory import ExperienceLibrary, Failure, Item, Reasons, State, Step
from hardwon.memory.errors import UnknownName
from hardwon.memory.guardrails.conditions import ALWAYS
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.situations.describe import condition_words, key_words
from hardwon.memory.situations.titles import guardrail_title
from hardwon.memory.tracing import trace_advice
from hardwon.memory.upkeep.figures import read_clusters
from hardwon.memory.validation import read_whole

from . import lists

RecordKind = Literal["item", "episode", "step", "attempt"]
STEP = "step:"
"""Prefix of a reference to a step: `step:1234`."""
ATTEMPT = "attempt:"
"""Prefix of a reference to an attempt, the counts of one kind of action in one kind of situation: `attempt:17`."""
_NUMBERED: Mapping[str, RecordKind] = {STEP: "step", ATTEMPT: "attempt"}


def resolve(library: ExperienceLibrary, ref: str) -> tuple[RecordKind, str]:
    """Return the kind and the full id of a reference."""
    for mark, what in _NUMBERED.items():
        if ref.startswith(mark):
            return what, ref.removeprefix(mark)
    items = [item.id for item in library.items.find(status=None, sort="new")]
    episodes = [row["id"] for row in library.episodes.find()]
    candidates: list[tuple[RecordKind, str]] = [
        *(("item", name) for name in items),
        *(("episode", name) for name in episodes),
    ]
    matching = [candidate for candidate in candidates if ref and candidate[1].startswith(ref)]
    # A full id wins even if it is also the prefix of another.
    exact = [candidate for candidate in matching if candidate[1] == ref]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        several = ", ".join(name for _, name in matching[:5])
        raise UnknownName(f"{ref!r} is the prefix of {len(matching)} ids: {several}. Give a longer prefix.")
    raise UnknownName.of("item or episode", ref, [*items[:10], *episodes[:10]])


def explain(library: ExperienceLibrary, ref: str) -> dict[str, Any]:
    """Explain the item, episode, step or attempt with an id."""
    what, name = resolve(library, ref)
    match what:
        case "item":
            return {"item": explain_item(library, name)}
        case "episode":
            return {"episode": explain_episode(library, name)}
        case "attempt":
            return {"attempt": explain_attempt(library, name)}
    steps = library.episodes.steps([_parse_number(name)])
    if not steps:
        raise UnknownName(
            f"there is no {STEP}{name} in this library. Find steps with: hardwon memory show {library.path} EPISODE"
        )
    return {"step": explain_steps(library, steps)[0]}


def explain_advice(library: ExperienceLibrary, about: str, ref: str = "") -> dict[str, Any]:
    """Return why an agent was told something in an episode, or why not; see `retrieval.tracing`.

    Args:
        library: The library.
        about: The id of a lesson, or words of a lesson or an action; empty for the first lesson that was told.
        ref: The id of the episode, or `step:1234` for the episode of a step; empty for the newest episode.
    """
    if ref.startswith(STEP):
        ref = explain(library, ref)["step"]["episode"]
    newest = library.episodes.find(limit=1)
    if not ref and not newest:
        raise UnknownName("no episode is recorded yet. Let the agent run, or import the logs of earlier runs.")
    episode = library.episodes.get(ref or newest[0]["id"])
    lessons = (item for step in episode.steps for item in (*(step.why.blocked or ()), *(step.why.recalled or ())))
    about = about.strip() or next(lessons, "")
    if not about:
        is_withheld = any(step.why.advice == "withheld" for step in episode.steps)
        cause = ": all advice was withheld at random, to measure whether it helps" if is_withheld else ""
        advice = "Name another episode, or a lesson by its id or words."
        raise UnknownName(f"no lesson was told in episode {episode.id}{cause}. {advice}")
    trace = trace_advice(library, about, episode)
    return {"says": trace.says, **asdict(trace)}


def _parse_number(text: str) -> int:
    """Return the number in a text, or -1, which no record has."""
    number = read_whole(text)
    return -1 if number is None else number


def explain_episode(library: ExperienceLibrary, episode_id: str) -> dict[str, Any]:
    """Return the outcome of an episode and, for every step, the reasons for its action."""
    episode = library.episodes.get(episode_id)
    recorded = {row["id"]: row["recorded_at"] for row in library.episodes.find()}
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
        "grades": [asdict(grade) for grade in library.episodes.grades(episode.id)],
        "steps": explain_steps(library, episode.steps),
    }


def explain_item(library: ExperienceLibrary, item_id: str) -> dict[str, Any]:
    """Return an item with its evidence, its uses and their outcomes, its estimated value and its history."""
    item = library.items.get(item_id)
    usages = library.items.usages(item.id)
    return {
        **asdict(item),
        "condition_words": condition_words(item.condition, item.forbids or "") if item.condition else None,
        "verify_words": condition_words(item.verify) if item.verify else None,
        "evidence": load_past_steps(library, item.provenance),
        "fared": summarize_uses(usages),
        **({"estimated": _count_estimates(library, item)} if item.kind == "strategy" else {}),
        "usefulness": library.items.usefulness(item.id),
        "effects": [asdict(effect) for effect in library.items.effects(item.id)],
        **(_explain_guardrail(library, item, usages) if item.kind == "guardrail" else {}),
        "usages": usages,
        "history": library.items.history(item.id),
    }


def _count_estimates(library: ExperienceLibrary, item: Item) -> int:
    """Return the number of episodes in which a strategy took part in an estimate that chose an action."""
    return len(lists.find_estimates(library, [item]).get(item.id, ()))


def _explain_guardrail(library: ExperienceLibrary, item: Item, usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = load_past_steps(library, item.provenance)
    return {
        "guarded": summarize_blocks(usages),
        "failures": summarize_failures(steps),
        "probation": describe_probation(library, item),
    }


def explain_attempt(library: ExperienceLibrary, name: str) -> dict[str, Any]:
    """Return the outcomes of one kind of action in one kind of situation, and the steps behind every count."""
    attempt = next((summary for summary in library.episodes.summaries() if summary.id == _parse_number(name)), None)
    if attempt is None:
        raise UnknownName(
            f"there is no {ATTEMPT}{name} in this library. Find attempts with: hardwon memory clusters {library.path}"
        )
    every = library.episodes.evidence(attempt.id)
    failed = {failure: library.episodes.evidence(attempt.id, failure) for failure in attempt.failures}
    worked = sorted(set(every).difference(*failed.values()))
    return {
        **asdict(attempt),
        "evidence": {"worked": worked, **failed},
        "best_step": load_past_steps(library, [attempt.best])[0],
        "newest": load_past_steps(library, every[-8:]),
    }


def list_clusters(library: ExperienceLibrary, limit: int, offset: int = 0) -> list[dict[str, Any]]:
    """Return situations, most frequent first, with the outcomes of every kind of action."""
    return [
        {**cluster, "attempts": [asdict(summary) for summary in library.episodes.summaries(cluster["signature"])]}
        for cluster in library.admin.query(read_clusters, limit, offset)
    ]


def explain_steps(library: ExperienceLibrary, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return every step with its reasons, including the steps and items behind them."""
    # Two queries for all steps, instead of two for each.
    referred = {ref for step in steps for ref in step.why.similar or ()}
    past = {step["id"]: step for step in load_past_steps(library, sorted(referred))}
    named = {
        ref for step in steps for ids in (step.why.blocked, step.why.recalled, step.why.skills) for ref in ids or ()
    }
    items = {item.id: item for item in library.items.find(status=None) if item.id in named} if named else {}
    opened = _list_opened(library, steps)
    return [_explain_step(step, past, items, opened.get(step.id or 0, [])) for step in steps]


def _list_opened(library: ExperienceLibrary, steps: Sequence[Step]) -> dict[int, list[str]]:
    """Return the actions that were possible after each step and not before it, by the id of the step."""
    ids = [step.id for step in steps if step.id is not None]
    following = {step.id: step for chunk in _split([ref + 1 for ref in ids]) for step in library.episodes.steps(chunk)}
    opened = {}
    for step in steps:
        after = following.get((step.id or 0) + 1)
        if step.id is not None and after is not None and (after.why.trajectory, after.t) == (
            step.why.trajectory, step.t + 1,
        ):  # fmt: skip
            opened[step.id] = [action for action in after.admissible if action not in step.admissible]
    return opened


def _explain_step(
    step: Step, past: Mapping[int, dict[str, Any]], items: Mapping[str, Item], opened: Sequence[str]
) -> dict[str, Any]:
    why = step.why
    return {
        "id": step.id,
        "episode": why.trajectory,
        "t": step.t,
        "location": step.pre.location,
        "observation": step.pre.observation,
        "facts": dict(step.pre.facts),
        "notes": list(step.pre.notes),
        "signature": step.pre.signature,
        "action": step.action,
        "reward": step.reward,
        "return_to_go": step.return_to_go,
        "happened": describe_outcome(step),
        "opened": list(opened),
        "diagnosis": asdict(step.diagnosis),
        "why": {
            "explored": bool(why.explored),
            "value": why.value,
            "n": why.count,
            "key": why.key,
            "key_words": key_words(why.key, step.action) if why.key else [],
            "rests_on": [past[ref] for ref in why.similar or () if ref in past],
            "blocked": [describe_item(ref, items) for ref in dict.fromkeys(why.blocked or ())],
            "recalled": [describe_item(ref, items) for ref in dict.fromkeys(why.recalled or ())],
            "skills": [describe_item(ref, items) for ref in dict.fromkeys(why.skills or ())],
            "policy": _list_other_reasons(why),
        },
    }


def _list_other_reasons(why: Reasons) -> dict[str, Any]:
    """Return the reasons that have no line of their own in an explanation, by JSON key."""
    rest = why.updated(
        value=None, count=None, key=None, similar=None, explored=None, planned=None,
        blocked=None, recalled=None, withheld=None, overridden=None, skills=None,
    )  # fmt: skip
    return rest.to_dict(with_trajectory=False)


def describe_item(ref: str, items: Mapping[str, Item]) -> dict[str, Any]:
    """Return the id, kind and title of an item; for a guardrail what it forbids, and when, with its evidence."""
    item = items.get(ref)
    if item is None:
        return {"id": ref, "kind": None, "says": "no longer in this library"}
    if item.kind != "guardrail":
        return {"id": item.id, "kind": item.kind, "says": item.title}
    # a rule's title says what it forbids, and when
    says = item.title if item.writer == "rules" else guardrail_title(item.forbids or "", item.condition or ALWAYS)
    return {"id": item.id, "kind": item.kind, "says": f"{says} ({item.body})"}


def load_past_steps(library: ExperienceLibrary, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return a short record of earlier steps: the location, the action and the outcome."""
    won = {row["id"]: row["success"] for row in library.episodes.find()}
    return [
        {
            "id": step.id,
            "episode": step.why.trajectory,
            "task": step.pre.task,
            "episode_success": None if (success := won.get(step.why.trajectory)) is None else bool(success),
            "t": step.t,
            "location": step.pre.location,
            "observation": step.pre.observation,
            "action": step.action,
            "happened": describe_outcome(step),
            "reward": step.reward,
            "return_to_go": step.return_to_go,
            "failure": step.diagnosis.failure.value,
            "evidence": step.diagnosis.evidence,
        }
        for chunk in _split(ids)
        for step in library.episodes.steps(chunk)
    ]


def _split(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[at : at + 500] for at in range(0, len(ids), 500))


def describe_outcome(step: Step) -> str:
    """Return the outcome of a step; for an action that was not run, who refused it."""
    failure = step.diagnosis.failure
    if failure is Failure.BLOCKED:
        return f"not run: a guardrail refused it ({step.diagnosis.evidence or 'no reason is given'})"
    if failure is Failure.REJECTED:
        return f"not run: a person refused it ({step.diagnosis.evidence or 'no reason is given'})"
    return describe_effect(step.pre, step.post)


def describe_effect(pre: State, post: State) -> str:
    """Return the effect of an action: the environment's feedback, else the difference between the states."""
    if post.feedback:
        return post.feedback
    if post.location != pre.location:
        return f"now in the {post.location}"
    return "nothing changed" if post.observation == pre.observation else post.observation


def summarize_uses(usages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Count steps, episodes and successes by kind of use and arm, with the mean outcome of the control arm."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for usage in usages:
        groups.setdefault((usage["mode"], usage["arm"]), []).append(usage)
    return [
        {"mode": mode, "arm": arm, "steps": len(group), **_count_outcomes(group)}
        for (mode, arm), group in sorted(groups.items())
    ]


def summarize_blocks(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count how often a guardrail blocked and was overridden, and the outcomes.

    `precision` is the share of overridden actions that failed, as predicted. It is None if the guardrail was never
    overridden, because the outcome of a blocked action is unknown.
    """
    blocked = [usage for usage in usages if usage["mode"] == "blocked"]
    overridden = [usage for usage in usages if usage["mode"] == "overridden"]
    # After an outage the outcome is unknown: the action may have failed for another reason.
    judged = [usage for usage in overridden if usage["outcome"] is not None]
    worked = sum(bool(usage["outcome"]) for usage in judged)
    ended = _count_outcomes(blocked)
    return {
        "blocked": len(blocked),
        "episodes": ended["episodes"],
        "succeeded": ended["succeeded"],
        "overridden": len(overridden),
        "worked": worked,
        "precision": 1 - worked / len(judged) if judged else None,
    }


def summarize_failures(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the causes of the failed steps, most frequent first, with a count and the newest message of each."""
    causes: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        if step["failure"] != Failure.NONE:
            causes.setdefault(step["failure"], []).append(step)
    return [
        {"cause": cause, "times": len(group), "words": group[-1]["evidence"] or group[-1]["happened"]}
        for cause, group in sorted(causes.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]


def describe_probation(library: ExperienceLibrary, item: Item) -> dict[str, Any]:
    """Return the state of a guardrail's probation and when it is tried next; None in both fields if it is pinned."""
    standing = library.items.standing(item.id)
    due = None if item.pinned else datetime.fromtimestamp(standing.due_at, UTC).isoformat(timespec="seconds")
    return {
        "in_force": item.status == "active" and item.confidence >= GUARDRAILS.min_confidence,
        "refused": standing.refused,
        "trials": standing.trials,
        "failed_in_a_row": standing.failed,
        "next_trial_after_refusals": None if item.pinned else max(0, standing.after_refusals - standing.refusals),
        "next_trial_at": due,
    }


def _count_outcomes(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # An item can be used at many steps of an episode; its outcome counts once.
    ended = {usage["trajectory_id"]: usage for usage in group}
    control = [usage["control_outcome"] for usage in ended.values() if usage["control_outcome"] is not None]
    return {
        "episodes": len(ended),
        "succeeded": sum(bool(usage["outcome"]) for usage in ended.values()),
        "control_mean": sum(control) / len(control) if control else None,
    }


def list_guardrails(
    library: ExperienceLibrary, status: str | None, limit: int, offset: int = 0
) -> list[dict[str, Any]]:
    """Return a page of guardrails with condition, evidence and the counts of `summarize_blocks`."""
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
            **summarize_blocks(library.items.usages(item.id)),
            "failures": summarize_failures(load_past_steps(library, item.provenance)),
            "probation": describe_probation(library, item),
            "status": item.status,
            "pinned": item.pinned,
        }
        for item in library.items.find(["guardrail"], status=status, sort="confidence", limit=limit, offset=offset)
    ]
