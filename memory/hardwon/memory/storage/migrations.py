"""The library's schema, as numbered steps that are never edited after a release.

A library file knows the number of the last step applied (`PRAGMA user_version`) and that it is a
hardwon library (`PRAGMA application_id`). Each step runs in the caller's transaction.
"""

from collections.abc import Callable
from sqlite3 import Connection

from . import worlds
from .checksums import SUMMED, seal_missing

APPLICATION_ID = 0x7AC17
Migration = Callable[[Connection], None]


def m001_initial(connection: Connection) -> None:
    """Experience, items, usage, the change log, and the caches derived from them."""
    for statement in _INITIAL.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m002_tiers(connection: Connection) -> None:
    """Attempts (rolling summaries of steps), segments of episodes, places of items, their use and age."""
    for statement in _TIERS.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    # what is derived from the steps of an older file is made by the first writer that opens it
    connection.execute("INSERT INTO meta SELECT 'rebuild', '1' WHERE EXISTS (SELECT 1 FROM steps)")


def m003_vectors_as_rows(connection: Connection) -> None:
    """Vectors in an ordinary table: without rowids, one of a kilobyte took a page of four for itself.

    Those of states are left behind: they were of a text that had the task in it, and are made anew.
    """
    for statement in _VECTORS.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m004_inbox(connection: Connection) -> None:
    """Episodes that were recorded and not yet filed, in the order in which they came."""
    for statement in _INBOX.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m005_named_episodes(connection: Connection) -> None:
    """Of the episodes in the inbox, those whose id a caller gave are found by it; others by their row."""
    connection.execute("ALTER TABLE inbox ADD COLUMN named INTEGER NOT NULL DEFAULT 1")
    connection.execute("DROP INDEX inbox_by_ref")
    connection.execute("CREATE UNIQUE INDEX inbox_by_ref ON inbox(namespace, ref) WHERE named")


def m006_worlds(connection: Connection) -> None:
    """Create the tables of worlds, and place the episodes of an older file in them."""
    for statement in _WORLDS.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    for (namespace,) in connection.execute("SELECT id FROM namespaces").fetchall():
        worlds.rebuild(connection, namespace)


def m007_writers(connection: Connection) -> None:
    """Who recorded an episode, and whether it is trusted; older episodes were recorded by the library's own kind.

    `steps.witness` is 0 for a trusted step, else the number of its untrusted writer.
    """
    for statement in _WRITERS.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m008_receipts(connection: Connection) -> None:
    """What was forgotten, in numbers: when, by what it was selected, and whether its bytes are erased."""
    connection.execute(
        "CREATE TABLE receipts (id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, what TEXT NOT NULL, "
        "namespace INTEGER NOT NULL, counts TEXT NOT NULL, digest TEXT NOT NULL, erased INTEGER NOT NULL DEFAULT 0)"
    )


def m009_probation(connection: Connection) -> None:
    """How every guardrail stands on its probation: refusals, trials, and when it was last tried."""
    connection.execute(_PROBATION)


def m010_offers(connection: Connection) -> None:
    """Keep what could be done at a step; steps of older versions have none."""
    connection.execute(_OFFERS)
    if "offer" not in {row[1] for row in connection.execute("PRAGMA table_info(steps)")}:
        connection.execute("ALTER TABLE steps ADD COLUMN offer INTEGER")


def m011_checksums(connection: Connection) -> None:
    """Give every row of the truth a checksum; `migrate` fills in those of rows that are there."""
    for table in SUMMED:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")


def m012_item_worlds(connection: Connection) -> None:
    """Keep what an item earned in each world; items of older versions have one score for all."""
    connection.execute(_ITEM_WORLDS)


def m013_opinions(connection: Connection) -> None:
    """Keep what untrusted writers said of items, which bounds how far they move a score."""
    connection.execute(_OPINIONS)


MIGRATIONS: tuple[Migration, ...] = (
    *(m001_initial, m002_tiers, m003_vectors_as_rows, m004_inbox),
    *(m005_named_episodes, m006_worlds, m007_writers, m008_receipts, m009_probation, m010_offers, m011_checksums),
    *(m012_item_worlds, m013_opinions),
)
SCHEMA_VERSION = len(MIGRATIONS)

_INITIAL = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

CREATE TABLE trajectories (
    id TEXT NOT NULL, namespace INTEGER NOT NULL REFERENCES namespaces(id), recorded_at TEXT NOT NULL,
    task TEXT NOT NULL, success INTEGER, score REAL NOT NULL, total_reward REAL NOT NULL, arm TEXT NOT NULL,
    seed INTEGER NOT NULL, ending TEXT NOT NULL, n_steps INTEGER NOT NULL, meta TEXT NOT NULL,
    PRIMARY KEY (namespace, id));
CREATE INDEX trajectories_by_namespace ON trajectories(namespace, success, total_reward);

CREATE TABLE states (
    id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL REFERENCES namespaces(id), digest BLOB NOT NULL,
    signature TEXT NOT NULL, observation TEXT NOT NULL, facts TEXT NOT NULL, location TEXT NOT NULL,
    task TEXT NOT NULL, feedback TEXT NOT NULL, notes TEXT NOT NULL, UNIQUE(namespace, digest));
CREATE INDEX states_by_signature ON states(namespace, signature);

CREATE TABLE keys (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE steps (
    id INTEGER PRIMARY KEY AUTOINCREMENT, namespace INTEGER NOT NULL REFERENCES namespaces(id),
    trajectory_id TEXT NOT NULL, t INTEGER NOT NULL,
    pre INTEGER NOT NULL REFERENCES states(id), action TEXT NOT NULL, post INTEGER NOT NULL REFERENCES states(id),
    reward REAL NOT NULL, return_to_go REAL NOT NULL, failure TEXT NOT NULL,
    diagnosis TEXT NOT NULL, keys TEXT NOT NULL, why TEXT NOT NULL);
CREATE INDEX steps_by_trajectory ON steps(namespace, trajectory_id, t);
CREATE INDEX steps_by_pre ON steps(pre);

CREATE TABLE items (
    id TEXT NOT NULL, namespace INTEGER NOT NULL REFERENCES namespaces(id), number INTEGER NOT NULL UNIQUE,
    kind TEXT NOT NULL, status TEXT NOT NULL, score REAL NOT NULL, pinned INTEGER NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (namespace, id));
CREATE INDEX items_by_namespace ON items(namespace, status, kind, score);

CREATE TABLE usages (
    id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL REFERENCES namespaces(id), item_id TEXT NOT NULL,
    trajectory_id TEXT NOT NULL, t INTEGER NOT NULL, mode TEXT NOT NULL, arm TEXT NOT NULL,
    outcome REAL, control_outcome REAL);
CREATE INDEX usages_by_item ON usages(namespace, item_id);

CREATE TABLE words (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), word TEXT NOT NULL, episodes INTEGER NOT NULL,
    PRIMARY KEY (namespace, word)) WITHOUT ROWID;

CREATE TABLE changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, namespace INTEGER NOT NULL REFERENCES namespaces(id),
    what TEXT NOT NULL, ref TEXT NOT NULL, op TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX changes_by_ref ON changes(namespace, ref);

CREATE TABLE vectors (
    kind TEXT NOT NULL, ref INTEGER NOT NULL, namespace INTEGER NOT NULL REFERENCES namespaces(id),
    vector BLOB NOT NULL, PRIMARY KEY (kind, ref)) WITHOUT ROWID;
CREATE TABLE bank_entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, namespace INTEGER NOT NULL REFERENCES namespaces(id), task TEXT NOT NULL,
    team TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL);
CREATE INDEX bank_entries_by_task ON bank_entries(namespace, task);
CREATE TABLE bank_pulls (id INTEGER PRIMARY KEY, entry INTEGER NOT NULL, reader TEXT NOT NULL, own INTEGER NOT NULL);
CREATE INDEX vectors_by_namespace ON vectors(namespace, kind, ref);
"""

_TIERS = """
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, namespace INTEGER NOT NULL REFERENCES namespaces(id),
    signature TEXT NOT NULL, pattern TEXT NOT NULL, n INTEGER NOT NULL, live INTEGER NOT NULL,
    returns REAL NOT NULL, failures TEXT NOT NULL, best INTEGER NOT NULL, best_return REAL NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, UNIQUE (namespace, signature, pattern));
CREATE INDEX attempts_by_best ON attempts(namespace, signature, best_return);
CREATE INDEX attempts_by_n ON attempts(namespace, signature, n);
ALTER TABLE steps ADD COLUMN attempt INTEGER REFERENCES attempts(id);
ALTER TABLE steps ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;
CREATE INDEX steps_by_attempt ON steps(attempt, folded, return_to_go, id);

CREATE TABLE segments (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), trajectory_id TEXT NOT NULL, first_t INTEGER NOT NULL,
    last_t INTEGER NOT NULL, gain REAL NOT NULL, location TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (namespace, trajectory_id, first_t)) WITHOUT ROWID;

CREATE TABLE item_places (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), by TEXT NOT NULL, value TEXT NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY (namespace, by, value, number)) WITHOUT ROWID;
CREATE INDEX item_places_by_number ON item_places(number);
ALTER TABLE items ADD COLUMN uses INTEGER NOT NULL DEFAULT 0;
ALTER TABLE items ADD COLUMN fresh INTEGER NOT NULL DEFAULT 0;
CREATE INDEX usages_by_trajectory ON usages(namespace, trajectory_id);
CREATE INDEX trajectories_by_task ON trajectories(namespace, task, arm, seed);
CREATE INDEX states_by_location ON states(namespace, location) WHERE location != '';
"""

_VECTORS = """
ALTER TABLE vectors RENAME TO old_vectors;
DROP INDEX vectors_by_namespace;
CREATE TABLE vectors (
    kind TEXT NOT NULL, ref INTEGER NOT NULL, namespace INTEGER NOT NULL REFERENCES namespaces(id),
    vector BLOB NOT NULL, PRIMARY KEY (kind, ref));
INSERT INTO vectors SELECT kind, ref, namespace, vector FROM old_vectors WHERE kind = 'items' ORDER BY ref;
DROP TABLE old_vectors;
CREATE INDEX vectors_by_namespace ON vectors(namespace, kind, ref);
"""

_PROBATION = """
CREATE TABLE IF NOT EXISTS probation (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), item_id TEXT NOT NULL, refusals INTEGER NOT NULL,
    refused INTEGER NOT NULL, trials INTEGER NOT NULL, failed INTEGER NOT NULL, began REAL NOT NULL,
    tried REAL NOT NULL, PRIMARY KEY (namespace, item_id)) WITHOUT ROWID
"""

_INBOX = """
CREATE TABLE inbox (
    id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL REFERENCES namespaces(id), ref TEXT NOT NULL,
    at TEXT NOT NULL, failed TEXT, episode TEXT NOT NULL);
CREATE UNIQUE INDEX inbox_by_ref ON inbox(namespace, ref);
"""

_WORLDS = """
CREATE TABLE IF NOT EXISTS worlds (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), id INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (namespace, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episode_worlds (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), trajectory_id TEXT NOT NULL, world INTEGER NOT NULL,
    PRIMARY KEY (namespace, trajectory_id)) WITHOUT ROWID;
"""

_WRITERS = """
CREATE TABLE writers (
    id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL REFERENCES namespaces(id), name TEXT NOT NULL,
    UNIQUE (namespace, name));
ALTER TABLE trajectories ADD COLUMN writer TEXT NOT NULL DEFAULT '';
ALTER TABLE trajectories ADD COLUMN trust TEXT NOT NULL DEFAULT 'trusted';
ALTER TABLE steps ADD COLUMN witness INTEGER NOT NULL DEFAULT 0;
INSERT INTO writers(namespace, name) SELECT DISTINCT namespace, '' FROM trajectories;
CREATE INDEX trajectories_by_writer ON trajectories(namespace, writer);
"""

_ITEM_WORLDS = """
CREATE TABLE IF NOT EXISTS item_worlds (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), item_id TEXT NOT NULL, world INTEGER NOT NULL,
    score REAL NOT NULL, uses INTEGER NOT NULL, PRIMARY KEY (namespace, item_id, world)) WITHOUT ROWID
"""

_OPINIONS = """
CREATE TABLE IF NOT EXISTS opinions (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), item_id TEXT NOT NULL, writer TEXT NOT NULL,
    episode TEXT NOT NULL, moved REAL NOT NULL, PRIMARY KEY (namespace, item_id, writer, episode)) WITHOUT ROWID
"""

_OFFERS = """
CREATE TABLE IF NOT EXISTS offers (
    id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL REFERENCES namespaces(id), digest BLOB NOT NULL,
    actions TEXT NOT NULL, UNIQUE(namespace, digest))
"""


def migrate(connection: Connection) -> int:
    """Apply what is missing; return the number of steps applied. Call inside a transaction."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        step(connection)
        connection.execute(f"PRAGMA user_version = {number}")
    if version < SCHEMA_VERSION:
        seal_missing(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return SCHEMA_VERSION - version
