"""Every pattern and every function that reads text of others takes time linear in the text."""

import re
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

THOROUGH = (pytest.mark.slow, pytest.mark.timeout(2700))
"""All patterns of a package take minutes where other work shares the cores."""
SIZES = {"search_pages": 2000, "tells_of_outage": 1000, "frame": 2000, "stem index": 2000}
"""Numbers of characters of the longer text of functions that take long."""
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


@pytest.mark.parametrize("share", [64, pytest.param(1, marks=THOROUGH)])
@pytest.mark.parametrize("package", [hardwon.memory, hardwon.runtime, hardwon.trainers, hardwon.apps])
def test_every_pattern_takes_linear_time(package, share):
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
            if growth := find_growth(call, make):
                slow[name] = f"{growth:.0f} times for {label}"
                break
    assert slow == {}


@pytest.mark.parametrize(
    ("form", "run"),
    [
        (r"\s+$", " "),
        (r"(?:a+)+b", "a"),
        ('"(?:[^"]{1,60} ){1,12}x', "a "),
        (r"x[^y]*y", "x" + "a" * 199),
        (r"a.*?b.*?c", "ab"),
    ],
)
def test_a_pattern_that_is_not_linear_shows_it(form, run):
    """Quadratic for each character or for one in two hundred, cubic, and without end."""
    call, make = exhaust(re.compile(form), frozenset()), partial(repeat, '"', run, "!")
    # a busy machine hides the growth now and then, and never shows one that is not there
    assert any(find_growth(call, make) > TIMES for _ in range(5))


@pytest.mark.parametrize("share", [12, pytest.param(1, marks=THOROUGH)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_linear_time(name, share):
    """The same for the functions that read the texts of environments, tools and clients."""
    slow, numbered = {}, count(10**9)

    def call(text: str) -> None:
        FUNCTIONS[name](f"{text} {next(numbered)}")  # not the same text twice, because results are cached

    size = SIZES.get(name, 2**14)
    texts = [(before, run) for run in RUNS for before in ("", "é", "=")]
    for before, run in texts[list(FUNCTIONS).index(name) % share :: share]:
        if growth := find_growth(call, partial(repeat, before, run, ""), size, size):
            slow[before + run] = round(growth)
    assert slow == {}
