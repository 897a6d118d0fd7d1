"""Define the pages of episodes, steps and attempts, with a replay of every episode."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query
from nicegui import events, ui

from hardwon.apps.render.failures import name_failure
from hardwon.apps.render.views import (
    LabeledLine,
    describe_end,
    describe_step,
    format_count,
    format_earlier_step,
    format_grade,
    format_step_refs,
    format_success,
)
from hardwon.apps.shared import explain, lists
from hardwon.apps.shared.common import excerpt
from hardwon.memory import ExperienceLibrary
from hardwon.memory.reasons import ADVICE
from hardwon.memory.situations.titles import fill_holes
from hardwon.memory.upkeep.queries import usages
from hardwon.runtime.interfaces.diagnosis import why_replan

from . import figures
from .frame import Room, filters, framed, html, page, show
from .markup import EMPTY, Html, Link, choice, count, linked, pager, pairs, section, shorten, table, tag
from .search_page import add_forget_button

PAGE = 25
OUTCOMES = {"": "any way", "succeeded": "succeeded", "failed": "failed", "excluded": "excluded: no outcome counts"}
"""Outcomes by which episodes are filtered."""


def add(api: FastAPI) -> None:
    """Add the pages of episodes, steps and attempts."""

    @page(api, "/episodes")
    async def episodes(
        room: Room,
        text: str = "",
        ended: str = "",
        played: str = "",
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    ) -> None:
        query = {"text": text, "ended": ended, "played": played}

        def render(everything: Sequence[Mapping[str, Any]]) -> None:
            rows = [row for row in everything if _is_wanted(row, query)]
            if everything:
                html(section("Find", _render_filters(room, query, sorted({row["arm"] for row in everything}))))
            listed = _render_list(rows[offset : offset + PAGE], room.link, is_filtered=len(rows) < len(everything))
            pages = pager(room.link, "/episodes", len(rows), PAGE, offset, query)
            html(section(count(len(rows), "episode"), listed, pages))

        await show(room, "Episodes", "/episodes", _read_episodes, render)

    @page(api, "/episodes/{episode_id}")
    async def episode(
        room: Room, episode_id: str, t: Annotated[int, Query(ge=0, le=10**9)] = 0, about: str = ""
    ) -> None:
        explanation, replanned = await room.read(_load_replay, episode_id)
        trace = await room.read(explain.explain_advice, about, explanation["id"]) if about.strip() else None
        with framed(room, excerpt(explanation["task"], 90) or "An episode without a task", "/episodes"):
            html(_render_head(explanation))
            html(_render_question(room, about, trace))
            if explanation["steps"]:
                Replay(room, explanation, replanned).show(min(t, len(explanation["steps"]) - 1))
            else:
                html(section("Steps", tag("p", "The episode ended before its first step.")))
            if room.may_write:
                add_forget_button(room, "Forget this episode", then="/episodes", episode=explanation["id"])

    @page(api, "/steps/{number}")
    async def step(room: Room, number: str) -> None:
        explanation = (await room.read(explain.explain, explain.STEP + number))["step"]
        with framed(room, f"Step {number}: {explanation['action'] or 'no action'}", "/episodes"):
            at = room.link(f"/episodes/{explanation['episode']}", t=explanation["t"])
            html(section("What happened", pairs(describe_step(explanation, None), room.link)))
            html(tag("p", tag("a", f"Step {explanation['t']} of its episode", href=at)))

    @page(api, "/attempts/{number}")
    async def attempt(room: Room, number: str) -> None:
        explanation = (await room.read(explain.explain, explain.ATTEMPT + number))["attempt"]
        with framed(room, fill_holes(explanation["pattern"]), "/episodes"):
            html(_render_attempt(explanation, room.link))


def _read_episodes(library: ExperienceLibrary) -> list[Mapping[str, Any]]:
    """Return all episodes; those that were drawn to have no advice have an arm of their own."""
    drawn = {use["trajectory_id"] for use in library.admin.query(usages, ADVICE) if use["mode"] == "withheld"}
    rows = lists.sort_episodes(library.episodes.find())
    return [{**row, "arm": "withheld"} if row["id"] in drawn else row for row in rows]


def _is_wanted(row: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    """Return whether an episode passes the filters: all words in its task, its outcome, and how it was played."""
    wanted = query["ended"] in ("", format_success(row["success"])) and query["played"] in ("", row["arm"])
    return wanted and all(word in row["task"].lower() for word in query["text"].lower().split())


def _render_filters(room: Room, query: Mapping[str, str], arms: Sequence[str]) -> Html:
    return filters(
        room,
        "/episodes",
        tag("label", "Words of the task", tag("input", name="text", value=query["text"], type="search"), class_="long"),
        choice("ended", "Ended", OUTCOMES, query["ended"]),
        choice("played", "Played", {"": "any way", **{arm: figures.name_group(arm) for arm in arms}}, query["played"]),
    )


def _render_list(episodes: Sequence[Mapping[str, Any]], link: Link, *, is_filtered: bool = False) -> Html:
    head = ("task", "ended", "score", "steps", "played", "began (UTC)")
    rows = [
        (
            tag(
                "span",
                tag("a", excerpt(row["task"], 110) or "no task", href=link(f"/episodes/{row['id']}")),
                tag("br"),
                tag("span", f"{_name_seed(row)}{shorten(row['id'])}", class_="under"),
                class_="says",
            ),
            tag("span", describe_end(row), class_={True: "good", False: "bad"}.get(row["success"], "soft")),
            row["score"],
            row["n_steps"],
            figures.name_group(row["arm"]),
            tag("span", lists.find_moment(row)[:16].replace("T", " "), class_="date"),
        )
        for row in episodes
    ]
    empty = "No episode matches. Clear a filter to see more." if is_filtered else EMPTY
    return table(head, rows, caption="Episodes", numbers=("score", "steps"), empty=empty)


def _load_replay(library: ExperienceLibrary, episode_id: str) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the explanation of an episode, and the reason for every replanning, by step."""
    explanation = explain.explain_episode(library, episode_id)
    steps = library.episodes.get(explanation["id"]).steps
    # `why_replan` looks at the steps so far, so every prefix of the episode is checked.
    reasons = {at: why_replan(steps[:at]) for at in range(1, len(steps))}
    return explanation, {at: reason for at, reason in reasons.items() if reason}


def _name_seed(row: Mapping[str, Any]) -> str:
    """Return the seed of an episode of an environment; those of an agent of your own have none."""
    return f"seed {row['seed']} · " if row["seed"] else ""


def _render_head(explanation: Mapping[str, Any]) -> Html:
    is_withheld = any(step["why"]["policy"].get("advice") == "withheld" for step in explanation["steps"])
    facts = {
        "episode": explanation["id"],
        **({"task": explanation["task"]} if len(explanation["task"]) > 90 else {}),
        "ended": f"{describe_end(explanation)}, score {explanation['score']:.2f}",
        "played": _name_seed(explanation) + figures.name_group("withheld" if is_withheld else explanation["arm"]),
        "recorded": f"{explanation['recorded_at'][:19].replace('T', ' ')} UTC",
        **{
            name: str(explanation["meta"][name])
            for name in ("environment", "policy", "failed")
            if explanation["meta"].get(name)
        },
    }
    grades = [("graded", format_grade(grade)) for grade in explanation["grades"]]
    return section("Outcome", tag("dl", *map(_render_fact, [*facts.items(), *grades]), class_="pairs"))


def _render_question(room: Room, about: str, trace: Mapping[str, Any] | None) -> Html:
    """Return the question why the agent was told something in an episode, or why not, and its answer."""
    form = tag(
        "form",
        tag(
            "label",
            "A lesson's id, or words of a lesson or an action ",
            tag("input", name="about", value=about, required=True),
        ),
        *([tag("input", type="hidden", name="namespace", value=room.namespace)] if room.namespace != "default" else []),
        tag("button", "Ask", class_="plain"),
        method="get",
        class_="filters",
    )
    answer = (
        []
        if trace is None
        else [
            tag("p", tag("strong", linked(trace["says"], room.link))),
            tag("p", "About: ", linked(f"{trace['title']} {trace['item']}", room.link), class_="soft"),
            table(
                ("stage", "passed", "evidence"),
                [
                    (
                        stage["name"],
                        {True: "yes", False: "no"}.get(stage["passed"], "unknown"),
                        linked(stage["evidence"], room.link),
                    )
                    for stage in trace["stages"]
                ],
                caption="How far the advice came",
            ),
        ]
    )
    return section("Why was it told this, or not?", form, *answer)


def _render_fact(fact: tuple[str, str]) -> Html:
    return tag("div", tag("dt", fact[0]), tag("dd", excerpt(fact[1], 600)), class_="line")


class Replay:
    """Replay of an episode: the list of steps beside the selected step; the arrow keys move the selection."""

    def __init__(self, room: Room, explanation: Mapping[str, Any], replanned: Mapping[int, str]) -> None:
        self._room = room
        self._explanation = explanation
        self._steps = explanation["steps"]
        self._replanned = replanned
        self._at = 0
        self._buttons: list[ui.button] = []
        with ui.element("div").classes("replay"):
            with ui.element("section"):
                html(tag("h2", "Steps"))
                with ui.element("ol").classes("plain steps"):
                    for number, step in enumerate(self._steps):
                        self._add_step(number, step)
            with ui.element("section").props('aria-live="polite"'):
                self._title = html("")
                with ui.element("div").classes("actions"):
                    self._back = ui.button("← previous", on_click=lambda: self.show(self._at - 1)).props("outline")
                    self._on = ui.button("next →", on_click=lambda: self.show(self._at + 1)).props("outline")
                self._body = html("")
        ui.keyboard(on_key=self._handle_key)

    def _add_step(self, number: int, step: Mapping[str, Any]) -> None:
        with ui.element("li"):
            marks = ", ".join(self._list_marks(number, step))
            # Bound per call of this method; a lambda in the caller's loop would always show the last step.
            with ui.button(on_click=lambda: self.show(number)).props("flat dense align=left no-caps") as button:
                words = [f"{step['t']}  {step['action'] or '(no action)'}"]
                html(tag("span", *words, *([tag("small", marks)] if marks else []), class_="stepline"))
            self._buttons.append(button)

    def _list_marks(self, number: int, step: Mapping[str, Any]) -> list[str]:
        """Return the notable properties of a step, a word or two each."""
        why, judged = step["why"], step["diagnosis"]
        marks = [f"reward {step['reward']:.2f}"] if step["reward"] else []
        marks += [name for name in ("recalled", "blocked") if why[name]]
        marks += ["replanned"] if number in self._replanned else []
        return marks + ([] if judged["success"] else [name_failure(judged["failure"])])

    def show(self, number: int) -> None:
        """Select and show one step."""
        self._at = max(0, min(number, len(self._steps) - 1))
        step = self._steps[self._at]
        lines: list[LabeledLine] = list(describe_step(step, None))
        if reason := self._replanned.get(self._at):
            lines.insert(1, ("replanned", f"the rest of the plan: {reason}"))
        self._title.set_content(tag("h2", f"Step {step['t']}: {step['action'] or 'none'}"))
        self._body.set_content(
            pairs(lines, self._room.link)
            + tag("p", "A page of its own: ", linked(f"step:{step['id']}", self._room.link), class_="soft")
        )
        self._back.set_enabled(self._at > 0)
        self._on.set_enabled(self._at < len(self._steps) - 1)
        for at, button in enumerate(self._buttons):
            button.props("color=primary" if at == self._at else "", remove="" if at == self._at else "color")
            button.props(remove="aria-current") if at != self._at else button.props('aria-current="step"')

    def _handle_key(self, event: events.KeyEventArguments) -> None:
        if event.action.keydown and not event.modifiers.shift and (event.key.arrow_left or event.key.arrow_right):
            self.show(self._at + (1 if event.key.arrow_right else -1))


def _render_attempt(explanation: Mapping[str, Any], link: Link) -> Html:
    rows = [
        (name_failure(name), len(ids), tag("span", linked(format_step_refs(ids[-40:]), link), class_="says"))
        for name, ids in explanation["evidence"].items()
        if ids
    ]
    situation = tag("a", explanation["signature"], href=link(f"/situations/{explanation['signature']}"), class_="code")
    return section(
        f"Tried {format_count(explanation['n'])}, mean return {explanation['mean_return']:.2f}",
        tag("p", "In situation ", situation),
        table(("outcome", "times", "steps"), rows, caption="Outcomes", numbers=("times",)),
        tag("h3", "Best step"),
        tag("p", linked(format_earlier_step(explanation["best_step"]), link)),
        tag("h3", "Newest steps"),
        *(tag("p", linked(format_earlier_step(step), link)) for step in explanation["newest"]),
    )
