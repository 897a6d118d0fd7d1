"""The library's schema as numbered migrations, which are never edited after a release.

A library file stores the number of the last migration (`PRAGMA user_version`) and marks itself as a hardwon library
(`PRAGMA application_id`). Every migration runs in the caller's transaction.
"""

import hashlib
from collections.abc import Callable
from sqlite3 import Connection

from . import worlds
from .checksums import SUMMED, seal, seal_missing
from .counted import ALONE, EpisodeClock, find_counted_writers, recount_words

APPLICATION_ID = 0x7AC17
Migration = Callable[[Connection], None]


def m001_initial(connection: Connection) -> None:
    """Create the tables for experience, items, usages and the change log, and the caches derived from them."""
    for statement in _INITIAL.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m002_tiers(connection: Connection) -> None:
    """Add attempts and segments, and the places, use counts and ages of items."""
    for statement in _TIERS.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    # The rollups need Python code to build. The first writer that opens an older file sees this mark and builds them.
    connection.execute("INSERT INTO meta SELECT 'rebuild', '1' WHERE EXISTS (SELECT 1 FROM steps)")


def m003_vectors_as_rows(connection: Connection) -> None:
    """Move vectors to a table with rowids, because WITHOUT ROWID used a 4 KiB page per vector of 1 KiB.

    Vectors of states are dropped, because their texts included the task. They are computed again.
    """
    for statement in _VECTORS.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m004_inbox(connection: Connection) -> None:
    """Add the write buffer: recorded episodes that are not stored yet, in order of arrival."""
    for statement in _INBOX.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m005_named_episodes(connection: Connection) -> None:
    """Index only those buffered episodes whose id a caller chose; other ids encode their row number."""
    # An index costs one more page per write, and only ids from callers are looked up by name.
    connection.execute("ALTER TABLE inbox ADD COLUMN named INTEGER NOT NULL DEFAULT 1")
    connection.execute("DROP INDEX inbox_by_ref")
    connection.execute("CREATE UNIQUE INDEX inbox_by_ref ON inbox(namespace, ref) WHERE named")


def m006_worlds(connection: Connection) -> None:
    """Create the tables of worlds, and place the existing episodes in them."""
    for statement in _WORLDS.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    for (namespace,) in connection.execute("SELECT id FROM namespaces").fetchall():
        worlds.rebuild(connection, namespace, ALONE)  # all episodes: they have no writers yet


def m007_writers(connection: Connection) -> None:
    """Add the writer and the trust of every episode; existing episodes count as trusted.

    `steps.witness` is 0 for a trusted step, otherwise the number of its untrusted writer.
    """
    for statement in _WRITERS.split(";\n"):
        if statement.strip():
            connection.execute(statement)


def m008_receipts(connection: Connection) -> None:
    """Add receipts of forgetting: time, selector, counts, and whether the bytes are erased."""
    connection.execute(
        "CREATE TABLE receipts (id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, what TEXT NOT NULL, "
        "namespace INTEGER NOT NULL, counts TEXT NOT NULL, digest TEXT NOT NULL, erased INTEGER NOT NULL DEFAULT 0)"
    )


def m009_probation(connection: Connection) -> None:
    """Add the probation record of every guardrail: refusals, trials and the time of the last trial."""
    connection.execute(_PROBATION)


def m010_offers(connection: Connection) -> None:
    """Add the admissible actions of steps; existing steps have none."""
    connection.execute(_OFFERS)
    # ALTER TABLE has no IF NOT EXISTS.
    if "offer" not in {row[1] for row in connection.execute("PRAGMA table_info(steps)")}:
        connection.execute("ALTER TABLE steps ADD COLUMN offer INTEGER")


def m011_checksums(connection: Connection) -> None:
    """Add a checksum column to every primary table. `migrate` fills it for existing rows."""
    for table in SUMMED:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")


def m012_item_worlds(connection: Connection) -> None:
    """Add item scores per world; existing items keep one score for all worlds."""
    connection.execute(_ITEM_WORLDS)


def m013_opinions(connection: Connection) -> None:
    """Add the feedback of untrusted writers on items, which limits how far they can move a score."""
    connection.execute(_OPINIONS)


def m014_ratings(connection: Connection) -> None:
    """Add the times of feedback in the last minute, by client, so that all processes of a server share the limit."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS ratings (id INTEGER PRIMARY KEY, client TEXT NOT NULL, at REAL NOT NULL)"
    )


def m015_proposals(connection: Connection) -> None:
    """Add the proposals of the rules, so that a new process does not propose everything again."""
    connection.execute(_PROPOSALS)


def m016_untrusted_states(connection: Connection) -> None:
    """Separate the states of untrusted steps, and count words, worlds and ages over the episodes that count."""
    connection.execute("ALTER TABLE states ADD COLUMN untrusted INTEGER NOT NULL DEFAULT 0")
    for (namespace,) in connection.execute("SELECT id FROM namespaces").fetchall():
        create_text_indexes(connection, namespace)
    connection.execute(_MARK_UNTRUSTED)
    marked = connection.execute("SELECT id, namespace, digest FROM states WHERE untrusted = 1").fetchall()
    connection.executemany(
        "UPDATE states SET digest = ? WHERE id = ?", [(untrusted_digest(digest), ref) for ref, _, digest in marked]
    )
    connection.execute(
        "UPDATE vectors SET kind = 'testimony' WHERE kind = 'states' AND ref IN "
        "(SELECT id FROM states WHERE untrusted = 1)"
    )
    for namespace in sorted({namespace for _, namespace, _ in marked}):
        for untrusted, table in enumerate((f"states_text_{namespace}", f"testimony_text_{namespace}")):
            connection.execute(f"INSERT INTO {table}({table}) VALUES ('delete-all')")
            connection.execute(
                f"INSERT INTO {table}(rowid, text) SELECT id, observation || char(10) || feedback FROM states "
                "WHERE namespace = ? AND untrusted = ?",
                (namespace, untrusted),
            )
        counted = find_counted_writers(connection.execute, namespace)
        recount_words(connection, namespace, counted)
        worlds.renew(connection, namespace)
        _set_back_ages(connection, namespace)
    seal(connection, "states", "untrusted = 1", ())


def _set_back_ages(connection: Connection, namespace: int) -> None:
    """Set back the ages of items that were last used when the clock counted more episodes than count now."""
    clock = EpisodeClock(namespace).read(connection.execute)
    later = "SELECT number FROM items WHERE namespace = ? AND fresh > ?"
    for (number,) in connection.execute(later, (namespace, clock)).fetchall():
        connection.execute("UPDATE items SET fresh = ? WHERE number = ?", (clock, number))
        seal(connection, "items", "number = ?", (number,))


def m017_settlements(connection: Connection) -> None:
    """Add the record of every change of a score by an episode, so that a later grade of the episode can redo it."""
    for statement in _SETTLEMENTS:
        connection.execute(statement)


def m018_shared_text_indexes(connection: Connection) -> None:
    """Replace the three text indexes of every namespace with three for all, so that the schema does not grow."""
    for kind in ("states", "testimony"):
        connection.execute(f"CREATE VIRTUAL TABLE {kind}_text USING fts5(text, content='', {_TOKENIZE})")
    connection.execute(f"CREATE VIRTUAL TABLE items_text USING fts5(text, {_TOKENIZE})")
    for untrusted, kind in enumerate(("states", "testimony")):
        connection.execute(
            f"INSERT INTO {kind}_text(rowid, text) SELECT (namespace << 40) + id, observation || char(10) || feedback "
            "FROM states WHERE untrusted = ?",
            (untrusted,),
        )
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL%'")}
    for (namespace,) in connection.execute("SELECT id FROM namespaces ORDER BY id").fetchall():
        if (items := f"items_text_{namespace}") in tables:
            base = namespace << 40
            connection.execute(f"INSERT INTO items_text(rowid, text) SELECT {base} + rowid, text FROM {items}")
        for kind in ("states", "testimony", "items"):
            connection.execute(f"DROP TABLE IF EXISTS {kind}_text_{namespace}")


def m019_fewer_tables(connection: Connection) -> None:
    """Drop settlements, because a later grade moves the present score, and segments, which are computed on demand."""
    for table in ("settlements", "segments"):
        connection.execute(f"DROP TABLE {table}")


def m020_steps_by_return(connection: Connection) -> None:
    """Order the steps of a state by their return: the best one of thousands takes one lookup."""
    connection.execute("DROP INDEX steps_by_pre")
    connection.execute("CREATE INDEX steps_by_pre ON steps(pre, return_to_go DESC)")


MIGRATIONS: tuple[Migration, ...] = (
    *(m001_initial, m002_tiers, m003_vectors_as_rows, m004_inbox),
    *(m005_named_episodes, m006_worlds, m007_writers, m008_receipts, m009_probation, m010_offers, m011_checksums),
    *(m012_item_worlds, m013_opinions, m014_ratings, m015_proposals, m016_untrusted_states),
    *(m017_settlements, m018_shared_text_indexes, m019_fewer_tables, m020_steps_by_return),
)
SCHEMA_VERSION = len(MIGRATIONS)
SCHEMA_DIGEST = "1106dbf0ba9d9fafb7a5575a6f003f6b839234a1badc0801714d9f7888c7fa99"
"""Hash of the schema of a file of this version; see `schema_check`. A test prints the new one."""

_TOKENIZE = "tokenize='porter unicode61'"

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

_SETTLEMENTS = (
    "CREATE TABLE IF NOT EXISTS settlements (id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL REFERENCES "
    "namespaces(id), trajectory_id TEXT NOT NULL, item_id TEXT NOT NULL, world INTEGER, uses INTEGER NOT NULL, "
    "before TEXT NOT NULL, after TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS settlements_by_trajectory ON settlements(namespace, trajectory_id)",
)

_OFFERS = """
CREATE TABLE IF NOT EXISTS offers (
    id INTEGER PRIMARY KEY, namespace INTEGER NOT NULL REFERENCES namespaces(id), digest BLOB NOT NULL,
    actions TEXT NOT NULL, UNIQUE(namespace, digest))
"""

_MARK_UNTRUSTED = """
UPDATE states SET untrusted = 1
WHERE id IN (SELECT pre FROM steps WHERE witness > 0 UNION SELECT post FROM steps WHERE witness > 0)
AND id NOT IN (SELECT pre FROM steps WHERE witness = 0 UNION SELECT post FROM steps WHERE witness = 0)
"""

_PROPOSALS = """
CREATE TABLE IF NOT EXISTS proposals (
    namespace INTEGER NOT NULL REFERENCES namespaces(id), key TEXT NOT NULL, n INTEGER NOT NULL,
    kind TEXT NOT NULL, PRIMARY KEY (namespace, key)) WITHOUT ROWID
"""

# Every label in a path ends with a dot, which labels cannot contain. So the prefix `acme.` matches
# `acme.users.` but not `acme-corp.`.
# AUTOINCREMENT never reuses an id, so one that was read before a put cannot name the new value.
VALUE_TABLES = """
CREATE TABLE IF NOT EXISTS langgraph_values (
    id INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, path TEXT NOT NULL, key TEXT NOT NULL,
    value TEXT NOT NULL, fields TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    ttl REAL, expires_at REAL, UNIQUE (namespace, path, key));
CREATE INDEX IF NOT EXISTS langgraph_values_by_expiry ON langgraph_values(expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS langgraph_vectors (
    value INTEGER NOT NULL, field TEXT NOT NULL, fingerprint TEXT NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY (value, field));
"""
"""Tables of the values that an application stores; the first write creates them. See `stored_values`."""


def create_text_indexes(connection: Connection, namespace: int) -> None:
    """Create the text indexes of a namespace that do not exist yet, as before they were shared."""
    for kind, storage in (("states", ", content=''"), ("testimony", ", content=''"), ("items", "")):
        connection.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {kind}_text_{namespace:d} USING fts5(text{storage}, {_TOKENIZE})"
        )


def untrusted_digest(digest: bytes) -> bytes:
    """Return the digest of a state of untrusted steps, given that of an equal trusted one."""
    return hashlib.blake2b(digest, digest_size=16, person=b"untrusted").digest()


def migrate(connection: Connection) -> int:
    """Apply the missing migrations inside the caller's transaction; return the number of migrations applied."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        step(connection)
        # A PRAGMA takes no parameters. The number is in the file header, so a rollback undoes it as well.
        connection.execute(f"PRAGMA user_version = {number}")
    # Only after all migrations: a later one may add columns to the tables with checksums.
    if version < SCHEMA_VERSION:
        seal_missing(connection)
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('id', lower(hex(randomblob(16))))")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    return SCHEMA_VERSION - version
