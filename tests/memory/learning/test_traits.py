"""What the values of an argument that work have in common, and those that fail lack."""

import json
from dataclasses import replace

import pytest

from hardwon.memory.learning.calls.choices import CallUse
from hardwon.memory.learning.calls.traits import find_trait

SUPPORT = 3


def list_uses(tries, *, copied=False, apart=False, words=()):
    """Return uses: in each episode, the values that failed and then the one that worked; None for none.

    Apart, each is in an episode of its own. `copied`: a result had named the values that worked.
    """
    return [
        CallUse(
            f"send(to={json.dumps(f'P{n}')}, value={json.dumps(value)})",
            f"e{n}{at if apart else ''}",
            "" if is_right else "tool_error",
            {},
            copied=(str(value).lower(),) if copied and is_right else (),
            words=words,
        )
        for n, (wrong, right) in enumerate(tries)
        for at, (value, is_right) in enumerate([*((each, False) for each in wrong), (right, True)])
        if value is not None
    ]


def find(tries, **options):
    choice = find_trait(list_uses(tries, **options), SUPPORT)
    return choice.cases[""][0] if choice else ""


WORDS = ["Mia", "Olaf", "Zoe", "Ann", "Bo"]
DATES = [([f"March {n}"], f"2027-03-{n}") for n in range(10, 15)]


@pytest.mark.parametrize(
    ("tries", "trait"),
    [
        (DATES, 'write value as "####-##-##" (# is a digit)'),
        ([([right], wrong) for (wrong,), right in DATES], ""),  # words of requests
        ([([f"{n}"], f"ORD-{n}") for n in range(10, 15)], 'write value as "ORD-##" (# is a digit)'),
        ([([f"{n}"], f"2027-03-{n}T09:00Z") for n in range(10, 15)],
         'write value as "####-##-##T##:##Z" (# is a digit)'),
        ([([f"March {n}"], f"{n}") for n in range(10, 15)], ""),  # digits alone
        ([([name], name[:2].upper()) for name in WORDS], 'write value as "AA" (A is a capital letter)'),
        ([([name], name[:2].lower()) for name in WORDS], 'write value as "aa" (a is a small letter)'),
        ([([name], name[:2].lower() * 3) for name in WORDS], ""),  # a word
        ([([f"{n}.log"], f"/srv/logs/{n}.log") for n in range(5)], 'begin value with "/srv/logs/"'),
        ([([name], f"{name}@shop") for name in WORDS], ""),  # an address
        ([([name], f"http://x/{name}") for name in WORDS], ""),
        ([([name], f"{name}.example") for name in WORDS], 'end value with ".example"'),
        ([([name], f"{name}9") for name in WORDS], ""),  # no sign parts it from the word
        ([([[name]], [name, "triage"]) for name in WORDS], 'include "triage" in value'),
        ([([["triage", name]], [name, "triage"]) for name in WORDS], ""),
        ([([[name]], [name, "me@shop.example"]) for name in WORDS], ""),  # an address
        ([([n], 50) for n in (500, 100, 200, 90)], "use value=50"),
        ([([name], "cash") for name in WORDS], 'use value="cash"'),
        ([(["card"], "cash")] * 5, ""),  # that a remedy says
        ([([n], n - 60) for n in (110, 95, 100, 90, 105)], "keep value at 50 or less"),
        ([([n], n + 60) for n in (10, 20, 30, 40, 50)], "keep value at 70 or more"),
        ([([n], n + 5) for n in (10, 20, 30, 40, 50)], ""),
        ([([n], n - 60) for n in (110, 95)] * 2, ""),  # two numbers of each kind part by chance
    ],
)  # fmt: skip
def test_a_trait_is_what_the_values_that_work_share(tries, trait):
    assert find(tries) == trait


@pytest.mark.parametrize(
    ("episodes", "is_said"),
    [
        (DATES[:2], False),  # chance
        (DATES[:3], True),
        ([*DATES, (["2027-03-20"], "2027-03-21")], True),  # one value of this form failed
        ([*DATES, *[([f"2027-03-2{n}"], f"2027-03-3{n}") for n in range(2)]], False),
        ([*DATES, ([], "March 9")], True),  # another value may work by chance
        ([*DATES, *[([], f"March {n}") for n in range(2)]], False),
        ([*DATES, *[([f"2027-04-{n}"], None) for n in range(10, 12)]], False),  # it fails where nothing works, too
        ([*DATES[:2], *[([], f"2027-05-{n}") for n in range(10, 19)]], False),  # of two episodes
        (
            [*DATES[:2], *[([f"May {n}"], None) for n in range(9)], *[([], f"2027-05-{n}") for n in range(10, 19)]],
            False,
        ),
        ([*[([f"May {n}"], "2027-03-10") for n in range(9)], ([], "March 9")], False),  # always the same day
    ],
)
def test_a_trait_nearly_always_works_and_others_hardly_ever_do(episodes, is_said):
    assert bool(find(episodes)) is is_said


def test_values_of_different_requests_are_no_choice_of_the_agent():
    assert find(DATES, apart=True) == ""


@pytest.mark.parametrize(
    ("tries", "word"),
    [
        ([([f"{n}.log"], f"/home/torres/{n}.log") for n in range(5)], "torres"),
        ([([[name]], [name, "triage"]) for name in WORDS], "triage"),
    ],
)
def test_what_the_requests_ask_for_is_their_customers(tries, word):
    """A second customer is not told the folder of the first one."""
    assert find(tries, words=("show",)) != ""
    assert find(tries, words=("show", word)) == ""


def test_the_order_of_the_episodes_changes_nothing():
    assert find(DATES[::-1]) == find(DATES) != ""


def test_a_value_comes_from_a_result():
    ids = [([name], f"U-{name}") for name in WORDS]
    assert find(ids, copied=True) == "copy value from a result"
    assert find(ids) == 'begin value with "U-"'


def test_what_results_named_has_no_beginning():
    uses = list_uses([([name], f"U-{name}") for name in WORDS])
    named = [replace(use, copied=("u-mia",)) if '"U-Mia"' in use.action else use for use in uses]
    assert find_trait(named, SUPPORT) is None


def test_a_redacted_value_has_no_trait():
    assert find([([name], "[redacted:token]") for name in WORDS]) == ""


def test_without_uses_there_is_no_trait():
    assert find_trait([], SUPPORT) is None
    assert find([([f"March {n}"], None) for n in range(5)]) == ""
