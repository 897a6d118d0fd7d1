"""Explanations on paper: the values of `explain`, laid out for a terminal or a pipe.

Everything wraps; ids are never cut. Long episodes are shown whole: a pager is one `| less` away.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .doors import excerpt, table

SHOWN = 3
"""Earlier steps told of in an episode; all of them in a step of its own."""

Line = tuple[str, str]


def episode_view(episode: Mapping[str, Any], *, brief: bool = False) -> RenderableType:
    """An episode: its outcome, then a block, or with `brief` a line, for every step."""
    meta = episode["meta"]
    world = " in ".join(str(meta[name]) for name in ("policy", "environment") if name in meta)
    facts = [
        f"{_won(episode['success'])} ({episode['ending']})",
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
        return Group(*head, Text(), _brief(episode["steps"]))
    return Group(*head, *(_step(step, SHOWN) for step in episode["steps"]))


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
    parts += [f"blocked by {item['id']}" for item in why["blocked"]]
    if not judged["success"]:
        parts.append(judged["failure"])
    return ", ".join(parts) or "-"


def _step(step: Mapping[str, Any], shown: int | None) -> RenderableType:
    title = Text.assemble("\n", (f"{step['t']:>3}  ", "dim"), (step["action"] or "(no action)", "bold"))
    title.append(f"   step:{step['id']}", "dim")
    return Group(title, Padding(_grid(_lines(step, shown)), (0, 0, 0, 5)))


def _lines(step: Mapping[str, Any], shown: int | None) -> Iterator[Line]:
    """What is said of a step, a label and a text each."""
    why = step["why"]
    yield "saw", excerpt(step["observation"], 200 if shown else 4000)
    if step["notes"] and not shown:
        yield "was told", excerpt(" ".join(step["notes"]), 2000)
    yield from _reasons(step)
    past = why["rests_on"] if shown is None else why["rests_on"][-shown:]
    for number, earlier in enumerate(past):
        yield "" if number else "rests on", _earlier(earlier)
    rest = [f"step:{earlier['id']}" for earlier in why["rests_on"] if earlier not in past]
    if rest:
        yield "", f"and {', '.join(rest)}"
    for item in why["recalled"]:
        yield "was shown", f"{item['kind'] or 'item'} {item['id']}: {excerpt(item['says'], 300)}"
    for item in why["blocked"]:
        yield "blocked", f"by {item['id']}: {excerpt(item['says'], 300)}"
    yield "happened", f"{excerpt(step['happened'], 300 if shown else 4000)}  {_worth(step)}"
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


def _earlier(step: Mapping[str, Any]) -> str:
    where = f" in the {step['location']}" if step["location"] else ""
    ended = {True: "an episode that succeeded", False: "an episode that failed", None: "an excluded episode"}
    return (
        f"step:{step['id']} `{step['action']}`{where}: {excerpt(step['happened'], 120)}  "
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


def _won(success: bool | None) -> str:
    return {True: "succeeded", False: "failed", None: "excluded"}[success]


def item_view(item: Mapping[str, Any]) -> RenderableType:
    """An item: what it says, why it exists, how it fared, what became of it."""
    return Group(
        Text.assemble(
            (f"{item['kind']} {item['id']}", "bold"), f"  {item['status']}{', pinned' if item['pinned'] else ''}"
        ),
        _grid(_says(item)),
        *_part("Why it exists", [Text(_earlier(step)) for step in item["evidence"]] or [Text(_no_evidence(item))]),
        *_part("How it fared", [_fared(item["fared"])] if item["fared"] else [Text("never shown and never blocked")]),
        *_part("History", [history_view(item["history"])]),
    )


def _says(item: Mapping[str, Any]) -> Iterator[Line]:
    yield "says", excerpt(item["title"], 1000)
    for label, name in (("", "body"), ("use when", "when_to_use"), ("not when", "when_not_to_use")):
        if item[name]:
            yield label, excerpt(item[name], 2000)
    if item["forbids"]:
        yield "forbids", f"`{item['forbids']}`"
    if item["condition_words"]:
        yield "when", item["condition_words"]
    if item["signatures"]:
        yield "in", "situation " + ", ".join(item["signatures"])
    yield "trust", f"score {item['score']:.2f}, confidence {item['confidence']:.2f}, version {item['version']}"
    yield "written by", item["writer"]


def _no_evidence(item: Mapping[str, Any]) -> str:
    return f"written by {item['writer']}, without steps as evidence"


def _fared(rows: Sequence[Mapping[str, Any]]) -> Table:
    return table(
        "use",
        "arm",
        "steps",
        "episodes",
        "succeeded",
        "control mean",
        rows=[(r["mode"], r["arm"], r["steps"], r["episodes"], r["succeeded"], r["control_mean"]) for r in rows],
        numbers=("steps", "episodes", "succeeded", "control mean"),
    )


def history_view(changes: Sequence[Mapping[str, Any]]) -> Table:
    """The changes of an item, oldest first, with what changed."""
    rows = []
    before: Mapping[str, Any] = {}
    for change in changes:
        rows.append((change["seq"], change["at"], change["op"], _changed(before, change["detail"])))
        before = {**before, **change["detail"]}
    return table("seq", "at", "what", "", rows=rows, numbers=("seq",), whole=("at",))


def _changed(before: Mapping[str, Any], detail: Mapping[str, Any]) -> str:
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


def _part(title: str, contents: Sequence[RenderableType]) -> list[RenderableType]:
    return [Text(f"\n{title}", style="bold"), *contents]
