"""The schema of the log in PostgreSQL, as numbered migrations that are never edited after a release.

`log` holds what was written. A row gets its place in `positions` only after its commit, so a follower that reads the
next positions skips nothing; rows that wait for a place are in `waiting`, which a trigger fills. Places are given by
`assign_positions`, which any client may call: it locks the namespace, so two callers never give the same place.

Roles other than the owner see and write only the namespaces in `members`. They change places, times and leases through
functions alone, and insert only the columns that a writer decides.
"""

from pathlib import Path

from hardwon.memory.errors import LibraryForbidden, NewerSchema, NotALibrary
from hardwon.memory.storage.migrations import APPLICATION_ID

from .session import ServerSession

MIGRATIONS = tuple(
    path.read_text(encoding="utf-8") for path in sorted(Path(__file__).with_name("migrations").glob("*.sql"))
)
SCHEMA_VERSION = len(MIGRATIONS)

GRANTS = """
GRANT USAGE ON SCHEMA hardwon TO {role};
GRANT SELECT ON hardwon.meta, hardwon.namespaces, hardwon.log, hardwon.positions, hardwon.waiting, hardwon.leases,
    hardwon.snapshots, hardwon.chunks, hardwon.vectors, hardwon.folders TO {role};
GRANT EXECUTE ON FUNCTION hardwon.may, hardwon.may_manage, hardwon.assign_positions TO {role};
"""
"""Rights of a role that reads."""
WRITE_GRANTS = """
GRANT INSERT (namespace, kind, format, key, payload, term) ON hardwon.log TO {role};
GRANT INSERT ON hardwon.vectors TO {role};
GRANT USAGE ON SEQUENCE hardwon.log_id_seq TO {role};
GRANT EXECUTE ON FUNCTION hardwon.lock_items, hardwon.take_lease, hardwon.give_lease TO {role};
"""
"""Rights of a role that writes, beside those of one that reads."""
MANAGE_GRANTS = """
GRANT INSERT, DELETE ON hardwon.snapshots, hardwon.chunks TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON hardwon.unneeded TO {role};
GRANT DELETE ON hardwon.vectors TO {role};
GRANT USAGE ON SEQUENCE hardwon.snapshots_id_seq TO {role};
GRANT EXECUTE ON FUNCTION hardwon.erase TO {role};
"""
"""Rights of a role that manages a namespace, beside those of one that writes: it forgets, and stores snapshots."""


def install(session: ServerSession, create: bool) -> None:
    """Create or migrate the schema, or check that it can be used."""
    version = read_version(session)
    if version < SCHEMA_VERSION and create:
        try:
            _migrate(session)
        except LibraryForbidden as error:
            if not version:
                raise
            raise LibraryForbidden(_explain_age(session, version)) from error
        version = read_version(session)
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{session.name} has schema {version}, but this version of hardwon supports up to {SCHEMA_VERSION}. "
            "Update your clone of hardwon, then run: pip install ."
        )
    if version < SCHEMA_VERSION:
        raise NotALibrary(
            _explain_age(session, version)
            if version
            else f"{session.name} holds no library. Open it once with a role that may create the schema."
        )


def _migrate(session: ServerSession) -> None:
    """Run the migrations that the schema lacks, in one transaction."""
    with session.transaction():
        session.run(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})")  # only one process installs
        for number, statements in enumerate(MIGRATIONS[read_version(session) :], read_version(session) + 1):
            session.run(statements)
            session.run(
                "INSERT INTO hardwon.meta VALUES ('schema', %(number)s) ON CONFLICT (name) DO UPDATE SET "
                "value = excluded.value",
                {"number": str(number)},
            )
        session.run("INSERT INTO hardwon.meta VALUES ('database', gen_random_uuid()) ON CONFLICT DO NOTHING")


def _explain_age(session: ServerSession, version: int) -> str:
    return (
        f"{session.name} has schema {version}, and this version of hardwon needs {SCHEMA_VERSION}. Open it once with "
        "the role that owns the schema, for example: hardwon memory stats postgresql://OWNER@HOST/DATABASE"
    )


def read_version(session: ServerSession) -> int:
    """Return the number of the last migration of the schema; 0 if there is none."""
    if not session.run("SELECT 1 FROM pg_namespace WHERE nspname = 'hardwon'"):
        return 0
    rows = session.run("SELECT value FROM hardwon.meta WHERE name = 'schema'")
    return int(rows[0][0]) if rows else 0
