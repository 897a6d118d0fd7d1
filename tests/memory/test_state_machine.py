"""The library against a model of plain dictionaries, over random sequences of everything it can do.

Two namespaces of one file, one of them opened twice, as two processes would. After every call the
library must say what the model says; what the library alone decides (what evolution finds, what
recall ranks first) must keep its promises. `-m slow` runs thousands of sequences.
"""

import importlib.util
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.errors import ConfigError, LibraryReadOnly, UnknownName
from hardwon.memory.learning.curator import says_the_same
from hardwon.memory.learning.rule_mining import RATE_LIMITS
from hardwon.memory.reasons import Reasons
from hardwon.memory.records.episodes import with_worth

_spec: Any = importlib.util.spec_from_file_location("writers", Path(__file__).with_name("writers.py"))
writers: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(writers)

THINGS = ("apple", "bread", "carrot", "lamp", "mirror")
PLACES = ("attic", "barn", "cellar")
BODIES = ("", "wash it before", "look behind the curtain", "nobody knows why")
HANDLES = ("a", "a again", "b")
"""Connections: two to namespace a, one to b."""

picks = st.integers(0, 2**16)
handles = st.sampled_from(HANDLES)
namespaces = st.sampled_from("ab")
things, places = st.sampled_from(THINGS), st.sampled_from(PLACES)
scores = st.sampled_from((0.0, 0.25, 0.5, 0.75, 1.0))


@dataclass
class Known:
    """What the model knows of one item."""

    item: Item
    ops: list[str]
    order: int
    versions: list[Item] | None = None
    """What undo would go back through; None once something else than the model decided it."""


@dataclass
class Space:
    """What the model knows of one namespace."""

    episodes: dict[str, Trajectory] = field(default_factory=dict)
    items: dict[str, Known] = field(default_factory=dict)

    def active(self) -> list[Item]:
        return [known.item for known in self.items.values() if known.item.status == "active"]

    def steps(self) -> list[Step]:
        """All steps that count."""
        return [step for episode in self.episodes.values() if episode.success is not None for step in episode.steps]


@st.composite
def actions(draw: Any) -> tuple[str, bool]:
    """(action, whether it fails)."""
    return f"{draw(st.sampled_from(('take', 'eat', 'open')))} {draw(things)}", draw(st.booleans())


@st.composite
def items(draw: Any) -> Item:
    """Of few words, so that the same is often said twice; some are not trusted, some have a condition."""
    kind = draw(st.sampled_from(("insight", "insight", "strategy", "warning", "guardrail")))
    thing, place = draw(things), draw(places)
    trust = draw(st.sampled_from(("trusted", "trusted", "trusted", "untrusted")))
    told: dict[str, Any] = {"condition": {"text": place}, "forbids": f"eat {thing}"} if kind == "guardrail" else {}
    return Item(
        kind,
        f"the {thing} of the {place}",
        draw(st.sampled_from(BODIES)),
        **told,
        tags=(draw(things),),
        score=draw(scores),
        confidence=draw(scores),
        trust=trust,
        source="person" if trust == "trusted" else "environment",
    )


class Model(RuleBasedStateMachine):
    """Runs one sequence; the class counts all of them."""

    template: ClassVar[Path]
    sequences: ClassVar[int] = 0
    ran: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        type(self).sequences += 1
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "experience.db"
        shutil.copy(self.template, self.path)
        self.open: dict[str, ExperienceLibrary] = {name: self.opened(name) for name in HANDLES}
        self.spaces = {"a": Space(), "b": Space()}
        self.numbers = 0

    def opened(self, handle: str) -> ExperienceLibrary:
        library = ExperienceLibrary.open(self.path, embedder=writers.EMBEDDERS[0], namespace=handle[0])
        library._file.store.connection.execute(
            "PRAGMA synchronous = OFF"
        )  # what survives a power cut is tested elsewhere
        return library

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def at(self, handle: str, what: str) -> tuple[ExperienceLibrary, Space]:
        """The library and the model of a handle; what is done with it is counted."""
        self.ran[what] += 1
        return self.open[handle], self.spaces[handle[0]]

    @staticmethod
    def one(space: Space, pick: int) -> Known | None:
        """Some item of the model."""
        return space.items[sorted(space.items)[pick % len(space.items)]] if space.items else None

    # -- episodes ---------------------------------------------------------------------------------

    @rule(
        handle=handles,
        place=places,
        done=st.lists(actions(), min_size=1, max_size=3),
        success=st.sampled_from((True, True, False, None)),
        shown=st.lists(picks, max_size=2),
    )
    def record(self, handle, place, done, success, shown):
        """An episode in one place, that may have been shown some items."""
        library, space = self.at(handle, "record")
        ids = tuple({known.item.id: None for pick in shown if (known := self.one(space, pick))})
        see = State(f"You are in the {place}. There is food.", task="eat something")
        steps = []
        for t, (action, fails) in enumerate(done):
            judged = Diagnosis(not fails, Failure.PRECONDITION if fails else Failure.NONE)
            why = {"recalled": list(ids)} if ids else {}
            keys = ("*", action, f"! {action} @ around 1: raw")
            reward = 0.0 if fails else 0.5
            steps.append(Step(see, action, replace(see, feedback="Done."), judged, reward, t, keys, Reasons.of(why)))
        trajectory = Trajectory("eat something", tuple(steps), success, id=f"e{self.number()}")
        trajectory = with_worth(trajectory) if success else trajectory
        assert library.record(trajectory) == trajectory.id
        stored = library.episodes.get(trajectory.id)
        self.same_episode(trajectory, stored)
        space.episodes[trajectory.id] = stored
        self.earned(library, space, ids)

    def same_episode(self, wanted: Trajectory, found: Trajectory) -> None:
        """All that was recorded came back; the library added ids and returns."""
        assert replace(found, steps=()) == replace(wanted, steps=())
        assert [(step.pre, step.action, step.post, step.diagnosis, step.reward, step.t) for step in found.steps] == [
            (step.pre, step.action, step.post, step.diagnosis, step.reward, step.t) for step in wanted.steps
        ]
        returns = [step.return_to_go for step in found.steps]
        assert returns == pytest.approx(wanted.learned_returns())

    def earned(self, library: ExperienceLibrary, space: Space, ids: tuple[str, ...]) -> None:
        """What was shown may have moved in score, and in nothing else."""
        for ref in ids:
            known, now = space.items[ref], library.items.get(ref)
            if now != known.item:
                assert replace(now, score=known.item.score) == known.item
                known.ops.append("scored")
                known.item = now

    @rule(handle=handles, pick=picks)
    def record_again(self, handle, pick):
        """The same episode is not written twice; another one under its id is refused."""
        library, space = self.at(handle, "record again")
        if space.episodes:
            episode = space.episodes[sorted(space.episodes)[pick % len(space.episodes)]]
            assert library.record(episode) == episode.id
            with pytest.raises(ConfigError, match="another episode has the id"):
                library.record(replace(episode, task="something else"))

    # -- items ------------------------------------------------------------------------------------

    @rule(handle=handles, some=st.lists(items(), min_size=1, max_size=3))
    def add(self, handle, some):
        """Items meet those that say the same, or are new."""
        library, space = self.at(handle, "add")
        for item, admission in zip(some, library.items.add_many(some), strict=True):
            self.admitted(space, item, admission)
        for ref in {admission.item_id for admission in library.items.add_many([])} | set(space.items):
            known = space.items[str(ref)]
            if known.versions is None:
                self.adopt(library, known)

    def admitted(self, space: Space, item: Item, admission: Any) -> None:
        """What the curator said is what the rules say."""
        alike = [other for other in space.active() if other.kind == item.kind and self.same_words(item, other)]
        if admission.status == "added":
            assert not alike
            assert admission.item_id not in space.items
            status: Any = "active" if item.trust == "trusted" else "quarantined"
            born = replace(item, id=admission.item_id, status=status)
            space.items[born.id] = Known(born, ["added"], self.number(), [born])
            return
        known = space.items[admission.item_id]
        assert known.item.kind == item.kind
        if admission.status == "rejected":
            assert known.item.status == "retired" or (item.trust, known.item.trust) == ("untrusted", "trusted")
            return
        assert admission.status == "merged"
        assert known.item.status != "retired"
        if known.item.status == "quarantined" and item.trust == "trusted":  # nothing of what it said is released
            kept: dict[str, Any] = {"id": known.item.id, "version": known.item.version + 1, "pinned": known.item.pinned}
            known.item = replace(item, **kept)
        known.versions = None

    @staticmethod
    def same_words(item: Item, other: Item) -> bool:
        return item.condition is None and says_the_same(item, other)

    def adopt(self, library: ExperienceLibrary, known: Known) -> None:
        """Take from the library what it alone decides; what may not change has not, and history only grew."""
        now, before = library.items.get(known.item.id), known.item
        assert (now.id, now.kind, now.title, now.status, now.pinned) == (
            before.id,
            before.kind,
            before.title,
            before.status,
            before.pinned,
        )
        assert now.version >= before.version
        assert set(before.provenance) <= set(now.provenance)
        ops = [change["op"] for change in library.items.history(now.id)]
        assert ops[: len(known.ops)] == known.ops
        known.item, known.ops = now, ops

    @rule(handle=handles, pick=picks, place=places, thing=things, score=scores, what=st.integers(0, 4))
    def update(self, handle, pick, place, thing, score, what):
        """The new value is there, the rest is as it was, and who words it anew is its writer."""
        library, space = self.at(handle, "update")
        known = self.one(space, pick)
        if known is None:
            return
        steps = [step.id for step in space.steps()]
        changes: dict[str, Any] = (
            {"title": f"the {thing} of the {place}"},
            {"body": BODIES[pick % len(BODIES)]},
            {"score": score, "confidence": score},
            {"tags": (thing, place)},
            {"provenance": tuple(steps[-2:])},
        )[what]
        writer = "user" if what < 2 else known.item.writer
        self.changed(known, replace(known.item, **changes, writer=writer, version=known.item.version + 1), "updated")
        assert library.items.update(known.item.id, **changes) == known.item

    def changed(self, known: Known, item: Item, op: str) -> None:
        known.item = item
        known.ops.append(op)
        if known.versions is not None:
            known.versions.append(item)

    @rule(handle=handles, pick=picks, pinned=st.booleans())
    def pin(self, handle, pick, pinned):
        """Or unpin."""
        library, space = self.at(handle, "pin")
        if known := self.one(space, pick):
            item = replace(known.item, pinned=pinned, version=known.item.version + 1)
            self.changed(known, item, "pinned" if pinned else "unpinned")
            assert library.items.update(known.item.id, pinned=pinned) == known.item

    @rule(handle=handles, pick=picks)
    def retire(self, handle, pick):
        """It is out of use."""
        library, space = self.at(handle, "retire")
        if known := self.one(space, pick):
            earlier = known.versions[-1] if known.versions else known.item
            self.changed(known, replace(known.item, status="retired", version=known.item.version + 1), "retired")
            if known.versions:
                known.versions[-1] = replace(earlier, status="retired")
            library.items.retire(known.item.id, "by chance")

    @rule(handle=handles, pick=picks)
    def release(self, handle, pick):
        """Only what is in quarantine."""
        library, space = self.at(handle, "release")
        if known := self.one(space, pick):
            if known.item.status != "quarantined":
                with pytest.raises(ConfigError, match="not quarantined"):
                    library.items.release(known.item.id, "it is fine")
                return
            item = replace(known.item, status="active", trust="trusted", version=known.item.version + 1)
            self.changed(known, item, "released: it is fine")
            assert library.items.release(known.item.id, "it is fine") == known.item

    @rule(handle=handles, pick=picks)
    def undo(self, handle, pick):
        """The version before, with the score as earned."""
        library, space = self.at(handle, "undo")
        if known := self.one(space, pick):
            if known.versions is None:
                return
            if len(known.versions) < 2:
                with pytest.raises(ConfigError, match="has no earlier version"):
                    library.items.undo(known.item.id)
                return
            known.versions.pop()
            known.item = replace(known.versions[-1], score=known.item.score, version=known.item.version + 1)
            known.ops.append("undone")
            assert library.items.undo(known.item.id) == known.item

    @rule(handle=handles)
    def evolve(self, handle):
        """Within the limits; what it did not report is as it was, and nothing of a person's is touched."""
        library, space = self.at(handle, "evolve")
        report = library.evolve()
        added: Counter[str] = Counter()
        for admission in report.admissions:
            if admission.status in ("added", "replaced"):
                item = library.items.get(str(admission.item_id))
                added[item.kind] += 1
                assert item.source == "experience"
                assert item.provenance
                assert item.id not in space.items
                ops = [change["op"] for change in library.items.history(item.id)]
                space.items[item.id] = Known(item, ops, self.number())
        assert all(count <= RATE_LIMITS[kind] for kind, count in added.items())  # type: ignore[index]
        for ref, known in space.items.items():
            now = library.items.get(ref)
            if now != known.item:
                assert known.item.source == "experience", "evolution changed what it did not make"
                assert not (known.item.pinned and now.status != known.item.status)
                known.item, known.versions = now, None
                known.ops = [change["op"] for change in library.items.history(ref)]

    # -- moving -----------------------------------------------------------------------------------

    @rule(here=handles, there=handles)
    def copy(self, here, there):
        """Exported from one and imported into the other: what was not there is, exactly, and nothing else moved."""
        library, known = self.at(here, "export")
        other, space = self.at(there, "import")
        library.admin.export_jsonl(self.path.with_suffix(".jsonl"))
        new = [ref for ref in known.episodes if ref not in space.episodes]
        fresh = [ref for ref in known.items if ref not in space.items]
        count = other.admin.import_jsonl(self.path.with_suffix(".jsonl"))
        assert bool(count) == bool(new or fresh)
        where: dict[Any, Any] = {}
        for ref in known.episodes:
            copied = other.episodes.get(ref)
            if ref in new:
                self.same_episode(known.episodes[ref], copied)
                space.episodes[ref] = copied
            where.update({old.id: now.id for old, now in zip(known.episodes[ref].steps, copied.steps, strict=True)})
        for ref in sorted(fresh, key=lambda ref: known.items[ref].order):
            wanted = known.items[ref]
            item = replace(wanted.item, provenance=tuple(where[step] for step in wanted.item.provenance))
            assert other.items.get(ref) == item
            ops = [change["op"] for change in other.items.history(ref)]
            assert ops in (wanted.ops, ["restored"])
            space.items[ref] = Known(item, ops, self.number())

    @rule(handle=handles, item=items())
    def restore(self, handle, item):
        """Past admission, under its own id."""
        library, space = self.at(handle, "restore")
        number = self.number()
        item = replace(item, id=f"own-{number}", title=f"{item.title} {number}")
        writers.restore(library, item)
        space.items[item.id] = Known(item, ["restored"], number, [item])

    @rule(handle=handles)
    def reopen(self, handle):
        """As a process that ends and another that begins."""
        self.at(handle, "reopen")[0].close()
        self.open[handle] = self.opened(handle)

    # -- looking ----------------------------------------------------------------------------------

    @rule(
        handle=handles,
        kinds=st.sampled_from((None, ("insight",), ("guardrail", "warning"))),
        status=st.sampled_from((None, "active", "retired", "quarantined")),
        sort=st.sampled_from(("score", "confidence", "new", "old")),
        limit=st.sampled_from((None, 0, 2, 5)),
        offset=st.integers(0, 3),
    )
    def items_are_listed(self, handle, kinds, status, sort, limit, offset):
        """Filtered, sorted and paged as the model does it."""
        library, space = self.at(handle, "items")
        keys: dict[str, Any] = {
            "score": lambda known: (-known.item.score, known.order),
            "confidence": lambda known: (-known.item.confidence, known.order),
            "new": lambda known: -known.order,
            "old": lambda known: known.order,
        }
        wanted = [
            known.item
            for known in sorted(space.items.values(), key=keys[sort])
            if (kinds is None or known.item.kind in kinds) and status in (None, known.item.status)
        ]
        end = None if limit is None else offset + limit
        found = library.items.find(kinds, status=status, sort=sort, limit=limit, offset=offset)
        assert [item.id for item in found] == [item.id for item in wanted[offset:end]]
        assert found == wanted[offset:end]

    @rule(handle=handles, thing=things)
    def items_are_filtered(self, handle, thing):
        """By tag, by words, by trust."""
        library, space = self.at(handle, "filter")
        told = {item.id for item in library.items.find(tag=thing)}
        assert {item.id for item in space.active() if thing in item.tags} <= told
        said = {item.id for item in library.items.find(text=thing)}
        assert said == {item.id for item in space.active() if thing in f"{item.title} {item.body}"}
        trusted = {item.id for item in library.items.find(trust="untrusted", status=None)}
        assert trusted == {ref for ref, known in space.items.items() if known.item.trust == "untrusted"}

    @rule(handle=handles, pick=picks)
    def one_is_looked_at(self, handle, pick):
        """By its id, with its history; not from the other namespace, and not under a name that is none."""
        library, space = self.at(handle, "get")
        if known := self.one(space, pick):
            assert library.items.get(known.item.id) == known.item
            assert [change["op"] for change in library.items.history(known.item.id)] == known.ops
        with pytest.raises(UnknownName):
            library.items.get("nothing of the kind")
        other = self.spaces["b" if handle[0] == "a" else "a"]
        strange = sorted({*other.items, *other.episodes} - {*space.items, *space.episodes})
        if strange:
            ref = strange[pick % len(strange)]
            longer = any(known.startswith(ref) for known in (*space.items, *space.episodes))
            if not longer:
                for look in (library.items.get, library.episodes.get):
                    with pytest.raises(UnknownName):
                        look(ref)

    @rule(handle=handles, place=places, thing=things, k=st.integers(1, 5), by_text=st.booleans())
    def recall(self, handle, place, thing, k, by_text):
        """Active items and counted steps of this namespace."""
        library, space = self.at(handle, "recall")
        state = State(f"You are in the {place}. There is food.", task=f"eat the {thing}")
        asked = {f"eat {thing}": "", f"take {thing}": ""}
        found = library.recall(state.observation if by_text else state, k=k, actions=asked)
        active = {item.id: item for item in space.active()}
        told: list[Any] = [hit.what for hit in found.items]
        assert all(active[item.id] == item for item in (*told, *found.guardrails))
        steps = {step.id: step for step in space.steps()}
        recalled: list[Any] = [hit.what for hit in found.steps]
        for step in recalled:
            assert (steps[step.id].action, steps[step.id].pre) == (step.action, step.pre)
        assert len(found.items) <= k
        assert len(found.steps) <= k
        own = [step.action for step in recalled if step.pre.signature == state.signature]
        assert by_text or len(own) == len({*own})  # of the situation itself, an action stands once
        for estimate in found.estimates.values():
            # those of the state's world: episodes without a common action may be of another one
            assert len(estimate.steps) <= estimate.n <= len(steps)
            assert set(estimate.steps) <= set(steps)

    @rule(handle=handles, pick=picks, how=st.sampled_from(("hybrid", "dense", "text")))
    def search(self, handle, pick, how):
        """Who searches with an item's own words finds it; what is out of use is not found."""
        library, space = self.at(handle, "search")
        if known := self.one(space, pick):
            hits: list[Any] = [hit.what for hit in library.search(known.item.text, k=200, how=how)]
            ids = {what.id for what in hits if isinstance(what, Item)}
            assert ids <= {item.id for item in space.active()}
            if known.item.status == "active" and how == "dense":
                assert known.item.id in ids

    @rule(handle=handles, place=places, thing=things)
    def check(self, handle, place, thing):
        """What an active, sure guardrail forbids is refused; what is refused, an active one forbids."""
        library, space = self.at(handle, "check")
        state = State(f"You are in the {place}. There is food.")
        verdict = library.check(state, f"eat {thing}")
        sure = {
            item.id
            for item in space.active()
            if item.kind == "guardrail" and item.confidence >= 0.6 and item.forbids == f"eat {thing}"
        }
        forbidding = {ref for ref in sure if (space.items[ref].item.condition or {}).get("text") == place}
        if forbidding:
            assert not verdict.allowed
        if not verdict.allowed:
            assert verdict.item_id in sure

    @rule(handle=handles, limit=st.sampled_from((None, 2)), offset=st.integers(0, 2))
    def episodes_are_listed(self, handle, limit, offset):
        """Newest first, paged; the count leaves out the excluded ones."""
        library, space = self.at(handle, "trajectories")
        wanted = list(space.episodes)[::-1][offset : None if limit is None else offset + limit]
        assert [row["id"] for row in library.episodes.find(limit=limit, offset=offset)] == wanted
        assert library.episodes.count() == sum(episode.success is not None for episode in space.episodes.values())

    @rule(namespace=namespaces)
    def a_reader_sees_the_same(self, namespace):
        """Opened to be read: the same items and episodes, and no write."""
        self.ran["read only"] += 1
        space = self.spaces[namespace]
        with ExperienceLibrary.open(self.path, writers.EMBEDDERS[0], namespace, read_only=True) as library:
            assert {item.id: item for item in library.items.find(status=None)} == {
                ref: known.item for ref, known in space.items.items()
            }
            assert library.recall("food in the attic", k=3) is not None
            with pytest.raises(LibraryReadOnly):
                library.add(Item("insight", "no"))

    @rule(handle=handles)
    def verify(self, handle):
        """Nothing that is derived differs from the truth."""
        assert self.at(handle, "verify")[0].admin.verify() == []

    def teardown(self) -> None:
        """At the end every handle says all that the model says, and everything derived agrees."""
        try:
            for handle, library in self.open.items():
                space = self.spaces[handle[0]]
                for ref, episode in space.episodes.items():
                    assert library.episodes.get(ref) == episode
                assert {item.id: item for item in library.items.find(status=None)} == {
                    ref: known.item for ref, known in space.items.items()
                }
                for ref, known in space.items.items():
                    assert [change["op"] for change in library.items.history(ref)] == known.ops
                library.admin.index()
                assert library.admin.verify() == []
                assert library.admin.repair() == []
        finally:
            for library in self.open.values():
                library.close()
            self.folder.cleanup()


def run(tmp_path, sequences, length, *, random=False):
    """Run so many sequences of at most so many operations; how many there were."""
    path = tmp_path / "template.db"
    for namespace in "ab":
        ExperienceLibrary.open(path, embedder=writers.EMBEDDERS[0], namespace=namespace).close()
    Model.template, Model.sequences = path, 0
    Model.ran.clear()
    how = settings(
        max_examples=sequences,
        stateful_step_count=length,
        deadline=None,
        derandomize=not random,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(Model, settings=how)
    return {"sequences": Model.sequences, "operations": Model.ran.total(), **dict(Model.ran.most_common())}


@pytest.fixture
def small(monkeypatch):
    """Trained indices and files beside the library for a handful of vectors."""
    monkeypatch.setattr("hardwon.memory.retrieval.vector_index.VectorIndex.LIMIT", 12)
    monkeypatch.setattr("hardwon.memory.storage.cache_files.SAVE_AFTER", 6)


def test_the_library_does_what_the_model_does(tmp_path, small, record_property):
    """Random sequences of records, changes, copies, evolutions and look-ups, in two namespaces at once."""
    for name, value in run(tmp_path, 30, 30).items():
        record_property(name, str(value))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_library_does_what_the_model_does_thousands_of_times(tmp_path, small, capsys):
    """The same, 3,000 sequences of up to 50 operations, other ones every time."""
    counted = run(tmp_path, 3000, 50, random=True)
    with capsys.disabled():
        print("\nstate machine: " + ", ".join(f"{name} {value}" for name, value in counted.items()))
