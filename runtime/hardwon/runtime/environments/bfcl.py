"""BFCL multi-turn: multi-turn requests over eight stateful Python services, with the official checker.

    environment = Bfcl("base", choices=8)
    state = environment.reset("test", seed=3)             # the first request of a task
    state, reward, done, info = environment.step("lockDoors(unlock=True, door=['driver'])")
    state, reward, done, info = environment.step("answer()")   # ends the turn; the next request follows

Tasks, services and checker are those of the Berkeley Function Calling Leaderboard (package `bfcl-eval`). The
folds, the feedback and the multiple-choice mode are our own. Arguments are parsed as literals; code is never
evaluated.
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
"""The four kinds of multi-turn tasks, 200 each; tasks of the same number tell the same story."""
FOLDS = {"train": (0, 1), "dev": (2,), "test": (3,)}
"""Task numbers modulo 4; the folds share no story."""
ANSWER = "answer"
"""The action that ends a turn."""
_ANSWER_PURPOSE = "Ends this turn, with words for the user; nothing more is to be called."
SHOWN_CALLS, SHOWN_CHARS = 6, 600
"""Maximum number of recent results in an observation, and maximum characters of each."""
_TYPES = {"dict": "object", "float": "number", "double": "number", "tuple": "array", "list": "array"}
"""JSON types by the leaderboard's names."""
_PACKAGE = "bfcl_eval"
_FAILURE = "Error during execution"


@dataclass(frozen=True, slots=True)
class BfclTask:
    """A task: the request of every turn, and the calls that solve it."""

    id: str
    requests: tuple[str, ...]
    solution: tuple[tuple[str, ...], ...]
    """The calls of each turn in canonical form; empty if no call is possible."""
    entry: Mapping[str, Any]
    """The package's own record of the task."""
    hidden: tuple[frozenset[str], ...]
    """Names of the functions that are unavailable, by turn."""

    @property
    def category(self) -> str:
        """Return the category, one of `CATEGORIES`."""
        return self.id.removeprefix("multi_turn_").rpartition("_")[0]

    @property
    def services(self) -> tuple[str, ...]:
        """Return the names of the classes whose methods are the functions."""
        return tuple(self.entry["involved_classes"])


class Bfcl:
    """A BFCL category as an `Environment`."""

    def __init__(self, category: str = "base", *, choices: int = 0) -> None:
        """Create an environment for one category."""
        if category not in CATEGORIES:
            raise UnknownName.of("category", category, CATEGORIES)
        if choices < 0:
            raise ConfigError(f"choices is {choices}; use the number of calls to offer, or 0 to allow any call.")
        _find_package()
        self.name, self.game = f"bfcl/{category}", category
        self._choices = choices
        self._task: BfclTask | None = None
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return the number of tasks in a fold."""
        return len(tasks(self.game, fold))

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin a task."""
        fold = task.strip().lower() or "train"
        candidates = tasks(self.game, fold)
        if not 0 <= seed < len(candidates):
            raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {len(candidates) - 1}.")
        self._task = candidates[seed]
        self._services = _Services(self._task)
        self._turns: list[list[str]] = [[]]
        self._results: list[str] = []
        self._over = False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Make a call, or end the turn. The official checker judges the task at the end of its last turn."""
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        call, problem = self._parse_action(action)
        if problem:
            return self._state(problem), 0.0, False, self._info(invalid=problem)
        if call.startswith(f"{ANSWER}("):
            return self._end_turn()
        result, failed = self._services.call(call)
        self._turns[-1].append(call)
        self._results.append(f"> {call}\n{_clip(result)}")
        return self._state(result), 0.0, False, self._info(error=_clip(result) if failed else "")

    def admissible(self, state: State) -> list[str]:
        """Return the calls on offer and `answer()`, sorted; an empty list if any call is an action."""
        if not self._choices or self._over:
            return []
        assert self._task is not None
        return _list_choices(self._task, self._turn, self._choices)

    def describe(self) -> str:
        """Return a description of the functions that can be called now."""
        lines = [f"{ANSWER}(text: string): {_ANSWER_PURPOSE}"]
        return "\n".join([*lines, *map(_format_function, self._list_functions())])

    def tool_schemas(self) -> dict[str, dict[str, Any]]:
        """Return the JSON schema of the arguments of every function that can be called now, and of `answer`."""
        schemas = {
            function["name"]: {"description": _read_purpose(function), **convert_schema(function["parameters"])}
            for function in self._list_functions()
        }
        answer = {"type": "object", "description": _ANSWER_PURPOSE, "properties": {"text": {"type": "string"}}}
        return {ANSWER: answer, **schemas}

    def _list_functions(self) -> list[Mapping[str, Any]]:
        """Return the records of the functions that can be called now."""
        if self._task is None:
            raise ConfigError("bfcl has no functions before its first episode; call reset first.")
        hidden = self._task.hidden[self._turn]
        functions = (function for service in self._task.services for function in _load_functions(service))
        return [function for function in functions if function["name"] not in hidden]

    def gold_path(self) -> list[str]:
        """Return calls that solve the current task, with `answer()` at the end of each turn."""
        if self._task is None:
            raise ConfigError("there is no task to solve yet; call reset first.")
        return [call for calls in self._task.solution for call in (*calls, f"{ANSWER}()")]

    def clone(self) -> "Bfcl":
        """Return another environment of the same category."""
        return Bfcl(self.game, choices=self._choices)

    def close(self) -> None:
        """Drop the episode."""
        self._over, self._task = True, None

    @property
    def _turn(self) -> int:
        return len(self._turns) - 1

    def _parse_action(self, action: str) -> tuple[str, str]:
        """Return the call in canonical form, and what is wrong with it."""
        assert self._task is not None
        parsed = parse_call(action)
        if parsed is None:
            return "", 'This is not a call. Write name(argument="value").'
        name, positional, named = parsed
        if name == ANSWER:
            return f"{ANSWER}()", ""
        if name in self._task.hidden[self._turn] or name not in self._services.functions:
            return "", f"There is no function {name!r} here. There are: {', '.join(self._list_visible())}."
        return _format_call(name, positional, named), ""

    def _list_visible(self) -> list[str]:
        assert self._task is not None
        return sorted(self._services.functions - self._task.hidden[self._turn])

    def _end_turn(self) -> tuple[State, float, bool, Info]:
        assert self._task is not None
        if len(self._turns) < len(self._task.requests):
            self._turns.append([])
            return self._state("The next request."), 0.0, False, self._info()
        self._over = True
        wrong, score = _check_turns(self._task, self._turns), 1.0
        if wrong:
            # Longest first and lazy, because every check runs all the calls again.
            right = (count for count in range(self._turn, 0, -1) if not _check_turns(self._task, self._turns[:count]))
            score = next(right, 0) / len(self._turns)
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
        observation = "\n\n".join([f"Request: {request}", *self._results[-SHOWN_CALLS:]])
        return State(observation, facts=self._facts(), task=request, feedback=_clip(feedback))

    def _facts(self) -> dict[str, str]:
        """Return the last function and whether it failed: only what an assistant sees, not a service's state."""
        return {"after": self._services.last}


class _Services:
    """The simulated services of one episode."""

    def __init__(self, task: BfclTask) -> None:
        paths = import_module(f"{_PACKAGE}.constants.executable_backend_config")
        self._methods: dict[str, Any] = {}
        self.last = "nothing"
        """The last function, and whether it failed."""
        for service in task.services:
            instance = getattr(import_module(paths.CLASS_FILE_PATH_MAPPING[service]), service)()
            if service not in paths.STATELESS_CLASSES:
                # Services modify their scenario, so each episode needs a deep copy.
                scenario = json.loads(json.dumps(task.entry["initial_config"].get(service, {})))
                instance._load_scenario(scenario, long_context="long_context" in task.id)
            for function in _load_functions(service):
                self._methods[function["name"]] = getattr(instance, function["name"])

    @property
    def functions(self) -> frozenset[str]:
        """Return the names of all functions."""
        return frozenset(self._methods)

    def call(self, call: str) -> tuple[str, bool]:
        """Return the result of a call, in the checker's format, and whether it failed."""
        parsed = parse_call(call)
        assert parsed is not None
        name, positional, named = parsed
        try:
            returned = self._methods[name](*positional, **named)
        except Exception as error:  # the checker treats any exception of a service as its answer
            result, failed = f"{_FAILURE}: {error}", True
        else:
            result = returned if isinstance(returned, str) else json.dumps(returned, default=str)
            failed = isinstance(returned, dict) and "error" in returned
        self.last = f"{name} failed" if failed else name
        return result, failed


def _check_turns(task: BfclTask, turns: list[list[str]]) -> str:
    """Return the official checkers' objection to the turns so far; "" if they are right."""
    multi_turn = f"{_PACKAGE}.eval_checker.multi_turn_eval"
    checker = import_module(f"{multi_turn}.multi_turn_checker")
    # The checker names its services after this, so a fresh name keeps concurrent checks apart.
    run = f"hardwon{uuid.uuid4().hex}"
    solution = [list(calls) for calls in task.solution[: len(turns)]]
    steps = [[[call] for call in turn] for turn in turns]
    try:
        verdict = checker.multi_turn_checker(steps, solution, dict(task.entry), "", run)
        if verdict["valid"]:
            verdict = checker.multi_turn_irrelevance_checker(steps, solution)
    finally:  # the checker stores services in its module's globals and never removes them
        module_names = vars(import_module(f"{multi_turn}.multi_turn_utils"))
        for name in [name for name in module_names if name.startswith(run)]:
            del module_names[name]
    return (
        ""
        if verdict["valid"]
        else f"Turn {len(turns)} or one before it is wrong: {str(verdict['error_message'])[:SHOWN_CHARS]}"
    )


@cache
def tasks(category: str, fold: str) -> tuple[BfclTask, ...]:
    """Return the tasks of a category in a fold, in the leaderboard's order."""
    if fold not in FOLDS:
        raise UnknownName.of("fold", fold, FOLDS)
    data = _find_package() / "data"
    file = f"BFCL_v4_multi_turn_{category}.json"
    entries, solutions = _read_lines(data / file), _read_lines(data / "possible_answer" / file)
    return tuple(
        _task(entry, solution["ground_truth"])
        for entry, solution in zip(entries, solutions, strict=True)
        if int(entry["id"].rpartition("_")[2]) % 4 in FOLDS[fold]
    )


def _task(entry: Mapping[str, Any], solution: list[list[str]]) -> BfclTask:
    requests = ["\n".join(message["content"] for message in turn) for turn in entry["question"]]
    excluded = frozenset(entry.get("excluded_function", ()))
    returns = {int(turn): names for turn, names in entry.get("missed_function", {}).items()}
    absent = [{name for turn, names in returns.items() for name in names if at < turn} for at in range(len(requests))]
    # The solution of miss_func 49 calls a function that its entry lists as absent, so never hide what solves a turn.
    hidden = tuple(
        (excluded | absent[at]) - {call.partition("(")[0] for call in calls} for at, calls in enumerate(solution)
    )
    # In miss_func, a turn without a request announces the functions that were missing.
    texts = tuple(requests[at] or _announce(returns.get(at, [])) for at in range(len(requests)))
    return BfclTask(entry["id"], texts, tuple(tuple(map(_normalize_call, calls)) for calls in solution), entry, hidden)


def _announce(functions: list[str]) -> str:
    return f"There are more functions now: {', '.join(functions)}. Go on with what could not be done."


def _list_choices(task: BfclTask, turn: int, choices: int) -> list[str]:
    """Return the right calls of a turn and enough other calls of the same services, sorted."""
    right = {*task.solution[turn]}
    candidates = {call for calls in task.solution for call in calls} | _list_train_calls(task.category, task.services)
    rest = sorted(candidates - right)  # sorted, because the order of a set differs between processes
    drawn = random.Random(f"{task.id}/{turn}").sample(rest, min(len(rest), max(choices - len(right), 0)))
    hidden = task.hidden[turn]
    calls = [call for call in [*right, *drawn] if call.partition("(")[0] not in hidden]
    return sorted([*calls, f"{ANSWER}()"])


@cache
def _list_train_calls(category: str, services: tuple[str, ...]) -> frozenset[str]:
    """Return the calls of these services that solve tasks of the train fold."""
    names = {function["name"] for service in services for function in _load_functions(service)}
    calls = {call for task in tasks(category, "train") for turn in task.solution for call in turn}
    return frozenset(call for call in calls if call.partition("(")[0] in names)


@cache
def _load_functions(service: str) -> tuple[Mapping[str, Any], ...]:
    files = import_module(f"{_PACKAGE}.constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    return tuple(_read_lines(_find_package() / "data" / "multi_turn_func_doc" / files[service]))


def _format_function(function: Mapping[str, Any]) -> str:
    """Return a function's signature and purpose, `name(argument: type, ...): purpose`, with a line per argument."""
    parameters = function["parameters"]
    required = parameters.get("required", [])
    arguments = ", ".join(
        f"{name}: {field['type']}" + ("" if name in required else " (may be left out)")
        for name, field in parameters["properties"].items()
    )
    descriptions = [f"    {name}: {field['description']}" for name, field in parameters["properties"].items()]
    return "\n".join([f"{function['name']}({arguments}): {_read_purpose(function)}", *descriptions])


def _read_purpose(function: Mapping[str, Any]) -> str:
    """Return what a function does, without the description of its service."""
    return str(function["description"]).rpartition("Tool description: ")[2]


def convert_schema(schema: Any) -> Any:
    """Return a schema of the leaderboard, whose types have names of their own, as a JSON schema."""
    if not isinstance(schema, Mapping):
        return schema
    kind = schema.get("type")
    rest = {key: convert_schema(value) for key, value in schema.items() if key not in ("type", "properties")}
    if "properties" in schema:
        rest["properties"] = {name: convert_schema(field) for name, field in schema["properties"].items()}
    return rest if kind in (None, "any") else {"type": _TYPES.get(kind, kind), **rest}


def _normalize_call(call: str) -> str:
    parsed = parse_call(call)
    assert parsed is not None, call
    return _format_call(*parsed)


def _format_call(name: str, positional: list[Any], named: Mapping[str, Any]) -> str:
    """Return a call in canonical form, which is also valid Python."""
    inside = [*map(repr, positional), *(f"{key}={value!r}" for key, value in named.items())]
    return f"{name}({', '.join(inside)})"


def _clip(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} ..."


def _read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def _find_package() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            "BFCL needs the packages bfcl-eval and mpmath, without their dependencies. "
            "Run: pip install --no-deps bfcl-eval mpmath"
        )
    return Path(next(iter(spec.submodule_search_locations)))
