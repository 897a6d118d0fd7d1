"""BFCL multi-turn: requests in several turns over eight stateful Python services, with the official checker.

    environment = Bfcl("base", choices=8)
    state = environment.reset("test", seed=3)             # the first request of a task, and what may be called
    state, reward, done, info = environment.step("lockDoors(unlock=True, door=['driver'])")
    state, reward, done, info = environment.step("answer()")   # this turn is done; the next request follows

Tasks, services and checker are those of the Berkeley Function Calling Leaderboard (package `bfcl-eval`);
the folds, the words around them and the multiple-choice form are ours. A call is read as literals and
never evaluated as code.
"""

import json
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.interfaces.types import Info

from .calls import parse_call

CATEGORIES = ("base", "long_context", "miss_func", "miss_param")
"""The four kinds of multi-turn tasks, 200 each; a number names the same story in all of them."""
FOLDS = {"train": (0, 1), "dev": (2,), "test": (3,)}
"""A task's number modulo 4, so that no story of one fold is told in another."""
ANSWER = "answer"
"""Ends a turn: nothing more is to be called for this request."""
SHOWN_CALLS, SHOWN_CHARS = 6, 600
"""How many of the last results an observation shows, and how many characters of each."""
_PACKAGE = "bfcl_eval"
_FAILURE = "Error during execution"


@dataclass(frozen=True, slots=True)
class Task:
    """One task: what is asked turn by turn, and the calls that solve it."""

    id: str
    requests: tuple[str, ...]
    solution: tuple[tuple[str, ...], ...]
    """The calls of each turn, in the spelling of actions; none where nothing can be called."""
    entry: Mapping[str, Any]
    """As the package has it."""
    hidden: tuple[frozenset[str], ...]
    """Functions that may not be called, by turn."""

    @property
    def category(self) -> str:
        """One of `CATEGORIES`."""
        return self.id.removeprefix("multi_turn_").rpartition("_")[0]

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the classes whose methods are the functions."""
        return tuple(self.entry["involved_classes"])


class Bfcl:
    """One category, as an `Environment`."""

    def __init__(self, category: str = "base", *, choices: int = 0) -> None:
        """`choices`: how many calls are offered in each turn, the right ones among them; 0 lets any call be an action.

        Raises `UnknownName` for a category that does not exist, `ConfigError` for a number that cannot
        work, `MissingExtra` without the package.
        """
        if category not in CATEGORIES:
            raise UnknownName.of("category", category, CATEGORIES)
        if choices < 0:
            raise ConfigError(f"choices is {choices}; use 0 for free calls, or how many to offer.")
        _installed()
        self.name, self.game = f"bfcl/{category}", category
        self._choices = choices
        self._task: Task | None = None
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return how many tasks a fold has."""
        return len(tasks(self.game, fold))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin task number `seed` of the fold `task`: train (the default, 100 of them), dev or test (50 each).

        Raises `UnknownName` for another fold, `ConfigError` for a seed out of range.
        """
        fold = task.strip().lower() or "train"
        if fold not in FOLDS:
            raise UnknownName.of("fold", task, FOLDS)
        known = tasks(self.game, fold)
        if not 0 <= seed < len(known):
            raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {len(known) - 1}.")
        self._task = known[seed]
        self._services = _Services(self._task)
        self._made: list[list[str]] = [[]]
        self._results: list[str] = []
        self._over = False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Make a call, or end the turn; the last turn's end is judged, as the leaderboard does.

        The score is the share of turns before the first wrong one; only 1.0 is a success. Raises
        `ConfigError` when no episode runs.
        """
        if self._over or self._task is None:
            raise ConfigError("no episode is running in this environment; call reset first.")
        call, problem = self._understood(action)
        if problem:
            return self._state(problem), 0.0, False, self._info(invalid=problem)
        if call.startswith(f"{ANSWER}("):
            return self._end_turn()
        result, failed = self._services.call(call)
        self._made[-1].append(call)
        self._results.append(f"> {call}\n{_clipped(result)}")
        return self._state(result), 0.0, False, self._info(error=_clipped(result) if failed else "")

    def admissible(self, state: State) -> list[str]:
        """The calls on offer and `answer()`, sorted; empty where any call is an action."""
        if not self._choices or self._over or self._task is None:
            return []
        return _offered(self._task, self._turn, self._choices)

    def describe(self) -> str:
        """The functions that may be called now."""
        lines = [f"{ANSWER}(text: string): Ends this turn, with words for the user; nothing more is to be called."]
        if self._task is not None:
            functions = (function for service in self._task.services for function in _functions(service))
            lines += [_form(of) for of in functions if of["name"] not in self._task.hidden[self._turn]]
        return "\n".join(lines)

    def clone(self) -> "Bfcl":
        """Another environment of the same category."""
        return Bfcl(self.game, choices=self._choices)

    def close(self) -> None:
        """Forget the episode."""
        self._over, self._task = True, None

    @property
    def _turn(self) -> int:
        return len(self._made) - 1

    def _understood(self, action: str) -> tuple[str, str]:
        """The call in one spelling, and what is wrong with it."""
        assert self._task is not None
        parsed = parse_call(action)
        if parsed is None:
            return "", 'This is not a call. Write name(argument="value").'
        name, positional, named = parsed
        if name == ANSWER:
            return f"{ANSWER}()", ""
        if name in self._task.hidden[self._turn] or name not in self._services.functions:
            return "", f"There is no function {name!r} here. There are: {', '.join(self._visible())}."
        return _spelled(name, positional, named), ""

    def _visible(self) -> list[str]:
        assert self._task is not None
        return sorted(self._services.functions - self._task.hidden[self._turn])

    def _end_turn(self) -> tuple[State, float, bool, Info]:
        assert self._task is not None
        if len(self._made) < len(self._task.requests):
            self._made.append([])
            return self._state("The next request."), 0.0, False, self._info()
        self._over = True
        wrong, score = _judged(self._task, self._made), 1.0
        if wrong:
            right = (turns for turns in range(self._turn, 0, -1) if not _judged(self._task, self._made[:turns]))
            score = next(right, 0) / len(self._made)
        words = wrong or "All requests are fulfilled."
        return self._state(words), score, True, Info(success=not wrong, lost=False, score=score)

    def _info(self, *, invalid: str = "", error: str = "") -> Info:
        info = Info(success=False, lost=False, score=0.0)
        if invalid:
            info["invalid"] = invalid
        if error:
            info["error"] = error
        return info

    def _state(self, feedback: str) -> State:
        assert self._task is not None
        request = self._task.requests[self._turn]
        shown = "\n\n".join([f"Request: {request}", *self._results[-SHOWN_CALLS:]])
        return State(shown, facts=self._facts(), task=request, feedback=_clipped(feedback))

    def _facts(self) -> dict[str, str]:
        """What was called last, and whether it failed: what an assistant saw, no state of a service."""
        return {"after": self._services.last}


class _Services:
    """The simulated services of one episode."""

    def __init__(self, task: Task) -> None:
        paths = import_module(f"{_PACKAGE}.constants.executable_backend_config")
        self._of: dict[str, Any] = {}
        self.last = "nothing"
        """The function called last, and how it went."""
        for service in task.services:
            made = getattr(import_module(paths.CLASS_FILE_PATH_MAPPING[service]), service)()
            if service not in paths.STATELESS_CLASSES:
                scenario = json.loads(json.dumps(task.entry["initial_config"].get(service, {})))
                made._load_scenario(scenario, long_context="long_context" in task.id)
            for function in _functions(service):
                self._of[function["name"]] = getattr(made, function["name"])

    @property
    def functions(self) -> frozenset[str]:
        """Everything that can be called."""
        return frozenset(self._of)

    def call(self, call: str) -> tuple[str, bool]:
        """What a call returned, as the checker would write it, and whether it failed."""
        parsed = parse_call(call)
        assert parsed is not None
        name, positional, named = parsed
        try:
            returned = self._of[name](*positional, **named)
        except Exception as error:  # whatever a service raises is an answer, to the checker too
            result, failed = f"{_FAILURE}: {error}", True
        else:
            result = returned if isinstance(returned, str) else json.dumps(returned, default=str)
            failed = isinstance(returned, dict) and "error" in returned
        self.last = f"{name} failed" if failed else name
        return result, failed


def _judged(task: Task, made: list[list[str]]) -> str:
    """What the official checkers say against the turns so far; "" where they are right."""
    multi_turn = f"{_PACKAGE}.eval_checker.multi_turn_eval"
    checker = import_module(f"{multi_turn}.multi_turn_checker")
    run = f"hardwon{uuid.uuid4().hex}"
    solution = [list(calls) for calls in task.solution[: len(made)]]
    steps = [[[call] for call in turn] for turn in made]
    try:
        verdict = checker.multi_turn_checker(steps, solution, dict(task.entry), "", run)
        if verdict["valid"]:
            verdict = checker.multi_turn_irrelevance_checker(steps, solution)
    finally:  # the checker keeps its services among its module's names, for ever
        kept = vars(import_module(f"{multi_turn}.multi_turn_utils"))
        for name in [name for name in kept if name.startswith(run)]:
            del kept[name]
    return (
        ""
        if verdict["valid"]
        else f"Turn {len(made)} or one before it is wrong: {str(verdict['error_message'])[:SHOWN_CHARS]}"
    )


@cache
def tasks(category: str, fold: str) -> tuple[Task, ...]:
    """The tasks of a category that are in a fold, in the leaderboard's order. Raises `MissingExtra`."""
    data = _installed() / "data"
    file = f"BFCL_v4_multi_turn_{category}.json"
    entries, solutions = _lines(data / file), _lines(data / "possible_answer" / file)
    return tuple(
        _task(entry, solution["ground_truth"])
        for entry, solution in zip(entries, solutions, strict=True)
        if int(entry["id"].rpartition("_")[2]) % 4 in FOLDS[fold]
    )


def _task(entry: Mapping[str, Any], solution: list[list[str]]) -> Task:
    said = ["\n".join(message["content"] for message in turn) for turn in entry["question"]]
    excluded = frozenset(entry.get("excluded_function", ()))
    returns = {int(turn): names for turn, names in entry.get("missed_function", {}).items()}
    absent = [{name for turn, names in returns.items() for name in names if at < turn} for at in range(len(said))]
    # one solution (miss_func 49) calls what its entry says is absent: what solves a turn is never hidden
    hidden = tuple(
        (excluded | absent[at]) - {call.partition("(")[0] for call in calls} for at, calls in enumerate(solution)
    )
    told = tuple(said[at] or _arrival(returns.get(at, [])) for at in range(len(said)))
    return Task(entry["id"], told, tuple(tuple(map(_respelled, calls)) for calls in solution), entry, hidden)


def _arrival(functions: list[str]) -> str:
    return f"There are more functions now: {', '.join(functions)}. Go on with what could not be done."


def _offered(task: Task, turn: int, choices: int) -> list[str]:
    """The right calls of a turn, and others of the same services, until there are enough."""
    right = {*task.solution[turn]}
    others = {call for calls in task.solution for call in calls} | _calls_of(task.category, task.services)
    rest = sorted(others - right)
    drawn = random.Random(f"{task.id}/{turn}").sample(rest, min(len(rest), max(choices - len(right), 0)))
    hidden = task.hidden[turn]
    calls = [call for call in [*right, *drawn] if call.partition("(")[0] not in hidden]
    return sorted([*calls, f"{ANSWER}()"])


@cache
def _calls_of(category: str, services: tuple[str, ...]) -> frozenset[str]:
    """Calls that solve tasks of the train fold by the same services."""
    names = {function["name"] for service in services for function in _functions(service)}
    calls = {call for task in tasks(category, "train") for turn in task.solution for call in turn}
    return frozenset(call for call in calls if call.partition("(")[0] in names)


@cache
def _functions(service: str) -> tuple[Mapping[str, Any], ...]:
    files = import_module(f"{_PACKAGE}.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    return tuple(_lines(_installed() / "data" / "multi_turn_func_doc" / files[service]))


def _form(function: Mapping[str, Any]) -> str:
    """`name(argument: type, ...): what it does`, and a line for each argument."""
    given = function["parameters"]
    needed = given.get("required", [])
    said = ", ".join(
        f"{name}: {of['type']}" + ("" if name in needed else " (may be left out)")
        for name, of in given["properties"].items()
    )
    explained = [f"    {name}: {of['description']}" for name, of in given["properties"].items()]
    purpose = function["description"].rpartition("Tool description: ")[2]
    return "\n".join([f"{function['name']}({said}): {purpose}", *explained])


def _respelled(call: str) -> str:
    parsed = parse_call(call)
    assert parsed is not None, call
    return _spelled(*parsed)


def _spelled(name: str, positional: list[Any], named: Mapping[str, Any]) -> str:
    """One spelling of a call, which Python reads as well."""
    inside = [*map(repr, positional), *(f"{key}={value!r}" for key, value in named.items())]
    return f"{name}({', '.join(inside)})"


def _clipped(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} ..."


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def _installed() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            "BFCL needs the packages bfcl-eval and mpmath, whose other dependencies are not needed. "
            "Run: pip install --no-deps bfcl-eval mpmath"
        )
    return Path(next(iter(spec.submodule_search_locations)))
