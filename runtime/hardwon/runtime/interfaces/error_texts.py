"""Recognize a text that reports a failure, by how it begins.

Tools of logs without an error flag, and tools that catch their own errors, say in words that a call failed. The words
have to stand at the beginning: a document about errors, a log and a list of search results have them elsewhere.
"""

import re

from .error_languages import is_foreign_failure

_HEAD = 400
"""Number of characters at the beginning of a text that are read, and at the end for an exit code."""
_SHORT = 300
"""Largest number of characters of an answer that is a mere message; longer texts may begin with any words."""
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
_WORK = (
    r"(?:action|api call|authentication|booking|build|call|command|compilation|connection|deployment|download|"
    r"execution|function|job|login|operation|payment|query|refund|request|task|tool(?: call)?|transaction|update|"
    r"upload|validation|verification)"
)
_ENDED = r"(?:failed|was (?:denied|rejected|refused|aborted)|(?:has )?timed out|not (?:allowed|permitted|authorized))"
_REASON = (
    r"(?:bad request|client error|conflict|forbidden|gateway time|bad gateway|internal server|method not allowed|"
    r"not found|payment required|server error|service unavailable|too many requests|unauthorized|unprocessable)"
)
_BEGINNING = re.compile(
    r"\W{0,12}(?:"
    + "|".join(
        (
            r"traceback \(most recent call last\)",
            r"(?:tool_use_)?error>",
            rf"(?:{_NOUN} )?{_ERROR}(?:\W{{0,3}}[:：!]|\W{{0,3}}\d|\W*(?:\n|\Z)|[\])>]|\s+[-–—]\s|\s*\[\w|"
            rf" [a-z]+\d+:)",
            rf"error (?:\w+ )?(?:{_ACT}|while|when|during|occurred|code\W{{0,3}}\d)\b(?! guide| in \w+\W*\Z)",
            r"error (?:at line|from (?:tool|server)|in (?:line|tool|function|call|cell|the )|in \S+\()",
            rf"(?:an?|there was an?|encountered an?|got an?|unhandled|uncaught) (?:[\w-]+ ){{0,2}}{_ERROR}"
            r"(?:\s*[:：]| (?:has )?(?:occurred|while|when|during|from)\b|[.!]?\s*\Z)",
            # the names of classes, as tracebacks and `repr` have them
            r"(?-i:(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Timeout|Expired|Interrupt)\b\s*(?:[:(]|\Z))",
            r"http(?:/\d(?:\.\d)?)?(?: status)?(?: code)?(?: error)?\W{0,3}[45]\d\d\b(?! (?:is|means?|are|stands?)\b)",
            r"status(?: code)?\W{1,3}[45]\d\d\b",
            rf"[45]\d\d\b\W{{1,3}}(?:{_REASON}|gone|not acceptable|precondition failed|locked)\b",
            rf"(?:{_NOUN}|path|item|record) not found\s*[:.!,]|(?:{_NOUN} |{_WORK} )?fail(?:ed|"
            rf"ure)?(?:\W{{0,3}}[:：!]|\W*(?:\n|\Z))|failed (?:to|with|because|due) \w",
            rf"(?:the |your )?{_WORK} {_ENDED}\b",
            r"(?:permission|access) (?:is |was )?denied\b(?! errors?\b)|(?:unauthori[sz]ed|forbidden)\s*(?:[:.!,(]|\Z)",
            rf"not found\s*(?:[:.!,]|\Z)|no such \w+|(?:{_REASON})\b(?=\W*(?:\n|\Z|:))",
            r"(?:unknown|unrecognized|unsupported) (?:command|tool|function|method|option|argument|parameter|action)\b",
            # programs that begin with their name or their place
            r"[\w./-]{1,60}: (?:fatal )?error: |curl: \(\d+\) |thread '[^']{0,60}' panicked at|exception in thread ",
            r"(?:uncaught|unhandled) (?-i:(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception)):",
            r"(?:the )?(?:server|api|request|host)?\W?(?:returned|responded with|got|received)(?: an?)?"
            r"(?: http)?(?: status)?(?: code)? [45]\d\d\b",
            r"(?:fatal|panic): |make\S*: \*\*\*|npm err!|segmentation fault|connection (?:refused|reset|closed)",
        )
    )
    + ")",
    re.IGNORECASE,
)
_SHORT_BEGINNING = re.compile(
    r"\W{0,12}(?:sorry, (?:but )?(?:i )?)?(?:can ?not|can't|could not|couldn't|unable to|invalid|illegal|missing|"
    r"not (?:allowed|permitted|authori[sz]ed|implemented|supported|enough)|(?:request )?timed out|"
    r"timeout(?! (?:is|set|of)\b)|"
    r"rejected|refused|denied|aborted|(?:the )?element (?:is )?not (?:attached|clickable|found|interactable|visible))\b"
    r"(?! \w+ing\b)",
    re.IGNORECASE,
)
_SHORT_END = re.compile(
    r"\A(?:\S+ ){0,3}?not found: \S+\s*\Z|\A(?:\S+ ){0,5}?(?:not found|no such (?:file or directory|\w+)|"
    r"(?:permission|access) denied|timed out|"
    r"does not exist|(?:quota|limit) exceeded|insufficient \w+|(?:can ?not|could not) be \w+|"
    r"not (?:allowed|permitted|authori[sz]ed|verified|supported|a \w+ command)(?: (?:to|for|in|by) .{1,60})?|"
    r"(?:authentication|authori[sz]ation|verification|confirmation|approval|login) (?:is )?required)[.!]?\s*\Z|"
    r"\A[^\n]{1,200}: (?:no such file or directory|permission denied|connection \w+|(?:command )?not found(?:: \S+)?|"
    r"is a directory|not a directory|operation not permitted|no space left on device)\s*\Z|\A(?:killed|"
    r"terminated)\W*\Z|"
    r"\Ai was unable to \w+",
    re.IGNORECASE,
)
_FINDING = re.compile(
    r"\W*(?!http|status|exit|return)(?:\w+|[a-z][\w ]{0,40}s)[\"']?[:=] *(?:(?:0|none|null|nil|n/a)|"
    r"(?<!error: )(?<!exception: )(?<!code: )\d[\d.,]*"
    r"(?: ?(?:%|[a-z]{1,3}\b))?)(?=\W*(?:\Z|\n|[,;]))",
    re.IGNORECASE,
)
"""A count or an empty field, such as `failed: 0, passed: 12`."""
_CODE = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+){1,5}")
_FIELDS = re.compile(r"\s*(?:\w+\()?\w+=")
"""Beginning of an object that was printed, such as `Answer(success=False, error='no such order')`."""
_FIELD = re.compile(
    r"\b(?:(?P<ok>(?:is_)?(?:success(?:ful)?|ok)|succeeded)|is_?error|failed|error(?:_message)?)="
    r"(?P<value>True|False|['\"]\S)",
    re.IGNORECASE,
)
_LEVEL = re.compile(
    r"^\W{0,3}(?:[\d:.,TZ/+-]+ )*\W?(?:trace|debug|info|notice|warn(?:ing)?|error|fatal)\b", re.I | re.M
)
"""A line of a log."""
_EXIT_CODE = re.compile(
    r"^\W{0,3}(?:(?:the )?(?:process|command|script|program) )?(?:(?:exited|finished|failed|ended|"
    r"returned) (?:with )?)?"
    r"(?:(?:a )?non-?zero )?(?:(?:exit|return)[ _]?(?:code|status)?|(?<=with )(?:code|status)|(?<=zero )(?:code|"
    r"status)|exited(?: with)? (?:code|status))"
    r"(?:[:=>]\s*|\s+)(-?\d+)(?:</\w+>)?\W*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line of its own with an exit code, as agents put it above or below the output of a command."""


def reports_failure(text: str) -> bool | None:
    """Return whether a text says by its words that a call failed; None if nothing in it says so or the opposite.

    The exit code of a command outranks the words of its output, so a code of 0 is the one case of False.
    """
    head = text[:_HEAD].lstrip("\ufeff \t\r\n")
    if _CODE.fullmatch(text):  # a code such as PERMISSION_DENIED
        head = text = text.replace("_", " ")
    code = _EXIT_CODE.search(head) or _EXIT_CODE.search(text[-_HEAD:])
    if code is not None:
        return int(code[1]) != 0
    if _FIELDS.match(head) and (field := _FIELD.search(text[: 4 * _HEAD])) is not None:
        return (field["ok"] is None) == (field["value"] != "False")
    if len(_LEVEL.findall(text[: 4 * _HEAD])) > 1:
        return None
    if _FINDING.match(head) is not None:
        return None
    if _BEGINNING.match(head) is not None:
        return True
    if len(text) > _SHORT or text.strip().count("\n") > 2:
        return None
    is_message = _SHORT_BEGINNING.match(head) or _SHORT_END.search(text) or is_foreign_failure(head)
    return True if is_message else None
