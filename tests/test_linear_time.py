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
from hardwon.memory import State
from hardwon.memory.guardrails.outage import tells_of_outage
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.retrieval.embedders import HashingEmbedder
from hardwon.memory.retrieval.text_index import StemIndex
from hardwon.memory.signature import signature
from hardwon.memory.situations.actions import parse_action, pattern_of
from hardwon.memory.situations.commands import frame
from hardwon.memory.situations.keys import Situation, guard_keys
from hardwon.memory.situations.phrases import full_name, identity, numbers, words
from hardwon.memory.trust.instructions import instruction_in
from hardwon.runtime.llm.prompts import block

SIZES = {"tells_of_outage": 250, "instruction_in": 250, "frame": 500, "stem index": 500}
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
    "block": lambda text: block("observation", text),
}


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("package", [hardwon.memory, hardwon.runtime, hardwon.apps])
def test_every_pattern_takes_linear_time(package, share):
    """Four times the text takes about four times the time, for runs of characters and the pattern's own loops.

    By default, each pattern meets one text in four, other ones than its neighbors in a list.
    """
    slow = {}
    seen = {(pattern.pattern, one): (name, pattern) for name, pattern, one in find_patterns(package)}
    assert len(seen) > 10
    for at, ((_, is_anchored), (name, pattern)) in enumerate(seen.items()):
        call = exhaust(pattern, is_anchored)
        for label, make in islice(attacks(pattern), at % share, None, share):
            if (growth := find_growth(call, make, 250)) > TIMES:
                slow[name] = f"{growth:.0f} times for {label}"
                break
    assert slow == {}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_linear_time(name):
    """The same for the functions that read the texts of environments, tools and clients."""
    slow, numbered = {}, count(10**9)

    def call(text: str) -> None:
        FUNCTIONS[name](f"{text} {next(numbered)}")  # not the same text twice, because results are cached

    for run in RUNS:
        for before in ("", "é", "="):
            if (growth := find_growth(call, partial(repeat, before, run, ""), SIZES.get(name, 4000))) > TIMES:
                slow[before + run] = round(growth)
    assert slow == {}
