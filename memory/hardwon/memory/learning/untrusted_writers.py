"""Voices: what untrusted writers say of a namespace that others write as well, each counted alone.

The same rules read every writer's steps by themselves. What one writer's steps justify waits in quarantine; what the
steps of two writers justify on their own is evidence, as a trusted finding is, and releases it. So it counts how many
say a thing and not how often it is said. What forbids is weighed against the successes of all other writers as well:
two writers who agree do not stop a call that works for everybody else. Items of untrusted steps are in general words:
forms of actions, and counts.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import sqrt

from hardwon.memory.guardrails.conditions import guard_key
from hardwon.memory.records import Item, Trajectory
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.evidence import call_key
from hardwon.memory.storage.cache_files import Sidecar
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import witness_of
from hardwon.memory.trust.testimony import form_of
from hardwon.memory.values.saved_tables import FiledValues
from hardwon.memory.values.value_table import ValueTable

from .rule_mining import RELEASE_RATE, WEIGHT, Evolution
from .skill_mining import Induction

AGREEING = 2
"""Writers whose own steps must justify an item before it is active."""

Proposal = tuple[Item, Callable[[], None], Callable[[], None]]


class _Voice:
    """One untrusted writer."""

    def __init__(self, store: Store, namespace: int, number: int) -> None:
        self.values = FiledValues(store, namespace, Sidecar(store, namespace), witness=number)
        self.evolution, self.induction = Evolution(), Induction()


class Voices:
    """The untrusted writers of one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store, self._namespace = store, namespace
        self._voices: dict[str, _Voice] = {}
        self._said_by: dict[str, set[str]] = {}

    def read(self, episode: Trajectory) -> None:
        """Take in one recorded episode of an untrusted writer."""
        if episode.success is None:
            return
        name = witness_of(episode.writer)
        if name not in self._voices:
            rows = self._store.rows("SELECT id FROM writers WHERE namespace = ? AND name = ?", (self._namespace, name))
            if not rows:
                return
            self._voices[name] = _Voice(self._store, self._namespace, rows[0][0])
        self._voices[name].induction.read(episode)
        self._voices[name].values.unread = True

    def proposals(self, trusted: ValueTable) -> list[Proposal]:
        """Return what each writer's own steps justify: untrusted, or trusted where several agree.

        `trusted` holds what trusted steps say.
        """
        found: list[Proposal] = []
        for name, voice in list(self._voices.items()):
            values = voice.values.read()
            for key, item in voice.evolution.candidates(values):
                told = self._said(name, in_general(item, item.forbids or key.partition(" | ")[0]))
                if told is not None and told.trust == "trusted" and self.is_outweighed(told, trusted):
                    told = replace(told, trust="untrusted", body=f"{told.body} It works for other writers.".strip())
                if told is not None:
                    found.append((told, _nothing, partial(voice.evolution.postpone, key, values)))
            for candidate, item in voice.induction.candidates():
                told = self._said(name, in_general(item))
                if told is not None:
                    found.append((told, partial(voice.induction.taken, candidate), _nothing))
        return found

    def is_outweighed(self, item: Item, trusted: ValueTable) -> bool:
        """Return whether the calls that an item speaks against work too often, counted over all writers."""
        if item.kind not in ("guardrail", "warning") or not item.forbids:
            return False
        tables = [trusted, *self._all_tables()]
        here = [cell for table in tables if (cell := table.cell(guard_key(item))) is not None]
        anywhere = [cell for table in tables if (cell := table.cell(call_key(item.forbids))) is not None]
        bad, worked = sum(cell.bad for cell in here), sum(cell.n - cell.bad for cell in anywhere)
        n = sum(cell.n for cell in here)
        return bool(n) and (bad < RELEASE_RATE * n or bad < WEIGHT * sqrt(worked))

    def _all_tables(self) -> list[ValueTable]:
        """Return the values of every untrusted writer, also of those whose episodes are too old to be read again."""
        rows = self._store.rows("SELECT id, name FROM writers WHERE namespace = ? AND name != ''", (self._namespace,))
        for number, name in rows:
            if name not in self._voices:
                self._voices[name] = _Voice(self._store, self._namespace, number)
        return [voice.values.read() for voice in self._voices.values()]

    def _said(self, name: str, item: Item | None) -> Item | None:
        if item is None:
            return None
        writers = self._said_by.setdefault(item.id, set())
        writers.add(name)
        if len(writers) >= AGREEING:
            return item
        return replace(item, trust="untrusted", body=f"{item.body} Only {name} reports it.".strip())


def in_general(item: Item, pattern: str = "") -> Item | None:
    """Return an item of rules in words that no untrusted step chose; None where a form of its actions is no name."""
    forms = [form_of(action) for action in ((pattern,) if pattern else item.steps)]
    if not forms or not all(form.endswith(")") for form in forms):  # of a sentence nothing general is left to say
        return None
    said = ", then ".join(f"`{form}`" for form in forms)
    title = {
        "guardrail": f"Do not {said} in such a situation",
        "warning": f"{said} mostly fails in such a situation",
        "strategy": f"{said} pays more than usual in such a situation",
        "remedy": f"What helped after a failure ({item.repairs.replace('_', ' ')}): {said}",
    }.get(item.kind, f"To earn a reward, {said}")
    return replace(
        item,
        title=title,
        body="" if item.kind == "strategy" else item.body,
        when_to_use="",
        when_not_to_use="",
        steps=tuple(parse_action(step).template for step in item.steps),
        locations=(),
        tags=(),
    )


def _nothing() -> None:
    """Do nothing: a candidate of counts needs no word that it was taken."""
