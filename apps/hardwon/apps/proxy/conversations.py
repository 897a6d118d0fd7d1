"""Assign requests to conversations, and follow each conversation as a run.

A request repeats the whole conversation, or names the id under which the server keeps its beginning. A run continues if
the conversation begins with the messages up to the last response of that run. Otherwise a new run begins; calls that
were answered before it are replayed, so a restarted proxy loses nothing of a conversation that goes on. A request of a
person begins a new episode.
"""

import hashlib
import json
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hardwon.apps.importers.messages import LoggedMessage
from hardwon.apps.importers.spool import refer_to_call
from hardwon.memory import Step, Trajectory, Verdict
from hardwon.memory.learning.extraction import Extractor
from hardwon.runtime.guidance.base import Guidance
from hardwon.runtime.integrations.own_words import RecordedTrust, to_trust
from hardwon.runtime.integrations.recording import begin_run, find_beginning, record_run
from hardwon.runtime.integrations.tool_episode import iter_calls, split_at_request
from hardwon.runtime.integrations.tool_run import ToolRun, format_warning
from hardwon.runtime.interfaces.endings import read_ending, read_word
from hardwon.runtime.loop.enforcement import Mode, Ruling

from .library_access import LibraryAccess

_K = TypeVar("_K")
_V = TypeVar("_V")
logger = logging.getLogger("hardwon.proxy")

OPEN_RUNS = 1024
"""Largest number of runs in progress; the oldest is recorded with an unknown outcome."""
IDLE_S = 3600.0
"""Seconds after which a run without requests counts as abandoned."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """How the proxy uses experience."""

    mode: Mode | None = "warn"
    """How guardrails are enforced; None turns them off."""
    outcome: str = "calls"
    """"calls": a run succeeds if the last call of every tool worked. "unknown": a person grades it later."""
    trust: RecordedTrust = "own"
    """"own": calls and outcomes are recorded, and no word of a result. "trusted": results, too. "untrusted": only the
    forms of actions are recalled."""
    place: str = "message"
    """Where the hint of a run stands: "message" is a message of its own before the request; or "system"."""
    recall_k: int = 5
    guidance: Guidance | None = None
    extractor: Extractor | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request of a client as plain messages."""

    messages: tuple[LoggedMessage, ...]
    model: str
    kept_as: str = ""
    """Id under which the server keeps the messages before these; empty if these are all."""
    is_kept: bool = False
    """True if the server keeps these messages and the response."""


@dataclass(eq=False)
class ConversationRun:
    """A run in progress, and the digest of its messages up to the last response, or of its first request."""

    run: ToolRun
    episode: str
    is_continued: bool
    """Its beginning was recorded when an earlier proxy was killed, or when the client was away for long."""
    head: bytes
    request_digest: bytes = b""
    """Digest of the last request, if it had results of calls; a client may repeat it."""
    keys: set[bytes] = field(default_factory=set)
    """Digests under which the next request finds it."""
    used_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call of a conversation: what the proxy adds to it."""

    conversation: ConversationRun
    messages: tuple[LoggedMessage, ...]
    hint: str
    warnings: Mapping[str, str]
    """Warnings and new hints to put below the answers of calls, by call id."""
    is_kept: bool = False
    """True if the server keeps the conversation, so that the next request may name its id alone."""


class ConversationLog:
    """All conversations in progress. Every method may block; call it in a thread."""

    def __init__(self, access: LibraryAccess, settings: ProxySettings) -> None:
        self._access, self._settings = access, settings
        self._by_head: OrderedDict[bytes, ConversationRun] = OrderedDict()
        self._kept: OrderedDict[str, tuple[LoggedMessage, ...]] = OrderedDict()
        """Messages of conversations whose requests repeat nothing, by the id on the server."""
        self._replayed: OrderedDict[bytes, tuple[Step, ...]] = OrderedDict()
        """Steps of conversations that this process did not follow, by the digest of their messages."""
        self._ended: OrderedDict[bytes, str] = OrderedDict()
        """Episodes of runs that are over, by the digest of their last request, which a client may repeat."""
        self._lock = threading.Lock()

    def begin_turn(self, request: ModelRequest) -> ModelCall:
        """Return what to add to a request, after recording the answers of tools in it as steps."""
        beginning = self._find_beginning(request)
        messages = (*(beginning or ()), *request.messages)
        task, after = split_at_request(messages)
        at = len(messages) - len(after) - 1
        # Some frameworks send results as messages of the user; such a message is no request of a person.
        if 0 < at < len(messages) and messages[at - 1]["calls"]:
            task = next(message["text"] for message in messages if message["role"] == "user")
        digests = list(digest_messages(messages))
        conversation = self._take(digests, len(after)) or self._begin(task, after, digests)
        conversation.request_digest = digests[-1] if any(message["role"] == "tool" for message in after) else b""
        run = conversation.run
        run.learn = run.learn and beginning is not None
        with run.lock:
            self._add_answers(run, after)
            run.follow(after)
            run.model = request.model
            warnings = {
                call_id: format_warning(ruling.verdict)
                for call_id, (_, ruling) in run.rulings.items()
                if ruling.warned and call_id in run.answered
            }
            for call_id, text in run.show(run.find_hint(run.get_state()), self._settings.place).items():
                warnings[call_id] = "\n\n".join(filter(None, (warnings.get(call_id), text)))
        return ModelCall(conversation, messages, warnings.pop("", ""), warnings, request.is_kept)

    def rule_on(self, turn: ModelCall, calls: Sequence[Mapping[str, Any]]) -> list[Ruling]:
        """Return the rulings on the calls of a response. In `warn` mode every call runs."""
        run = turn.conversation.run
        if self._settings.mode is None:
            return []
        rulings = []
        for call in calls:
            if self._settings.mode == "block" and call["unreadable"]:
                rulings.append(Ruling(Verdict(False, call["unreadable"]), runs=False))
                continue
            ruling = run.rule_on(call)
            if self._settings.mode == "warn" and not ruling.runs:
                # The call was streamed to the client already, so it gets a warning below its answer.
                action, _ = run.rulings[call["id"]]
                ruling = replace(ruling, runs=True)
                run.rulings[call["id"]] = action, ruling
            rulings.append(ruling)
        return rulings

    def refuse(self, turn: ModelCall, calls: Sequence[Mapping[str, Any]], rulings: Sequence[Ruling]) -> list[str]:
        """Return the answers to all calls of a response of which some are refused."""
        run, answers = turn.conversation.run, []
        for call, ruling in zip(calls, rulings, strict=True):
            text = "Not run, because another call beside it was refused. Call it again if you still need it."
            if call["unreadable"]:
                text = f"Not run: {call['unreadable']}. Call it again with a name and a JSON object."
            elif not ruling.runs:
                text = run.add_refusal(call, ruling)
            answers.append(text)
        return answers

    def note_response(
        self, turn: ModelCall, response: Sequence[LoggedMessage], is_last: bool, kept_as: Sequence[str]
    ) -> None:
        """Note a response, so that the next request finds its run. Call it before the client can know the response."""
        messages = (*turn.messages, *response)
        with self._lock:
            for name in kept_as if turn.is_kept else ():
                keep(self._kept, name, messages, 256)
        conversation = turn.conversation
        if is_last:
            with self._lock:
                self._remove(conversation)
                keep(self._ended, conversation.request_digest, conversation.episode, OPEN_RUNS)
            return
        *_, conversation.head = digest_messages(messages)
        conversation.used_at = time.monotonic()
        with self._lock:
            self._add(conversation)

    def end_run(self, turn: ModelCall, response: Sequence[LoggedMessage], finish: str) -> None:
        """Record a run that a response without calls has ended; a response that was cut tells no outcome."""
        run = turn.conversation.run
        with run.lock:
            # Servers run some tools themselves; such a call and its result are in the response.
            after = split_at_request((*turn.messages, *response))[1]
            self._add_answers(run, after)
        ending = "completed" if finish == "stop" else read_word(finish, is_reason=True)
        ending = read_ending(after) if ending == "completed" else ending
        self._record(
            turn.conversation, "done" if ending == "completed" else finish if finish != "stop" else str(ending)
        )

    def cancel_turn(self, turn: ModelCall) -> None:
        """Let a conversation continue from before a request that got no response; the client may repeat it."""
        with self._lock:
            self._add(turn.conversation)

    def close(self) -> None:
        """Record the runs in progress, with an unknown outcome."""
        with self._lock:
            waiting = list(dict.fromkeys(self._by_head.values()))
            self._by_head.clear()
        for conversation in waiting:
            self._abandon(conversation)

    def _find_beginning(self, request: ModelRequest) -> tuple[LoggedMessage, ...] | None:
        """Return the messages that the server keeps and the request does not repeat.

        In `block` mode a conversation of which this process has not seen the beginning gets no episode, but rulings.
        """
        if not request.kept_as:
            return ()
        with self._lock:
            messages = self._kept.get(request.kept_as, ())
        if not messages and not any(message["role"] == "user" for message in request.messages):
            if self._settings.mode == "block":
                return None
            raise ValueError(f"{request.kept_as[:40]!r} names a conversation whose beginning this proxy has not seen")
        return messages

    def _take(self, digests: Sequence[bytes], tail: int) -> ConversationRun | None:
        """Return the run that a request continues, and end the one that it leaves behind."""
        request = len(digests) - tail
        with self._lock:
            for at in range(len(digests) - 1, -1, -1):
                conversation = self._by_head.get(digests[at])
                if conversation is not None:
                    break
            else:
                return None
            # Taken out, so that a second branch from the same point becomes a run of its own. Who repeats a request may
            # still get its first response.
            if digests[at] != conversation.request_digest:
                self._remove(conversation)
        if at >= request:
            return conversation
        self._abandon(conversation)  # a person interrupted the run with another request
        return None

    def _add(self, conversation: ConversationRun) -> None:
        """Let the next request find a conversation, also the last one if it comes again."""
        for digest in filter(None, (conversation.request_digest, conversation.head)):
            self._by_head[digest] = conversation
            conversation.keys.add(digest)

    def _remove(self, conversation: ConversationRun) -> None:
        for digest in conversation.keys:
            if self._by_head.get(digest) is conversation:
                del self._by_head[digest]
        conversation.keys.clear()

    def _begin(self, task: str, after: Sequence[Mapping[str, Any]], digests: Sequence[bytes]) -> ConversationRun:
        settings, library, calls = self._settings, self._access.get(), list(iter_calls(after))
        earlier = self._ended.get(digests[-1]) or find_beginning(library, task, calls, "proxy")
        header = Trajectory(
            task, (), None, arm="retrieved", meta={"environment": "proxy"}, id=earlier or uuid.uuid4().hex,
            writer="proxy", trust=to_trust(settings.trust),
        )  # fmt: skip
        run = begin_run(
            library, task, mode=settings.mode, guidance=settings.guidance, recall_k=settings.recall_k,
            hides_results=settings.trust == "own", header=header,
        )  # fmt: skip
        with self._lock:
            steps = next((self._replayed[name] for name in reversed(digests) if name in self._replayed), ())
        run.episode.replay(calls, steps)
        with self._lock:
            keep(self._replayed, digests[-1], tuple(run.episode.steps), 64)
        run.calls = tuple(calls)
        run.answered.update(message["answers"] for message in after if message["role"] == "tool")
        return ConversationRun(run, header.id, bool(earlier), digests[-1])

    def _add_answers(self, run: ToolRun, after: Sequence[Mapping[str, Any]]) -> None:
        """Record the calls that were answered since the last request."""
        for call_id, call in run.find_answered(after)[len(run.calls) :]:
            run.add_answer(call, call_id)
            run.calls = (*run.calls, call)

    def end_abandoned(self) -> None:
        """Record runs that were abandoned, and the oldest ones beyond the limit."""
        oldest = time.monotonic() - IDLE_S
        abandoned = []
        with self._lock:
            # The dictionary is ordered by last use.
            while self._by_head:
                conversation = next(iter(self._by_head.values()))
                if conversation.used_at >= oldest and len(self._by_head) <= 2 * OPEN_RUNS:
                    break
                self._remove(conversation)
                abandoned.append(conversation)
        for conversation in abandoned:
            self._abandon(conversation)

    def _abandon(self, conversation: ConversationRun) -> None:
        try:
            self._record(conversation, "abandoned")
        except Exception:
            logger.exception("an abandoned conversation could not be recorded")

    def _record(self, conversation: ConversationRun, ending: str) -> None:
        settings, run = self._settings, conversation.run
        success = run.episode.judge() if ending == "done" and settings.outcome == "calls" else None
        record_run(
            run,
            success=success,
            environment="proxy",
            ending="success" if success else ending,
            episode=conversation.episode,
            writer="proxy",
            trust=to_trust(settings.trust),
            extractor=settings.extractor,
            is_continued=conversation.is_continued,
        )
        conversation.is_continued = True  # another answer to the same request takes its place


def keep(entries: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Add an entry, and drop the oldest ones beyond a number."""
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > most:
        entries.popitem(last=False)


def digest_messages(messages: Sequence[LoggedMessage]) -> Iterator[bytes]:
    """Yield a digest of every beginning of a conversation; ids of calls distinguish equal conversations.

    Clients change what stands before: many write the time into the words of the system, or clear old results. So the
    system does not count, and a message with a random id of a call is known by that.
    """
    digest, has_request = hashlib.blake2b(digest_size=16), any(message["role"] == "user" for message in messages)
    for message in messages:
        if "digest" not in message:  # later requests repeat the message
            refs = [refer_to_call(ref) for ref in (message["answers"], *(call["id"] for call in message["calls"]))]
            calls = [[call["id"], call["name"], call["arguments"]] for call in message["calls"]]
            kept = refs if any(refs) else [message["text"].strip(), calls, message["answers"]]
            text = json.dumps([message["role"], *kept], sort_keys=True, default=str)
            message["digest"] = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if message["role"] != "system" or not has_request:
            digest.update(message["digest"])
        yield digest.digest()
