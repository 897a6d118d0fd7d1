"""Explanations on paper: the values of `shared.explain`, laid out for a terminal or a pipe.

Everything wraps; ids are never cut. Long episodes are shown whole: a pager is one `| less` away.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hardwon.apps.shared.common import excerpt, table

SHOWN = 3
"""Earlier steps told of in an episode; all of them in a step of its own."""
EVIDENCE = 5
"""Steps of an item's evidence told of, the newest; the others are named."""
WHOLE = 10_000
"""Characters of a text that is shown whole, on a page that is about it; `--json` cuts nothing."""

Line = tuple[str, str]


def episode_view(episode: Mapping[str, Any], *, brief: bool = False) -> RenderableType:
    """An episode: its outcome, then a block, or with `brief` a line, for every step."""
    meta = episode["meta"]
    world = " in ".join(str(meta[name]) for name in ("policy", "environment") if name in meta)
    facts = [
        f"{won_words(episode['success'])} ({episode['ending']})",
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
    if brief:
        return Group(*head, Text(), _segments(episode["segments"]), Text(), _brief(episode["steps"]))
    segments = {segment["first_t"]: segment for segment in episode["segments"]}
    parts: list[RenderableType] = []
    for step in episode["steps"]:
        if segment := segments.get(step["t"]):
            parts.append(Text(f"\n{segment_words(segment)}", style="bold"))
        parts.append(_step(step, SHOWN))
    return Group(*head, *parts)


def _segments(segments: Sequence[Mapping[str, Any]]) -> RenderableType:
    return Group(*(Text(f"{segment_words(segment)}. {excerpt(segment['text'], 300)}") for segment in segments))


def segment_words(segment: Mapping[str, Any]) -> str:
    """`Steps 0 to 7, in the kitchen: gained 1.00`."""
    first, last, gain = segment["first_t"], segment["last_t"], segment["gain"]
    steps = f"Step {first}" if first == last else f"Steps {first} to {last}"
    where = f", in the {segment['location']}" if segment["location"] else ""
    came = f"{'gained' if gain > 0 else 'lost'} {abs(gain):.2f}" if gain else "no gain"
    return f"{steps}{where}: {came}"


def step_view(step: Mapping[str, Any]) -> RenderableType:
    """One step in full: the whole observation and every earlier step it rests on."""
    return Group(Text(f"Step of episode {step['episode']}", style="bold"), _step(step, None))


def _brief(steps: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (step["t"], f"step:{step['id']}", step["location"], step["action"], step["reward"], _in_short(step))
        for step in steps
    ]
    return table("t", "id", "where", "action", "reward", "why", rows=rows, numbers=("t", "reward"), whole=("id",))


def _in_short(step: Mapping[str, Any]) -> str:
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


def _step(step: Mapping[str, Any], shown: int | None) -> RenderableType:
    title = Text.assemble("\n", (f"{step['t']:>3}  ", "dim"), (step["action"] or "(no action)", "bold"))
    title.append(f"   step:{step['id']}", "dim")
    return Group(title, Padding(_grid(step_lines(step, shown)), (0, 0, 0, 5)))


def step_lines(step: Mapping[str, Any], shown: int | None) -> Iterator[Line]:
    """What is said of a step, a label and a text each."""
    why = step["why"]
    yield "saw", excerpt(step["observation"], 200 if shown else WHOLE)
    if step["notes"] and not shown:
        yield "was told", excerpt(" ".join(step["notes"]), WHOLE)
    yield from _reasons(step)
    past = why["rests_on"] if shown is None else why["rests_on"][-shown:]
    for number, earlier in enumerate(past):
        yield "" if number else "rests on", earlier_step(earlier)
    rest = [f"step:{earlier['id']}" for earlier in why["rests_on"] if earlier not in past]
    if rest:
        yield "", f"and {', '.join(rest)}"
    for item in why["recalled"]:
        yield "was shown", f"{item['kind'] or 'item'} {item['id']}: {excerpt(item['says'], 300)}"
    for item in why["blocked"]:
        yield "blocked", f"by {item['id']}: {excerpt(item['says'], 300)}"
    blocked = step["diagnosis"]["failure"] in ("blocked", "rejected")
    yield "not run" if blocked else "happened", f"{excerpt(step['happened'], 300 if shown else WHOLE)}  {_worth(step)}"
    yield "diagnosis", _diagnosis(step["diagnosis"])


def _reasons(step: Mapping[str, Any]) -> Iterator[Line]:
    """Why this action: exploration, an estimate, or the words of a model."""
    why = step["why"]
    if why["explored"]:
        yield "because", "a random action, to explore"
    elif why["value"] is not None and why["key"]:
        steps = "1 earlier step" if why["n"] == 1 else f"{why['n']} earlier steps"
        yield "because", f"expected a return of {why['value']:.2f}; best known from {steps} like this:"
        yield "", "; ".join(why["key_words"])
    elif why["value"] is not None:
        yield "because", "nothing is known of any action here"
    for name, value in why["policy"].items():
        if value not in (False, None, ""):
            yield name.replace("_", " "), excerpt(str(value), 600)


def earlier_step(step: Mapping[str, Any]) -> str:
    """A step in a sentence: what was done, where, what happened, and what it led to."""
    ended = {True: "an episode that succeeded", False: "an episode that failed", None: "an excluded episode"}
    return (
        f"step:{step['id']} `{step['action']}`{_where(step)}: {excerpt(step['happened'], 120)}  "
        f"return {step['return_to_go'] or 0:.2f}, {ended[step['episode_success']]}"
    )


def _worth(step: Mapping[str, Any]) -> str:
    return f"(reward {step['reward']:.2f}, return from here {step['return_to_go'] or 0:.2f})"


def _diagnosis(judged: Mapping[str, Any]) -> str:
    said = ["worked" if judged["success"] else f"failed: {judged['failure']}"]
    if judged["evidence"]:
        said.append(f'"{excerpt(judged["evidence"], 160)}"')
    said.append(f"progress {judged['progress']:.2f}")
    said += [name for name in ("stagnant", "loop") if judged[name]]
    return " · ".join(said)


def won_words(success: bool | None) -> str:
    return {True: "succeeded", False: "failed", None: "excluded"}[success]


def item_view(item: Mapping[str, Any]) -> RenderableType:
    """An item: what it says, why it exists, how it fared and what it is worth, what became of it."""
    head = Text(f"{item['kind']} {item['id']}", style="bold")
    head.append(f"  {item['status']}{', pinned' if item['pinned'] else ''}", style="not bold")
    return Group(
        head,
        _grid(says(item)),
        *part("Why it exists", list(_evidence(item))),
        *part("How it fared", list(_fared(item))),
        *part("History", [history_view(item["history"])]),
    )


def says(item: Mapping[str, Any]) -> Iterator[Line]:
    yield "says", excerpt(item["title"], WHOLE)
    for label, name in (("", "body"), ("use when", "when_to_use"), ("not when", "when_not_to_use")):
        if item[name]:
            yield label, excerpt(item[name], WHOLE)
    if item["forbids"]:
        yield "forbids", f"`{item['forbids']}`{', to a whole plan' if item['granularity'] == 'task' else ''}"
    if item["condition_words"]:
        yield "condition", item["condition_words"]
    for number, step in enumerate(item["steps"], 1):
        yield "" if number > 1 else "steps", f"{number}. `{step}`"
    if item["verify_words"]:
        yield "verified", f"when it is done: {item['verify_words']}"
    if item["repairs"]:
        yield "repairs", f"{item['repairs']}, in place of the {item['scope']}"
    for label, name in (("situations", "signatures"), ("places", "locations"), ("tags", "tags")):
        if item[name]:
            yield label, ", ".join(item[name])
    yield "worth", f"score {item['score']:.2f}, confidence {item['confidence']:.2f}, version {item['version']}"
    life = f"; lives {item['ttl']} episodes without new evidence" if item["ttl"] is not None else ""
    yield "source", f"{item['source']} ({item['trust']}), written by {item['writer']}{life}"


def _evidence(item: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The newest steps that an item was made of: what was seen, what was done, what came of it."""
    steps = item["evidence"]
    if not steps:
        yield Text(f"written by {item['writer']}, without steps as evidence")
    for step in steps[-EVIDENCE:]:
        yield Text(f"step:{step['id']}{_where(step)}, episode {step['episode']}")
        yield Padding(_grid(_transition(step)), (0, 0, 0, 2))
    if rest := steps[:-EVIDENCE]:
        yield Text(f"and {step_names(step['id'] for step in rest)}")


def _transition(step: Mapping[str, Any]) -> Iterator[Line]:
    yield "saw", excerpt(step["observation"], WHOLE)
    yield "did", f"`{step['action']}`"
    failure = "" if step["failure"] == "none" else f"{step['failure']}, "
    yield "then", f"{excerpt(step['happened'], WHOLE)}  ({failure}return {step['return_to_go'] or 0:.2f})"


def _where(step: Mapping[str, Any]) -> str:
    return f" in the {step['location']}" if step["location"] else ""


def step_names(ids: Iterable[int]) -> str:
    """`step:1, step:5`: as one types them."""
    return ", ".join(f"step:{ref}" for ref in ids)


def _fared(item: Mapping[str, Any]) -> Iterator[RenderableType]:
    rows = item["fared"]
    if item.get("estimated"):
        yield Text(estimated_words(item["estimated"]))
    if not rows:
        yield Text(unshown_words(item["kind"]))
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
        yield Text(guarded_words(item["guarded"]))
        yield Text(failures_words(item["failures"]))
        yield Text(probation_words(item["probation"]))
    yield Text(usefulness_words(item["usefulness"]))
    if item["effects"]:
        yield table(*EFFECTS, rows=effect_rows(item["effects"]), numbers=("shown", "withheld", "effect"))


def estimated_words(episodes: int) -> str:
    """`Part of the estimate that chose an action in 12 episodes.`"""
    return f"Part of the estimate that chose an action in {episodes} {'episode' if episodes == 1 else 'episodes'}."


def unshown_words(kind: str) -> str:
    """What to say of an item that no usage names: `Not shown as a hint to any agent yet.`"""
    return "It has not refused any action yet." if kind == "guardrail" else "Not shown as a hint to any agent yet."


def guarded_words(counts: Mapping[str, Any]) -> str:
    """`Blocked 12 times, in 4 episodes of which 3 succeeded. Overridden twice: 1 worked, precision 0.50.`"""
    episodes = f"in {counts['episodes']} episodes of which {counts['succeeded']} succeeded"
    said = f"Blocked {times(counts['blocked'])}, {episodes}."
    if not counts["overridden"]:
        return f"{said} Never overridden, so whether it was right is not known."
    worked, precision = counts["worked"], counts["precision"]
    return f"{said} Overridden {times(counts['overridden'])}: {worked} worked, precision {precision:.2f}."


def failures_words(causes: Sequence[Mapping[str, Any]]) -> str:
    """`Why its evidence failed: tool_error 6 times ("permission denied").`"""
    if not causes:
        return "It has no steps that failed as evidence."
    told = [f'{one["cause"]} {times(one["times"])} ("{excerpt(one["words"], 160)}")' for one in causes]
    return f"Why its evidence failed: {'; '.join(told)}."


def probation_words(standing: Mapping[str, Any]) -> str:
    """`In force. Refused 7 times; tried once. Next trial after 3 more refusals, or at 2026-01-01T12:00:00+00:00.`"""
    force = "In force." if standing["in_force"] else "Not in force: it only advises."
    counted = f"Refused {times(standing['refused'])}; tried {times(standing['trials'])}."
    if standing["next_trial_at"] is None:
        return f"{force} {counted} It is pinned, so it is never tried."
    after = standing["next_trial_after_refusals"]
    return f"{force} {counted} Next trial after {after} more refusals, or at {standing['next_trial_at']}."


def times(n: int) -> str:
    """`once`, `twice`, `12 times`."""
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def usefulness_words(known: Mapping[str, Any]) -> str:
    """`Useful by +0.12 (95% interval -0.05 to +0.29): 24 episodes with it, 11 with it withheld.`"""
    if known["difference"] is None:
        return (
            f"How useful it is, is not known: that takes episodes with it (there are {known['shown']}) "
            f"and episodes from which it was withheld at random ({known['withheld']})."
        )
    return (
        f"Useful by {known['difference']:+.2f} (95% interval {known['low']:+.2f} to {known['high']:+.2f}): "
        f"{known['shown']} episodes with it, {known['withheld']} with it withheld."
    )


EFFECTS = ("world", "shown", "withheld", "effect", "90% interval", "in use")
"""The columns of `effect_rows`."""


def effect_rows(effects: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """A row per world: `hotel`, 24, 11, `-0.42`, `-0.61 to -0.23`, `masked: it hurts here`."""
    rows = []
    for one in effects:
        known = one["difference"] is not None
        rows.append(
            (
                one["name"],
                one["shown"],
                one["withheld"],
                f"{one['difference']:+.2f}" if known else "-",
                f"{one['low']:+.2f} to {one['high']:+.2f}" if known else "-",
                "masked: it hurts here" if one["masked"] else "yes",
            )
        )
    return rows


def history_view(changes: Sequence[Mapping[str, Any]]) -> Table:
    """The changes of an item, oldest first, with what changed."""
    rows = []
    before: Mapping[str, Any] = {}
    for change in changes:
        rows.append((change["seq"], change["at"], change["op"], changed_words(before, change["detail"])))
        before = {**before, **change["detail"]}
    return table("seq", "at", "what", "", rows=rows, numbers=("seq",), whole=("at",))


def changed_words(before: Mapping[str, Any], detail: Mapping[str, Any]) -> str:
    """Fields that differ from before; the evidence only as a count."""
    if not before:
        return ""
    said = []
    for name, value in detail.items():
        if name == "version" or before.get(name) == value:
            continue
        said.append(
            f"{name}: {len(value)} steps" if name == "provenance" else f"{name}: {excerpt(_change(value), 120)}"
        )
    return "; ".join(said)


def _change(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, float) for part in value):
        return f"{value[0]:.3f} to {value[1]:.3f}"
    return str(value)


def _grid(lines: Iterator[Line]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        grid.add_row(label, Text(text))
    return grid


def part(title: str, contents: Sequence[RenderableType]) -> list[RenderableType]:
    """A title, and what stands under it."""
    return [Text(f"\n{title}", style="bold"), *contents]
