"""MiniWoB++: small tasks in web pages, in a real browser without a window.

    environment = MiniWob("login-user")
    state = environment.reset("train", seed=7)     # Enter the username "ann" and ... A page: button login, ...
    state, reward, done, info = environment.step('type "ann" into username')
    state, reward, done, info = environment.step("click button login")

What is seen is the page's elements in words; what can be done is to click on them, and to type the
words that the task names. Tasks that need a mouse's coordinates are out of reach here. One Chromium an
environment, some five steps a second; the page's own clock is stopped, for time is the runtime's.
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
"""Where the seeds of each fold start."""
SEEDS = 1_000_000
"""Seeds in a fold."""
BROWSER, DRIVER = "MINIWOB_CHROME_BINARY", "MINIWOB_CHROMEDRIVER"
"""Variables of the package: where Chromium and its driver are. Without them, they are looked for on the path."""
_FIELDS = ("input_text", "input_password", "input_number", "input_date", "input_time", "textarea")
_SHOWN_CHARS = 80
"""Characters of an element's text."""
_QUOTED = re.compile(r'"([^"]+)"')
_TYPING = re.compile(r'type "(.*)" into (.+)', re.DOTALL)


class MiniWob:
    """One task, as an `Environment`."""

    def __init__(self, task: str = "click-button") -> None:
        """Starts no browser yet.

        Raises `UnknownName` for a task that does not exist, `MissingExtra` without the package.
        """
        known = tasks()
        if task not in known:
            raise UnknownName.of("task", task, known)
        self.name, self.game = f"miniwob/{task}", task
        self._page: Any = None
        self._over = True

    def count_seeds(self, fold: str) -> int:
        """Return how many seeds a fold has."""
        return SEEDS

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Begin the page `seed`, 0 to 999999, of the fold `task`: train (the default), dev or test.

        Raises `UnknownName` for another fold, `ConfigError` for a seed out of range or without a browser.
        """
        fold = task.strip().lower() or "train"
        if fold not in FOLDS:
            raise UnknownName.of("fold", task, FOLDS)
        if not 0 <= seed < SEEDS:
            raise ConfigError(f"seed {seed} is not in the {fold} fold; its seeds are 0 to {SEEDS - 1}.")
        if self._page is None:
            self._page = _opened(self.game)
        self._seen, _ = self._page.reset(seed=FOLDS[fold] + seed)
        self._over = False
        return self._state("")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Click or type; the reward is what the page gives at its end, without its discount for time.

        Raises `ConfigError` when no episode runs.
        """
        if self._over:
            raise ConfigError("no episode is running in this environment; call reset first.")
        made = self._made(action.strip())
        if made is None:
            words = f"{action!r} cannot be done here. Actions: {'; '.join(self.admissible(self._state('')))}."
            return self._state(words), 0.0, False, Info(success=False, lost=False, score=0.0, invalid=words)
        self._seen, _, self._over, _, told = self._page.step(made)
        score = min(max(float(told["raw_reward"]), 0.0), 1.0) if self._over else 0.0
        info = Info(success=score >= 1.0, lost=self._over and score < 1.0, score=score)
        return self._state(""), score, self._over, info

    def admissible(self, state: State) -> list[str]:
        """Clicks on what can be seen, and the words of the task into every field, sorted."""
        if self._over:
            return []
        typed = [
            f'type "{words}" into {name}'
            for name, element in self._elements()
            if element["tag"] in _FIELDS
            for words in self._words()
        ]
        return sorted([*(f"click {name}" for name, _ in self._elements()), *typed])

    def describe(self) -> str:
        """The two forms of action."""
        return 'click ELEMENT: a click on an element of the page.\ntype "WORDS" into ELEMENT: any words into a field.'

    def clone(self) -> "MiniWob":
        """Another environment of the same task, with a browser of its own."""
        return MiniWob(self.game)

    def close(self) -> None:
        """End the browser."""
        page, self._page, self._over = self._page, None, True
        if page is not None:
            page.close()

    def _made(self, action: str) -> Any:
        """The package's action, or None where there is no such element."""
        from miniwob.action import ActionTypes

        elements = dict(self._elements())
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

    def _elements(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What can be seen, by a name that is its own: kind, words, and a number where there are several."""
        leaves = [element for element in self._seen["dom_elements"] if _is_seen(element)]
        often, count = Counter(map(_named, leaves)), Counter[str]()
        for element in leaves:
            name = _named(element)
            count[name] += 1
            yield (f"{name} {count[name]}" if often[name] > 1 else name), element

    def _words(self) -> list[str]:
        """What the task says to type."""
        task = str(self._seen["utterance"])
        return list(dict.fromkeys([*(value for _, value in self._seen["fields"]), *_QUOTED.findall(task)]))

    def _state(self, feedback: str) -> State:
        task = " ".join(str(self._seen["utterance"]).split())
        shown = [_told(name, element) for name, element in self._elements()]
        return State("The page shows: " + "; ".join(shown) + ".", task=task, feedback=feedback)


def _is_seen(element: Mapping[str, Any]) -> bool:
    """Elements with words or a field; boxes around others have neither."""
    return element["tag"] in _FIELDS or bool(element["text"]) or element["tag"].startswith("input_")


def _named(element: Mapping[str, Any]) -> str:
    words = " ".join(str(element["text"] or element["id"]).split())[:_SHOWN_CHARS]
    return f"{str(element['tag']).removeprefix('input_')} {words}".strip()


def _told(name: str, element: Mapping[str, Any]) -> str:
    value = str(element["value"])
    checked = " (checked)" if value == "True" else ""
    written = f' with "{value}" in it' if element["tag"] in _FIELDS and value else ""
    return name + written + checked


def tasks() -> list[str]:
    """The tasks there are, sorted. Raises `MissingExtra` without the package."""
    try:
        import gymnasium
        import miniwob
    except ImportError as error:
        raise MissingExtra.of("miniwob", "miniwob") from error
    gymnasium.register_envs(miniwob)
    names = (name for name in gymnasium.registry if name.startswith("miniwob/"))
    return sorted(name.removeprefix("miniwob/").rpartition("-v")[0] for name in names)


def find_programs() -> dict[str, str | None]:
    """Return where Chromium and its driver are, by name; None for one that is not installed."""
    wanted = ((BROWSER, ("chromium", "google-chrome")), (DRIVER, ("chromedriver",)))
    return {
        names[0]: os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
        for variable, names in wanted
    }


def _opened(task: str) -> Any:
    """The package's environment, its page's clock stopped."""
    import gymnasium

    found = find_programs()
    if missing := [name for name, path in found.items() if path is None]:
        raise ConfigError(
            f"MiniWoB++ needs Chromium and its driver; there is no {' and no '.join(missing)}. "
            f"Install them, or set {BROWSER} and {DRIVER} to where they are."
        )
    os.environ.update(zip((BROWSER, DRIVER), map(str, found.values()), strict=True))
    os.environ.setdefault("SE_OFFLINE", "true")
    page: Any = gymnasium.make(f"miniwob/{task}-v1").unwrapped
    page.reset(seed=0)
    page.instance.driver.execute_script("core.EPISODE_MAX_TIME = 1e9;")
    return page
