"""Every pattern and every function that reads text of others takes time linear in the text."""

from collections.abc import Callable
from functools import partial
from itertools import count, islice
from typing import Any

import pytest
from tests.adversaries import RUNS, TIMES, attacks, exhaust, find_growth, find_patterns, repeat

import hardwon.apps
import hardwon.memory
import hardwon.runtime
import hardwon.trainers
from hardwon.memory import State
from hardwon.memory.guardrails.conditions import matches
from hardwon.memory.guardrails.outage import tells_of_outage
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.retrieval.embedders import HashingEmbedder
from hardwon.memory.retrieval.text_index import StemIndex
from hardwon.memory.signature import signature
from hardwon.memory.situations.actions import parse_action, pattern_of
from hardwon.memory.situations.commands import frame
from hardwon.memory.situations.keys import Situation, guard_keys
from hardwon.memory.situations.phrases import full_name, identity, numbers, words
from hardwon.memory.situations.scripts import index_text
from hardwon.memory.trust.instructions import instruction_in
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.environments.wiki import Page, search_pages
from hardwon.runtime.integrations.own_words import hide_results
from hardwon.runtime.interfaces.diagnosis import speaks_of_unmet
from hardwon.runtime.interfaces.error_texts import reports_failure
from hardwon.runtime.interfaces.results import find_failure
from hardwon.runtime.llm.prompts import block

THOROUGH = (pytest.mark.slow, pytest.mark.timeout(1800))
"""Some packages have more patterns than are tried in the usual 300 seconds."""
QUICK, UP_TO_1_MB = (3_000,), (250, 4_000, 2**15, 2**18)
"""Numbers of characters of texts whose time is compared with that of four times the text."""
SIZES = {"search_pages": 500, "tells_of_outage": 250, "instruction_in": 250, "frame": 500, "stem index": 500}
"""Numbers of characters of the shorter text, if they are not 4000."""
FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "redact": redact,
    "instruction_in": instruction_in,
    "tells_of_outage": tells_of_outage,
    "words": words,
    "full_name": full_name,
    "identity": identity,
    "numbers": numbers,
    "parse_action": lambda text: parse_action(f"go {text}"),
    "pattern_of": lambda text: pattern_of(f"say(text={text})"),
    "frame": lambda text: frame(f"git {text}"),
    "signature": signature,
    "keys": lambda text: Situation(State(text)).keys("take lamp"),
    "guard_keys": lambda text: guard_keys(Situation(State("A lamp.")), f"take {text}"),
    "embed": lambda text: HashingEmbedder().embed([text]),
    "stem index": lambda text: StemIndex([text]).rank(text),
    "index_text": index_text,
    "find_failure": find_failure,
    "reports_failure": reports_failure,
    "speaks_of_unmet": speaks_of_unmet,
    "matches": lambda text: matches("take {1}", f"take {text}"),
    "hide_results": lambda text: hide_results([Call("say", {"text": text}, text), Call("say", {"text": text}, text)]),
    "search_pages": lambda text: search_pages({"a": Page("a", text, (("is in", text),))}, text),
    "block": lambda text: block("observation", text),
}


@pytest.mark.parametrize(("share", "sizes"), [(64, QUICK), pytest.param(1, UP_TO_1_MB, marks=THOROUGH)])
@pytest.mark.parametrize("package", [hardwon.memory, hardwon.runtime, hardwon.trainers, hardwon.apps])
def test_every_pattern_takes_linear_time(package, share, sizes):
    """Four times the text takes about four times the time, for runs of characters and the pattern's own loops.

    By default, each pattern meets a few of these texts, other ones than its neighbors in a list.
    The slow test tries all of them.
    """
    slow = {}
    seen = {(pattern.pattern, used): (name, pattern) for name, pattern, used in find_patterns(package)}
    assert len(seen) > 10
    for at, ((_, used), (name, pattern)) in enumerate(seen.items()):
        call = exhaust(pattern, used)
        for label, make in islice(attacks(pattern), at % share, None, share):
            if growth := _find_steep(call, make, sizes):
                slow[name] = f"{growth:.0f} times for {label}"
                break
    assert slow == {}


def _find_steep(call: Callable[[str], Any], make: Callable[[int], str], sizes: tuple[int, ...]) -> float:
    """Return the growth of the time from the shortest of these lengths that shows too much of it, or 0.

    The next length must show it, too: about 1 MB no longer fits into the caches, and that costs time once.
    """
    for size in sizes:
        growth = find_growth(call, make, size)
        if growth > TIMES and (growth := min(growth, find_growth(call, make, 4 * size))) > TIMES:
            return growth
    return 0.0


@pytest.mark.parametrize("share", [12, pytest.param(1, marks=THOROUGH)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_linear_time(name, share):
    """The same for the functions that read the texts of environments, tools and clients."""
    slow, numbered = {}, count(10**9)

    def call(text: str) -> None:
        FUNCTIONS[name](f"{text} {next(numbered)}")  # not the same text twice, because results are cached

    texts = [(before, run) for run in RUNS for before in ("", "é", "=")]
    for before, run in texts[list(FUNCTIONS).index(name) % share :: share]:
        if (growth := find_growth(call, partial(repeat, before, run, ""), SIZES.get(name, 4000))) > TIMES:
            slow[before + run] = round(growth)
    assert slow == {}
