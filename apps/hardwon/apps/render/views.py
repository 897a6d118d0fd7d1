"""Render the explanations of `shared.explain` as text for a terminal or a pipe.

Long lines wrap and ids are never cut. Long episodes are printed in full; pipe them to a pager such as `less`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hardwon.apps.shared.common import excerpt, show_controls, table
from hardwon.memory.situations.describe import condition_words
from hardwon.memory.situations.titles import fill_holes

from .failures import name_failure

EVIDENCE = 5
"""Number of evidence steps described, newest first; the others are listed by id."""
LISTED = 5
"""Number of places and tags of an item that are listed."""
OPENED = 5
"""Number of actions that a step made possible that are listed."""
WHOLE = 10_000
"""Largest number of characters of a text on its own page; `--json` cuts nothing."""

LabeledLine = tuple[str, str]


def render_trace(trace: Mapping[str, Any]) -> RenderableType:
    """Render how far advice came in an episode: the answer, and the stages with their evidence."""
    marks = {True: "yes", False: "no", None: "unknown"}
    rows = [(stage["name"], marks[stage["passed"]], stage["evidence"]) for stage in trace["stages"]]
    return Group(
        Text(trace["says"], style="bold"),
        Text(f"About: {trace['title']}. Episode {trace['episode']}."),
        table("", "", "evidence", rows=rows),
    )


def render_episode(episode: Mapping[str, Any], *, brief: bool = False) -> RenderableType:
    """Render an episode: its outcome, then a block per step, or with `brief` a line per step."""
    meta = episode["meta"]
    world = " in ".join(str(meta[name]) for name in ("policy", "environment") if name in meta)
    facts = [
        f"{format_success(episode['success'])} ({episode['ending']})",
        f"score {episode['score']:.2f}",
        f"reward {episode['total_reward']:.2f}",
        f"{len(episode['steps'])} steps",
        f"arm {episode['arm']}",
        f"seed {episode['seed']}",
        *([world] if world else []),
        episode["recorded_at"],
    ]
    head = [
        Text(f"Episode {episode['id']}", style="bold"),
        Text(" · ".join(facts)),
        Text(excerpt(episode["task"], 400)),
    ]
    if meta.get("failed"):
        head.append(Text(f"excluded: {excerpt(meta['failed'], 300)}"))
    head += [Text(f"graded {format_grade(grade)}") for grade in episode["grades"]]
    if brief:
        return Group(*head, Text(), _render_brief(episode["steps"]))
    return Group(*head, *(_render_step(step, 3) for step in episode["steps"]))


def format_grade(grade: Mapping[str, Any]) -> str:
    """Return a grade on one line, such as `failed, score 0.00, by ann at ...: the customer called`."""
    step = "" if grade["step"] is None else f" of step {grade['step']}"
    names = {"why": "", "instead": f"instead{step}: ", "lesson": "lesson: "}
    words = "; ".join(f"{label}{excerpt(grade[name], 200)}" for name, label in names.items() if grade[name])
    outcome = f"{format_success(grade['success'])}, score {grade['score']:.2f}, by {grade['grader']}"
    at = grade["at"][:16].replace("T", " ")
    return f"{outcome} at {at} UTC{f': {words}' if words else ''}"


def render_step(step: Mapping[str, Any]) -> RenderableType:
    """Render one step with the whole observation and every earlier step behind it."""
    return Group(Text(f"Step of episode {step['episode']}", style="bold"), _render_step(step, None))


def _render_brief(steps: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (step["t"], f"step:{step['id']}", step["location"], step["action"], step["reward"], _summarize_step(step))
        for step in steps
    ]
    return table("t", "id", "where", "action", "reward", "why", rows=rows, numbers=("t", "reward"), whole=("id",))


def _summarize_step(step: Mapping[str, Any]) -> str:
    why, judged = step["why"], step["diagnosis"]
    parts = []
    if why["explored"]:
        parts.append("explored")
    elif why["value"] is not None:
        parts.append(f"expected {why['value']:.2f} (n={why['n']})")
    if why["blocked"]:
        parts.append(f"blocked by {', '.join(item['id'] for item in why['blocked'])}")
    if not judged["success"]:
        parts.append(judged["failure"])
    return ", ".join(parts) or "-"


def _render_step(step: Mapping[str, Any], seen_count: int | None) -> RenderableType:
    title = Text.assemble("\n", (f"{step['t']:>3}  ", "dim"), (step["action"] or "(no action)", "bold"))
    title.append(f"   step:{step['id']}", "dim")
    return Group(title, Padding(_build_grid(describe_step(step, seen_count)), (0, 0, 0, 5)))


def describe_step(step: Mapping[str, Any], seen_count: int | None) -> Iterator[LabeledLine]:
    """Yield a label and a text for each fact about a step."""
    why = step["why"]
    yield "saw", excerpt(step["observation"], 200 if seen_count else WHOLE)
    if step["notes"] and not seen_count:
        yield "notes", excerpt(" ".join(step["notes"]), WHOLE)
    yield from _describe_reasons(step)
    past = why["rests_on"] if seen_count is None else why["rests_on"][-seen_count:]
    for number, earlier in enumerate(past):
        yield "" if number else "rests on", format_earlier_step(earlier)
    rest = [f"step:{earlier['id']}" for earlier in why["rests_on"] if earlier not in past]
    if rest:
        yield "", f"and {', '.join(rest)}"
    for item in why["recalled"]:
        yield "was shown", f"{item['kind'] or 'item'} {item['id']}: {excerpt(item['says'], 300)}"
    for item in why["skills"]:
        yield "followed", f"{item['kind'] or 'item'} {item['id']}: {excerpt(item['says'], 300)}"
    for item in why["blocked"]:
        yield "blocked", f"by {item['id']}: {excerpt(item['says'], 300)}"
    blocked = step["diagnosis"]["failure"] in ("blocked", "rejected")
    yield (
        "not run" if blocked else "happened",
        f"{excerpt(step['happened'], 300 if seen_count else WHOLE)}  {_format_rewards(step)}",
    )
    if opened := step["opened"]:
        more = f", and {len(opened) - OPENED} more" if len(opened) > OPENED else ""
        yield "made possible", f"{', '.join(opened[:OPENED])}{more}"
    yield "diagnosis", _format_diagnosis(step["diagnosis"])


def _describe_reasons(step: Mapping[str, Any]) -> Iterator[LabeledLine]:
    """Yield the reasons for the action: exploration, an estimate, or the words of a model."""
    why = step["why"]
    if why["explored"]:
        yield "because", "a random action, to explore"
    elif why["value"] is not None and why["key"]:
        steps = "1 earlier step" if why["n"] == 1 else f"{why['n']} earlier steps"
        yield "because", f"expected a return of {why['value']:.2f}; the best estimate, from {steps} with the same key:"
        yield "", "; ".join(why["key_words"])
    elif why["value"] is not None and "unlock" in why["policy"]:
        yield "because", _format_lookahead(why)
    elif why["value"] is not None:
        yield "because", "no action has been tried in this situation"
    for name, value in why["policy"].items():
        if value not in (False, None, "") and name not in (*_LOOKAHEAD, _TOKENS):
            words = ", ".join(value) if name == "copied" else _PLACES.get(value, value) if name == "place" else value
            yield _LABELS[name] if name in _LABELS else name.replace("_", " "), excerpt(str(words), 600)


_LOOKAHEAD = ("gain", "unlock", "lost", "promise")
"""Reasons of a lookahead value, which are one line."""
_TOKENS = "said"
"""Key of the numbers of the tokens of an action, which say nothing to a reader; `--json` has them."""
_LABELS = {"demonstration": "adapted from", "memory": "hint", "place": "hint stood", "copied": "read in a result"}
_PLACES = {"message": "before the request", "system": "in the system message", "result": "below the last answer"}


def _format_lookahead(why: Mapping[str, Any]) -> str:
    """Return the parts of a lookahead value in words; its unit is the median reward."""
    gain, unlock, lost, promise = (why["policy"].get(name) or 0.0 for name in _LOOKAHEAD)
    rests = f"{why['n']} similar steps" if why["n"] else "steps that are only roughly similar"
    try_shows = f"; a try could show {promise:.2f} more" if promise else ""
    return (
        f"best lookahead value, {why['value']:.2f} times the median reward, from {rests}: brings {gain:.2f} at once, "
        f"opens or improves later actions by {unlock:.2f}, lost the task in {lost:.0%}{try_shows}"
    )


def format_earlier_step(step: Mapping[str, Any]) -> str:
    """Return a sentence about an earlier step: its action, location, effect and return."""
    ended = {True: "an episode that succeeded", False: "an episode that failed", None: "an excluded episode"}
    return (
        f"step:{step['id']} `{step['action']}`{_format_location(step)}: {excerpt(step['happened'], 120)} "
        f"(return {step['return_to_go'] or 0:.2f}, {ended[step['episode_success']]})"
    )


def _format_rewards(step: Mapping[str, Any]) -> str:
    return f"(reward {step['reward']:.2f}, return from here {step['return_to_go'] or 0:.2f})"


def _format_diagnosis(judged: Mapping[str, Any]) -> str:
    parts = ["worked" if judged["success"] else f"failed: {name_failure(judged['failure'])}"]
    if judged["evidence"]:
        parts.append(f'"{excerpt(judged["evidence"], 160)}"')
    parts.append(f"progress {judged['progress']:.2f}")
    parts += [name for name in ("stagnant", "loop") if judged[name]]
    return " · ".join(parts)


def format_success(success: bool | None) -> str:
    """Return an outcome as a word; None means that the episode is excluded from statistics."""
    return {True: "succeeded", False: "failed", None: "excluded"}[success]


def describe_end(row: Mapping[str, Any]) -> str:
    """Return how an episode ended: `failed: the task was lost`; an ending that adds nothing is left out."""
    outcome, ending = format_success(row["success"]), row["ending"]
    if ending in ("success", "done", outcome, ""):
        return outcome
    return f"{outcome}: {name_failure(ending).replace('_', ' ')}"


def render_item(item: Mapping[str, Any]) -> RenderableType:
    """Render an item: its text, its evidence, its effect and its history."""
    head = Text(f"{item['kind']} {item['id']}", style="bold")
    head.append(f"  {item['status']}{', pinned' if item['pinned'] else ''}", style="not bold")
    return Group(
        head,
        _build_grid(describe_item(item)),
        *build_section("Why it exists", list(_render_evidence(item))),
        *build_section("Effect", list(_render_effect(item))),
        *build_section("History", [render_history(item["history"])]),
    )


def describe_item(item: Mapping[str, Any]) -> Iterator[LabeledLine]:
    """Yield a label and a text for each field of an item."""
    yield "says", _show_commands(item["title"])
    for label, name in (("", "body"), ("use when", "when_to_use"), ("not when", "when_not_to_use")):
        if item[name]:
            yield label, _show_commands(item[name])
    # a remedy that gives other values names one call
    is_same = item["kind"] == "remedy" and [*item["steps"]] == [item["forbids"]]
    if item["forbids"]:
        yield (
            "call" if is_same else "in place of" if item["kind"] == "remedy" else "forbids",
            f"`{fill_holes(item['forbids'])}`{', to a whole plan' if item['granularity'] == 'task' else ''}",
        )
    if item["condition_words"]:
        yield "condition", fill_holes(item["condition_words"])
    for number, step in enumerate(() if is_same else item["steps"], 1):
        yield "" if number > 1 else "steps", f"{number}. `{fill_holes(step)}`"
    if item["verify_words"]:
        yield "verified", f"when it is done: {item['verify_words']}"
    if item["repairs"]:
        yield "repairs", f"{name_failure(item['repairs'])}, in place of the {item['scope']}"
    if count := len(item["signatures"]):
        yield "situations", str(count)  # their signatures are numbers that say nothing
    for label, name in (("places", "locations"), ("tags", "tags")):
        if item[name]:
            yield label, f"{', '.join(item[name][:LISTED])}{_count_rest(len(item[name]) - LISTED)}"
    yield "value", f"score {item['score']:.2f}, confidence {item['confidence']:.2f}, version {item['version']}"
    life = f"; lives {item['ttl']} episodes without new evidence" if item["ttl"] is not None else ""
    yield "source", f"{item['source']} ({item['trust']}), written by {item['writer']}{life}"


def _show_commands(text: str) -> str:
    """Return a text on one line, or on its own lines if a command in it has several, so that it can be run."""
    has_lines = any("\n" in command for command in text.split("`")[1::2])
    return show_controls(text[:WHOLE]) if has_lines else excerpt(text, WHOLE)


def _count_rest(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _render_evidence(item: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the newest steps that an item was created from: observation, action and effect."""
    steps = item["evidence"]
    if not steps:
        yield Text(f"written by {item['writer']}, without steps as evidence")
    for step in steps[-EVIDENCE:]:
        yield Text(f"step:{step['id']}{_format_location(step)}, episode {step['episode']}")
        yield Padding(_build_grid(_describe_transition(step)), (0, 0, 0, 2))
    if rest := steps[:-EVIDENCE]:
        yield Text(f"and {format_step_refs(step['id'] for step in rest)}")


def _describe_transition(step: Mapping[str, Any]) -> Iterator[LabeledLine]:
    yield "saw", excerpt(step["observation"], WHOLE)
    yield "did", f"`{step['action']}`"
    failure = "" if step["failure"] == "none" else f"{step['failure']}, "
    yield "then", f"{excerpt(step['happened'], WHOLE)}  ({failure}return {step['return_to_go'] or 0:.2f})"


def _format_location(step: Mapping[str, Any]) -> str:
    return f" in the {step['location']}" if step["location"] else ""


def format_step_refs(ids: Iterable[int]) -> str:
    """Return references to steps as you type them: `step:1, step:5`."""
    return ", ".join(f"step:{ref}" for ref in ids)


def _render_effect(item: Mapping[str, Any]) -> Iterator[RenderableType]:
    rows = item["fared"]
    if item.get("estimated"):
        yield Text(format_estimates(item["estimated"]))
    if not rows:
        yield Text(format_unused(item["kind"]))
        return
    yield table(
        "use",
        "arm",
        "steps",
        "episodes",
        "succeeded",
        "control mean",
        rows=[(r["mode"], r["arm"], r["steps"], r["episodes"], r["succeeded"], r["control_mean"]) for r in rows],
        numbers=("steps", "episodes", "succeeded", "control mean"),
    )
    if "guarded" in item:
        yield Text(format_blocks(item["guarded"]))
        yield Text(format_failures(item["failures"]))
        yield Text(format_probation(item["probation"]))
    yield Text(format_usefulness(item["usefulness"]))
    if item["effects"]:
        yield table(*EFFECTS, rows=build_effect_rows(item["effects"]), numbers=("shown", "withheld", "effect"))


def format_estimates(episodes: int) -> str:
    """Return the number of estimates of a strategy: `Part of the estimate that chose an action in 12 episodes`."""
    return f"Part of the estimate that chose an action in {episodes} {'episode' if episodes == 1 else 'episodes'}."


def format_unused(kind: str) -> str:
    """Return the sentence for an item without recorded uses."""
    return "It has not refused any action yet." if kind == "guardrail" else "Not shown as a hint to any agent yet."


def format_blocks(counts: Mapping[str, Any]) -> str:
    """Return a summary of a guardrail's counts.

    For example: `Blocked 12 times, in 4 episodes of which 3 succeeded. Overridden twice: 1 worked, precision 0.50.`
    """
    episodes = f"in {counts['episodes']} episodes of which {counts['succeeded']} succeeded"
    blocked = f"Blocked {format_count(counts['blocked'])}, {episodes}."
    if not counts["overridden"]:
        return f"{blocked} Never overridden, so its precision is unknown."
    worked, precision = counts["worked"], counts["precision"]
    return f"{blocked} Overridden {format_count(counts['overridden'])}: {worked} worked, precision {precision:.2f}."


def format_failures(causes: Sequence[Mapping[str, Any]]) -> str:
    """Return the causes of failure: `Failures in its evidence: nothing changed 6 times ("It is locked")`."""
    if not causes:
        return "Its evidence has no failed steps."
    listed = [
        f'{name_failure(cause["cause"])} {format_count(cause["times"])} ("{excerpt(cause["words"], 160)}")'
        for cause in causes
    ]
    return f"Failures in its evidence: {'; '.join(listed)}."


def format_probation(standing: Mapping[str, Any]) -> str:
    """Return the state of a guardrail's probation.

    For example: `In force. All calls, also of runs that were not recorded: refused 7 times; let through as a trial
    once. Next trial after 3 more refusals, or at 2026-01-01 12:00 UTC.`
    """
    force = "In force." if standing["in_force"] else "Not in force: it only warns."
    refused, trials = format_count(standing["refused"]), format_count(standing["trials"])
    counted = f"All calls, also of runs that were not recorded: refused {refused}; let through as a trial {trials}."
    if standing["next_trial_at"] is None:
        return f"{force} {counted} It is pinned, so it is never tried."
    after, at = standing["next_trial_after_refusals"], str(standing["next_trial_at"])[:16].replace("T", " ")
    return f"{force} {counted} Next trial after {after} more refusal{'s' * (after != 1)}, or at {at} UTC."


def format_count(n: int) -> str:
    """Return `once`, `twice` or `12 times`."""
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def format_usefulness(usefulness: Mapping[str, Any]) -> str:
    """Return a summary of an item's estimated effect.

    For example: `Useful by +0.12 (95% interval -0.05 to +0.29): 24 episodes with it, 11 with it withheld.`
    """
    if usefulness["difference"] is None:
        return (
            f"Its effect is unknown: the estimate needs episodes with it (so far {usefulness['shown']}) "
            f"and episodes without it, withheld at random (so far {usefulness['withheld']})."
        )
    return (
        f"Useful by {usefulness['difference']:+.2f} "
        f"(95% interval {usefulness['low']:+.2f} to {usefulness['high']:+.2f}): "
        f"{usefulness['shown']} episodes with it, {usefulness['withheld']} with it withheld."
    )


EFFECTS = ("world", "shown", "withheld", "effect", "90% interval", "in use")
"""The columns of `build_effect_rows`."""


def build_effect_rows(effects: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return a row per world: `hotel`, 24, 11, `-0.42`, `-0.61 to -0.23`, `masked: harmful here`."""
    rows = []
    for effect in effects:
        is_estimated = effect["difference"] is not None
        rows.append(
            (
                effect["name"],
                effect["shown"],
                effect["withheld"],
                f"{effect['difference']:+.2f}" if is_estimated else "-",
                f"{effect['low']:+.2f} to {effect['high']:+.2f}" if is_estimated else "-",
                "masked: harmful here" if effect["masked"] else "yes",
            )
        )
    return rows


def render_history(changes: Sequence[Mapping[str, Any]]) -> Table:
    """Render the changes of an item, oldest first."""
    rows = [(change["seq"], change["at"], change["op"], fields) for change, fields in list_changes(changes)]
    return table("seq", "at", "what", "", rows=rows, numbers=("seq",), whole=("at",))


def list_changes(changes: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """Return changes with the fields that they modified; scores in a row are one change, from the first to the last."""
    merged: list[Mapping[str, Any]] = []
    for change in changes:
        if merged and merged[-1]["op"] == change["op"] == "scored":
            first, last = merged[-1]["detail"]["score"], change["detail"]["score"]
            change = {**change, "detail": {"score": [first[0], last[1]]}}
            merged.pop()
        merged.append(change)
    return list(zip(merged, describe_changes(merged), strict=True))


def describe_changes(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that each change of an item modified, oldest first."""
    texts = []
    before: dict[str, Any] = {}
    for change in changes:
        texts.append(_format_changes(before, change["detail"]))
        before |= change["detail"]
        if change["op"] == "retired":  # its detail is the reason
            before["status"] = "retired"
    return texts


def _format_changes(before: Mapping[str, Any], detail: Mapping[str, Any]) -> str:
    """Return the fields that a change modified; evidence only as a count."""
    # The first change is the creation, whose detail has every field.
    if not before:
        return ""
    fields = []
    for name, value in detail.items():
        if name == "version" or before.get(name) == value:
            continue
        counted = {"provenance": "evidence: {} steps", "signatures": "situations: {}"}.get(name)
        fields.append(counted.format(len(value)) if counted else f"{name}: {excerpt(_format_change(name, value), 120)}")
    return "; ".join(fields)


def _format_change(name: str, value: Any) -> str:
    if name in ("condition", "verify") and isinstance(value, Mapping):
        return fill_holes(condition_words(value)) if value else "none"
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, float) for part in value):
        return f"{value[0]:.3f} to {value[1]:.3f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _build_grid(lines: Iterator[LabeledLine]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        # Text, because rich reads brackets in a plain string as markup.
        grid.add_row(label, Text(text))
    return grid


def build_section(title: str, contents: Sequence[RenderableType]) -> list[RenderableType]:
    """Return a heading followed by its contents."""
    return [Text(f"\n{title}", style="bold"), *contents]
