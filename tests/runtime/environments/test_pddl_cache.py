"""What TextWorld computes anew for every PDDL game is computed once; modules of the same names stand in for it."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from hardwon.runtime.environments import pddl_cache

PARTS = ("", ".logic", ".textgen")


@pytest.fixture
def calls(monkeypatch):
    """The calls that reach the parsers and the translator, in modules that stand in for TextWorld."""
    calls = []

    def parse(text, rule_name=""):
        calls.append(("parse", text, rule_name))
        return [{"text": text, "rule": rule_name}]

    def translate(domain, problem, verbose=False, optimize=False):
        sys.argv = ["translate.py", "domain", "task"]
        calls.append(("translate", problem, optimize))
        return f"task of {problem}", f"{problem} for {'planning' if optimize else 'playing'}"

    names = (
        "fast_downward", "textworld", "textworld.logic", "textworld.envs",
        *(f"textworld.envs.pddl{part}" for part in PARTS),
    )  # fmt: skip
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["fast_downward"].pddl2sas = translate
    for part in PARTS[1:]:
        modules[f"textworld.envs.pddl{part}"]._parse_and_convert = parse
        setattr(modules["textworld.envs.pddl"], part[1:], modules[f"textworld.envs.pddl{part}"])
    modules["textworld.logic"]._parse_and_convert = parse
    modules["textworld"].logic = modules["textworld.logic"]
    pddl_cache.install()
    return calls


def test_a_text_is_parsed_once_by_each_rule_and_every_caller_owns_its_tree(calls):
    from textworld.envs.pddl import textgen

    first = textgen._parse_and_convert("#intro#", rule_name="symbols")
    first[0]["text"] = "changed by the caller"
    assert textgen._parse_and_convert("#intro#", rule_name="symbols") == [{"text": "#intro#", "rule": "symbols"}]
    textgen._parse_and_convert("#intro#", rule_name="start")
    assert calls == [("parse", "#intro#", "symbols"), ("parse", "#intro#", "start")]


def test_one_thread_at_a_time_parses(calls, monkeypatch):
    """The parsers keep their state in globals, and games of several threads use all three of them."""
    from textworld import logic as rules
    from textworld.envs.pddl import logic

    for module in (rules, logic):
        with pddl_cache._lock, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(module._parse_and_convert, module.__name__)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.05)
            assert calls == []
            pddl_cache._lock.release()
            waiting.result(timeout=10)
            pddl_cache._lock.acquire()
        calls.clear()


def test_a_problem_is_translated_once_for_playing_and_once_for_planning(calls):
    import fast_downward

    for _load_and_reset in range(2):
        assert fast_downward.pddl2sas("kitchen", "cup", verbose=False)[1] == "cup for playing"
        assert fast_downward.pddl2sas("kitchen", "cup", verbose=False, optimize=True)[1] == "cup for planning"
    assert calls == [("translate", "cup", False), ("translate", "cup", True)]


def test_without_plans_the_problem_is_translated_for_playing_alone_and_planning_comes_back(calls):
    import fast_downward

    with pddl_cache.skip_planning():
        assert fast_downward.pddl2sas("kitchen", "cup", optimize=True) == ("task of cup", "cup for playing")
    assert fast_downward.pddl2sas("kitchen", "cup", optimize=True)[1] == "cup for planning"
    assert calls == [("translate", "cup", False), ("translate", "cup", True)]


def test_the_arguments_of_the_host_program_stay(calls, monkeypatch):
    import fast_downward

    arguments = ["my_server.py", "--port", "80"]
    monkeypatch.setattr(sys, "argv", arguments)
    fast_downward.pddl2sas("kitchen", "plate")
    assert sys.argv is arguments
    assert arguments == ["my_server.py", "--port", "80"]


def test_installing_twice_wraps_once(calls):
    import fast_downward

    wrapped = fast_downward.pddl2sas
    pddl_cache.install()
    assert fast_downward.pddl2sas is wrapped
