"""Logs of random experience, without a database."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.fleet.application.batches import pack_batch
from hardwon.memory.fleet.entries import LogEntry, locate_steps, pack, pack_episode_entry
from hardwon.memory.fleet.replica import Capture, Replica
from hardwon.memory.reasons import Reasons
from hardwon.memory.records import Trust
from hardwon.memory.storage.clock import fix_time
from hardwon.memory.storage.database import Store
from hardwon.memory.stored_values import ValueBatch, ValueWrite
from hardwon.memory.upkeep.setup import namespace_number
from hardwon.memory.upkeep.write_buffer import redact_and_pack
from hardwon.memory.validation import check_episodes

THINGS = ("apple", "bread", "carrot", "lamp", "mirror")
PLACES = ("attic", "barn", "cellar")
GAMES = ("cooking", "sorting")


class Copy:
    """A replica in a file of its own."""

    def __init__(self, path: Path | str) -> None:
        ExperienceLibrary.open(path).close()
        self.store = Store(path)
        self.number = namespace_number(self.store, "default")
        self.replica = Replica(self.store, self.number)
        self.apply = self.replica.apply

    def digest(self) -> str:
        return compute_digest(self.store, self.number)


class Writer(Copy):
    """Writes a log: what happens, and what its own copy decides, as the client of a database would."""

    def __init__(self, path: Path | str, seed: int = 0) -> None:
        super().__init__(path)
        self.random = random.Random(seed)
        self.log: list[LogEntry] = []

    def append(self, kind: str, key: str, payload: bytes) -> None:
        position = len(self.log) + 1
        at = f"2026-01-01T00:{position // 60 % 60:02d}:{position % 60:02d}+00:00"
        self.log.append(LogEntry(position, at, kind, key, payload))
        self.apply(self.log[-1:])

    def record(self, episode: Trajectory) -> None:
        clean, text = redact_and_pack(*check_episodes([episode]))
        self.append(
            "episode", clean.id, pack_episode_entry(text, lambda ids: locate_steps(self.store, self.number, ids))
        )

    @contextmanager
    def change(self) -> Iterator[ExperienceLibrary]:
        """Let the body change items of the copy, and write what it did as one entry."""
        library = ExperienceLibrary.open(self.store.path)
        try:
            with library._file.transaction() as connection:
                capture = Capture(library._file.store, connection, self.number)
                yield library
                values = capture.read()
                raise InterruptedError
        except InterruptedError:
            pass
        finally:
            library.close()
        if values is not None:
            self.append("items", f"items:{len(self.log)}", pack(values))

    def live(self, days: int) -> None:
        """Let things happen."""
        for day in range(days):
            self.record(self.make_episode(f"e{day}"))
            if day % 3 == 1:
                self.append("store", f"store:{day}", pack(pack_batch(self.make_batch(day))))
            if day % 5 == 4:
                with self.change() as library:
                    library.evolve()
            if day % 7 == 3:
                with self.change() as library:
                    library.add(self.make_item(day))
            if day % 11 == 10:
                with self.change() as library:
                    for item in library.items.find(limit=1):
                        library.feedback(item.id, self.random.random() < 0.5, writer="token:x", episode=f"e{day}")
                        library.items.update(item.id, pinned=True)
                        library.items.retire(item.id, "not needed")

    def make_batch(self, day: int) -> ValueBatch:
        """Put values of which some expire within the seconds of the next entries, delete one, and read others."""
        choose = self.random.choice
        keys = self.random.sample(THINGS, 3)
        writes = [
            ValueWrite("users.", key, f'{{"day": {day}}}', '["$"]', choose((None, 0.05, 1.0)), {"$": bytes(8)})
            for key in keys
        ]
        past = self.store.rows("SELECT id FROM langgraph_values ORDER BY id") if day > 1 else []
        touches = [ref for (ref,) in past if self.random.random() < 0.5]
        return ValueBatch([*writes, ValueWrite("users.", choose(THINGS), None)], touches, "f", day % 2 > 0)

    def make_item(self, day: int) -> Item:
        thing, place = self.random.choice(THINGS), self.random.choice(PLACES)
        steps = self.store.rows("SELECT id FROM steps ORDER BY random() LIMIT 3")
        return Item(
            "insight", f"the {thing} of day {day}", f"look for the {thing} in the {place} before you cook",
            provenance=tuple(ref for (ref,) in steps), source="person",
        )  # fmt: skip

    def make_episode(self, ref: str) -> Trajectory:
        choose = self.random.choice
        game = choose(GAMES)
        task = f"{game} quest: bring the {choose(THINGS)} to the {choose(PLACES)}"
        steps, state = [], State(f"You are in the {choose(PLACES)}.", {"game": game}, choose(PLACES), task)
        items = [ref for (ref,) in self.store.rows("SELECT id FROM items ORDER BY id")]
        past = [ref for (ref,) in self.store.rows("SELECT id FROM steps ORDER BY id DESC LIMIT 20")]
        untrusted = self.random.random() < 0.2
        for t in range(self.random.randint(1, 6)):
            thing, place = choose(THINGS), choose(PLACES)
            after = State(f"You hold a {thing} in the {place}.", {"held": thing}, place, task, "ok \0 \ud83d")
            bad = self.random.random() < 0.4
            diagnosis = Diagnosis(not bad, Failure.NO_EFFECT if bad else Failure.NONE)
            why: dict[str, object] = {}
            if past and self.random.random() < 0.5:
                why["like"] = sorted(self.random.sample(past, min(3, len(past))))
            if items and not untrusted and self.random.random() < 0.5:
                why[choose(("recalled", "withheld", "blocked", "overrode"))] = [choose(items)]
            action = f"{choose(('take', 'cook', 'open'))} {thing}"
            keys = ("*", action, f"{place} | {action}")
            steps.append(
                Step(state, action, after, diagnosis, -0.0, t, keys, Reasons.of(why), admissible=("wait", action))
            )
            state = after
        writer = choose(("mcp:a", "token:b", "token:c", "http:d")) if untrusted else ""
        success = choose((True, True, False, None))
        trust: Trust = "untrusted" if untrusted else "trusted"
        return Trajectory(
            task, tuple(steps), success, float(bool(success)), seed=self.random.randint(0, 3), id=ref,
            meta={"environment": game, "odd": [1e100, -0.0]}, writer=writer, trust=trust,
        )  # fmt: skip


def record_plainly(path: Path, log: list[LogEntry], episodes: list[Trajectory]) -> str:
    """Return the digest of a library that recorded the same episodes without a log."""
    with ExperienceLibrary.open(path) as library:
        for entry, episode in zip(log, episodes, strict=True):
            with fix_time(entry.at):
                library.record(episode)
        return library.admin.query(compute_digest)
