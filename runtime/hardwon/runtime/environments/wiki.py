"""Questions over a small encyclopedia of invented entities, answered by searching and opening pages.

    hardwon run wiki --game 2 --arms empty,step

After SearchGym, whose data is not public: a graph with typed relations, a page for every entity, and questions that
follow one to four relations. A question is kept only if search finds every page on its path. Nothing is downloaded, and
no model takes part. All folds ask about the same encyclopedia, so what was read can be used again.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hardwon.memory import State
from hardwon.memory.errors import ConfigError
from hardwon.memory.situations.scripts import split_words
from hardwon.runtime.interfaces.types import Info

HOPS = ("1", "2", "3", "4")
"""The games: the number of relations between the entity that a question names and its answer."""
ENTITIES = 120
KINDS = ("person", "company", "town", "region")
RELATIONS: tuple[tuple[str, str, str], ...] = (
    ("person", "employer", "company"),
    ("person", "birthplace", "town"),
    ("company", "founder", "person"),
    ("company", "headquarters", "town"),
    ("town", "region", "region"),
    ("region", "capital", "town"),
    ("region", "governor", "person"),
)
"""Kind of an entity, name of the relation, and kind of the other entity. Every entity has one of each of its kind."""
_SYLLABLES = ("ba", "dor", "el", "fin", "gra", "hul", "ist", "ka", "lom", "mir", "nes", "o", "pra", "quil", "ruv", "sa",
              "tem", "ul", "vash", "wo", "xan", "yr", "zed")  # fmt: skip
_CALL = re.compile(r"(search|open|answer)\s+(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Page:
    """An entity with its relations."""

    name: str
    kind: str
    links: tuple[tuple[str, str], ...]
    """Pairs of a relation and the name of the other entity."""

    @property
    def text(self) -> str:
        """Return the text of the page."""
        facts = " ".join(f"Its {relation} is {name}." for relation, name in self.links)
        return f"{self.name} is a {self.kind}. {facts}"


@dataclass(frozen=True, slots=True)
class WikiQuestion:
    """A question with its path through the pages."""

    text: str
    path: tuple[str, ...]
    """Names of the entities from the one that the question names to the answer."""

    @property
    def answer(self) -> str:
        """Return the last entity."""
        return self.path[-1]


def build_pages(entities: int = ENTITIES, world: int = 0) -> dict[str, Page]:
    """Return the pages of an encyclopedia by name."""
    if entities < 2 * len(KINDS):
        raise ConfigError(f"entities is {entities}; use {2 * len(KINDS)} or more, two of each kind.")
    rng = random.Random(f"wiki:{world}:{entities}")
    names: list[str] = []
    while len(names) < entities:
        name = "".join(rng.choices(_SYLLABLES, k=3)).capitalize()
        if name not in names:
            names.append(name)
    kinds = {name: KINDS[n % len(KINDS)] for n, name in enumerate(names)}
    members = {kind: [name for name in names if kinds[name] == kind] for kind in KINDS}

    def link(name: str) -> tuple[tuple[str, str], ...]:
        return tuple(
            (relation, rng.choice([other for other in members[target] if other != name]))
            for kind, relation, target in RELATIONS
            if kind == kinds[name]
        )

    return {name: Page(name, kinds[name], link(name)) for name in names}


def search_pages(pages: dict[str, Page], query: str) -> list[str]:
    """Return the names of the pages whose texts have most words of the query, the page of a named entity first."""
    words = set(split_words(query))

    def rate(page: Page) -> tuple[int, int, str]:
        own = set(split_words(page.text))
        return -(page.name.lower() in words), -len(words & own), page.name

    ranked = sorted(pages.values(), key=rate)
    return [page.name for page in ranked if words & set(split_words(page.text))][:3]


def draw_question(pages: dict[str, Page], hops: int, rng: random.Random) -> WikiQuestion:
    """Return a question over so many relations, all of whose pages are found by a search for their names."""
    while True:
        name = rng.choice(sorted(pages))
        path, relations = [name], list[str]()
        for _ in range(hops):
            relation, name = rng.choice(pages[path[-1]].links)
            path.append(name)
            relations.append(relation)
        is_found = all(step in search_pages(pages, step) for step in path)
        if is_found and len(set(path)) == len(path):
            words = " of the ".join(reversed(relations))
            return WikiQuestion(f"What is the {words} of {path[0]}?", tuple(path))


class Wiki:
    """Answers questions by `search WORDS`, `open PAGE` and `answer NAME`."""

    name = "wiki"

    def __init__(self, hops: int = 2, *, entities: int = ENTITIES, world: int = 0) -> None:
        """Create the environment."""
        if str(hops) not in HOPS:
            raise ConfigError(f"hops is {hops}; use 1, 2, 3 or 4.")
        self._hops, self._entities, self._world = hops, entities, world
        self._pages = build_pages(entities, world)
        self._question = WikiQuestion("", ("",))
        self._results: list[str] = []
        self._names: list[str] = []
        self._page = ""

    def reset(self, task: str = "", seed: int = 0) -> State:
        """Ask a question; the fold and the seed decide which."""
        rng = random.Random(f"wiki:{self._world}:{task}:{seed}:{self._hops}")
        self._question = draw_question(self._pages, self._hops, rng)
        self._results, self._page = [], ""
        self._names = [self._question.path[0]]
        return self._describe("You have an encyclopedia. You can search it, open a page, and answer once.")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        """Search, open a page, or answer, which ends the episode."""
        call = _CALL.fullmatch(action.strip())
        if call is None:
            invalid = "Use search WORDS, open PAGE or answer NAME."
            return self._describe(invalid), 0.0, False, {"invalid": invalid}
        verb, argument = call[1].lower(), call[2].strip()
        if verb == "search":
            self._results = search_pages(self._pages, argument)
            return self._describe(f"Found: {', '.join(self._results) or 'nothing'}."), 0.0, False, {}
        if verb == "open":
            return self._open(argument)
        success = argument.lower() == self._question.answer.lower()
        message = "That is right." if success else "That is wrong."
        return (
            self._describe(message),
            float(success),
            True,
            {"success": success, "lost": not success, "score": float(success)},
        )

    def _open(self, name: str) -> tuple[State, float, bool, Info]:
        page = self._pages.get(name.capitalize())
        if page is None or page.name not in self._results:
            error = f"There is no page {name} among the results."
            return self._describe(error), 0.0, False, {"error": error}
        self._page = page.name
        self._names += [name for _, name in page.links if name not in self._names]
        return self._describe(page.text), 0.0, False, {}

    def admissible(self, state: State) -> list[str]:
        """Return searches for the names that were read, the results to open, and the names as answers."""
        searches = [f"search {name}" for name in self._names]
        answers = [f"answer {name}" for name in self._names[1:]]
        return sorted([*searches, *(f"open {name}" for name in self._results), *answers])

    def solve(self) -> Sequence[str]:
        """Return the actions that answer the current question."""
        opened = [action for name in self._question.path[:-1] for action in (f"search {name}", f"open {name}")]
        return [*opened, f"answer {self._question.answer}"]

    def describe(self) -> str:
        """Return the actions in words."""
        return "search WORDS lists pages; open PAGE shows one of them; answer NAME ends the episode."

    def clone(self) -> "Wiki":
        """Return a fresh environment with the same encyclopedia."""
        return Wiki(self._hops, entities=self._entities, world=self._world)

    def close(self) -> None:
        """Release nothing."""

    def _describe(self, message: str) -> State:
        return State(message, {"results": ", ".join(self._results)}, self._page, self._question.text)
