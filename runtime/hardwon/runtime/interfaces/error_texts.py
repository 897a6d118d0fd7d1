"""Recognize a text that reports a failure, by how it begins.

Tools of logs without an error flag, and tools that catch their own errors, say in words that a call failed. The words
have to stand at the beginning: a document about errors, a log and a list of search results have them elsewhere.
"""

import re
from functools import lru_cache

from hardwon.memory.patterns import compile_late

from .error_languages import is_foreign_failure
from .error_messages import is_failure_message
from .tuning import TUNING

_NOUN = (
    r"(?:api|application|argument|assertion|auth\w*|build|client|compil\w+|connection|database|db|execution|fatal|file|"
    r"graphql|http|import|input|internal(?: server)?|io|json|lookup|mcp|network|parser?|parsing|payment|permission|"
    r"protocol|query|rate limit|request|rpc|runtime|schema|script|server|service|shell|sql|syntax|system|timeout|tool|"
    r"unexpected|unhandled|unknown|usage|user|validation)"
)
_ERROR = r"(?:error|exception|fehler|erreur|errore|erro|błąd|hata|ошибка|错误|錯誤|エラー|오류)"
_ACT = (
    r"(?:access|add|book|build|call|cancel|chang|check|compil|connect|convert|creat|decod|delet|download|encod|evaluat|"
    r"execut|fetch|find|generat|gett|install|invok|list|load|mak|open|pars|perform|post|process|query|read|receiv|"
    r"remov|retriev|runn|sav|search|send|sett|start|stopp|submitt|updat|upload|us|validat|writ)ing"
)
_REASON = (
    r"(?:bad request|client error|conflict|forbidden|gateway time-?out|bad gateway|internal server|method not allowed|"
    r"not found|payment required|server error|service unavailable|too many requests|unauthorized|"
    r"(?:payload|request entity) too large|unprocessable(?: entity| content)?)"
)
_BEGINNING = compile_late(
    r"\W{0,12}(?:"
    + "|".join(
        (
            r"traceback \(most recent call last\)",
            r"(?:tool_use_)?error>",
            rf"(?:{_NOUN} )?{_ERROR}(?:\W{{0,3}}[:：!]|\W{{0,3}}\d+\b(?!\.\d)|\W*(?:\n|\Z)|[\])>]|\s+[-–—]\s|\s*\[\w|"
            rf" [a-z]+\d+:)",
            rf"error (?:\w+ )?(?:{_ACT}|while|when|during|occurred|code\W{{0,3}}\d)\b(?! guide| in \w+\W*\Z)",
            r"err: |error \(code\b|validation error for (?:field|input|argument|parameter|property)\b",
            r"error (?:at line|from (?:tool|server)|in (?:line|tool|function|call|cell|the )|in \S+\()",
            rf"(?:an?|there was an?|encountered an?|got an?|unhandled|uncaught) (?:[\w-]+ ){{0,2}}{_ERROR}"
            r"(?:\s*[:：]| (?:has )?(?:occurred|while|when|during|from)\b|[.!]?\s*\Z)",
            # the names of classes, as tracebacks and `repr` have them
            r"(?:E +|caused by: )?(?-i:(?:[a-zA-Z_]\w*\.)*[A-Z]\w*"
            r"(?:Error|Exception|Failure|Timeout|Expired|Interrupt|Violation)\b\s*(?:[:(]|\Z|at [\w.]+\())",
            r"http(?:/\d(?:\.\d)?)?(?: status)?(?: code)?(?: error)?\W{0,3}[45]\d\d\b(?! (?:is|means?|are|stands?)\b)",
            r"(?:status|response code|status code|error code)\W{1,3}[45]\d\d\b",
            r"(?:get|post|put|patch|delete|head) \S+\W+[45]\d\d\b",
            rf"[45]\d\d\b\W{{1,3}}(?:{_REASON}|gone|not acceptable|precondition failed|locked)\b",
            rf"(?:{_NOUN}|path|item|record) not found\s*[:.!,]|(?:{_NOUN} )?fail(?:ed|"
            rf"ure)?(?:\W{{0,3}}[:：!]|\W*(?:\n|\Z))|failed (?:to|with|because|due) \w",
            r"(?:permission|access) (?:is |was )?denied(?:\W*(?:\Z|\n)|[.:,;(]| (?:to|for|by|on|when)\b)",
            r"(?:unauthori[sz]ed|forbidden)\s*(?:[:.!,(]|\Z)",
            r"timeout\W*\Z|aborting\s*(?:[:.!,]|\Z)",
            rf"not found\s*(?:[:.!,]|\Z)|no such \w+|(?:{_REASON})\b(?=\W*(?:\n|\Z|:))",
            r"(?:unknown|unrecognized|unsupported) (?:command|tool|function|method|option|argument|parameter|action)\b",
            # programs that begin with their name or their place
            r"(?:(?!subject|title|re|name)[\w./-]{1,60}: |php )(?:fatal )?error(?: response from daemon)?: |"
            r"(?-i:[\w./-]{1,80}[:(]\d[\d,:]*\)?:? error(?: [A-Z]+\d+)?: )|failed \S+::|\d+ validation errors? for \w|"
            r"curl: \(\d+\) |thread '[^']{0,60}' panicked at|exception in thread ",
            r"(?:uncaught|unhandled)(?: exception[.:])? (?-i:(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception)):",
            r"(?:the )?(?:server|api|request|host)?\W?(?:returned|responded with|got|received)(?: an?)?"
            r"(?: http)?(?: status)?(?: code)? [45]\d\d\b",
            r"(?:fatal|panic): |make\S*: \*\*\*|npm err(?:!|or )|fail\t|"
            r"segmentation fault|connection (?:refused|reset|closed)",
            r"(?-i:error [A-Z][a-z'’]+ )|cmake error\b|(?:auto-merging \S+\n)*conflict \([\w/]+\): ",
            r"[\w-]+: exiting with failure|(?:\S{0,40}/)?ld: (?:cannot|can't|undefined|error|library)",
            r"! \w.{0,200}\n(?:.{0,200}\n){0,3}?l\.\d+ |[45]\d\d[ -][45]\.\d{1,3}\.\d{1,3} |rsync error: ",
            r"go: \S+: (?:cannot|invalid|module|no |reading|unknown)|\S{1,120}:\d+\n[ \t]+throw ",
            r"(?:# \S+\n)?\S{1,80}\.go:\d+:\d+: (?:cannot|declared|invalid|missing|not enough|syntax error|too many|"
            r"undefined|\S+ (?:declared|imported|redeclared))",
            r"(?-i:[A-Z][a-z]\w*(?:Denied|Exceeded|Failed|NotFound|Unavailable)): |error response from daemon: ",
            r"(?-i:E: [A-Z]|(?:ERROR|FAILED) \S+ - \w)|msg \d+, level 1[1-9]\b|bus error\b",
            r"undefined(?:: \w| reference to )|package \S+ is not in std|failures:\n",
            r"=+ (?:\d+ \w+, ){0,6}\d+ (?:failed|errors?)\b|sed: -e expression #",
            r"(?!info|name|note|re|result|state|status|subject|title|warning)(?-i:[a-z][\w.+-]{0,20}): "
            r"(?:\S{1,60}: )?(?:error (?:processing|\()|illegal|invalid (?:argument|choice|option)|missing|must be|"
            r"unrecognized|unterminated)\b",
            r"usage: .{0,200}(?:\n.{0,200}){0,8}?\n[\w./-]{1,60}: error: ",
        )
    )
    + ")",
    re.IGNORECASE,
)
_ENDS_IN_TRACE = compile_late(
    r"^(?:traceback \(most recent call last\):|[ \t]+(?:at |file \")\S.{0,200}|[ \t]+throw \w.{0,80}|"
    r"[^\w\n]*\[rejected\].{0,200})\n(?:.*\n){0,40}?"
    r"(?:[a-z_][\w.]*(?:error|exception|interrupt|exit)\b|error: ).{0,300}\s*\Z",
    re.IGNORECASE | re.MULTILINE,
)
"""The end of the output of a program that crashed."""
_MARKUP = compile_late(
    r"(?:<[?!][^>]{0,200}>\s*)*<(?:(?:\w+:)?(?:error|fault|exception)\b|(?:html|head)\b[^>]{0,200}>\s*(?:<[^>]{0,200}>\s*)*"
    r"<title>\W*"
    r"(?:[45]\d\d|error)\b|\w+>\s*<(?:status|result)>\s*(?:error|fail))",
    re.IGNORECASE,
)
"""An error as XML, or the page of a server about one."""
_SENTENCE = compile_late(r"(?<=[.!?])\s+|(?<=[。！？])|\n")
_INTERJECTION = compile_late(r"\W*(?:sorry|oops|oh no|whoops|unfortunately|leider)?\W*\Z", re.IGNORECASE)
_FINDING = compile_late(
    r"\W*(?!http|status|exit|return)(?:\w+|[a-z][\w ]{0,40}s)[\"']?[:=] *(?:(?:0|none|null|nil|n/a)|"
    r"(?<!error: )(?<!exception: )(?<!code: )\d[\d.,]*"
    r"(?: ?(?:%|[a-z]{1,3}\b))?)(?=\W*(?:\Z|\n|[,;]))",
    re.IGNORECASE,
)
"""A count or an empty field, such as `failed: 0, passed: 12`."""
_CODE = compile_late(r"[A-Za-z]+(?:_[A-Za-z]+){1,5}")
_FIELDS = compile_late(r"\s*(?:\w+\()?(?:\w+=|(?:success|ok|succeeded|status|state): )", re.IGNORECASE)
"""Beginning of an object that was printed, such as `Answer(success=False, error='no such order')`."""
_FIELD = compile_late(
    r"\b(?:(?:(?P<ok>(?:is_)?(?:success(?:ful)?|ok)|succeeded)|is_?error|failed|error(?:_message)?)(?:=|: )"
    r"(?P<value>True|False|(?<==)['\"]\S)|(?:status|state)(?:=|: )['\"]?(?:error|fail(?:ed|ure)?)\b(?! \w+ ?[:=]))",
    re.IGNORECASE,
)
_LEVEL = compile_late(
    r"^\W{0,3}(?:[\d:.,TZ/+-]+ )*\W?(?:trace|debug|info|notice|warn(?:ing)?|error|fatal)\b", re.I | re.M
)
"""A line of a log."""
_WARNED = compile_late(
    r"(?:(?:hint|notice|warning): .{0,300}\n(?:[ \t|].{0,300}\n|\n){0,20}){1,20}(?:error|fatal)(?:\[\w{1,10}\])?: ",
    re.IGNORECASE,
)
"""The end of a program after its warnings."""
_MATCH = compile_late(r"[\w./-]{1,80}\.\w{1,6}:\d+[:-](?!(?:\d+:)? ?(?:fatal )?error\b)", re.IGNORECASE)
"""A line that was searched for, with its place."""
_IS_ERROR = compile_late(r"(?:error|fatal|(?-i:info))\Z", re.IGNORECASE)
"""The level of a program that goes on with its complaint, with neither a time nor brackets as in a log."""
_SUMMARY = compile_late(
    r"^\W{0,4}(?:[1-9]\d* problems? \([1-9]\d* errors?\b|[1-9]\d* errors?(?:,| and) \d+ warnings?\b|"
    r"found [1-9]\d* errors?(?: in \d+ files?\b|\.?$)|tests?: +[1-9]\d* failed\b|[1-9]\d* (?:failed|failing), \d+ pass|"
    r"(?:\[error\]|\[info\])? ?build fail(?:ed|ure)\W*$|\S{1,80} +: ok=\d.{1,60}\b(?:failed|unreachable)=[1-9])",
    re.IGNORECASE | re.MULTILINE,
)
"""The last lines of a check that found errors, or of a build or a run of many steps that failed."""
_TITLE = compile_late(
    r"\W{0,3}(?:(?:[Bb]ug|[Cc]ase|[Ee]pic|[Ii]ncident|[Ii]ssue|[Ss]tory|[Tt]ask|[Tt]icket|PR|MR) #?[\w-]{1,20}|"
    r"#\d{1,9}|[A-Z][A-Z0-9]{1,9}-\d{1,9})[:)]? (?:[-–—] )?[A-Z]\w* \w"
)
"""A record with its number and its title, which is data."""
_EXIT_CODE = compile_late(
    r"^\W{0,3}(?:(?:(?:the )?(?:process|command|container|job|script|program)|\S{1,40}:) )?"
    r"(?:(?:exited|finished|failed|ended|"
    r"returned) (?:with )?)?"
    r"(?:(?:a )?non-?zero )?(?:(?:exit|return)[ _]?(?:code|status)?|rc|(?<=with )(?:code|status)|(?<=zero )(?:code|"
    r"status)|exited(?: with)? (?:code|status))"
    r"(?:[:=>]\s*|\s+)(-?\d+)(?:</\w+>| \([^()\n]{1,40}\))?\W*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line of its own with an exit code, as agents put it above or below the output of a command."""


def reports_failure(text: str) -> bool | None:
    """Return whether a text says by its words that a call failed; None if nothing in it says so or the opposite.

    The exit code of a command outranks the words of its output, so a code of 0 is the one case of False.
    """
    head = text[: TUNING.error_head].lstrip("\ufeff \t\r\n")
    if _CODE.fullmatch(text):  # a code such as PERMISSION_DENIED
        head = text = text.replace("_", " ")
    tail = text[-TUNING.error_head :]
    is_block = "\n" in text  # the patterns of several lines are not tried on one line
    code = _EXIT_CODE.search(head) or (_EXIT_CODE.search(tail) if len(tail) < len(text) else None)
    if code is not None:
        return int(code[1]) != 0
    if _FIELDS.match(head) and (field := _FIELD.search(text[: 4 * TUNING.error_head])) is not None:
        return (field["ok"] is None) == (str(field["value"]).lower() != "false")
    if _WARNED.match(head) is not None or _SUMMARY.search(tail) is not None:
        return True
    levels = _LEVEL.findall(text[: 4 * TUNING.error_head]) if is_block else ()
    if len(levels) > 1 and not all(_IS_ERROR.match(level.strip()) for level in levels):
        return None
    if _FINDING.match(head) is not None:
        return None
    is_trace = is_block and _ENDS_IN_TRACE.search(text[-4 * TUNING.error_head :]) is not None
    if is_trace or _BEGINNING.match(head) is not None:
        return True
    if head.startswith("<"):
        return True if _MARKUP.match(head) else None
    if (
        len(text) > TUNING.max_message
        or _TITLE.match(head) is not None
        or text.strip().count("\n") > 2
        or _MATCH.match(head) is not None
    ):
        return None
    return _is_message(text) or None


@lru_cache(1024)
def _is_message(text: str) -> bool:
    """Return whether the first sentence of a short text says that a call failed."""
    sentence = next((part for part in _SENTENCE.split(text.strip()) if not _INTERJECTION.match(part)), "")
    return is_failure_message(sentence) or is_foreign_failure(sentence)
