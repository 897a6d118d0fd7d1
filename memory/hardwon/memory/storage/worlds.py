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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import NamedTuple

from hardwon.memory.errors import LibraryDamaged
from hardwon.memory.records import Trajectory
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.keys import content_words

from .counted import COUNTED_EPISODES, QueryRows, find_counted_writers, is_counted
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
            self._frame = frozenset([word for word, count in self.words.items() if count >= enough])
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
        frame = self.frame
        usual = len(frame) * self.episodes / self.size if self.size else 0.0
        if not words or usual < FRAMED:
            return 0.0
        shared = len(frame.intersection(words)) / len(frame.union(words))
        # `usual` is the typical similarity in this world, so the threshold is lower if its tasks are long.
        # Share of a world's typical similarity between frame and task that a task must reach to fit.
        return shared if shared >= 0.5 * min(1.0, usual) else None

    def knows(self, forms: frozenset[str]) -> float:
        """Return the share of these action forms that occurred in this world; 1 if there are none."""
        return len(forms & self.forms.keys()) / len(forms) if forms else 1.0


def _forms_of(actions: Iterable[str]) -> frozenset[str]:
    """Return the forms of actions."""
    return frozenset([parse_action(action).template for action in actions]) if actions else frozenset()


class Worlds:
    """The worlds of one namespace."""

    def __init__(self, worlds: dict[int, World] | None = None) -> None:
        """Hold worlds by id."""
        self._worlds = worlds or {}
        self._settle()

    def _settle(self) -> None:
        """Renew what follows from the worlds; one more episode may change any frame, and with it every answer."""
        self._homes: dict[tuple[str, frozenset[str]], tuple[int | None, int | None]] = {}
        self._related: dict[tuple[int | None, str, frozenset[str]], frozenset[int] | None] = {}
        self.standing: list[World] = []
        """The worlds that were not merged into another one, in the order of their ids."""
        self.aliases: dict[int, int] = {}
        """By id of a merged world, the world that replaces it."""
        for number, world in sorted(self._worlds.items()):
            if world.into:
                self.aliases[number] = self.standing_for(number)
            else:
                self.standing.append(world)

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

    def count_kin(self, task: str, actions: Iterable[str]) -> int:
        """Return the number of episodes of the environment of a state, of all its kinds of task."""
        number = self.find(task, actions)
        if number is None:
            return 0
        return sum(world.episodes for world in self.standing if are_kin(self._worlds[number], world))

    def find(self, task: str, actions: Iterable[str] = ()) -> int | None:
        """Return the id of the world of a state with this task and these actions, or None for a new world."""
        return self._find_home(task, _forms_of(actions))[0]

    def _find_home(self, task: str, forms: frozenset[str]) -> tuple[int | None, int | None]:
        """Return the world of a state, and the same if the task or the actions identify it."""
        homes = self._homes.get((task, forms))
        if homes is None:
            if len(self._homes) > KEPT:  # a simple bound: rebuilding the cache is cheap
                self._homes.clear()
            words = content_words(task)
            best = self._find_best(words, forms)
            number = best.id if best else None
            is_sure = best is None or forms or len(self.standing) < 2 or best.likeness(words)
            homes = self._homes[task, forms] = number, number if is_sure else None
        return homes

    def locate(self, task: str, actions: Iterable[str] = ()) -> tuple[int | None, frozenset[int] | None]:
        """Return the world of a state if its task or actions identify it, and the worlds whose experience applies.

        If the world is certain, these are this world, the other kinds of task of its environment and all worlds that
        the task fits. If the state belongs to no known world, they are the worlds in which one of its admissible
        actions occurred. Merged worlds are listed with all their ids. None stands for all worlds.
        """
        forms = _forms_of(actions)
        home, number = self._find_home(task, forms)
        if number is not None:
            forms = frozenset()
        elif not forms or home is not None:
            return None, None
        if (number, task, forms) not in self._related:
            if len(self._related) > KEPT:
                self._related.clear()
            self._related[number, task, forms] = self._find_related(number, content_words(task), forms)
        return number, self._related[number, task, forms]

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

    def _find_best(self, words: frozenset[str], forms: frozenset[str], environment: str | None = None) -> World | None:
        """Return the world that a task with these words and action forms fits best, of all or of one environment."""
        best: tuple[float, float, int] | None = None
        chosen: World | None = None
        for world in self.standing:
            likeness = world.likeness(words) if environment in (None, world.environment) else None
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
        world = self._find_best(content_words(task), _forms_of(actions), environment)
        return world.id if world else None

    def place(
        self, environment: str, task: str, actions: Iterable[str], *, won: bool = False
    ) -> tuple[int, list[World]]:
        """Count an episode; return the id of its world and the worlds that changed."""
        words, forms = content_words(task), _forms_of(actions)
        world = self._find_best(words, forms, environment)
        changed: list[World] = []
        if world is None:
            changed = self._unite(environment, words, forms)
            world = changed[0] if changed else None
        if world is None:
            # Merged worlds stay in the map, so their ids are never used again.
            number = max(self._worlds, default=0) + 1
            world = self._worlds[number] = World(number, environment)
        world.add(words, forms, won=won)
        self._settle()
        return world.id, changed or [world]

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


class WorldMap(Worlds):
    """The worlds of a namespace as they are stored, and the world of each episode."""

    def __init__(self, rows: QueryRows, namespace: int) -> None:
        super().__init__()
        self._rows = rows
        self._namespace = namespace
        self._episodes: dict[str, int] | None = None
        """By episode, its world as recorded; None until it is needed."""

    def read(self) -> bool:
        """Read the worlds, and return whether some were merged, which makes all data per world stale."""
        merged, before = self.aliases, self._worlds
        self._worlds = read_worlds(self._rows(SELECT, (self._namespace,)))
        self._settle()
        # Worlds grow and merge. If one shrank or vanished otherwise, the episodes were placed again.
        shrunk = [
            number
            for number, world in before.items()
            if number not in self._worlds or self._worlds[number].episodes < world.episodes
        ]
        if shrunk or self.aliases != merged:
            self._episodes = None
        return self.aliases != merged

    def forget(self) -> None:
        """Drop everything that was read, because other episodes count now."""
        self._worlds.clear()
        self._settle()
        self._episodes = None

    def of(self, trajectory_id: str) -> int | None:
        """Return the world of an episode, or None if the episode was excluded."""
        if self._episodes is None:
            self._episodes = dict(self._rows(f"{_PLACED} WHERE namespace = ?", (self._namespace,)))
        if trajectory_id not in self._episodes:  # recorded since then
            new = f"{_PLACED} WHERE namespace = ? AND trajectory_id = ?"
            self._episodes.update(self._rows(new, (self._namespace, trajectory_id)))
        number = self._episodes.get(trajectory_id)
        return None if number is None else self.standing_for(number)


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


def read_worlds(rows: Iterable[tuple[int, str]]) -> dict[int, World]:
    """Return the worlds that database rows describe, by id."""
    worlds = {}
    for number, text in rows:
        try:
            record = json.loads(text)
            counts = Counter(record["words"]), Counter(record["forms"])
            sizes = record["episodes"], record["size"]
            ends = record.get("won", 0), record["into"]
            worlds[number] = World(number, record["environment"], *sizes, *counts, *ends)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise LibraryDamaged(
                f"worlds holds {text!r:.60}, which is not a valid world. Run: hardwon memory repair"
            ) from error
    return worlds


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


_PLACED = "SELECT trajectory_id, world FROM episode_worlds"
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
    if merged := _place(connection, namespace, placements):
        unite(connection, namespace, merged)


def renew(connection: Connection, namespace: int) -> None:
    """Place all episodes again, and move item scores to the worlds to which most of their episodes moved."""
    try:
        before = Worlds(read_worlds(connection.execute(SELECT, (namespace,)).fetchall()))
    except LibraryDamaged:  # the old ids are lost, so scores cannot be moved to the new ones
        rebuild(connection, namespace)
        return
    placed = "SELECT trajectory_id, world FROM episode_worlds WHERE namespace = ?"
    old = dict(connection.execute(placed, (namespace,)).fetchall())
    rebuild(connection, namespace)
    after = Worlds(read_worlds(connection.execute(SELECT, (namespace,)).fetchall()))
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
    worlds = Worlds(read_worlds(connection.execute(SELECT, (namespace,))))
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
        for world in alternatives:
            changed[world.id] = world
    connection.executemany(
        "INSERT INTO worlds(namespace, id, record) VALUES (?, ?, ?) "
        "ON CONFLICT(namespace, id) DO UPDATE SET record = excluded.record",
        [(namespace, number, _to_record(changed[number])) for number in sorted(changed)],
    )
    connection.executemany("INSERT OR REPLACE INTO episode_worlds VALUES (?, ?, ?)", placed)
    return {number: worlds.standing_for(number) for number, world in changed.items() if world.into}
