"""Outages: failures that say nothing about the call, because the service was temporarily unavailable.

An outage is recognized by the type of the exception, by a status code, or by the words of an error. A step that failed
this way is recorded as `Failure.UNAVAILABLE`. It is kept, but never becomes a guardrail or a warning.
"""

import re
from dataclasses import replace
from typing import Any

from hardwon.memory.patterns import compile_late
from hardwon.memory.records import Failure, Step, Trajectory

from .outage_languages import is_foreign_outage
from .tuning import TUNING

_JUDGED = frozenset({Failure.TOOL_ERROR, Failure.NO_EFFECT, Failure.PRECONDITION, Failure.INVALID_ACTION})
"""Failures that may turn out to be outages when their text is read."""
_CODE = r"(?:408|425|429|5\d\d)"
_TYPES = (
    *("Timeout", "TimedOut", "DeadlineExceeded", "RateLimit", "TooManyRequests", "Throttl", "ServiceUnavailable"),
    *("ServerUnavailable", "Overloaded", "InternalServer", "BadGateway", "GatewayTimeout", "ConnectionError"),
    *("ConnectError", "ConnectionReset", "ConnectionRefused", "ConnectionAborted", "ConnectionClosed"),
    *("APIConnection", "NetworkError", "NewConnectionError", "MaxRetryError", "RemoteDisconnected"),
    *("ServerDisconnected", "IncompleteRead", "BrokenPipe", "ResourceExhausted", "RemoteProtocolError"),
    *("ClientConnector", "ClientOSError", "ServerSelection", "gaierror", "EndpointConnection"),
    *("ThroughputExceeded", "RequestLimitExceeded", "InsufficientInstanceCapacity", "SSLEOFError", "UnknownHost"),
    *("NotLeader", "LeaderNotAvailable", "BrokerNotAvailable", "NoBrokersAvailable", "NoHostAvailable"),
    *("CircuitBreaker", "TransientError", "ServerBusy", "BadStatusLine"),
)
"""Parts of exception names, from the standard library and from common client libraries."""
_TYPE = compile_late("|".join(_TYPES))
# case-sensitive: the class names of a traceback, not words of a sentence
_TYPE_IN_TEXT = compile_late(
    # `Timeout must be positive` begins a sentence; `Timeout: ` is a class
    rf"\b(?!Timeouts?\b(?!\s*(?:[:(]|\Z)))\w*(?:{'|'.join(_TYPES)})\w*|\b(?:httpx|httpcore)\.(?:Read|Write)Error\b"
)
_LINK = r"(?:connection|connect|network|socket|host|server|service|upstream|gateway|backend|peer|endpoint|api|dns)"
_WORK = (
    r"(?:job|task|run|build|export|import|upload|download|deployment|operation|query|batch|workflow|transfer|"
    r"report|training|backup|indexing|scan)"
)
"""Work that a service does after the call that began it."""


def _join(*patterns: str) -> str:
    """Return a pattern that matches where any of these does; only one alternative in ten is tried within words."""
    alternatives, depth = [""], 0
    for token in re.findall(r"\\.|\[\^?.[^][]*\]|.", "|".join(patterns), re.DOTALL):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            alternatives.append("")
        else:
            alternatives[-1] += token
    at_words = [part.removeprefix(r"\b") for part in alternatives if part.startswith(r"\b")]
    return "|".join([rf"\b(?:{'|'.join(at_words)})", *(part for part in alternatives if not part.startswith(r"\b"))])


_SURE = compile_late(
    _join(
        *(
            # an underscore before the word: `status_code: 503`
            rf"(?<![^\W_])(?:http|https|status|code|error|errno|response|returned|answered|replied|got|failed)\b"
            rf"[\W_]{{0,4}}(?:(?:status|code|error|http|response|with|of|is|was|an?|/\d(?:\.\d)?)\W{{1,4}}){{0,3}}{_CODE}\b"
            # `returned 500 rows` is no status code, nor is `1 failed, 500 passed`
            r"(?!\s*(?:items?|rows?|files?|bytes|lines?|ms|seconds?|passed|failed|skipped|tests?|records?|results?))",
            rf"\b{_CODE}\b\W{{1,3}}(?:service|server|internal|bad gateway|gateway|unavailable|too many|request time|"
            r"origin|client error|error|a timeout|overloaded|network)",
            rf"^\W{{0,40}}{_CODE}\W{{0,40}}$",
            r"\btim(?:ed|es|ing)[ -]?out\b",
            r"\b(?:deadline|time limit)\b.{0,20}\bexceeded\b|\bDEADLINE_EXCEEDED\b",
            r"\btoo many (?:\w+ )?(?:requests|connections|clients already)\b|\bconnection slots\b|\b5xx\b",
            r"\brate[ -]?limit(?:ed|ing|s)?\b|\bRESOURCE_EXHAUSTED\b",
            r"\b(?:request|call|query|usage)s?\b.{0,20}\blimit\b.{0,20}\b(?:reached|exceeded|hit)\b",
            r"\bthrottl(?:ed|ing)\b",
            r"\bquota\b.{0,40}\b(?:retry|try again|per (?:second|minute|hour|day)|wait)\b",
            r"\bservice (?:is )?(?:temporarily |currently )?unavailable\b",
            r"\b(?:internal server error|bad gateway|gateway time-?out)\b",
            rf"\b{_LINK}\b.{{0,60}}\b(?:refused|reset|aborted|dropped|disconnected|unreachable|broken|"
            r"closed (?:unexpectedly|without|by|before|while|during)|was closed|lost|terminated|unexpectedly)\b",
            r"\b(?:end|peer|server|host) closed (?:the )?(?:connection|socket)\b|\bclosed connection\b|"
            r"\blost connection\b|\bother side closed\b|\bstream (?:was )?(?:disconnected|reset)\b|"
            r"\bempty reply from server\b|\bEOF occurred in violation\b|\bTypeError: (?:fetch failed|Failed to fetch)",
            # the codes of gRPC, in words and in numbers
            r"\bcode ?[=:] ?(?:Unavailable|Resource_?Exhausted|Deadline_?Exceeded)\b|\btransport is closing\b|"
            r"\bgRPC (?:error|status|code)\D{0,10}\b(?:4|8|14)\b",
            r"\b(?:could|can|did|does)(?: ?not|n't) (?:connect\b|resolve host)|\bunable to (?:connect|reach)\b|"
            rf"\b(?:could|can|did|does)(?: ?not|n't) reach\b.{{0,30}}\b{_LINK}\b|"
            r"\bfailed to (?:connect|reach|establish)\b|\bno response (?:from|within)\b",
            r"\bno route to host\b|\bname resolution\b|\bgetaddrinfo\b|\bbroken pipe\b|\bconnection error\b",
            r"\bE(?:CONN(?:REFUSED|RESET|ABORTED)|TIMEDOUT|SOCKETTIMEDOUT|AI_AGAIN|NETUNREACH|HOSTUNREACH|PIPE)\b|"
            r"\blookup\b.{0,60}\bno such host\b|\b(?:UND_ERR|ERR)_(?:SOCKET|CONNECT)\w*",
            r"\bno answer within\b|\bdid not (?:answer|respond)\b|\bnot responding\b|\bstopped responding\b",
            r"\bdatabase is locked\b|\bdeadlock\b|\block wait timeout\b|\bcould not (?:get|acquire) (?:the )?lock\b|"
            r"\bcould not serialize\b|\bserialization failure\b|\bread[- ]only replica\b|\bleader changed\b",
            r"\b(?:database|cluster|redis|replica|broker)\b.{0,20}\bis (?:starting up|shutting down|loading|down|"
            r"in recovery)\b",
        )
    ),
    re.IGNORECASE | re.MULTILINE,
)
"""Phrases that indicate an outage regardless of the rest of the error."""
_LIKELY = compile_late(
    _join(
        *(
            r"\btemporar(?:y|ily)\b|\btransient(?:ly)?\b",
            r"\b(?:try|retry|back|wait)\b.{0,30}\b(?:later|moments?|minutes?|shortly|soon|in \d+|after \d+)\b",
            r"\b(?:limit|quota)\b.{0,30}\bresets? (?:at|in|on)\b|\bavailable (?:at|for) the moment\b|\bwarming up\b",
            r"\bretry[- ]after\b|\bcheck back\b|\bcurrently unable\b",
            # error codes: `overloaded_error`, `rate_limit_exceeded`, `circuit_breaking_exception`
            r"\b(?:[a-z]+_)?overloaded(?:_error)?\b|\brate_limit\w*|\bcapacity_exceeded\b|\btoo_many_requests\b|"
            r"\b(?:service|temporarily|server|backend)_(?:unavailable|busy|timeout|down)\b|"
            r"\b(?:request|connect|connection|read|gateway|upstream)_time_?out\b|"
            r"\bcircuit_breaking_\w+|\bes_rejected_execution_\w+",
            r"\b(?:high|heavy|peak) (?:demand|load|traffic)\b|\b(?:is|are) (?:currently )?experiencing\b|"
            r"\bservice (?:is )?degraded\b|\bdegraded service\b|\bmaintenance in progress\b",
            r"\bno (?:available )?workers\b|\bqueued (?:for )?too long\b|\btook too long\b|"
            r"\bexceeded the time\b|\b(?:execution|call|request|operation)\b.{0,20}\bexceeded \d+(?:\.\d+)? ?m?s",
            r"\b(?:request|call) rate\b.{0,20}\b(?:high|exceed\w*)|\breduce (?:your|the) (?:request )?rate\b|"
            r"\bpool (?:is )?exhausted\b|\bconnection (?:attempt )?failed\b",
            # a shell or a parser that misses a quote says the same of its input
            r"\bunexpected EOF\b(?! while (?:looking|parsing|scanning))|\A\W*(?:Read|Write)Error\b",
            r"\bplease (?:retry|try again)\b|\bon our (?:end|side)\b|\btechnical (?:difficult|problem|issue)|"
            r"\bat this time\b.{0,20}\Z|\bcircuit(?: breaker)?(?: is)? open\b|\bload shedding\b",
            r"\bno healthy upstream\b",
            r"\b(?:quota|rate|daily limit|usage cap)\b.{0,20}\b(?:exceeded|reached|hit|exhausted|used up)\b|"
            r"\b(?:hit|reached|exceeded|used up)\b.{0,25}\b(?:quota|calls|requests|rate)\b",
            r"\bsocket hang ?up\b|\bERR_(?:CONNECTION|NETWORK|TIMED|NAME)\w*|\bhas gone away\b|"
            r"\bmax(?:imum)? retries\b|"
            r"\bDNS (?:lookup|error|failure)|\b(?:SSL|TLS) handshake\b|"
            r"\bmodel\b.{0,40}\bis (?:still |currently )?loading\b",
            r"\bslow down\b|\boverload(?:ed)?\b|\bat capacity\b|\bover capacity\b|\bbackpressure\b",
            rf"\b{_LINK}\b.{{0,40}}\b(?:unavailable|down|offline|busy|unhealthy|unresponsive|restarting|starting up)\b",
            r"\b(?:system|site|website|cluster|database|engine)\b (?:is|are) (?:temporarily |currently )?"
            r"(?:unavailable|down|offline|overloaded)\b",
            r"\b(?:down|closed|offline) for maintenance\b|\bunder(?:going)? maintenance\b",
            r"\bmaintenance (?:mode|window)\b",
            r"\btime-?out\b|(?-i:\bUNAVAILABLE\b)|\boutage\b",
            # work that goes on: the same call may work later. `the proof is not finished` is no such work
            rf"\b{_WORK}\b.{{0,40}}\b(?:has|have|did)(?: not|n't) (?:yet )?(?:finish|complet)(?:ed|e)?\b",
            rf"\b{_WORK}\b.{{0,40}}\b(?:is|are) (?:already |currently |still )?(?:in progress|running|queued)\b",
            r"\b(?:not|n't) (?:yet ready|ready yet)\b|"
            r"\bstill (?:pending|running|processing|queued|in progress|being (?:processed|prepared|built|generated))\b",
            r"^\W*(?:status\W{1,4})?(?:pending|queued|in[ _-]progress|still processing)\W*$",
        )
    ),
    re.IGNORECASE,
)
"""Phrases that indicate an outage unless the error also says what was wrong with the call."""
_ARGUMENTS = compile_late(r"\bwith (?:kwargs|arguments|args) ?\{[^}]{0,1000}\}", re.IGNORECASE | re.DOTALL)
"""The arguments of the call, which LangChain repeats in its errors. They say nothing about the service."""
_LASTING = compile_late(
    _join(
        r"\b(?:permission|access) (?:is )?denied\b|\bforbidden\b|\bunauthori[sz]ed\b|"
        r"\bnot (?:allowed|permitted|authori[sz]ed)\b|"
        r"\bplease fix\b|\binput should\b|\binvalid\b|\bunknown\b|\bnot found\b|\bno such\b|\bdoes not exist\b|"
        r"\bunsupported\b|\bunrecognized\b|\b(?:authentication|login|password)\b|"
        r"\bmust\b|\bfirst\b|\bunexpected (?:argument|keyword)\b|\bmissing\b|\brequired\b|\bnot a valid\b|"
        r"\b40[0-5]\b|\b41[0-57]\b|\b422\b|"
        r"\b(?:Type|Value|Key|Assertion|Attribute|Name|Index|Syntax|Import|ModuleNotFound|Permission|FileNotFound)Error\b"
    ),
    re.IGNORECASE,
)
"""Phrases that blame the call itself, so that a retry would fail again."""


def tells_of_outage(text: str) -> bool:
    """Return whether the text of an error says that the service was temporarily unavailable."""
    if not text:
        return False
    most = TUNING.error_characters
    excerpt = text if len(text) <= 2 * most else f"{text[:most]}\n{text[-most:]}"
    excerpt = _ARGUMENTS.sub(" ", excerpt)
    if _SURE.search(excerpt) or _TYPE_IN_TEXT.search(excerpt):
        return True
    if _LASTING.search(excerpt) is not None:
        return False
    return _LIKELY.search(excerpt) is not None or is_foreign_outage(excerpt)


def is_outage(error: BaseException) -> bool:
    """Return whether an exception is an outage, judged by its type, its status code, or its message.

    The chain of causes is followed, so an outage wrapped in another exception is recognized too.
    """
    seen: set[int] = set()  # a chain of causes can be circular
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, TimeoutError | ConnectionError):
            return True
        code = _status_of(cause)
        if code is not None:  # a status code is more reliable than the name of the exception type
            return code in (408, 425, 429) or 500 <= code <= 599 or tells_of_outage(str(cause))
        # base classes, too: an application's own subclass may have any name
        if any(_TYPE.search(kind.__name__) for kind in type(cause).__mro__):
            return True
        cause = cause.__cause__
    return tells_of_outage(str(error))


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status code that an exception of a client library carries, or None."""
    holders: tuple[Any, ...] = (error, getattr(error, "response", None))
    for holder in holders:
        for name in ("status_code", "status", "code", "http_status"):
            value = getattr(holder, name, None)
            # `code` may also be an exit status or an errno, so only numbers in the range of HTTP count
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
                return value
    return None


def mark_outages(episode: Trajectory) -> Trajectory:
    """Relabel the failures of an episode that are outages as `Failure.UNAVAILABLE`."""
    # almost no episode has one, so do not copy its steps
    if not any(_was_outage(step) for step in episode.steps):
        return episode
    return replace(episode, steps=tuple(map(_relabel, episode.steps)))


def _was_outage(step: Step) -> bool:
    """Return whether a failed step reads like an outage."""
    diagnosis = step.diagnosis
    return diagnosis.failure in _JUDGED and tells_of_outage(diagnosis.evidence or step.post.feedback)


def _relabel(step: Step) -> Step:
    """Return the step, relabeled as unavailable if it was an outage."""
    if not _was_outage(step):
        return step
    return replace(step, diagnosis=replace(step.diagnosis, failure=Failure.UNAVAILABLE))
