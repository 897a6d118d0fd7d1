"""Worlds: groups of recorded episodes with the same environment and the same kind of task.

The value of an action in one game says nothing about another game, so values are kept per world. Callers need not name
their environment. Each episode is placed by its environment label, if it has one, by the words of its task and by the
forms of its actions. The frame of a world is the set of words that most of its tasks share; the other words are names
that differ between tasks. A state belongs to the world whose frame fits its task best. If no frame fits, the library
returns nothing for it.

Placement runs in the transaction that stores an episode, in the order of storage, so that all processes agree.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any, NamedTuple

from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.records import Trajectory
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.keys import content_words

from .checksums import parse_json
from .counted import COUNTED_EPISODES, find_counted_writers, is_counted
from .world_scores import rename, unite

FRAMED = 0.25
"""Smallest share of a task's words that the frame must cover; below it, tasks count as free text without a frame."""
YOUNG = 3
"""Worlds with at most this many episodes are merged when their tasks turn out to differ only in names."""
UNITE_BY_WORD = 3
"""Number of young worlds with a common task word that triggers a merge."""
UNITE_ANY = 6
"""Number of young worlds of one environment without common words that triggers a merge: tasks are free text."""
ALIKE = 0.6
"""Overlap of action forms from which episodes without a label count as one environment."""
KEPT = 400
"""Largest number of words, and of forms, counted per world; beyond it the rarest are dropped."""


@dataclass(slots=True)
class World:
    """Statistics of the episodes of one environment and kind of task."""

    id: int
    environment: str = ""
    episodes: int = 0
    size: int = 0
    """Total number of words of its tasks."""
    words: Counter[str] = field(default_factory=Counter)
    """Number of tasks in which each word occurred."""
    forms: Counter[str] = field(default_factory=Counter)
    """Number of episodes in which each form of action was used."""
    won: int = 0
    """Number of its episodes that succeeded."""
    into: int = 0
    """Id of the world that this one was merged into; 0 if it was not merged."""
    _frame: frozenset[str] | None = None

    @property
    def frame(self) -> frozenset[str]:
        """Return the words that most tasks of this world share."""
        if self._frame is None:
            # Share of a world's tasks in which a word must occur to belong to the frame.
            enough = 0.8 * self.episodes
            self._frame = frozenset(word for word, count in self.words.items() if count >= enough)
        return self._frame

    @property
    def name(self) -> str:
        """Return a readable name: the environment label, then the frame words or the most frequent actions."""
        shared = ", ".join(sorted(self.frame)[:6])
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
        """Merge another world's counts into this one."""
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
                # To half, so that the sort is rare. Ties are broken by name: all processes must keep the same words.
                kept = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[: KEPT // 2]
                counts.clear()
                counts.update(dict(kept))

    def likeness(self, words: Collection[str]) -> float | None:
        """Return the similarity between the frame and a task, or None if the task does not fit."""
        usual = len(self.frame) * self.episodes / self.size if self.size else 0.0
        if not words or usual < FRAMED:
            return 0.0
        shared = len(self.frame.intersection(words)) / len(self.frame.union(words))
        # `usual` is the typical similarity in this world, so the threshold is lower if its tasks are long.
        # Share of a world's typical similarity between frame and task that a task must reach to fit.
        return shared if shared >= 0.5 * min(1.0, usual) else None

    def knows(self, forms: Collection[str]) -> float:
        """Return the share of these action forms that occurred in this world; 1 if there are none."""
        return sum(form in self.forms for form in forms) / len(forms) if forms else 1.0


class Worlds:
    """The worlds of one namespace."""

    def __init__(self, worlds: Iterable[World] = ()) -> None:
        self._worlds = {world.id: world for world in worlds}
        self._cache: dict[tuple[str, frozenset[str]], int | None] = {}
        self._related: dict[tuple[int | None, str, frozenset[str]], frozenset[int] | None] = {}

    @property
    def standing(self) -> list[World]:
        """Return the worlds that were not merged into another one, in the order of their ids."""
        return [world for _, world in sorted(self._worlds.items()) if not world.into]

    @property
    def aliases(self) -> dict[int, int]:
        """Return a mapping from the ids of merged worlds to the worlds that replace them."""
        return {number: self.standing_for(number) for number, world in sorted(self._worlds.items()) if world.into}

    def standing_for(self, number: int) -> int:
        """Return the id of the world that a world was merged into, or its own id."""
        # Merges form chains: a world that absorbed others may later be merged itself.
        while number in self._worlds and self._worlds[number].into:
            number = self._worlds[number].into
        return number

    def names_of(self, number: int) -> list[int]:
        """Return the id of a world and the ids of all worlds merged into it."""
        return [number, *(other for other, into in self.aliases.items() if into == number)]

    def get(self, number: int) -> World:
        """Return a world by id."""
        return self._worlds[number]

    def count_kin(self, number: int) -> int:
        """Return the number of episodes of all kinds of task of a world's environment."""
        home = self._worlds[number]
        return sum(world.episodes for world in self.standing if are_kin(home, world))

    def find(self, task: str, actions: Iterable[str] = ()) -> int | None:
        """Return the id of the world of a state with this task and these actions, or None for a new world."""
        forms = frozenset(parse_action(action).template for action in actions)
        if (task, forms) not in self._cache:
            if len(self._cache) > KEPT:  # a simple bound: rebuilding the cache is cheap
                self._cache.clear()
            best = self._find_best(content_words(task), forms, lambda world: True)
            self._cache[task, forms] = best.id if best else None
        return self._cache[task, forms]

    def find_sure(self, task: str, actions: Iterable[str] = ()) -> int | None:
        """Return the world of a state if its task or actions identify it; None if the choice is ambiguous."""
        forms = frozenset(parse_action(action).template for action in actions)
        number = self.find(task, actions)
        if number is None or forms or len(self.standing) < 2 or self._worlds[number].likeness(content_words(task)):
            return number
        return None

    def related(self, task: str, actions: Iterable[str] = ()) -> frozenset[int] | None:
        """Return the worlds whose experience applies to a state, or None if all of them apply.

        If the world of the state is certain, the result holds this world, the other kinds of task of its environment
        and all worlds that the task fits. If the state belongs to no known world, the result holds the worlds in which
        one of its admissible actions occurred. Merged worlds are listed with all their ids.
        """
        number = self.find_sure(task, actions)
        forms = frozenset(parse_action(action).template for action in actions) if number is None else frozenset()
        if number is None and (not forms or self.find(task, actions) is not None):
            return None
        if (number, task, forms) not in self._related:
            if len(self._related) > KEPT:
                self._related.clear()
            self._related[number, task, forms] = self._find_related(number, content_words(task), forms)
        return self._related[number, task, forms]

    def _find_related(self, number: int | None, words: frozenset[str], forms: frozenset[str]) -> frozenset[int] | None:
        if number is None:
            kept = {world.id for world in self.standing if world.knows(forms)}
        else:
            home = self._worlds[number]
            kept = {world.id for world in self.standing if are_kin(home, world) or world.likeness(words)}
        if len(kept) == len(self.standing):
            return None
        return frozenset({*kept, *(old for old, stands in self.aliases.items() if stands in kept)})

    def fits(self, number: int, task: str) -> bool:
        """Return whether a task may belong to this world. A task without words fits every world."""
        world = self._worlds.get(self.standing_for(number))
        return world is None or world.likeness(content_words(task)) is not None

    def _find_best(self, words: frozenset[str], forms: Collection[str], among: Callable[[World], bool]) -> World | None:
        best: tuple[float, float, int] | None = None
        chosen: World | None = None
        for world in self.standing:
            likeness = world.likeness(words) if among(world) else None
            if likeness is None:
                continue
            familiarity = world.knows(forms)
            # Without shared words, the action forms alone must identify the world.
            # If tasks share no words: the share of a state's action forms that the world must have seen.
            if familiarity < 0.5 if not likeness else forms and not familiarity:
                continue
            rank = (likeness, familiarity, world.episodes)
            # Strictly greater: of equal worlds the oldest wins, in every process.
            if best is None or rank > best:
                best, chosen = rank, world
        return chosen

    def find_home(self, environment: str, task: str, actions: Iterable[str]) -> int | None:
        """Return the id of the world that an episode would join, without counting it, or None if it fits none."""
        forms = frozenset(parse_action(action).template for action in actions)
        world = self._find_best(content_words(task), forms, lambda world: world.environment == environment)
        return world.id if world else None

    def place(
        self, environment: str, task: str, actions: Iterable[str], *, won: bool = False
    ) -> tuple[int, list[World]]:
        """Count an episode; return the id of its world and the worlds that changed."""
        # One more episode may change any frame, and with it every cached answer.
        self._cache.clear()
        self._related.clear()
        words, forms = content_words(task), frozenset(parse_action(action).template for action in actions)

        def is_candidate(world: World) -> bool:
            return world.environment == environment

        world = self._find_best(words, forms, is_candidate)
        changed: list[World] = []
        if world is None:
            united = self._unite(environment, words, forms)
            changed += united
            if united:
                world = united[0]
        if world is None:
            # Merged worlds stay in the map, so their ids are never used again.
            number = max(self._worlds, default=0) + 1
            world = self._worlds[number] = World(number, environment)
        world.add(words, forms, won=won)
        return world.id, [world, *(other for other in changed if other is not world)]

    def _unite(self, environment: str, words: frozenset[str], forms: frozenset[str]) -> list[World]:
        """Merge young worlds if this episode shows that their tasks differ only in names."""
        young = [
            world
            for world in self.standing
            if world.environment == environment
            and world.episodes <= YOUNG
            and (environment or _jaccard(frozenset(world.forms), forms) >= ALIKE)
        ]
        sharing = [[world for world in young if word in world.frame] for word in sorted(words)]
        framed = [group for group in sharing if _common_share(words, group) >= FRAMED]
        chosen = max(framed, key=len, default=[])
        if len(chosen) < UNITE_BY_WORD - 1:
            chosen = young if len(young) >= UNITE_ANY - 1 else []
        for other in chosen[1:]:
            chosen[0].unite(other)
        return chosen


def are_kin(first: World, other: World) -> bool:
    """Return whether two worlds belong to one environment.

    Labels decide if both worlds have one; otherwise the overlap of their actions does. A world with few episodes and no
    label counts as kin if any action is common.
    """
    if first is other:
        return True
    if first.environment and other.environment:
        return first.environment == other.environment
    names, other_names = _action_names(first), _action_names(other)
    # A few episodes show only some of the actions, so one common action is enough for young worlds.
    if min(first.episodes, other.episodes) <= YOUNG:
        return not (names and other_names) or not names.isdisjoint(other_names)
    return _jaccard(names, other_names) >= ALIKE


def _action_names(world: World) -> frozenset[str]:
    """Return the actions of a world: tool names for calls, action forms otherwise."""
    return frozenset(
        parse_action(form).verb if form.rstrip().endswith((")", "]", "}")) and "(" in form else form
        for form in world.forms
    )


def _common_share(words: frozenset[str], group: Sequence[World]) -> float:
    """Return the share of a task's words that occur in the frames of all worlds of a group."""
    return len(words.intersection(*(world.frame for world in group))) / len(words) if group else 0.0


def _jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets; 1 if both are empty."""
    return len(first & second) / len(first | second) if first or second else 1.0


def read_worlds(rows: Iterable[tuple[int, str]]) -> Worlds:
    """Return the worlds that database rows describe."""
    return Worlds(_decode_world(number, record) for number, record in rows)


def _decode_world(number: int, record: str) -> World:
    try:
        return _from_record(number, parse_json(record, "worlds"))
    except (LookupError, TypeError, AttributeError) as error:
        raise LibraryDamaged(
            f"worlds holds {record!r:.60}, which is not a valid world. Run: hardwon memory repair"
        ) from error


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


class Placement(NamedTuple):
    """The part of an episode that decides its world."""

    episode: str
    environment: str
    task: str
    actions: Sequence[str]
    won: bool
    counts: bool
    """Whether the episode shapes the worlds. Others join one that fits, or none."""


def place_episodes(connection: Connection, namespace: int, episodes: Sequence[Trajectory], counted: str) -> None:
    """Place stored episodes in worlds and record the result. Excluded episodes belong to no world."""
    placements = [
        Placement(
            episode.id,
            str(episode.meta.get("environment") or ""),
            episode.task,
            [step.action for step in episode.steps],
            bool(episode.success),
            is_counted(episode, counted),
        )
        for episode in episodes
        if episode.success is not None
    ]
    unite(connection, namespace, _place(connection, namespace, placements))


def renew(connection: Connection, namespace: int) -> None:
    """Place all episodes again, and move item scores to the worlds to which most of their episodes moved."""
    try:
        before = read_worlds(connection.execute(SELECT, (namespace,)).fetchall())
    except LibraryDamaged:  # the old ids are lost, so scores cannot be moved to the new ones
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
    # In ascending order of counts, so that the most frequent target is assigned last and wins.
    for (source, target), _ in sorted(moves.items(), key=lambda entry: (entry[1], entry[0])):
        names[source] = target
    rename(connection, namespace, names)


def rebuild(connection: Connection, namespace: int, counted: str | None = None) -> None:
    """Place all episodes of a namespace again, in the order in which they were stored."""
    counted = find_counted_writers(connection.execute, namespace) if counted is None else counted
    connection.execute("DELETE FROM worlds WHERE namespace = ?", (namespace,))
    connection.execute("DELETE FROM episode_worlds WHERE namespace = ?", (namespace,))
    rows = connection.execute(
        f"SELECT id, task, meta, success, true {COUNTED_EPISODES[counted]} FROM trajectories "
        "WHERE namespace = ? AND success IS NOT NULL ORDER BY rowid",
        (namespace,),
    ).fetchall()
    actions = "SELECT DISTINCT action FROM steps WHERE namespace = ? AND trajectory_id = ?"
    _place(
        connection,
        namespace,
        (
            Placement(
                ref,
                _read_environment(meta),
                task,
                [row[0] for row in connection.execute(actions, (namespace, ref))],
                bool(success),
                bool(counts),
            )
            for ref, task, meta, success, counts in rows
        ),
    )


def _read_environment(meta: str) -> str:
    """Return the environment label in an episode's metadata; empty if the row is damaged."""
    try:
        return str(json.loads(meta).get("environment") or "")
    except (ValueError, AttributeError):
        return ""


def _place(connection: Connection, namespace: int, episodes: Iterable[Placement]) -> dict[int, int]:
    """Place episodes; return a mapping from the worlds that were merged to the worlds that replace them."""
    worlds = read_worlds(connection.execute(SELECT, (namespace,)))
    changed: dict[int, World] = {}
    placed = []
    for ref, environment, task, chosen, won, counts in episodes:
        actions = [action for action in chosen if action]
        if not counts:
            home = worlds.find_home(environment, task, actions)
            placed += [(namespace, ref, home)] if home is not None else []
            continue
        number, alternatives = worlds.place(environment, task, actions, won=won)
        placed.append((namespace, ref, number))
        changed.update((world.id, world) for world in alternatives)
    connection.executemany(
        "INSERT INTO worlds(namespace, id, record) VALUES (?, ?, ?) "
        "ON CONFLICT(namespace, id) DO UPDATE SET record = excluded.record",
        [(namespace, number, _to_record(world)) for number, world in sorted(changed.items())],
    )
    connection.executemany("INSERT OR REPLACE INTO episode_worlds VALUES (?, ?, ?)", placed)
    return {number: worlds.standing_for(number) for number, world in changed.items() if world.into}
