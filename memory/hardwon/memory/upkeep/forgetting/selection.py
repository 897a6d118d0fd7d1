"""The selectors of a deletion: an episode, a writer, a text or a namespace, and the rows that match one."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.validation import check_text

from .rows import LISTED, OPINIONS, RowQueries
from .texts import build_text_matcher

SelectorKind = Literal["episode", "writer", "text", "namespace"]


@dataclass(slots=True)
class Selection:
    """The rows that match a selector. Everything derived from them is deleted with them."""

    episodes: list[str] = field(default_factory=list)
    items: set[str] = field(default_factory=set)
    bank: list[int] = field(default_factory=list)
    inbox: list[int] = field(default_factory=list)
    opinions: list[tuple[str, str, str]] = field(default_factory=list)
    """Feedback, as (item, writer, episode)."""
    writer: str = ""
    """Name of the writer whose grades are deleted, if one is forgotten."""
    values: list[int] = field(default_factory=list)
    """Rows of the LangGraph store, which shares the file."""


def parse_selector(**given: str | None) -> tuple[SelectorKind, str]:
    """Return the name and value of the only selector that is set."""
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        names = ", ".join(name for name, _ in chosen) or "nothing"
        raise ConfigError(f"forget received {names}. Give exactly one of episode, writer, text or namespace.")
    ((name, value),) = chosen
    check_text(name, value)
    if not value.strip():
        raise ConfigError(f"{name} is empty, which would select everything. Name what to forget.")
    what: SelectorKind = name  # type: ignore[assignment]
    return what, value


class Selector:
    """Finds the rows of a namespace that match a selector."""

    def __init__(self, rows: RowQueries) -> None:
        self._rows = rows
        self._run = rows.run
        self._namespace = rows.namespace

    def select(self, what: SelectorKind, value: str) -> Selection:
        """Return the rows that a selector other than `namespace` matches."""
        if what == "episode":
            return self._select_episode(value)
        if what == "writer":
            return self._select_writer(value)
        return self._select_text(value)

    def _select_episode(self, ref: str) -> Selection:
        stored = self._rows.read_ids("SELECT id FROM trajectories WHERE namespace = ? AND id = ?", self._namespace, ref)
        inbox = self._rows.read_ids("SELECT id FROM inbox WHERE namespace = ? AND ref = ?", self._namespace, ref)
        if not (stored or inbox):
            candidates = self._rows.read_ids(
                "SELECT id FROM trajectories WHERE namespace = ? ORDER BY rowid DESC LIMIT 20", self._namespace
            )
            raise UnknownName.of("episode", ref, candidates)
        return Selection(episodes=stored, inbox=inbox)

    def _select_writer(self, name: str) -> Selection:
        chosen = Selection(writer=name)
        chosen.episodes = self._rows.read_ids(
            "SELECT id FROM trajectories WHERE namespace = ? AND writer = ? ORDER BY rowid", self._namespace, name
        )
        chosen.items = set(
            self._rows.read_ids(
                "SELECT id FROM items WHERE namespace = ? "
                "AND iif(json_valid(record), json_extract(record, '$.writer'), '') = ?",
                self._namespace, name,
            )
        )  # fmt: skip
        chosen.bank = self._rows.read_ids(
            "SELECT id FROM bank_entries WHERE namespace = ? AND team IN (?, ?)", self._namespace, name, redact(name)
        )
        chosen.opinions = self._run(OPINIONS.format("writer = ?"), (self._namespace, name)).fetchall()
        return chosen

    def _select_text(self, text: str) -> Selection:
        """Return the rows with a text in any column, ignoring case. Its JSON-escaped form matches too."""
        self._rows.connection.create_function("has_text", -1, build_text_matcher(text), deterministic=True)
        scope = (self._namespace,)
        states = json.dumps(self._match_rows("states", "id"))
        keys = json.dumps(self._rows.read_ids("SELECT id FROM keys WHERE has_text(CAST(text AS BLOB))"))
        episodes = dict.fromkeys(self._match_rows("trajectories", "id"))
        episodes |= dict.fromkeys(self._match_rows("steps", "trajectory_id"))
        graded = "SELECT ref FROM changes WHERE namespace = ? AND what = 'grade' AND has_text(CAST(detail AS BLOB))"
        episodes |= dict.fromkeys(self._rows.read_ids(graded, *scope))
        of_states = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND (pre {LISTED} OR post {LISTED})"
        episodes |= dict.fromkeys(self._rows.read_ids(of_states, *scope, states, states))
        offers = json.dumps(self._match_rows("offers", "id"))
        of_offers = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND offer {LISTED}"
        episodes |= dict.fromkeys(self._rows.read_ids(of_offers, *scope, offers))
        if keys != "[]":
            of_keys = f"SELECT trajectory_id FROM steps WHERE namespace = ? AND EXISTS (SELECT 1 FROM json_each(iif(json_valid(keys), keys, '[]')) WHERE value {LISTED})"  # noqa: E501
            episodes |= dict.fromkeys(self._rows.read_ids(of_keys, *scope, keys))
        changed = (
            "SELECT ref FROM changes WHERE namespace = ? AND what = 'item' AND has_text(ref, op, CAST(detail AS BLOB))"
        )
        values = []
        if self._rows.read_columns("langgraph_values"):
            ((name,),) = self._run("SELECT name FROM namespaces WHERE id = ?", scope)
            values = self._rows.read_ids(
                "SELECT id FROM langgraph_values WHERE namespace = ? AND has_text(path, key, value)", name
            )
        return Selection(
            list(episodes),
            {*self._match_rows("items", "id"), *self._rows.read_ids(changed, *scope)},
            self._match_rows("bank_entries", "id"),
            self._match_rows("inbox", "id"),
            self._run(OPINIONS.format("has_text(CAST(writer AS BLOB), CAST(episode AS BLOB))"), scope).fetchall(),
            values=values,
        )

    def _match_rows(self, table: str, ref: str) -> list[Any]:
        texts = ", ".join(
            f'CAST("{name}" AS BLOB)' for name, kind in self._rows.read_columns(table).items() if kind == "TEXT"
        )
        return self._rows.read_ids(
            f"SELECT {ref} FROM {table} WHERE namespace = ? AND has_text({texts})", self._namespace
        )
