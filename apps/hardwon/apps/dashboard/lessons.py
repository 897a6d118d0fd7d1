"""Define the lessons of the first page: the newest, the most useful, and those that make things worse."""

from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.apps.shared.common import excerpt
from hardwon.apps.shared.lists import find_estimates
from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.situations.titles import end_sentence
from hardwon.memory.upkeep.figures import measure_items

from .markup import Html, Link, join, linked, section, tag

SHOWN = 5
"""Number of lessons in each list."""
_UNUSED = {
    "guardrail": "has not refused any action yet",
    "skill": "no agent has followed it yet",
    "strategy": "has not taken part in a choice yet",
}
"""The words for a lesson without a use, by kind."""


def find_lessons(library: ExperienceLibrary) -> dict[str, list[dict[str, Any]]]:
    """Return the lessons of the first page, by list: `newest`, `useful`, `harmful` and `waiting`.

    Useful lessons have a measured gain, or refused actions; the surest come first. Harmful ones have a measured loss,
    or refused actions that worked when they were let through; those that were retired for it come last.
    """
    items = library.items.find(status=None, sort="new")
    measured = library.admin.query(measure_items)
    # Only of the lessons that may stand there without a comparison: counting reads the reasons of many steps.
    chosen_by = find_estimates(library, [item for item in items if item.status == "active"][:SHOWN])
    lessons = [
        _describe_lesson(item, {**measured.get(item.id, {}), "decided": len(chosen_by.get(item.id, ()))})
        for item in items
    ]
    active = [lesson for lesson in lessons if lesson["status"] == "active"]
    lists = {
        "newest": active[:SHOWN],
        "useful": _choose(active, 1),
        "harmful": _choose(lessons, -1),
        "waiting": [lesson for lesson in lessons if lesson["status"] == "quarantined"][:SHOWN],
    }
    lessons = [lesson for chosen in lists.values() for lesson in chosen]
    for lesson, example in zip(lessons, find_examples(library, [lesson["step"] for lesson in lessons]), strict=True):
        lesson["example"] = example
    return lists


def find_examples(library: ExperienceLibrary, refs: Sequence[int | None]) -> list[str]:
    """Return for each id of a step what was done in which situation; "" if the step is gone."""
    steps = {step.id: step for step in library.episodes.steps([ref for ref in refs if ref is not None])}
    return [
        f"`{steps[ref].action}` in: {excerpt(steps[ref].pre.observation, 120)}" if ref in steps else "" for ref in refs
    ]


def _choose(lessons: Sequence[dict[str, Any]], sign: int) -> list[dict[str, Any]]:
    """Return the lessons whose worth has this sign, those still in use first, then by how sure it is."""
    chosen = [lesson for lesson in lessons if lesson["worth"] * sign > 0]
    return sorted(chosen, key=lambda lesson: (lesson["status"] != "active", -lesson["worth"] * sign))[:SHOWN]


def _describe_lesson(item: Item, measured: Mapping[str, Any]) -> dict[str, Any]:
    worth, words = _judge(item.kind, measured)
    return {
        "id": item.id,
        "says": f"{end_sentence(item.title)} {item.body}" if item.body else item.title,
        "step": item.provenance[0] if item.provenance else None,
        "example": "",
        "kind": item.kind,
        "status": item.status,
        "source": item.source,
        "worth": worth,
        "words": words if item.status == "active" else f"{words}; {item.status}",
    }


def _judge(kind: str, measured: Mapping[str, Any]) -> tuple[float, str]:
    """Return the worth of an item in [-2, 2], and the sentence that says why; 0 if it is not known.

    A clear difference, whose interval excludes 0, counts above every unclear one.
    """
    if measured.get("blocked") or measured.get("overridden"):
        return _judge_refusals(measured)
    difference = measured.get("difference")
    if difference is None:
        counts = {"shown in": measured.get("shown"), "decided a choice in": measured.get("decided")}
        uses = [f"{words} {count} episode{'s' if count > 1 else ''}" for words, count in counts.items() if count]
        return 0.0, f"{', '.join(uses)}, not compared yet" if uses else _UNUSED.get(kind, "no agent has seen it yet")
    is_clear = measured["low"] > 0 or measured["high"] < 0
    sure = "" if is_clear else ", not certain yet"
    counted = f"{measured['shown']} episodes with it, {measured['withheld']} without"
    nearer = min(abs(measured["low"]), abs(measured["high"]))
    worth = (1 + nearer if is_clear else abs(difference) / 2) * (1 if difference > 0 else -1)
    return (worth if difference else 0.0), f"success {100 * difference:+.0f} points ({counted}{sure})"


def _judge_refusals(measured: Mapping[str, Any]) -> tuple[float, str]:
    blocked, tried, worked = (measured[name] or 0 for name in ("blocked", "overridden", "worked"))
    words = f"refused {blocked} {'action' if blocked == 1 else 'actions'}"
    if not tried:
        return blocked / (blocked + 2), words
    share = (worked + 1) / (tried + 2)
    return 1 - 2 * share, f"{words}; {worked} of {tried} worked when let through"


def render_lessons(lessons: Mapping[str, Sequence[Mapping[str, Any]]], link: Link) -> Html:
    """Return the three lists side by side, and the lessons that wait for a person."""
    lists = (
        ("Newest lessons", "newest", "No lesson yet. They are distilled from repeated failures and successes."),
        ("Most useful", "useful", "No lesson has been shown to help yet: that takes episodes with and without it."),
        ("Making things worse", "harmful", "None that is known."),
    )
    # Without any lesson, one card says where lessons come from.
    columns = [
        section(title, _render_list(lessons[name], empty, link))
        for title, name, empty in lists
        if lessons[name] or (name == "newest" and not any(lessons.values()))
    ]
    waiting = lessons["waiting"]
    why = tag("p", "In quarantine until a person releases them.", class_="soft")
    note = [section("Waiting for you", why, _render_list(waiting, "", link))] if waiting else []
    return join([tag("div", *columns, class_="three"), *note])


def _render_list(lessons: Sequence[Mapping[str, Any]], empty: str, link: Link) -> Html:
    if not lessons:
        return tag("p", empty, class_="empty")
    return tag(
        "ul",
        *(
            tag(
                "li",
                tag("a", linked(lesson["says"]), href=link(f"/items/{lesson['id']}")),
                tag("small", f"{lesson['kind']} · {lesson['words']}"),
                *([tag("small", linked(f"Example: {lesson['example']}"))] if lesson["example"] else []),
            )
            for lesson in lessons
        ),
        class_="plain lessons",
    )
