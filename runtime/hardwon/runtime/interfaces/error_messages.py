"""Recognize a short English message that says that a call failed, by where its words stand in the sentence.

A title or an answer has the same words elsewhere: "Access denied" is a failure, "Access denied page design" is none.
"""

from collections.abc import Sequence

from hardwon.memory.patterns import compile_late, read_table


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS = read_table(__file__, "error_messages.toml")["words"]
_TOKEN = compile_late(r"[A-Za-z0-9_]+(?:['’.][a-z]+)*|[^\w\s]")
_CLAUSE_END = frozenset(".!,:;()[]?")
_BEFORE_CLAUSE = frozenset([*".!,:;()[]", "but", "and", "because"])
_SUBJECTS = _split(" ".join(_WORDS["subjects"]))
_REFUSED = _split(" ".join(_WORDS["refused"]))
_LINKS = _split("- after as at because by due during for from in of on to waiting when while with")
_WRONG = _split(" ".join(_WORDS["wrong"]))
_CANNOT = frozenset(["cannot", "can't", "can’t", "couldn't", "couldn’t", "unable"])
_DETERMINERS = _split("a an the your is are")
_DEFINING = _split("is are was were of")
_UNABLE = frozenset(["can not", "could not", "failed to"])
_DOERS = _split(
    "i we you it sorry client connection host server service system tool user agent they which to there file"
)
_ASKING = _split("how what why when where whether which if that who guide tutorial")
_NOT = _split("not doesn't doesn’t don't don’t isn't isn’t wasn't aren't aren’t didn't nor")
_STATES = _split(" ".join(_WORDS["states"]))
_PHRASES = tuple(_WORDS["phrases"])
_SYSTEM_CODE = compile_late(
    r"\bE(?:CONN\w+|NOENT|ACCES|PERM|EXIST|TIMEDOUT|PIPE|NOTFOUND|AI_\w+|HOSTUNREACH|ISDIR|NOTDIR|NOSPC|ADDR\w+|BUSY)\b|"
    r"\bERR_[A-Z]\w+|\((?:[A-Z]\w*(?:Error|Exception))\)\s*\Z|\A[❌✗✘⛔🚫]"
)
_STATEMENT = compile_late(
    r"\brequires? (?:\w+[- ]){0,2}(?:approval|authenti\w+|authori\w+|confirmation|login|permissions?|verification)\b|"
    r"\b(?:lacks?|(?:do|does|did)(?: not|n['’]t) have|ha(?:s|ve) no) (?:\w+ ){0,4}"
    r"(?:permissions?|privileges?|rights)\b|"
    r"\b(?:api|call|daily|hourly|message|monthly|plan|rate|request|token|usage) limit (?:has been |was |is )?reached\b|"
    r"\Abad (?:api key|credentials|password|request|token|username)\b|: not found\W*\Z|"
    r"\bis not an? \w+ command\b|\Aservice \S+ is not running\b|"
    r"\bconnection to \S.{0,80} (?:was |has been )?(?:closed|lost|refused|reset)\b|"
    r"\A(?:(?:the|this|your) )?(?:access|action|call|content|message|request)? ?(?:was |is |has been )?"
    r"blocked(?: by\b|\W*\Z)"
)
"""Statements about the right or the state that a call lacks, in lower case."""
_BETWEEN = compile_late(r"\b(not|\w+n['’]t) (?:been|currently|yet)\b")
"""Words between a negation and what did not happen."""
_NAME = compile_late(r"(?<![\w.])[\w.]{1,60}/[\w.]{1,60}-[\w.-]{1,60}")
"""The name of an object, such as `job.batch/failed-cleanup`."""
_CLEARED = compile_late(
    r"\b(?:confirmed|fixed|resolved|corrected|how to|finished|none|skipping)\b|"
    r"\b(?<!not )(?:granted|success(?:ful|fully)?)\b|"
    r"\b(?:error|fail|invalid|missing|reject|skip)\w*(?: \w+)?\s*[:=]\s*0\b|"
    r"\b(?:cleaned|deleted|dropped|ignored|removed|skipped)\W{0,3}\d|"
    r"\b(?:according to|(?:says|said|writes|wrote) the)\b|"
    r"\b(?:caller|client|customer|guest|patient|user)s? (?:claim|complain|report|said|say|wrote|write)"
    r"(?:s|ed)?\b|"
    r"\b(?:no|0|nothing) (?:\w+ )?"
    r"(?:errors?|failures?|results?|matches|issues|problems|changes|messages|conflicts|found)\b"
)


def is_failure_message(sentence: str) -> bool:
    """Return whether an English sentence says that a call failed."""
    text = sentence.lower()
    cased = _BETWEEN.sub(r"\1", sentence) if "t " in text else sentence
    tokens = _TOKEN.findall(_NAME.sub("it", cased) if "/" in cased else cased)
    words = list(map(str.lower, tokens))
    is_failure = (
        _SYSTEM_CODE.search(sentence) is not None
        or (
            (any(phrase in text for phrase in _PHRASES) or _STATEMENT.search(text) is not None)
            and _ASKING.isdisjoint(words)
        )
        or (
            not _VERDICTS.isdisjoint(words)
            and any(_is_verdict(tokens, words, n) for n, word in enumerate(words) if word in _VERDICTS)
        )
    )
    return is_failure and _CLEARED.search(text) is None


def _is_verdict(cased: Sequence[str], tokens: Sequence[str], n: int) -> bool:
    """Return whether the word at a place is the verdict of the first clause; the name of a program may precede it."""
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
