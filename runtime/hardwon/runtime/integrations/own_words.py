"""Keep the words of tool results out of recorded episodes: pages, mails and files are written by anybody.

The request is the user's and the calls are the agent's, so they stay, with their outcomes. An argument into which the
agent copied a passage of an earlier result is replaced, because its words are not the agent's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from hardwon.memory.records import Trust
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.scripts import normalize
from hardwon.runtime.environments.calls import Call

RecordedTrust = Literal["own", "trusted", "untrusted"]
"""What is kept of a recorded run. own: the request, the calls and their outcomes. trusted: also the words of results.
untrusted: the run of somebody else, of which only the forms of calls are recalled."""
DONE, FAILED = "done", "failed"
"""Words in place of a result."""
COPIED = "[copied from a result]"
PASSAGE = 5
"""Words in a row that make a copied passage. Names and ids are shorter, and the agent needs them in its calls."""
LONG_WORD = 40
"""Characters of a single word that count as a passage: text without spaces, such as Chinese, or an encoded one."""
ADDRESS = 5
"""Least number of characters of an id or address that counts as copied."""
_ADDRESS = re.compile(r"[\d@/.:\s]")
_WORD = re.compile(r"\w+")


def to_trust(trust: RecordedTrust) -> Trust:
    """Return the trust of an episode in the library; what is left of an own one is trusted."""
    return "untrusted" if trust == "untrusted" else "trusted"


class ResultHider:
    """Hides the results of a growing list of calls; calls that were hidden before are not read again."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._hidden: list[Call] = []
        self._passages: set[int] = set()
        """Hashes of the passages of all results."""

    def hide(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls of an episode without the words of their results."""
        if self._calls[: len(calls)] == list(calls):
            return self._hidden[: len(calls)]
        if self._calls != list(calls[: len(self._calls)]):  # another list, such as one with a corrected result
            self._calls, self._hidden, self._passages = [], [], set()
        for call in calls[len(self._calls) :]:
            self._add(call)
        return list(self._hidden)

    def _add(self, call: Call) -> None:
        arguments = {name: _replace_copied(value, self._passages) for name, value in call.arguments.items()}
        outcome = FAILED if call.error else DONE
        words = _replace_copied(call.words, self._passages) if call.words else ""
        error = FAILED if call.error else ""
        self._hidden.append(replace(call, arguments=arguments, result=outcome, error=error, words=words))
        self._calls.append(call)
        self._passages |= _hash_passages(f"{call.result}\n{call.error}")


def hide_results(calls: Sequence[Call]) -> list[Call]:
    """Return the calls of an episode without the words of their results."""
    return ResultHider().hide(calls)


def find_copied(action: str, task: str, results: Sequence[str]) -> tuple[str, ...]:
    """Return the ids, addresses and the tool of an action that an earlier result has, and the request has not.

    An attacker names an account, a page or a tool in a result. Plain words, such as a command that an error recommends,
    are no address. All are in lower case.
    """
    if not results:
        return ()
    parsed = parse_action(action)
    named = [slot for slot in parsed.slots if len(slot) >= ADDRESS and _ADDRESS.search(slot)]
    named += [parsed.verb.lower()] if len(parsed.verb) >= ADDRESS else []
    request = task.lower() if named else ""
    return tuple(name for name in named if name not in request and any(name in result for result in results))


def _replace_copied(value: Any, passages: set[int]) -> Any:
    """Return a value in which texts with a passage are replaced, at any depth."""
    if isinstance(value, str):
        return COPIED if passages and not passages.isdisjoint(_hash_passages(value)) else value
    if isinstance(value, Mapping):
        return {_replace_copied(name, passages): _replace_copied(part, passages) for name, part in value.items()}
    return [_replace_copied(part, passages) for part in value] if isinstance(value, list | tuple) else value


def _hash_passages(text: str) -> set[int]:
    """Return the hashes of all passages of a text, without case, punctuation and forms of letters."""
    words = _WORD.findall(normalize(text))
    runs = {hash(tuple(words[at : at + PASSAGE])) for at in range(len(words) - PASSAGE + 1)}
    long = {hash(word[at : at + LONG_WORD]) for word in words for at in range(len(word) - LONG_WORD + 1)}
    return runs | long
