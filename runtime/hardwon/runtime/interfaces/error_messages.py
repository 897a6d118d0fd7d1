"""Recognize a short English message that says that a call failed, by where its words stand in the sentence.

A title or an answer has the same words elsewhere: "Access denied" is a failure, "Access denied page design" is none.
"""

from hardwon.memory.patterns import compile_late


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TOKEN = compile_late(r"[A-Za-z0-9_]+(?:['’.][a-z]+)*|[^\w\s]")
_CLAUSE_END = frozenset(".!,:;()[]?")
_BEFORE_CLAUSE = frozenset([*".!,:;()[]", "but", "and", "because"])
_SUBJECTS = _split("""
    access account action address agent api app application argument auth authentication booking build call card
    certificate command compilation connection container credentials deadline deployment device download execution file
    function host input job key limit limits login navigation operation order page parameter password path payment
    permission process query quota rate refund retries request reservation response resource server service session
    signal socket ssl step task timeout token tool transaction update upload url use user validation verification
""")
_REFUSED = _split("""
    aborted crashed declined denied exceeded expired failed forbidden halted interrupted invalid killed limited locked
    malformed missing refused rejected revoked suspended terminated unauthorized unauthorised unavailable unreachable
    unsuccessful
""")
"""Predicates that mean failure after a word for a call, or alone."""
_LINKS = _split("- after as at because by due during for from in of on to waiting when while with")
_WRONG = _split("""
    duplicate illegal incorrect wrong insufficient invalid malformed missing unexpected unknown unrecognized
    unrecognised unsupported
""")
"""Beginnings of a complaint about the call."""
_CANNOT = frozenset(["cannot", "can't", "can’t", "couldn't", "couldn’t", "unable"])
_DETERMINERS = _split("a an the your is are")
_DEFINING = _split("is are was were of")
_UNABLE = frozenset(["can not", "could not", "failed to"])
_DOERS = _split(
    "i we you it sorry client connection host server service system tool user agent they which to there file"
)
_ASKING = _split("how what why when where whether which if that who guide tutorial")
_NOT = _split("not doesn't doesn’t don't don’t isn't isn’t wasn't aren't aren’t didn't nor")
_STATES = _split("""
    attached clickable interactable visible accessible accepted allowed apply authorized authorised belong connect
    defined enabled enough exist found implemented logged permitted possible match recognized recognised registered
    respond supported valid verified work
""")
_PHRASES = (
    "went wrong", "timed out", "encountered an error", "too many requests", "rate limit exceeded", "rate limited",
    "no permission", "you don't have access", "please log in", "already taken", "already in use", "no longer available",
    "no longer valid", "down for maintenance", "connection lost", "connection was lost", "lost connection",
    "please sign in", "must be logged in", "must log in", "please provide", "please specify", "please try again",
    "no such ", "no route to host", "no space left", "name resolution", "deadlock detected", "syntax error",
    "unknown authority", "not a directory", "not a function", "service not known", "user rejected",
    "rejected by the user", "interrupted by", "want to proceed", "input should be", "not be empty", "out of range",
    "out of memory", "out of bounds", "division by zero", "has no attribute", "invalid literal", "not callable",
    "not iterable", "not subscriptable", "positional argument", "unexpected keyword", "depth exceeded",
    ": connection refused", ": permission denied", ": operation not permitted", "file exists", ": is a directory",
    "with this id", "with that id", "tool named", "not recognized as",
)  # fmt: skip
"""Phrases of the messages of exceptions and services, wherever they stand."""
_SYSTEM_CODE = compile_late(
    r"\bE(?:CONN\w+|NOENT|ACCES|PERM|EXIST|TIMEDOUT|PIPE|NOTFOUND|AI_\w+|HOSTUNREACH|ISDIR|NOTDIR|NOSPC|ADDR\w+|BUSY)\b|"
    r"\bERR_[A-Z]\w+|\((?:[A-Z]\w*(?:Error|Exception))\)\s*\Z|\A[❌✗✘⛔🚫]"
)
_STATEMENT = compile_late(
    r"\brequires? (?:\w+[- ]){0,2}(?:approval|authenti\w+|authori\w+|confirmation|login|permissions?|verification)\b|"
    r"\b(?:lacks?|(?:do|does|did)(?: not|n['’]t) have|ha(?:s|ve) no) (?:\w+ ){0,4}"
    r"(?:permissions?|privileges?|rights)\b|"
    r"\b(?:api|call|daily|hourly|message|monthly|plan|rate|request|token|usage) limit (?:has been |was |is )?reached\b|"
    r"\Abad (?:api key|credentials|password|request|token|username)\b|"
    r"\A(?:(?:the|this|your) )?(?:access|action|call|content|message|request)? ?(?:was |is |has been )?"
    r"blocked(?: by\b|\W*\Z)"
)
"""Statements about the right or the state that a call lacks, in lower case."""
_BETWEEN = compile_late(r"\b(not|\w+n['’]t) (?:been|currently|yet)\b")
"""Words between a negation and what did not happen."""
_CLEARED = compile_late(
    r"\b(?:confirmed|fixed|resolved|corrected|how to|finished|none|(?<!not )success(?:ful|fully)?)\b|"
    r"\b(?:no|0|nothing) (?:\w+ )?"
    r"(?:errors?|failures?|results?|matches|issues|problems|changes|messages|conflicts|found)\b"
)


def is_failure_message(sentence: str) -> bool:
    """Return whether an English sentence says that a call failed."""
    tokens, text = _TOKEN.findall(_BETWEEN.sub(r"\1", sentence)), sentence.lower()
    is_failure = (
        _SYSTEM_CODE.search(sentence) is not None
        or (
            (any(phrase in text for phrase in _PHRASES) or _STATEMENT.search(text) is not None)
            and _ASKING.isdisjoint(map(str.lower, tokens))
        )
        or any(_is_verdict(tokens, n) for n, token in enumerate(map(str.lower, tokens)) if token in _VERDICTS)
    )
    return is_failure and _CLEARED.search(text) is None


def _is_verdict(cased: list[str], n: int) -> bool:
    """Return whether the word at a place is the verdict of the first clause; the name of a program may precede it."""
    tokens = [token.lower() for token in cased]
    word, after = tokens[n], tokens[n + 1] if n + 1 < len(tokens) else "."
    start = max((at for at in range(n) if tokens[at] in _BEFORE_CLAUSE), default=-1) + 1
    before, has_subject = tokens[start:n], not _SUBJECTS.isdisjoint(tokens[start:n])
    is_title = n + 1 < len(cased) and cased[n + 1] != after and not cased[n + 1].isupper()
    if len(before) > 9 or not _ASKING.isdisjoint(tokens[:n]) or sum(len(token) > 1 for token in tokens[:start]) > 2:
        return False
    is_last = after in _CLAUSE_END
    if word == "required":
        return is_last and (n < 3 or has_subject)
    if word in _NOT:
        follows = tokens[n + 2] if n + 2 < len(tokens) else "."
        ends = follows in _CLAUSE_END or follows in _LINKS or after in ("enough", "belong")
        return ends and (after in _STATES or (after == "available" and has_subject))
    if (word in _CANNOT and (word != "unable" or after == "to")) or f"{word} {after}" in _UNABLE:
        # Who says "I can't" is a person; a tool says "I couldn't".
        return not (is_last or is_title or ("i" in before and word in ("can't", "cannot"))) and (
            not before or "be" in tokens[n + 1 : n + 4] or not _DOERS.isdisjoint(before)
        )
    if word in _WRONG and _DETERMINERS.issuperset(before):
        is_part = word != "missing" or len(tokens) < 5 or after in _SUBJECTS or after == "required"
        return is_part and not is_title and _DEFINING.isdisjoint(tokens[n + 1 :]) and not tokens[-1].endswith("ing")
    is_refused = has_subject or not before or (word == "failed" and len(before) < 5 and not before[-1].isdigit())
    return word in _REFUSED and is_refused and (is_last or after in _LINKS)


_VERDICTS = _REFUSED | _WRONG | _CANNOT | _NOT | {"can", "could", "failed", "required"}
