"""Episodes: the list, and a replay step by step with what was recalled, blocked and replanned; steps and attempts."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query
from nicegui import events, ui

from hardwon.apps.render.views import (
    Line,
    describe_step,
    format_earlier_step,
    format_segment,
    format_step_refs,
    format_success,
)
from hardwon.apps.shared import explain, lists
from hardwon.apps.shared.common import excerpt
from hardwon.memory import ExperienceLibrary
from hardwon.runtime.interfaces.diagnosis import why_replan

from .frame import Room, framed, html, page
from .markup import Html, Link, linked, pager, pairs, section, table, tag

PAGE = 25
NAMED = 40
"""Steps named behind one count of an attempt."""


def add(api: FastAPI) -> None:
    """The pages."""

    @page(api, "/episodes")
    async def episodes(room: Room, offset: Annotated[int, Query(ge=0, le=10**9)] = 0) -> None:
        found, total = await room.read(lists.list_episodes, PAGE, offset)
        with framed(room, "Episodes", "/episodes"):
            listed = _listed(found, room.link)
            html(section(f"{total} episodes", listed, pager(room.link, "/episodes", total, PAGE, offset, {})))

    @page(api, "/episodes/{episode_id}")
    async def episode(room: Room, episode_id: str, t: Annotated[int, Query(ge=0, le=10**9)] = 0) -> None:
        told, replanned = await room.read(_replayed, episode_id)
        with framed(room, f"Episode {told['id'][:12]}", "/episodes"):
            html(_head(told))
            if told["steps"]:
                Replay(room, told, replanned).show(min(t, len(told["steps"]) - 1))
            else:
                html(section("Steps", tag("p", "It ended before a step was taken.")))

    @page(api, "/steps/{number}")
    async def step(room: Room, number: str) -> None:
        told = (await room.read(explain.explain, explain.STEP + number))["step"]
        with framed(room, f"Step {number}: {told['action'] or 'no action'}", "/episodes"):
            at = room.link(f"/episodes/{told['episode']}", t=told["t"])
            html(section("What happened", pairs(describe_step(told, None), room.link)))
            html(tag("p", tag("a", f"In its episode, step {told['t']}", href=at)))

    @page(api, "/attempts/{number}")
    async def attempt(room: Room, number: str) -> None:
        told = (await room.read(explain.explain, explain.ATTEMPT + number))["attempt"]
        with framed(room, f"{told['pattern']}", "/map"):
            html(_attempt(told, room.link))


def _listed(found: Sequence[Mapping[str, Any]], link: Link) -> Html:
    head = ("episode", "ended", "score", "steps", "arm", "seed", "recorded (UTC)", "task")
    rows = [
        (
            tag("a", row["id"][:12], href=link(f"/episodes/{row['id']}"), class_="code"),
            tag("span", row["ending"], class_={True: "good", False: "bad"}.get(row["success"], "soft")),
            row["score"],
            row["n_steps"],
            row["arm"],
            row["seed"],
            tag("span", row["recorded_at"][:16].replace("T", " "), class_="date"),
            tag("span", excerpt(row["task"], 110), class_="says soft"),
        )
        for row in found
    ]
    return table(head, rows, caption="Episodes", numbers=("score", "steps", "seed"), empty="Nothing was recorded yet.")


def _replayed(library: ExperienceLibrary, episode_id: str) -> tuple[dict[str, Any], dict[int, str]]:
    """What `hardwon memory show` tells of an episode, and before which steps a plan had to be made anew, and why."""
    told = explain.explain_episode(library, episode_id)
    steps = library.trajectory(told["id"]).steps
    reasons = {at: why_replan(steps[:at]) for at in range(1, len(steps))}
    return told, {at: reason for at, reason in reasons.items() if reason}


def _head(told: Mapping[str, Any]) -> Html:
    facts = {
        "task": told["task"],
        "ended": f"{format_success(told['success'])} ({told['ending']}), score {told['score']:.2f}",
        "arm": f"{told['arm']}, seed {told['seed']}",
        "recorded": f"{told['recorded_at'][:19].replace('T', ' ')} UTC",
        **{name: str(told["meta"][name]) for name in ("environment", "policy", "failed") if name in told["meta"]},
    }
    return section("How it went", tag("dl", *map(_fact, facts.items()), class_="pairs"))


def _fact(fact: tuple[str, str]) -> Html:
    return tag("div", tag("dt", fact[0]), tag("dd", excerpt(fact[1], 600)), class_="line")


class Replay:
    """The steps on one side, the chosen one on the other; arrow keys go on and back."""

    def __init__(self, room: Room, told: Mapping[str, Any], replanned: Mapping[int, str]) -> None:
        self._room = room
        self._told = told
        self._steps = told["steps"]
        self._replanned = replanned
        self._at = 0
        self._buttons: list[ui.button] = []
        segments = {segment["first_t"]: segment for segment in told["segments"]}
        with ui.element("div").classes("replay"):
            with ui.element("section"):
                html(tag("h2", "Steps"))
                with ui.element("ol").classes("plain steps"):
                    for number, step in enumerate(self._steps):
                        self._add(number, step, segments.get(step["t"]))
            with ui.element("section").props('aria-live="polite"'):
                self._title = html("")
                with ui.element("div").classes("actions"):
                    self._back = ui.button("← before", on_click=lambda: self.show(self._at - 1)).props("outline")
                    self._on = ui.button("after →", on_click=lambda: self.show(self._at + 1)).props("outline")
                self._body = html("")
        ui.keyboard(on_key=self._key)

    def _add(self, number: int, step: Mapping[str, Any], segment: Mapping[str, Any] | None) -> None:
        with ui.element("li"):
            if segment:
                html(tag("p", format_segment(segment), class_="under soft"))
            marks = ", ".join(self._marks(number, step))
            with ui.button(on_click=lambda: self.show(number)).props("flat dense align=left no-caps") as button:
                words = [f"{step['t']}  {step['action'] or '(no action)'}"]
                html(tag("span", *words, *([tag("small", marks)] if marks else []), class_="stepline"))
            self._buttons.append(button)

    def _marks(self, number: int, step: Mapping[str, Any]) -> list[str]:
        """What sets a step apart, in a word or two each."""
        why, judged = step["why"], step["diagnosis"]
        found = [f"reward {step['reward']:.2f}"] if step["reward"] else []
        found += [name for name in ("recalled", "blocked") if why[name]]
        found += ["replanned"] if number in self._replanned else []
        return found + ([] if judged["success"] else [str(judged["failure"])])

    def show(self, number: int) -> None:
        """One step."""
        self._at = max(0, min(number, len(self._steps) - 1))
        step = self._steps[self._at]
        lines: list[Line] = list(describe_step(step, None))
        if reason := self._replanned.get(self._at):
            lines.insert(1, ("replanned", f"what was left of the plan: {reason}"))
        self._title.set_content(tag("h2", f"Step {step['t']} of {len(self._steps) - 1}: {step['action'] or 'none'}"))
        self._body.set_content(
            pairs(lines, self._room.link) + tag("p", linked(f"step:{step['id']}", self._room.link), class_="soft")
        )
        self._back.set_enabled(self._at > 0)
        self._on.set_enabled(self._at < len(self._steps) - 1)
        for at, button in enumerate(self._buttons):
            button.props(f"color={'primary' if at == self._at else 'dark'}")
            button.props(remove="aria-current") if at != self._at else button.props('aria-current="step"')

    def _key(self, event: events.KeyEventArguments) -> None:
        if event.action.keydown and not event.modifiers.shift and (event.key.arrow_left or event.key.arrow_right):
            self.show(self._at + (1 if event.key.arrow_right else -1))


def _attempt(told: Mapping[str, Any], link: Link) -> Html:
    rows = [
        (name, len(ids), tag("span", linked(format_step_refs(ids[-NAMED:]), link), class_="says"))
        for name, ids in told["evidence"].items()
        if ids
    ]
    situation = tag("a", told["signature"], href=link(f"/situations/{told['signature']}"), class_="code")
    return section(
        f"Tried {told['n']} times, mean return {told['mean_return']:.2f}",
        tag("p", "In situation ", situation),
        table(("what came of it", "times", "steps"), rows, caption="What came of it", numbers=("times",)),
        tag("h3", "The best"),
        tag("p", linked(format_earlier_step(told["best_step"]), link)),
        tag("h3", "The newest"),
        *(tag("p", linked(format_earlier_step(step), link)) for step in told["newest"]),
    )
