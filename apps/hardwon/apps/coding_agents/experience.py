"""The part of the hooks that opens the library: recall, guardrails, and recording of a finished turn."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from hardwon.memory import ExperienceLibrary, Reasons, Verdict
from hardwon.memory.guardrails.preconditions import find_failing_pattern
from hardwon.memory.privacy.deadlines import deadline
from hardwon.runtime.environments.calls import Call, clip
from hardwon.runtime.guidance.coverage import Coverage
from hardwon.runtime.guidance.rendering import Visible, list_actions, render_item
from hardwon.runtime.integrations.own_words import to_trust
from hardwon.runtime.integrations.recording import begin_run, record_run
from hardwon.runtime.integrations.tool_episode import BEFORE_CALL_S, INTERRUPTED, SHOWN_CHARS
from hardwon.runtime.integrations.tool_run import ToolRun, format_hint, format_lines, format_refusal, format_warning
from hardwon.runtime.interfaces.results import find_failure
from hardwon.runtime.loop.enforcement import Mode, Ruling, mode_of

from .events import HookEvent
from .journal import Journal, find_state, has_library, log_failure, read_turn, write_file

SESSION_LESSONS = 5
"""Lessons that a session begins with, at most."""


@contextmanager
def open_library(options: argparse.Namespace, *, write: bool = False) -> Iterator[ExperienceLibrary | None]:
    """Open the library of a hook; None if it is only read and does not exist yet."""
    path = options.library
    if not write and not has_library(path):
        yield None
        return
    outbox = write and "://" in path
    with ExperienceLibrary.open(path, namespace=options.namespace, read_only=not write, outbox=outbox) as library:
        yield library


def advise(options: argparse.Namespace, event: HookEvent) -> Any:
    """Return what the library says to an event, as JSON values."""
    journal = Journal(options.library, event.session)
    if event.kind == "session":
        return describe_library(options, journal)
    if event.kind == "prompt":
        return find_hint(options, event.prompt)
    return rule_on(options, journal.read(), event)


@deadline(BEFORE_CALL_S)
def describe_library(options: argparse.Namespace, journal: Journal) -> str:
    """Return the best lessons for the beginning of a session, and keep them beside the calls that are forbidden."""
    state = find_state(options.library)
    with open_library(options) as library:
        if library is None:
            return ""
        guards = library.items.find(["guardrail", "remedy"], limit=100_000)
        warned = (item.forbids if item.kind == "guardrail" else find_failing_pattern(item) for item in guards)
        patterns = sorted(set(filter(None, warned)))
        # More than are shown, because a remedy says better what others say of its call.
        items = library.items.find(["strategy", "insight", "warning", "remedy"], limit=8 * SESSION_LESSONS)
        coverage = Coverage(items, ())
        lines = (render_item(item, Visible(None)) for item in items if coverage.needs_item(item, list_actions(item)))
        text = format_lines(list(islice(filter(None, lines), SESSION_LESSONS)))
    write_file(journal.guards, [options.namespace, patterns])
    if state and state == find_state(options.library):  # nobody wrote meanwhile
        write_file(journal.lessons, [options.namespace, state, text])
    return text


@deadline(BEFORE_CALL_S)
def find_hint(options: argparse.Namespace, task: str) -> tuple[str, dict[str, Any]]:
    """Return what earlier turns suggest for a request, and what the text was made from or what was withheld."""
    with open_library(options) as library:
        if library is None:
            return "", {}
        run = begin_run(library, task, hides_results=options.trust == "own")
        run.advisor = replace(run.advisor, is_trying=True)  # the turn is recorded by another process
        text = format_hint(run.find_hint(run.get_state()))
        return text, run.why.to_dict()


@deadline(BEFORE_CALL_S)
def rule_on(
    options: argparse.Namespace, entries: Sequence[Mapping[str, Any]], event: HookEvent
) -> tuple[str, str, dict[str, Any]]:
    """Return the refusal of a call, or else a warning about it, and the verdict; empty if no guardrail applies."""
    mode = mode_of(options.guardrails)
    # Only `block` counts refusals in the library.
    with open_library(options, write=mode == "block") as library:
        if library is None:
            return "", "", {}
        run = build_run(library, entries, mode, hides_results=options.trust == "own")
        ruling = run.rule_on({"id": event.call_id, "name": event.tool, "args": event.arguments})
        if ruling.runs and not ruling.warned:
            return "", "", {}
        refusal = "" if ruling.runs else format_refusal(Call(event.tool, event.arguments, "").text, ruling.verdict)
        return refusal, format_warning(ruling.verdict) if ruling.runs else "", asdict(ruling.verdict)


def build_run(
    library: ExperienceLibrary,
    entries: Sequence[Mapping[str, Any]],
    mode: Mode | None = None,
    *,
    hides_results: bool = False,
) -> ToolRun:
    """Return the run of a turn, from the entries of its journal."""
    task = next((str(entry["text"]) for entry in entries if entry.get("kind") == "prompt"), "")
    run = begin_run(library, task, hides_results=hides_results)
    run.mode = mode
    # Cursor reports a call that a hook refused as failed, too.
    refused = {entry["id"] for entry in entries if entry.get("kind") == "refused" and entry.get("id")}
    for entry in _order_by_call(entries):
        kind, saved = entry.get("kind"), entry.get("verdict")
        verdict = Verdict(**saved) if saved else Verdict(True)
        run.note_warning(verdict)
        if kind != "refused" and verdict.items and entry.get("id"):
            # The outcome of the call belongs to the guardrails that warned of it, and decides their trial.
            run.rulings[str(entry["id"])] = "", Ruling(verdict)
        if kind == "recalled":
            run.why = Reasons.of(entry.get("why") or {})
        elif kind == "refused":
            action = Call(str(entry["tool"]), entry["arguments"], "").text
            run.episode.add_refusal(run.get_state(), action, verdict, run.why)
        elif kind == "answer" and entry.get("id") not in refused:
            result, error = clip(str(entry["result"]), SHOWN_CHARS), clip(str(entry["error"]), SHOWN_CHARS)
            call = Call(str(entry["tool"]), entry["arguments"], result, error)
            run.add_answer(call, str(entry.get("id") or ""))
            run.calls = (*run.calls, call)
            run.state = run.episode.state(run.calls)
    return run


def _order_by_call(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return entries with every answer behind its call: parallel calls may be answered in another order."""
    begun = {entry["id"]: at for at, entry in enumerate(entries) if entry.get("kind") == "before" and entry.get("id")}
    places = [
        begun.get(entry.get("id"), at) if entry.get("kind") == "answer" else at for at, entry in enumerate(entries)
    ]
    return [entry for _, entry in sorted(zip(places, entries, strict=True), key=lambda placed: placed[0])]


def record_pending(options: argparse.Namespace) -> int:
    """Record the turns that wait, and return their number. A turn that cannot be recorded now waits further."""
    journal, recorded = Journal(options.library, options.session), 0
    waiting = journal.pending()
    if not waiting:
        return 0
    with open_library(options, write=True) as library:
        assert library is not None
        stuck: set[str] = set()
        for path in waiting:
            session = path.name.partition(".")[0]
            if session in stuck:  # its later calls may belong to the turn that waits
                continue
            try:
                recorded += bool(record_turn(library, path, options))
            except Exception as error:
                log_failure(error)
                stuck.add(session)
                continue
            journal.keep(path)
    describe_library(options, journal)
    return recorded


def record_turn(library: ExperienceLibrary, path: Path, options: argparse.Namespace) -> str:
    """Record one turn as an episode, and return its id; empty if it had no calls, or nobody knows the request.

    A call that was stopped before it was answered is one.
    """
    # Only recording, which nobody waits for, needs the importers.
    from hardwon.apps.importers.comparison import episode_id
    from hardwon.apps.importers.spool import refer_to_call

    path, entries = read_turn(path)
    prompt: Mapping[str, Any] = next((entry for entry in entries if entry.get("kind") == "prompt"), {})
    if not str(prompt.get("text", "")).strip():
        log_failure(ValueError(f"{path.name} is not recorded: its session reported calls and no request"))
        return ""
    uuid, first, cut = "", "", ""
    if options.agent == "codex":  # the requests of a rollout have no ids, but their calls have
        mark_failures_from_rollout(entries, prompt)
    else:
        uuid, first, cut = complete_from_transcript(entries, prompt)
    run = build_run(library, entries, hides_results=options.trust == "own")
    # Ids that are the same at every attempt, so that two recorders at once write one episode; if possible, the
    # id that an import of the transcript gives the same request.
    first = first or next((str(entry["id"]) for entry in entries if entry.get("id")), "")
    names = [episode_id(ref, options.agent) for ref in (refer_to_call(first), uuid) if ref] or [f"hook-{path.stem}"]
    row = find_row(library, [*names, episode_id(f"{prompt.get('session', '')} {uuid}", options.agent)])
    if row and row["n_steps"] >= len(run.episode.steps):
        return str(row["id"])
    is_stopped = any(entry.get("kind") == "interrupt" for entry in entries) or not run.episode.steps
    # The turn goes on after a stop that another hook refused, or an import read the transcript before it was over.
    return record_run(
        run, success=run.episode.judge("unfinished" if cut or is_stopped else "completed"), environment=options.agent,
        writer=f"hook:{options.agent}", trust=to_trust(options.trust), meta={"cwd": prompt.get("cwd", "")},
        episode=str(row["id"]) if row else names[0], is_continued=bool(row),
        has_begun=any(entry.get("kind") in ("before", "interrupt") and entry.get("id") for entry in entries),
    )  # fmt: skip


def find_row(library: ExperienceLibrary, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the row of a turn that is recorded, by the ids that a hook or an import may have given it."""
    return next(iter(library.episodes.find(names)), None)


def complete_from_transcript(entries: list[dict[str, Any]], prompt: Mapping[str, Any]) -> tuple[str, str, str]:
    """Add results that no hook reported; return the ids of the request and its first call, and why the turn was cut.

    Older versions of Claude Code call no hook when a tool fails, but their transcript has the error.
    """
    from hardwon.apps.importers.claude_code import read_messages
    from hardwon.apps.shared.remarks import read_request

    path = Path(str(prompt.get("transcript") or ""))
    if not path.is_file():
        return "", "", ""
    answered = {entry.get("id") for entry in entries if entry.get("kind") in ("answer", "refused", "interrupt")}
    missing = {
        str(entry["id"]): at
        for at, entry in enumerate(entries)
        if entry.get("kind") == "before" and entry.get("id") and entry["id"] not in answered
    }
    own, equal, has_begun = {entry.get("id") for entry in entries} - {None, ""}, list[str](), False
    replies, foreign = list[Mapping[str, Any]](), set[str]()
    for line in _read_tail(path):
        if not isinstance(line.get("message"), Mapping) or (line.get("isSidechain") and not prompt.get("side")):
            continue
        for message in read_messages(line, foreign):
            # Later turns may repeat the words of this one, so its request is the last before its first call.
            has_begun = has_begun or any(call["id"] in own for call in message["calls"])
            text = read_request(message["text"]) if message["role"] == "user" and not has_begun else ""
            if text.strip() == str(prompt["text"]).strip():
                equal.append(str(line.get("uuid") or ""))
            at = missing.get(str(message["answers"])) if message["role"] == "tool" else None
            if at is not None and not INTERRUPTED.match(message["text"]):
                error = find_failure(message["text"], failed=message["error"])
                entries[at] = {**entries[at], "kind": "answer", "result": message["text"], "error": error}
            if has_begun and not line.get("isMeta"):
                replies.append(message)
    first = next((str(call["id"]) for message in replies for call in message["calls"]), "")
    return equal[-1] if equal and (has_begun or len(equal) == 1) else "", first, _find_cut(replies)


def _find_cut(replies: Sequence[Mapping[str, Any]]) -> str:
    """Return why the last answer of a turn is not whole; empty if it is, or if it is not in the transcript yet."""
    turn = takewhile(lambda message: message["role"] != "user", replies)
    last: Mapping[str, Any] = next((message for message in reversed(list(turn)) if message["role"] == "assistant"), {})
    cut = str(last.get("unfinished") or "")
    return "" if cut == "tool_use" else cut


def mark_failures_from_rollout(entries: list[dict[str, Any]], prompt: Mapping[str, Any]) -> None:
    """Mark the calls of Codex that failed: its hooks get the output of a command, and its rollout has the exit code."""
    from hardwon.apps.importers.messages import plain_messages

    path = Path(str(prompt.get("transcript") or ""))
    if not path.is_file():
        return
    answers = {
        str(entry["id"]): at for at, entry in enumerate(entries) if entry.get("kind") == "answer" and entry.get("id")
    }
    for line in _read_tail(path, ("response_item",)):
        payload = line.get("payload")
        at = answers.get(str(payload.get("call_id"))) if isinstance(payload, Mapping) else None
        if at is None:
            continue
        for message in plain_messages(payload):
            if message["role"] == "tool":
                error = find_failure(entries[at]["result"] or message["text"], failed=message["error"])
                entries[at] = {**entries[at], "error": error}


def _read_tail(path: Path, kinds: tuple[str, ...] = ("user", "assistant")) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        # Bytes at the end of a transcript that are searched for the results of calls.
        file.seek(max(0, path.stat().st_size - 50_000_000))
        for data in file:
            try:
                line = json.loads(data)
            except ValueError:
                continue
            if isinstance(line, dict) and line.get("type") in kinds:
                yield line
