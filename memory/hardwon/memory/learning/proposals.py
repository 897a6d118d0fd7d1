"""Proposals of the rules, kept in the library, so that a new process does not propose everything again.

A row holds a key of the value table, the number of its episodes when it was last proposed, and the kind of the item. A
row with 0 episodes waits, because a rate limit left it out. One more row, with an empty key, holds the last step that
the rules have looked at, and which rules and steps the rows belong to. The rows only save work: without them, the
rules look at all keys once more.
"""

from collections.abc import Mapping
from sqlite3 import Connection
from typing import NamedTuple

from hardwon.memory.records import KINDS, Kind
from hardwon.memory.situations.keys import KEYS_VERSION
from hardwon.memory.storage.database import Store

RULES_VERSION = 4
"""Version of the rules. If you change them, add one: the next process then proposes everything again."""
Proposed = tuple[int, Kind]
"""The number of episodes at the last proposal, and the kind of the proposed item."""


class Earlier(NamedTuple):
    """The proposals of earlier processes."""

    proposed: dict[str, Proposed]
    waiting: frozenset[str]
    """Keys that a rate limit left out."""
    last_step: int
    """Id of the last step that the rules have looked at."""


def load_proposals(store: Store, namespace: int, heard: str) -> Earlier | None:
    """Return the proposals of earlier processes, or None if they are missing or belong to other rules or steps."""
    rows = store.rows("SELECT key, n, kind FROM proposals WHERE namespace = ?", (namespace,))
    last_step = next((n for key, n, kind in rows if not key and kind == _identify_rules(heard)), None)
    if last_step is None:
        return None
    proposed: dict[str, Proposed] = {key: (n, kind) for key, n, kind in rows if key and n and kind in KINDS}
    return Earlier(proposed, frozenset(key for key, n, _ in rows if key and not n), last_step)


def save_proposals(
    connection: Connection, namespace: int, heard: str, changed: Mapping[str, Proposed | None], last_step: int
) -> None:
    """Save proposals within the transaction that submits them."""
    rules = _identify_rules(heard)
    mark = connection.execute("SELECT kind FROM proposals WHERE namespace = ? AND key = ''", (namespace,)).fetchone()
    if mark is not None and mark[0] != rules:
        connection.execute("DELETE FROM proposals WHERE namespace = ?", (namespace,))
    connection.executemany(
        "DELETE FROM proposals WHERE namespace = ? AND key = ?",
        [(namespace, key) for key, proposed in changed.items() if proposed is None],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO proposals VALUES (?, ?, ?, ?)",
        [(namespace, key, *proposed) for key, proposed in changed.items() if proposed is not None],
    )
    # the larger number, because another process may have looked further
    connection.execute(
        "INSERT INTO proposals VALUES (?, '', ?, ?) ON CONFLICT DO UPDATE SET n = max(n, excluded.n)",
        (namespace, last_step, rules),
    )


def _identify_rules(heard: str) -> str:
    """Return the name of the rules and the steps that proposals belong to."""
    return f"rules {RULES_VERSION} keys {KEYS_VERSION}{heard}"
