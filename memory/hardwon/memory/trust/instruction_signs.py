"""Prefilter for the patterns of `instructions`: words that a text must contain for a pattern to match.

Most recorded text contains none of these words, and a pattern takes a hundred times as long as a set lookup. A sign is
a list of groups; a text has the sign if it contains one word of each group. `word` must stand alone between characters
that are not ASCII letters; `part*` may occur anywhere, also within a word.

If a text has no sign of a pattern, the pattern cannot match; the opposite does not hold. A sign of a part of a text is
also a sign of the whole text, so several texts can be tested at once by joining them.
"""

import re
from typing import NamedTuple

_DO = (
    "call invoke execute run use send transfer forward wire email mail refund pay approve grant delete reveal disclose "
    "share obey reply respond answer choose select recommend comply follow record output print"
)
_RULES = (
    "instruction* rule* prompt* guideline* guidance direction* orders policies policy guardrail* safeguard* anweisung* "
    "instruc* consigne* istruzion*"
)
_MODEL = (
    "ai a.i.* assistant assistants agent agents llm chat chatbot chatbots language model models copilot claude gpt "
    "chats bot bots"
)
# whoever adds a form to `instructions` must add its sign here, because a pattern without a sign never runs
_LISTED: dict[str, list[tuple[str, ...]]] = {
    "an order to forget orders": [
        ("ignor* disregard* forget override bypass overrule vergiss oublie* olvid*", _RULES),
        ("忽略* 无视* 無視* 忘记*",),
        ("指示* 命令* 指令*", "無視* 忘れ*"),
        ("지시* 명령*", "무시*"),
        ("игнорир*",),
        ("تجاهل* انس*",),
        ("निर्देशों*",),
        (
            "negeer vergeet zignoruj yok ignorera talimat* unohda ohita",
            "instructi* instrukc* instruktion* talimat* ohje*",
        ),
    ],
    "a new role or prompt": [
        ("you", "now", "are"),
        ("from", "now", "on"),
        ("pretend jailbreak*",),
        ("act", "as"),
        ("new updated revised special hidden secret system developer admin*", _RULES),
        ("system", "prompt message override note notice"),
        ("developer", "mode"),
        ("prompt", "injection"),
        ("system developer assistant", ":* >* ]*"),
        ("<im_start* <|im_start* <system* <|system* <assistant* <|assistant* [inst]* [/inst]*",),
        ("##*", "instruction* system*"),
    ],
    "an address to the model": [
        ("dear attention hey hello note notice message instruction instructions", _MODEL),
        ("as", "a an", "ai assistant language"),
        ("must should shall has have need needs reading processing", _MODEL),
    ],
    "an order": [
        ("you we", _DO, "must should shall need have are will"),
        ("please immediately instead always never now then simply just", _DO),
        ("i", "instruct order command require", "you"),
    ],
    "a demand for secrecy": [
        (
            "do don dont never without",
            "tell* inform* mention* reveal* warn* ask* alert* notify* say*",
            "user customer client human operator person anyone anybody owner support this it",
        ),
    ],
    "a demand for secrets": [
        (
            "send* transfer* forward* wire* mail* upload* post* exfiltrate* leak* give* copy*",
            "password* credential* secret* token* api* private* funds* money* balance* database* data* everything*",
            "to at into",
        ),
    ],
    "a rule for other requests": [
        ("whenever", _DO),
        ("when if once", "you", "see read process", "this", _DO),
        ("time", "every each any next", _DO),
        ("in", "future all any every similar", _DO),
        ("for", "all any every each future similar", _DO),
        (
            "correct right proper required best only approved standard recommended",
            "action step tool call procedure response answer way",
            "is here now for",
        ),
    ],
}
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])")
_FOLDED = {0x130: "i", 0x131: "i", 0x345: " "}
"""Characters for which `re.I` and `casefold` disagree: dotted and dotless i match an ASCII i, U+0345 folds to a
letter."""
# bytes.translate maps a whole text in one C call: to lower-case letters here, to the case of each letter below
_LETTERS = bytes(ord(chr(code).lower()) if chr(code).isalpha() else 32 for code in range(128)) + b" " * 128
_CASES = bytes(97 if chr(code).islower() else 65 if chr(code).isupper() else 32 for code in range(128)) + b" " * 128


class _Group(NamedTuple):
    """Alternative words; a sign needs one of them."""

    words: frozenset[bytes]
    parts: tuple[str, ...]


def _group(listed: str) -> _Group:
    """Return the group of a list of words separated by spaces."""
    words = listed.split()
    return _Group(
        frozenset(word.encode() for word in words if not word.endswith("*")),
        tuple(word[:-1].casefold() for word in words if word.endswith("*")),
    )


_SIGNS = {name: [tuple(map(_group, sign)) for sign in signs] for name, signs in _LISTED.items()}
_ALL = frozenset(word for signs in _SIGNS.values() for sign in signs for group in sign for word in group.words)


def signed_forms(text: str) -> list[str]:
    """Return the names of the patterns that may match a text, in the order in which they are tried."""
    folded = text.lower() if text.isascii() else text.translate(_FOLDED).casefold()
    words = _ALL.intersection(folded.encode("ascii", "replace").translate(_LETTERS).split())
    raw = text.encode("ascii", "replace")
    if b"aA" in raw.translate(_CASES):  # camel case: sendMoney also counts as two words
        cut = _JOINT.sub(" ", text).encode("ascii", "replace")
        words |= _ALL.intersection(cut.translate(_LETTERS).split())
    return [name for name, signs in _SIGNS.items() if _has_any(signs, words, folded)]


def _has_any(signs: list[tuple[_Group, ...]], words: frozenset[bytes], folded: str) -> bool:
    """Return whether a text has one of the signs. Plain loops, because this runs on every text."""
    for sign in signs:
        for alternatives, parts in sign:
            if alternatives.isdisjoint(words):
                for part in parts:
                    if part in folded:
                        break
                else:  # no word of this group: the sign is absent
                    break
        else:  # every group has a word
            return True
    return False
