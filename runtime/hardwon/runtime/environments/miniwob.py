"""MiniWoB++: small tasks on web pages, in a real headless browser.

    environment = MiniWob("login-user")
    state = environment.reset("train", seed=7)     # Enter the username "ann" and ... A page: button login, ...
    state, reward, done, info = environment.step('type "ann" into username')
    state, reward, done, info = environment.step("click button login")

An observation lists the page's elements as text. Actions click an element or type words that the task
mentions; tasks that require mouse coordinates cannot be solved. Each environment runs one Chromium, at about
five steps per second. The page's time limit is turned off; the runtime limits steps.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hardwon.memory import State
from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.runtime.interfaces.types import Info

FOLDS = {"train": 0, "dev": 1_000_000, "test": 2_000_000}
"""First seed of each fold."""
SEEDS = 1_000_000
"""Number of seeds in a fold."""
BROWSER, DRIVER = "MINIWOB_CHROME_BINARY", "MINIWOB_CHROMEDRIVER"
"""The package's environment variables for Chromium and its driver; the default is to search the `PATH`."""
_FIELDS = ("input_text", "input_password", "input_number", "input_date", "input_time", "textarea")
_QUOTED = re.compile(r'"([^"]+)"')
_TYPING = re.compile(r'type "(.*)" into (.+)', re.DOTALL)


class MiniWob:
    """A MiniWoB++ task as an `Environment`."""

    def __init__(self, task: str = "click-button") -> None:
        """Create an environment for one task; the browser starts at the first `reset`."""
        names = tasks()
        if task not in names:
            raise UnknownName.of("task", task, names)
        self.name, self.game = f"miniwob/{task}", task
        self._page: Any = None
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return the number of seeds in a fold."""
        return SEEDS

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Load a page."""
        fold = task.strip().lower() or "train"
        if fold not in FOLDS:
            raise UnknownName.of("fold", task, FOLDS)
        if not 0 <= seed < SEEDS:
            raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {SEEDS - 1}.")
        if self._page is None:
            self._page = _open_page(self.game)
        self._page_state, _ = self._page.reset(seed=FOLDS[fold] + seed)
        self._over = False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Click an element or type into a field."""
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        command = self._build_action(action.strip())
        if command is None:
            words = f"{action!r} cannot be done here. Actions: {'; '.join(self.admissible(self._state('')))}."
            return self._state(words), 0.0, False, Info(success=False, lost=False, score=0.0, invalid=words)
        self._page_state, _, self._over, _, status = self._page.step(command)
        # The discounted reward would depend on the speed of the machine.
        score = min(max(float(status["raw_reward"]), 0.0), 1.0) if self._over else 0.0
        info = Info(success=score >= 1.0, lost=self._over and score < 1.0, score=score)
        return self._state(""), score, self._over, info

    def admissible(self, state: State) -> list[str]:
        """Return clicks on all visible elements and the task's words for every field, sorted."""
        if self._over:
            return []
        typed = [
            f'type "{words}" into {name}'
            for name, element in self._list_elements()
            if element["tag"] in _FIELDS
            for words in self._list_words()
        ]
        return sorted([*(f"click {name}" for name, _ in self._list_elements()), *typed])

    def describe(self) -> str:
        """Return the syntax of both kinds of actions."""
        return 'click ELEMENT: a click on an element of the page.\ntype "WORDS" into ELEMENT: any words into a field.'

    def clone(self) -> "MiniWob":
        """Return another environment of the same task, with its own browser."""
        return MiniWob(self.game)

    def close(self) -> None:
        """Close the browser."""
        page, self._page, self._over = self._page, None, True
        if page is not None:
            page.close()

    def _build_action(self, action: str) -> Any:
        """Return the package's action, or None if there is no such element."""
        from miniwob.action import ActionTypes

        elements = dict(self._list_elements())
        if typing := _TYPING.fullmatch(action):
            element = elements.get(typing[2])
            if element is None or element["tag"] not in _FIELDS:
                return None
            kind = ActionTypes.FOCUS_ELEMENT_AND_TYPE_TEXT
            return self._page.create_action(kind, ref=element["ref"], text=typing[1])
        element = elements.get(action.removeprefix("click "))
        if element is None or not action.startswith("click "):
            return None
        return self._page.create_action(ActionTypes.CLICK_ELEMENT, ref=element["ref"])

    def _list_elements(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the visible elements with unique names: kind, text, and a number if the name is ambiguous."""
        leaves = [element for element in self._page_state["dom_elements"] if _is_visible(element)]
        totals, count = Counter(map(_format_name, leaves)), Counter[str]()
        for element in leaves:
            name = _format_name(element)
            count[name] += 1
            yield (f"{name} {count[name]}" if totals[name] > 1 else name), element

    def _list_words(self) -> list[str]:
        """Return the words that the task says to type."""
        task = str(self._page_state["utterance"])
        return list(dict.fromkeys([*(value for _, value in self._page_state["fields"]), *_QUOTED.findall(task)]))

    def _state(self, feedback: str) -> State:
        task = " ".join(str(self._page_state["utterance"]).split())
        elements = [_format_element(name, element) for name, element in self._list_elements()]
        return State("The page shows: " + "; ".join(elements) + ".", task=task, feedback=feedback)


def _is_visible(element: Mapping[str, Any]) -> bool:
    """Return whether an element has text or is a field; containers have neither."""
    return element["tag"] in _FIELDS or bool(element["text"]) or element["tag"].startswith("input_")


def _format_name(element: Mapping[str, Any]) -> str:
    words = " ".join(str(element["text"] or element["id"]).split())[:80]
    return f"{str(element['tag']).removeprefix('input_')} {words}".strip()


def _format_element(name: str, element: Mapping[str, Any]) -> str:
    value = str(element["value"])
    checked = " (checked)" if value == "True" else ""
    written = f' with "{value}" in it' if element["tag"] in _FIELDS and value else ""
    return name + written + checked


def tasks() -> list[str]:
    """Return the names of the tasks, sorted."""
    try:
        import gymnasium
        import miniwob
    except ImportError as error:
        raise MissingExtra.of("miniwob", "miniwob") from error
    gymnasium.register_envs(miniwob)
    names = (name for name in gymnasium.registry if name.startswith("miniwob/"))
    return sorted(name.removeprefix("miniwob/").rpartition("-v")[0] for name in names)


def find_programs() -> dict[str, str | None]:
    """Return the paths of Chromium and its driver by name; None for a program that is not installed."""
    wanted = ((BROWSER, ("chromium", "google-chrome")), (DRIVER, ("chromedriver",)))
    return {
        names[0]: os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
        for variable, names in wanted
    }


def _open_page(task: str) -> Any:
    """Return the package's environment, with the page's time limit turned off."""
    import gymnasium

    programs = find_programs()
    if missing := [name for name, path in programs.items() if path is None]:
        raise ConfigError(
            f"MiniWoB++ needs Chromium and its driver, but cannot find {' and '.join(missing)}. "
            f"Install them, or set {BROWSER} and {DRIVER} to their paths."
        )
    os.environ.update(zip((BROWSER, DRIVER), map(str, programs.values()), strict=True))
    os.environ.setdefault("SE_OFFLINE", "true")  # keeps Selenium from looking for a driver to download
    page: Any = gymnasium.make(f"miniwob/{task}-v1").unwrapped
    page.reset(seed=0)  # the page must be loaded before its time limit can be changed
    page.instance.driver.execute_script("core.EPISODE_MAX_TIME = 1e9;")
    return page
