"""Worlds: which recorded episodes are of one environment and one kind of task.

What an action returned in one game says nothing of another, so values are kept per world. Callers need not
name their environment. Each episode is placed by what it shows of itself: the environment's label where it has
one, the words of its task, and the forms of its actions. A world's frame is the words that most of its
tasks share; the rest are names that differ from task to task. A state belongs to the world whose frame its task
fits best; where it fits none, the library has nothing to say about it.

Placement runs in the transaction that files an episode, in the order of filing, so that all processes agree.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any

from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.records import Trajectory
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.keys import content_words

from .checksums import parse
from .world_scores import rename, unite

FRAME = 0.8
"""The share of a world's tasks that have a word of its frame."""
FIT = 0.5
"""How much of a world's own likeness between frame and task a task must reach."""
FRAMED = 0.25
"""The least share of its tasks that a frame must make up; below it they are free text, which has no frame."""
UNFRAMED_FORMS = 0.5
"""Where tasks share no words: the share of the action forms that the world must know."""
YOUNG = 3
"""Worlds of at most so many episodes are united when their tasks turn out to differ in names alone."""
UNITE_BY_WORD = 3
"""Young worlds that share a word of their tasks, before they are united."""
UNITE_ANY = 6
"""Young worlds of one environment with nothing in common: its tasks are free text, and count as one kind."""
ALIKE = 0.6
"""Overlap of action forms above which episodes without a label count as of one environment."""
NAMED = 6
"""Words of its frame that a world's name has."""
KEPT = 400
"""Words and forms counted per world; the rarest are dropped."""


@dataclass(slots=True)
class World:
    """What the episodes of one environment and kind of task have in common."""

    id: int
    environment: str = ""
    episodes: int = 0
    size: int = 0
    """Sum of the numbers of words of its tasks."""
    words: Counter[str] = field(default_factory=Counter)
    """In how many tasks each word occurred."""
    forms: Counter[str] = field(default_factory=Counter)
    """In how many episodes each form of action was taken."""
    won: int = 0
    """How many of its episodes succeeded."""
    into: int = 0
    """The world that this one was united with; 0 while it stands for itself."""
    _frame: frozenset[str] | None = None

    @property
    def frame(self) -> frozenset[str]:
        """The words that most tasks of this world share."""
        if self._frame is None:
            enough = FRAME * self.episodes
            self._frame = frozenset(word for word, count in self.words.items() if count >= enough)
        return self._frame

    @property
    def name(self) -> str:
        """What a person calls this world: its environment's label, then the words that most of its tasks share."""
        shared = ", ".join(sorted(self.frame)[:NAMED])
        acts = ", ".join(form for form, _ in self.forms.most_common(2))
        return ": ".join(part for part in (self.environment, shared or acts) if part) or f"world {self.id}"

    def add(self, words: Collection[str], forms: Collection[str], *, won: bool = False) -> None:
        """Count one more episode."""
        self.episodes += 1
        self.won += won
        self.size += len(words)
        self.words.update(words)
        self.forms.update(forms)
        self._trim()

    def unite(self, other: "World") -> None:
        """Take over what another world counted."""
        self.episodes += other.episodes
        self.won += other.won
        self.size += other.size
        self.words.update(other.words)
        self.forms.update(other.forms)
        self._trim()
        other.into = self.id

    def _trim(self) -> None:
        self._frame = None
        for counts in (self.words, self.forms):
            if len(counts) > KEPT:
                kept = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[: KEPT // 2]
                counts.clear()
                counts.update(dict(kept))

    def likeness(self, words: Collection[str]) -> float | None:
        """Return how much of the frame and the task's words are shared, in [0, 1]; None when the task does not fit.

        0 where nothing can be told: of a task without words, and where the tasks of this world are free text.
        """
        usual = len(self.frame) * self.episodes / self.size if self.size else 0.0
        if not words or usual < FRAMED:
            return 0.0
        shared = len(self.frame.intersection(words)) / len(self.frame.union(words))
        return shared if shared >= FIT * min(1.0, usual) else None

    def knows(self, forms: Collection[str]) -> float:
        """Return the share of these forms that were taken in this world; 1 of none."""
        return sum(form in self.forms for form in forms) / len(forms) if forms else 1.0


class Worlds:
    """The worlds of one namespace."""

    def __init__(self, worlds: Iterable[World] = ()) -> None:
        self._worlds = {world.id: world for world in worlds}
        self._found: dict[tuple[str, frozenset[str]], int | None] = {}
        self._related: dict[tuple[int | None, str, frozenset[str]], frozenset[int] | None] = {}

    @property
    def standing(self) -> list[World]:
        """Worlds that were not united with another one, in the order of their ids."""
        return [world for _, world in sorted(self._worlds.items()) if not world.into]

    @property
    def aliases(self) -> dict[int, int]:
        """The worlds that were united, with the one that stands for each."""
        return {number: self.standing_for(number) for number, world in sorted(self._worlds.items()) if world.into}

    def standing_for(self, number: int) -> int:
        """Return the world that a world was united with, or itself."""
        while number in self._worlds and self._worlds[number].into:
            number = self._worlds[number].into
        return number

    def names_of(self, number: int) -> list[int]:
        """Return the ids of a world and of those united with it."""
        return [number, *(other for other, into in self.aliases.items() if into == number)]

    def get(self, number: int) -> World:
        """Return a world by its id."""
        return self._worlds[number]

    def find(self, task: str, actions: Iterable[str] = ()) -> int | None:
        """Return the world that a state with this task and these admissible actions belongs to; None when it is new."""
        forms = frozenset(parse_action(action).template for action in actions)
        if (task, forms) not in self._found:
            if len(self._found) > KEPT:
                self._found.clear()
            best = self._best(content_words(task), forms, lambda world: True)
            self._found[task, forms] = best.id if best else None
        return self._found[task, forms]

    def find_sure(self, task: str, actions: Iterable[str] = ()) -> int | None:
        """Return the world of a state where its task or actions tell it; None where several are as likely."""
        forms = frozenset(parse_action(action).template for action in actions)
        number = self.find(task, actions)
        if number is None or forms or len(self.standing) < 2 or self._worlds[number].likeness(content_words(task)):
            return number
        return None

    def related(self, task: str, actions: Iterable[str] = ()) -> frozenset[int] | None:
        """Return the worlds whose experience counts in a state; None where that of all worlds does.

        Where the world of the state is sure, these are it, the other kinds of task of its environment, and any other
        world that the task fits. Where the state is of no known world, they are the worlds that know any of its
        admissible actions. Worlds that were united are listed by each of their ids.
        """
        number = self.find_sure(task, actions)
        forms = frozenset(parse_action(action).template for action in actions) if number is None else frozenset()
        if number is None and (not forms or self.find(task, actions) is not None):
            return None
        if (number, task, forms) not in self._related:
            if len(self._related) > KEPT:
                self._related.clear()
            self._related[number, task, forms] = self._relatives(number, content_words(task), forms)
        return self._related[number, task, forms]

    def _relatives(self, number: int | None, words: frozenset[str], forms: frozenset[str]) -> frozenset[int] | None:
        if number is None:
            kept = {world.id for world in self.standing if world.knows(forms)}
        else:
            mine = self._worlds[number]
            kept = {world.id for world in self.standing if are_kin(mine, world) or world.likeness(words)}
        if len(kept) == len(self.standing):
            return None
        return frozenset({*kept, *(old for old, stands in self.aliases.items() if stands in kept)})

    def fits(self, number: int, task: str) -> bool:
        """Return whether a task may be of this world; a task without words may be of any."""
        world = self._worlds.get(self.standing_for(number))
        return world is None or world.likeness(content_words(task)) is not None

    def _best(self, words: frozenset[str], forms: Collection[str], among: Callable[[World], bool]) -> World | None:
        best: tuple[float, float, int] | None = None
        chosen: World | None = None
        for world in self.standing:
            likeness = world.likeness(words) if among(world) else None
            if likeness is None:
                continue
            known = world.knows(forms)
            if known < UNFRAMED_FORMS if not likeness else forms and not known:
                continue
            rank = (likeness, known, world.episodes)
            if best is None or rank > best:
                best, chosen = rank, world
        return chosen

    def place(
        self, environment: str, task: str, actions: Iterable[str], *, won: bool = False
    ) -> tuple[int, list[World]]:
        """Count an episode; return the id of its world, and the worlds that changed."""
        self._found.clear()
        self._related.clear()
        words, forms = content_words(task), frozenset(parse_action(action).template for action in actions)

        def possible(world: World) -> bool:
            return world.environment == environment

        world = self._best(words, forms, possible)
        changed: list[World] = []
        if world is None:
            united = self._unite(environment, words, forms)
            changed += united
            if united:
                world = united[0]
        if world is None:
            number = max(self._worlds, default=0) + 1
            world = self._worlds[number] = World(number, environment)
        world.add(words, forms, won=won)
        return world.id, [world, *(one for one in changed if one is not world)]

    def _unite(self, environment: str, words: frozenset[str], forms: frozenset[str]) -> list[World]:
        """Unite young worlds of which this episode shows that their tasks differ in names alone; the first stays."""
        young = [
            world
            for world in self.standing
            if world.environment == environment
            and world.episodes <= YOUNG
            and (environment or _overlap(frozenset(world.forms), forms) >= ALIKE)
        ]
        sharing = [[world for world in young if word in world.frame] for word in sorted(words)]
        framed = [group for group in sharing if _shared(words, group) >= FRAMED]
        chosen = max(framed, key=len, default=[])
        if len(chosen) < UNITE_BY_WORD - 1:
            chosen = young if len(young) >= UNITE_ANY - 1 else []
        for other in chosen[1:]:
            chosen[0].unite(other)
        return chosen


def are_kin(one: World, other: World) -> bool:
    """Return whether two worlds are of one environment: by their labels or, without labels, by what was done there.

    Of a world of few episodes without a label this cannot be told: it counts as kin where any action is common.
    """
    if one is other:
        return True
    if one.environment and other.environment:
        return one.environment == other.environment
    some, others = _acts(one), _acts(other)
    if min(one.episodes, other.episodes) <= YOUNG:
        return not (some and others) or not some.isdisjoint(others)
    return _overlap(some, others) >= ALIKE


def _acts(world: World) -> frozenset[str]:
    """Return what was done in a world: the tools of its calls, the forms of its other actions."""
    return frozenset(
        parse_action(form).verb if form.rstrip().endswith((")", "]", "}")) and "(" in form else form
        for form in world.forms
    )


def _shared(words: frozenset[str], group: Sequence[World]) -> float:
    """Return the share of its words that a task has in common with all of these worlds."""
    return len(words.intersection(*(world.frame for world in group))) / len(words) if group else 0.0


def _overlap(some: frozenset[str], others: frozenset[str]) -> float:
    return len(some & others) / len(some | others) if some or others else 1.0


def read_worlds(rows: Iterable[tuple[int, str]]) -> Worlds:
    """Make worlds of their rows."""
    return Worlds(_stored(number, record) for number, record in rows)


def _stored(number: int, record: str) -> World:
    try:
        return _from_record(number, parse(record, "worlds"))
    except (LookupError, TypeError, AttributeError) as error:
        raise LibraryDamaged(f"worlds holds {record!r:.60}, which is no world. Run: hardwon memory repair") from error


def _from_record(number: int, record: Mapping[str, Any]) -> World:
    return World(
        number,
        record["environment"],
        record["episodes"],
        record["size"],
        Counter(record["words"]),
        Counter(record["forms"]),
        record.get("won", 0),
        record["into"],
    )


def _to_record(world: World) -> str:
    record = {
        "environment": world.environment,
        "episodes": world.episodes,
        "size": world.size,
        "words": dict(sorted(world.words.items())),
        "forms": dict(sorted(world.forms.items())),
        "won": world.won,
        "into": world.into,
    }
    return json.dumps(record, separators=(",", ":"))


SELECT = "SELECT id, record FROM worlds WHERE namespace = ? ORDER BY id"


def place_episodes(connection: Connection, namespace: int, episodes: Sequence[Trajectory]) -> None:
    """Place filed episodes and write down where; an excluded one has no world."""
    told = [
        (
            one.id,
            str(one.meta.get("environment") or ""),
            one.task,
            [step.action for step in one.steps],
            bool(one.success),
        )
        for one in episodes
        if one.success is not None
    ]
    unite(connection, namespace, _place(connection, namespace, told))


def renew(connection: Connection, namespace: int) -> None:
    """Place every episode anew, and file the scores of items under the worlds that most of their episodes moved to."""
    try:
        before = read_worlds(connection.execute(SELECT, (namespace,)).fetchall())
    except LibraryDamaged:  # where scores were filed cannot be told any more
        rebuild(connection, namespace)
        return
    placed = "SELECT trajectory_id, world FROM episode_worlds WHERE namespace = ?"
    old = dict(connection.execute(placed, (namespace,)).fetchall())
    rebuild(connection, namespace)
    after = read_worlds(connection.execute(SELECT, (namespace,)).fetchall())
    moves = Counter(
        (before.standing_for(old[ref]), after.standing_for(number))
        for ref, number in connection.execute(placed, (namespace,))
        if ref in old
    )
    names: dict[int, int] = {}
    for (source, target), _ in sorted(moves.items(), key=lambda one: (one[1], one[0])):
        names[source] = target
    rename(connection, namespace, names)


def rebuild(connection: Connection, namespace: int) -> None:
    """Place every episode of a namespace anew, in the order in which they were filed."""
    connection.execute("DELETE FROM worlds WHERE namespace = ?", (namespace,))
    connection.execute("DELETE FROM episode_worlds WHERE namespace = ?", (namespace,))
    rows = connection.execute(
        "SELECT id, task, meta, success FROM trajectories WHERE namespace = ? AND success IS NOT NULL ORDER BY rowid",
        (namespace,),
    ).fetchall()
    actions = "SELECT DISTINCT action FROM steps WHERE namespace = ? AND trajectory_id = ?"
    _place(
        connection,
        namespace,
        (
            (
                ref,
                _environment_in(meta),
                task,
                [row[0] for row in connection.execute(actions, (namespace, ref))],
                bool(success),
            )
            for ref, task, meta, success in rows
        ),
    )


def _environment_in(meta: str) -> str:
    """Return the environment that an episode names; empty where its row is damaged."""
    try:
        return str(json.loads(meta).get("environment") or "")
    except (ValueError, AttributeError):
        return ""


def _place(
    connection: Connection, namespace: int, episodes: Iterable[tuple[str, str, str, Sequence[str], bool]]
) -> dict[int, int]:
    """Place episodes; return the worlds that were united, with the one that stands for each."""
    worlds = read_worlds(connection.execute(SELECT, (namespace,)))
    changed: dict[int, World] = {}
    placed = []
    for ref, environment, task, actions, won in episodes:
        number, others = worlds.place(environment, task, (action for action in actions if action), won=won)
        placed.append((namespace, ref, number))
        changed.update((world.id, world) for world in others)
    connection.executemany(
        "INSERT INTO worlds(namespace, id, record) VALUES (?, ?, ?) "
        "ON CONFLICT(namespace, id) DO UPDATE SET record = excluded.record",
        [(namespace, number, _to_record(world)) for number, world in sorted(changed.items())],
    )
    connection.executemany("INSERT OR REPLACE INTO episode_worlds VALUES (?, ?, ?)", placed)
    return {number: worlds.standing_for(number) for number, world in changed.items() if world.into}
