"""Untrusted writers: items that they justify in a namespace with other writers, counted per credential.

The same rules read the steps of each writer separately. Whatever they justify waits in quarantine, however many writers
agree: two tokens may belong to one person. The reason names the number of credentials that report the same, so that the
person who releases it can weigh it. An item becomes active when steps of a trusted writer justify it, or when a person
releases it. Items from untrusted steps are in general words: forms of actions, and counts.

The steps of an untrusted writer who is alone in a namespace concern nobody else, and its rules are active in general
words. When others write there too, these items leave use again; see `find_unsupported`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import sqrt

from hardwon.memory.guardrails.conditions import guard_key
from hardwon.memory.records import Admission, Item, Trajectory
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.evidence import call_key
from hardwon.memory.situations.titles import WITH_FAILED_VALUES, end_sentence
from hardwon.memory.storage.cache_files import CacheFile
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import witness_of
from hardwon.memory.trust.testimony import form_of, hides_values
from hardwon.memory.values.saved_tables import FiledValues
from hardwon.memory.values.value_table import ValueTable

from .rule_mining import RuleMiner
from .skill_mining import SkillMiner
from .tuning import TUNING

UNSUPPORTED = "only untrusted writers report it, and others write here, too"
"""Reason for retiring an item that an untrusted writer justified while it was alone."""

Proposal = tuple[Item, Callable[[Admission], None], Callable[[], None]]
"""A candidate, a callback for the curator's decision, and one for when it has to wait."""


class _UntrustedWriter:
    """The steps of one untrusted writer, with their own values and miners."""

    def __init__(self, store: Store, namespace: int, number: int) -> None:
        self.values = FiledValues(store, namespace, CacheFile(store, namespace), witness=number)
        self.evolution, self.induction = RuleMiner(), SkillMiner()


class UntrustedWriters:
    """The untrusted writers of one namespace."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store, self._namespace = store, namespace
        self._writers: dict[str, _UntrustedWriter] = {}
        self._supporters: dict[str, set[str]] = {}

    def read(self, episode: Trajectory) -> None:
        """Read one recorded episode of an untrusted writer."""
        if episode.success is None:
            return
        name = witness_of(episode.writer)
        if name not in self._writers:
            rows = self._store.rows("SELECT id FROM writers WHERE namespace = ? AND name = ?", (self._namespace, name))
            if not rows:
                return
            self._writers[name] = _UntrustedWriter(self._store, self._namespace, rows[0][0])
        self._writers[name].induction.read(episode)
        self._writers[name].values.unread = True

    def proposals(self) -> list[Proposal]:
        """Return the items that the steps of each writer justify, all of them untrusted."""
        proposals: list[Proposal] = []
        # A copy, because `is_outweighed` adds writers that have no recent episodes.
        for name, writer in list(self._writers.items()):
            values = writer.values.read()
            for key, item in writer.evolution.candidates(values):
                marked = self._mark_support(name, generalize_item(item, item.forbids or key.partition(" | ")[0]))
                if marked is not None:
                    proposals.append(
                        (marked, partial(writer.evolution.settle, key), partial(writer.evolution.postpone, key, values))
                    )
            for candidate, item in writer.induction.candidates():
                marked = self._mark_support(name, generalize_item(item))
                if marked is not None:
                    proposals.append((marked, partial(writer.induction.mark_submitted, candidate), _nothing))
        return proposals

    def is_outweighed(self, item: Item, trusted: ValueTable) -> bool:
        """Return whether the call that an item warns against succeeds too often over all writers."""
        if item.kind not in ("guardrail", "warning") or not item.forbids:
            return False
        tables = [trusted, *self._all_tables()]
        in_situation = [cell for table in tables if (cell := table.cell(guard_key(item))) is not None]
        anywhere = [cell for table in tables if (cell := table.cell(call_key(item.forbids))) is not None]
        failed = sum(cell.failed for cell in in_situation)
        worked = sum(cell.episodes - cell.failed for cell in anywhere)
        episodes = sum(cell.episodes for cell in in_situation)
        return bool(episodes) and (
            failed < TUNING.release_rate * episodes or failed < TUNING.counterexample_weight * sqrt(worked)
        )

    def _all_tables(self) -> list[ValueTable]:
        """Return the values of every untrusted writer, including those without recent episodes."""
        rows = self._store.rows("SELECT id, name FROM writers WHERE namespace = ? AND name != ''", (self._namespace,))
        for number, name in rows:
            if name not in self._writers:
                self._writers[name] = _UntrustedWriter(self._store, self._namespace, number)
        return [writer.values.read() for writer in self._writers.values()]

    def _mark_support(self, name: str, item: Item | None) -> Item | None:
        """Count a credential's support for an item, and return the item as untrusted with that count."""
        if item is None:
            return None
        supporters = self._supporters.setdefault(item.id, set())
        supporters.add(name)
        who = f"Only {name} reports it." if len(supporters) == 1 else f"{len(supporters)} untrusted writers report it."
        return replace(item, trust="untrusted", body=f"{item.body and end_sentence(item.body)} {who}".strip())


def find_unsupported(store: Store, namespace: int, items: Iterable[Item]) -> Iterator[Item]:
    """Yield the active items that the rules derived only from untrusted steps, and that no person released."""
    mined = [item for item in items if item.writer == "rules" and item.source == "experience" and item.provenance]
    refs = json.dumps(sorted({ref for item in mined for ref in item.provenance}))
    witnesses = dict(store.rows("SELECT id, witness FROM steps WHERE id IN (SELECT value FROM json_each(?))", (refs,)))
    reviewed = {
        ref
        for (ref,) in store.rows(
            "SELECT DISTINCT ref FROM changes WHERE namespace = ? AND what = 'item' AND op LIKE 'released:%'",
            (namespace,),
        )
    }
    for item in mined:
        behind = [witnesses[ref] for ref in item.provenance if ref in witnesses]
        if behind and all(behind) and item.id not in reviewed:
            yield item


def generalize_item(item: Item, pattern: str = "") -> Item | None:
    """Return a rule-made item in words that no untrusted step chose, or None if an action has no tool name."""
    forms = [form_of(action) for action in ((pattern,) if pattern else item.steps)]
    if not forms or not all(
        form.endswith(")") for form in forms
    ):  # without a tool name, only text of the untrusted step would be left
        return None
    sequence = ", then ".join(f"`{form}`" for form in forms)
    # A sentence about the bare form would read as a ban of the whole tool.
    failing = WITH_FAILED_VALUES if hides_values(pattern) else "in such a situation"
    title = {
        "guardrail": f"Do not {sequence} {failing}",
        "warning": f"{sequence} mostly fails {failing}",
        "strategy": f"{sequence} pays more than usual in such a situation",
        "remedy": f"What helped after a failure ({item.repairs.replace('_', ' ')}): {sequence}",
    }.get(item.kind, f"To earn a reward, {sequence}")
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
    """Do nothing."""
