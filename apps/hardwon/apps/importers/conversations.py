"""Read conversation logs: the requests of a person, the tool calls made for each, and the outcome.

A conversation with an outcome is one episode, and the outcome applies to all of its requests. Without an outcome,
each request is an episode of its own.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hardwon.memory.storage.clock import parse_time
from hardwon.runtime.integrations.tool_episode import iter_calls
from hardwon.runtime.interfaces.endings import read_ending, read_error

from .messages import LoggedMessage, conversation, form_of, is_messages, plain_messages
from .spool import LoggedEpisode, Spool, refer_to_call

LoggedOutcome = tuple[bool, float]
"""Success, and a score in [0, 1]."""
_TRIALS = ("trial", "trial_id", "run_id", "trace_id", "id", "uuid")
"""Names under which a record tells one run of a task from another."""
_OUTCOMES = ("score", "reward", "success", "correctness")
_TIMES = (
    "timestamp", "created_at", "created", "start_time", "started_at", "time", "date", "createdAt", "startTime",
    "create_time", "createTime", "ts", "@timestamp", "datetime",
)  # fmt: skip
"""Names under which a record has its time."""
END = "end"
"""Name in the `meta` of an episode of the reference that it had, by which a conversation that goes on is recognized."""
_WHOLE = "conversation"
"""Name of the only part, if a file is one conversation with a message per line."""


class ConversationReader:
    """Reader of log lines, each a conversation, or of a file that is one conversation."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._single: bool | None = None
        self._places: dict[str, str] = {}
        """Responses format: the place of each response, by its id."""
        self._after: dict[str, str] = {}
        """Responses format: the id of the previous response, by place."""
        self._trials: dict[str, list[Any]] = {}
        """The graded runs with the same messages, by their digest."""
        self.form = "openai"
        """Format of the messages: that of the first value which is not in OpenAI's chat format."""

    def add(self, place: str, value: Any) -> None:
        """Add a value of the file."""
        if self._single is None:
            self._single = isinstance(value, Mapping) and is_messages([value]) and "messages" not in value
        if self.form == "openai":
            self.form = form_of([value] if self._single else value)
        if self._single:
            self._spool.put(_WHOLE, place, list(plain_messages(value)), at=time_of(value))
            return
        messages = conversation(value)
        digests = list(digest_beginnings(messages))
        # All proper prefixes: an earlier line that equals one of them is continued by this line.
        self._spool.begin(digest for digest in digests if digest != digests[-1])
        self._spool.put(place, place, [messages, outcome_of(value), trial_of(value)], at=time_of(value))
        if isinstance(value, Mapping):
            self._link(place, value)

    def _link(self, place: str, value: Mapping[str, Any]) -> None:
        """Record which response continues which."""
        request, answer = (value.get(name) or value for name in ("request", "response"))
        if not isinstance(request, Mapping) or not isinstance(answer, Mapping):
            return
        if isinstance(answer.get("id"), str):
            self._places[answer["id"]] = place
        before = request.get("previous_response_id") or answer.get("previous_response_id")
        if isinstance(before, str):
            self._after[place] = before

    def episodes(self) -> Iterator[LoggedEpisode]:
        """Yield the episodes. If model calls repeat the conversation so far, only the last call counts."""
        if self._single:
            messages = [message for _, batch in self._spool.values(_WHOLE) for message in batch]
            yield from self._build_episodes(_WHOLE, messages, None)
            return
        continued = set(self._after.values())
        ended = {place for ref, place in self._places.items() if ref in continued}
        for part in self._spool.parts():
            if part in ended:
                continue
            messages, outcome, trial = self._read(part)
            messages = [*self._load_earlier(part), *messages]
            prefixes = list(digest_beginnings(messages))
            # A log of model calls repeats the conversation in every line; only its longest form is an episode.
            if prefixes and not self._spool.is_continued(prefixes[-1]):
                graded = None if outcome is None else (outcome[0], outcome[1])
                for episode in self._build_episodes(part, messages, graded):
                    yield self._tell_apart(episode, trial)

    def _tell_apart(self, episode: LoggedEpisode, trial: str) -> LoggedEpisode:
        """Return an episode with a reference of its own if another run of the task has the same messages.

        A benchmark runs a task several times, and its runs may differ in nothing but the outcome.
        """
        if episode.score is None or episode.ref != episode.meta[END]:  # the ids of its calls tell a run apart
            return episode
        runs = self._trials.setdefault(episode.ref, [])
        run = [trial, episode.score]
        if run not in runs:
            runs.append(run)
        if number := runs.index(run):
            return replace(episode, ref=f"{episode.ref} {number + 1}", aliases=())
        return replace(episode, meta={**episode.meta, "trial": trial}) if trial else episode

    def _read(self, part: str) -> tuple[list[LoggedMessage], Any, str]:
        ((_, (messages, outcome, trial)),) = self._spool.values(part)
        return messages, outcome, trial

    def _load_earlier(self, place: str) -> list[LoggedMessage]:
        """Return the messages of the responses that this one continues, oldest first."""
        chain: list[str] = []
        # A damaged log may link responses in a circle.
        while (before := self._places.get(self._after.get(place, ""))) and before not in chain and before != place:
            chain.append(place := before)
        return [message for at in reversed(chain) for message in self._read(at)[0]]

    def _build_episodes(
        self, part: str, messages: list[LoggedMessage], outcome: LoggedOutcome | None
    ) -> Iterator[LoggedEpisode]:
        start, refs = self._spool.find_start(part), (call["id"] for message in messages for call in message["calls"])
        plain, run = list(split_requests(messages)), next(filter(None, map(refer_to_call, refs)), "")
        requests = [_name_run(replace(request, meta={END: request.ref, **start}), run) for request in plain]
        if outcome is None:
            # A graded conversation has the id of the first of its beginnings that was free.
            refs = (ref for request in plain[:4] for ref in (*request.aliases[:1], request.ref))
            wholes = tuple(name for ref in refs for name in (f"{ref} {run}", ref))
            yield from (replace(request, wholes=wholes) for request in requests)
        elif requests:
            # The requests may have been recorded one by one, before there was an outcome.
            aliases = tuple(ref for request in requests for ref in (*request.aliases, request.ref))
            older = tuple(ref for request in requests for ref in request.older)
            whole = tuple(part for request in requests for part in request.requests)
            last = requests[-1]
            aliases = tuple(ref for ref in aliases if ref != last.ref)
            yield LoggedEpisode(last.ref, whole, *outcome, meta=last.meta, aliases=aliases, older=older)


def split_requests(messages: Sequence[LoggedMessage]) -> Iterator[LoggedEpisode]:
    """Yield an episode for every request that led to calls, also if none was answered.

    Its reference is a digest of the conversation up to the end of the request. Those up to earlier answers of the
    request are its aliases: a log that ended there has them.
    """
    starts = [n for n, message in enumerate(messages) if message["role"] == "user"] or [-1]
    digests, older = (list(digest_beginnings(messages, with_system=with_system)) for with_system in (False, True))
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        first = next((n for n in range(start + 1, end) if messages[n]["calls"]), None)
        if first is not None:
            calls = tuple(iter_calls(messages[start + 1 : end]))
            ref, beginnings = digests[end - 1].hex(), dict.fromkeys(digest.hex() for digest in digests[first:end])
            aliases = tuple(name for name in beginnings if name != ref)
            names = tuple(digest.hex() for digest in older[first:end]) if older != digests else ()
            task = messages[start]["text"] if start >= 0 else ""
            ending = read_ending(messages[start + 1 : end])
            yield LoggedEpisode(ref, ((task, calls),), aliases=aliases, older=names, ending=ending)


def _name_run(request: LoggedEpisode, run: str) -> LoggedEpisode:
    """Return a request under names with the first random id of a call, which no other run of the task has.

    The names without it stay: earlier versions of hardwon, and logs without ids, have those.
    """
    if not run:
        return request
    *aliases, ref = (f"{name} {run}" for name in (*request.aliases, request.ref))
    return replace(request, ref=ref, aliases=tuple(aliases), older=(*request.aliases, request.ref, *request.older))


def digest_beginnings(messages: Sequence[LoggedMessage], *, with_system: bool = False) -> Iterator[bytes]:
    """Yield a digest of every prefix of a conversation, whatever the system says, such as the time.

    Earlier versions of hardwon read the words of the system, too.
    """
    # One running digest; hashing every prefix anew would take quadratic time.
    digest, has_request = hashlib.blake2b(digest_size=16), any(message["role"] == "user" for message in messages)
    for message in messages:
        kept = [message["role"], message["text"], [[call["name"], call["arguments"]] for call in message["calls"]]]
        if with_system or message["role"] != "system" or not has_request:
            digest.update(json.dumps(kept, sort_keys=True).encode())
        yield digest.digest()


def trial_of(value: Any) -> str:
    """Return what tells a record from other runs of the same task, or an empty string."""
    if not isinstance(value, Mapping):
        return ""
    return " ".join(f"{value[name]}"[:200] for name in _TRIALS if isinstance(value.get(name), str | int))


def time_of(value: Any) -> Any:
    """Return the time that a record has under one of the usual names; None if it has none."""
    if not isinstance(value, Mapping):
        return None
    sources = (value, value.get("metadata"), value.get("response"), value.get("request"))
    named = [source.get(name) for source in sources if isinstance(source, Mapping) for name in _TIMES]
    return next((at for at in named if parse_time(at) is not None), None)


def outcome_of(value: Any) -> LoggedOutcome | None:
    """Return the outcome that a record has under one of the usual names; an error that is no interrupt is a failure."""
    if not isinstance(value, Mapping):
        return None
    for source in (value, value.get("metadata"), value.get("extra"), value.get("feedback_stats")):
        if not isinstance(source, Mapping):
            continue
        for name in _OUTCOMES:
            outcome = source.get(name)
            # LangSmith aggregates feedback as {"avg": ..., "n": ...}.
            outcome = outcome.get("avg") if isinstance(outcome, Mapping) else outcome
            # bool is a subclass of int: true counts as 1, false as 0.
            if isinstance(outcome, int | float):
                score = min(1.0, max(0.0, float(outcome)))
                return score >= 1.0, score
    return (False, 0.0) if read_error(value.get("error")) == "failed" else None
