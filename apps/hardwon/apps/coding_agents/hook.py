"""The hook of coding agents: reads the agent's JSON on stdin, and answers on stdout.

    python -m hardwon.apps.coding_agents.hook claude-code --library work.db

It never breaks the agent: whatever fails, it exits with 0 and writes a line to `hooks.log`. It imports only the
standard library, unless no `standby` answers: what needs the library is asked of that process.
"""

import argparse
import json
import sys
from contextlib import suppress
from typing import Any

from .events import AGENTS, HookEvent, add_context, deny, read_event, takes_context
from .journal import (
    Journal,
    default_library,
    has_library,
    log_failure,
    may_be_forbidden,
    read_last_request,
)


def main(arguments: list[str] | None = None) -> int:
    """Answer one call of a hook. Return 0 in every case."""
    try:
        options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        # Agents write UTF-8, whatever encoding the console has.
        text = sys.stdin.buffer.read().decode("utf-8-sig", errors="replace")
        answer = answer_event(read_event(options.agent, text), options)
        if answer:
            sys.stdout.write(json.dumps(answer))
            sys.stdout.flush()
    except BaseException as error:  # also SystemExit of argparse: a hook that fails may stop the agent
        log_failure(error)
    return 0


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options of a hook."""
    parser = argparse.ArgumentParser(prog="hardwon hook run", exit_on_error=False)
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("--library", default="")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--guardrails", choices=("warn", "block", "off"), default="warn")
    parser.add_argument("--trust", choices=("own", "trusted", "untrusted"), default="own")
    options = parser.parse_args(arguments)
    options.library = options.library or default_library()
    return options


def answer_event(event: HookEvent, options: argparse.Namespace) -> dict[str, Any]:
    """Return the answer to an event; empty for none."""
    journal = Journal(options.library, event.session)
    if event.is_subagent and event.kind in ("before", "after", "failed") and not journal.path.exists():
        _note_request(event, journal, read_last_request(event.transcript))
    if event.kind == "session":
        _begin_session(event, options, journal)
        lessons = journal.read_lessons(options.library, options.namespace)
        if lessons is None:
            lessons = _consult(event, options, journal) or ""
        elif lessons:
            _import_standby().start(journal.folder)  # for the request that follows
        return add_context(event, lessons)
    if event.kind == "prompt":
        return _begin_turn(event, options, journal)
    if event.kind == "before":
        return _check(event, options, journal)
    if event.kind in ("after", "failed"):
        return _end_call(event, journal)
    if event.kind == "stop":
        if event.is_interrupt:
            journal.interrupt()
        _record(event, options, journal)
    return {}


def _consult(event: HookEvent, options: argparse.Namespace, journal: Journal) -> Any:
    """Return what the library says to an event; None if there is no library yet."""
    if not has_library(options.library):
        return None
    standby = _import_standby()
    with suppress(OSError, ValueError):
        return standby.ask(journal.folder, options, event)
    from .experience import advise

    advice = advise(options, event)
    standby.start(journal.folder)
    return advice


def _import_standby() -> Any:
    """Import sockets, which the hooks around most calls do not need."""
    from . import standby

    return standby


def _begin_session(event: HookEvent, options: argparse.Namespace, journal: Journal) -> None:
    """Record the turns that earlier sessions left unfinished."""
    journal.take_abandoned()
    if event.is_new_session:
        journal.interrupt()
        _record(event, options, journal)
    else:
        _record_waiting(event, options, journal)


def _begin_turn(event: HookEvent, options: argparse.Namespace, journal: Journal) -> dict[str, Any]:
    journal.interrupt()  # a turn that still has a journal had no stop
    _record(event, options, journal)
    _note_request(event, journal, event.prompt)
    hint, why = _consult(event, options, journal) or ("", {})
    if why:
        journal.append({"kind": "recalled", "why": why})
    if hint and not takes_context(event):
        journal.append({"kind": "context", "text": hint})
        return {}
    return add_context(event, hint)


def _note_request(event: HookEvent, journal: Journal, text: str) -> None:
    begun = {"session": event.session, "cwd": event.cwd, "transcript": event.transcript, "side": event.is_subagent}
    journal.append({"kind": "prompt", "text": text, **begun})


def _check(event: HookEvent, options: argparse.Namespace, journal: Journal) -> dict[str, Any]:
    entry = {"kind": "before", "id": event.call_id, "tool": event.tool, "arguments": dict(event.arguments)}
    action = format_action(event)
    if options.guardrails != "off" and may_be_forbidden(journal.guards, options.namespace, action):
        refusal, warning, verdict = _consult(event, options, journal) or ("", "", {})
        if verdict:
            entry["verdict"] = verdict
        if refusal:
            journal.append({**entry, "kind": "refused"})
            return deny(event, refusal)
        if warning:
            journal.append(entry)
            if takes_context(event):
                return add_context(event, warning)
            journal.append({"kind": "context", "text": warning})
            return {}
    journal.append(entry)
    return {}


def _end_call(event: HookEvent, journal: Journal) -> dict[str, Any]:
    if event.is_interrupt:
        journal.interrupt(event.call_id)
        return {}
    journal.append(
        {
            "kind": "answer", "id": event.call_id, "tool": event.tool, "arguments": dict(event.arguments),
            "result": event.result, "error": event.error,
        }
    )  # fmt: skip
    if event.agent != "cursor" or event.kind != "after":
        return {}
    waiting: list[str] = []
    for entry in journal.read():
        if entry.get("kind") == "context":
            waiting.append(entry["text"])
        elif entry.get("kind") == "shown":
            waiting.clear()
    if not waiting:
        return {}
    journal.append({"kind": "shown"})
    return add_context(event, "\n\n".join(waiting))


def _record(event: HookEvent, options: argparse.Namespace, journal: Journal) -> None:
    """Record the finished turn, and those that wait."""
    journal.take()
    _record_waiting(event, options, journal)


def _record_waiting(event: HookEvent, options: argparse.Namespace, journal: Journal) -> None:
    """Record the turns that wait in a process of its own, because the agent waits for this one."""
    if not journal.pending():
        return
    import subprocess  # only here: it takes a fifth of a hook's time

    command = [sys.executable, "-m", "hardwon.apps.coding_agents.record", event.agent, "--library", options.library]
    command += ["--namespace", options.namespace, "--trust", options.trust]
    null = subprocess.DEVNULL
    subprocess.Popen(
        [*command, "--session", event.session], stdin=null, stdout=null, stderr=null, start_new_session=True
    )


def format_action(event: HookEvent) -> str:
    """Return a call as an action, in the form of `hardwon.runtime.llm.prompts.call_text`."""
    listed = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in event.arguments.items()
    )
    return f"{event.tool}({listed})".encode(errors="replace").decode()


if __name__ == "__main__":
    sys.exit(main())
