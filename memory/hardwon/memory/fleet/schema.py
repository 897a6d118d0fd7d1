"""The schema of the log in PostgreSQL, as numbered migrations that are never edited after a release.

`log` holds what was written. A row gets its place in `positions` only after its commit, so a follower that reads the
next positions skips nothing; rows that wait for a place are in `waiting`, which a trigger fills. Places are given by
`assign_positions`, which any client may call: it locks the namespace, so two callers never give the same place.

Roles other than the owner see and write only the namespaces in `members`. They change places, times and leases through
functions alone, and insert only the columns that a writer decides.
"""

from hardwon.memory.errors import LibraryForbidden, NewerSchema, NotALibrary
from hardwon.memory.storage.migrations import APPLICATION_ID

from .session import ServerSession

_INITIAL = """
CREATE SCHEMA hardwon;
CREATE TABLE hardwon.meta (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE hardwon.namespaces (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE hardwon.log (
    id bigserial PRIMARY KEY, namespace integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL CHECK (kind IN ('episode', 'items', 'bank')), format integer NOT NULL, key text NOT NULL,
    payload bytea NOT NULL, term bigint, UNIQUE (namespace, key), CHECK (kind <> 'items' OR term IS NOT NULL));
ALTER TABLE hardwon.log ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE hardwon.waiting (namespace integer, log_id bigint, PRIMARY KEY (namespace, log_id));
CREATE TABLE hardwon.positions (
    namespace integer, pos bigint, log_id bigint NOT NULL UNIQUE, PRIMARY KEY (namespace, pos));
CREATE TABLE hardwon.leases (
    namespace integer PRIMARY KEY, term bigint NOT NULL DEFAULT 0, holder text NOT NULL DEFAULT '',
    expires timestamptz NOT NULL DEFAULT '-infinity');
CREATE TABLE hardwon.members (
    role name, namespace integer, writes boolean NOT NULL, PRIMARY KEY (role, namespace));

CREATE FUNCTION hardwon.may(ns integer, writing boolean) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
    SELECT pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (
        SELECT 1 FROM members WHERE namespace = ns AND (writes OR NOT writing)
        AND pg_has_role(session_user, role, 'USAGE'))
$$;
CREATE FUNCTION hardwon.require(ns integer, writing boolean) RETURNS void LANGUAGE plpgsql STABLE
SET search_path = hardwon, pg_temp AS $$
BEGIN
    IF NOT may(ns, writing) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s is no member of namespace %s', session_user, ns);
    END IF;
END $$;

CREATE FUNCTION hardwon.on_append() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
BEGIN
    IF NEW.term IS NOT NULL THEN
        PERFORM 1 FROM leases WHERE namespace = NEW.namespace AND term = NEW.term FOR UPDATE;
        IF NOT FOUND THEN
            RAISE SQLSTATE 'HW001' USING MESSAGE = format('term %s of namespace %s is over', NEW.term, NEW.namespace);
        END IF;
    END IF;
    INSERT INTO waiting VALUES (NEW.namespace, NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER on_append AFTER INSERT ON hardwon.log FOR EACH ROW EXECUTE FUNCTION hardwon.on_append();

CREATE FUNCTION hardwon.assign_positions(ns integer) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
DECLARE head bigint;
BEGIN
    PERFORM require(ns, false);
    PERFORM 1 FROM waiting WHERE namespace = ns LIMIT 1;
    IF FOUND THEN
        -- one at a time: the next statement sees what the one before it committed
        PERFORM 1 FROM namespaces WHERE id = ns FOR NO KEY UPDATE;
        WITH taken AS (DELETE FROM waiting WHERE namespace = ns RETURNING log_id)
        INSERT INTO positions SELECT ns, (SELECT coalesce(max(pos), 0) FROM positions WHERE namespace = ns)
            + row_number() OVER (ORDER BY log_id), log_id FROM taken;
    END IF;
    SELECT coalesce(max(pos), 0) INTO head FROM positions WHERE namespace = ns;
    RETURN head;
END $$;

CREATE FUNCTION hardwon.lock_items(ns integer) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
DECLARE current bigint;
BEGIN
    PERFORM require(ns, true);
    SELECT term INTO current FROM leases WHERE namespace = ns FOR UPDATE;
    RETURN current;
END $$;

CREATE FUNCTION hardwon.take_lease(ns integer, by text, seconds double precision) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = hardwon, pg_temp AS $$
DECLARE taken bigint;
BEGIN
    PERFORM require(ns, true);
    UPDATE leases SET term = term + (holder <> by OR expires < clock_timestamp())::integer, holder = by,
        expires = clock_timestamp() + make_interval(secs => seconds)
    WHERE namespace = ns AND (holder = by OR expires < clock_timestamp()) RETURNING term INTO taken;
    RETURN taken;
END $$;
CREATE FUNCTION hardwon.give_lease(ns integer, by text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = hardwon, pg_temp AS $$
BEGIN
    PERFORM require(ns, true);
    UPDATE leases SET expires = '-infinity' WHERE namespace = ns AND holder = by;
END $$;

ALTER TABLE hardwon.log ENABLE ROW LEVEL SECURITY;
ALTER TABLE hardwon.positions ENABLE ROW LEVEL SECURITY;
ALTER TABLE hardwon.waiting ENABLE ROW LEVEL SECURITY;
ALTER TABLE hardwon.leases ENABLE ROW LEVEL SECURITY;
ALTER TABLE hardwon.namespaces ENABLE ROW LEVEL SECURITY;
ALTER TABLE hardwon.members ENABLE ROW LEVEL SECURITY;
CREATE POLICY reading ON hardwon.log FOR SELECT USING (hardwon.may(namespace, false));
CREATE POLICY writing ON hardwon.log FOR INSERT WITH CHECK (hardwon.may(namespace, true));
CREATE POLICY reading ON hardwon.positions FOR SELECT USING (hardwon.may(namespace, false));
CREATE POLICY reading ON hardwon.leases FOR SELECT USING (hardwon.may(namespace, false));
CREATE POLICY reading ON hardwon.waiting FOR SELECT USING (hardwon.may(namespace, false));
CREATE POLICY reading ON hardwon.namespaces FOR SELECT USING (hardwon.may(id, false));
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hardwon FROM PUBLIC;
"""

_UPKEEP = """
ALTER TABLE hardwon.members ADD COLUMN manages boolean NOT NULL DEFAULT false;
ALTER TABLE hardwon.log DROP CONSTRAINT log_kind_check;
ALTER TABLE hardwon.log ADD CONSTRAINT log_kind_check
    CHECK (kind IN ('episode', 'items', 'bank', 'import', 'forget'));
CREATE INDEX forgets ON hardwon.log (namespace) WHERE kind = 'forget';
CREATE TABLE hardwon.snapshots (
    id bigserial PRIMARY KEY, namespace integer NOT NULL, pos bigint NOT NULL, entry bigint NOT NULL,
    schema integer NOT NULL, keys integer NOT NULL, digest text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE hardwon.chunks (
    snapshot bigint REFERENCES hardwon.snapshots ON DELETE CASCADE, number integer, content bytea NOT NULL,
    PRIMARY KEY (snapshot, number));
ALTER TABLE hardwon.chunks ALTER content SET STORAGE EXTERNAL;
CREATE TABLE hardwon.vectors (
    namespace integer, fingerprint text, digest bytea, vector bytea NOT NULL,
    PRIMARY KEY (namespace, fingerprint, digest));

CREATE FUNCTION hardwon.may_manage(ns integer) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
    SELECT pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (
        SELECT 1 FROM members WHERE namespace = ns AND manages AND pg_has_role(session_user, role, 'USAGE'))
$$;
CREATE OR REPLACE FUNCTION hardwon.on_append() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
BEGIN
    IF NEW.kind = 'forget' AND NOT may_manage(NEW.namespace) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('%s may not forget in namespace %s', session_user, NEW.namespace);
    END IF;
    IF NEW.term IS NOT NULL THEN
        PERFORM 1 FROM leases WHERE namespace = NEW.namespace AND term = NEW.term FOR UPDATE;
        IF NOT FOUND THEN
            RAISE SQLSTATE 'HW001' USING MESSAGE = format('term %s of namespace %s is over', NEW.term, NEW.namespace);
        END IF;
    END IF;
    INSERT INTO waiting VALUES (NEW.namespace, NEW.id);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION hardwon.assign_positions(ns integer) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
DECLARE head bigint;
BEGIN
    PERFORM require(ns, false);
    PERFORM 1 FROM waiting WHERE namespace = ns LIMIT 1;
    IF FOUND THEN
        -- one at a time: the next statement sees what the one before it committed
        PERFORM 1 FROM namespaces WHERE id = ns FOR NO KEY UPDATE;
        WITH taken AS (DELETE FROM waiting WHERE namespace = ns RETURNING log_id)
        INSERT INTO positions SELECT ns, (SELECT coalesce(max(pos), 0) FROM positions WHERE namespace = ns)
            + row_number() OVER (ORDER BY log_id), log_id FROM taken;
        IF FOUND THEN  -- wake the followers; not in the transaction that records, whose commits it would serialize
            PERFORM pg_notify('hardwon_' || ns, '');
        END IF;
    END IF;
    SELECT coalesce(max(pos), 0) INTO head FROM positions WHERE namespace = ns;
    RETURN head;
END $$;

CREATE FUNCTION hardwon.erase(ns integer, entries bigint[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = hardwon, pg_temp AS $$
BEGIN
    IF NOT may_manage(ns) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s may not forget in namespace %s', session_user, ns);
    END IF;
    IF EXISTS (SELECT 1 FROM positions WHERE namespace = ns AND log_id = ANY(entries)
               AND pos > (SELECT coalesce(max(pos), 0) FROM snapshots WHERE namespace = ns)) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'no snapshot holds what these entries lead to';
    END IF;
    -- The key goes, too: it is the id of an episode, which may be recorded again.
    UPDATE log SET payload = '', format = 0, key = 'erased:' || log.id
    FROM positions WHERE log.id = ANY(entries) AND log.namespace = ns AND positions.namespace = ns
        AND positions.log_id = log.id;
END $$;

ALTER TABLE hardwon.snapshots ENABLE ROW LEVEL SECURITY;
ALTER TABLE hardwon.chunks ENABLE ROW LEVEL SECURITY;
ALTER TABLE hardwon.vectors ENABLE ROW LEVEL SECURITY;
CREATE POLICY reading ON hardwon.snapshots FOR SELECT USING (hardwon.may(namespace, false));
CREATE POLICY managing ON hardwon.snapshots USING (hardwon.may_manage(namespace));
CREATE POLICY reading ON hardwon.chunks FOR SELECT USING (
    EXISTS (SELECT 1 FROM hardwon.snapshots WHERE id = snapshot));
CREATE POLICY managing ON hardwon.chunks USING (
    EXISTS (SELECT 1 FROM hardwon.snapshots WHERE id = snapshot AND hardwon.may_manage(namespace)));
CREATE POLICY reading ON hardwon.vectors FOR SELECT USING (hardwon.may(namespace, false));
CREATE POLICY writing ON hardwon.vectors FOR INSERT WITH CHECK (hardwon.may(namespace, true));
CREATE POLICY erasing ON hardwon.vectors FOR DELETE USING (hardwon.may_manage(namespace));
REVOKE ALL ON FUNCTION hardwon.may_manage, hardwon.erase FROM PUBLIC;
DO $$ DECLARE role name;
BEGIN
    FOR role IN SELECT DISTINCT members.role FROM hardwon.members JOIN pg_roles ON rolname = members.role LOOP
        EXECUTE format('GRANT SELECT ON hardwon.snapshots, hardwon.chunks, hardwon.vectors TO %I', role);
        EXECUTE format('GRANT EXECUTE ON FUNCTION hardwon.may_manage TO %I', role);
    END LOOP;
END $$;
"""
"""Forgetting, imports, snapshots and shared vectors; a third right, to manage a namespace; and wake-up calls."""

_GRADES = """
ALTER TABLE hardwon.log DROP CONSTRAINT log_kind_check;
ALTER TABLE hardwon.log ADD CONSTRAINT log_kind_check
    CHECK (kind IN ('episode', 'items', 'bank', 'import', 'forget', 'grade'));
"""
"""Late grades of episodes."""

_QUICK = """
ALTER TABLE hardwon.log DROP CONSTRAINT log_kind_check, DROP CONSTRAINT log_check;
CREATE OR REPLACE FUNCTION hardwon.may(ns integer, writing boolean) RETURNS boolean LANGUAGE plpgsql STABLE
SECURITY DEFINER AS $$
BEGIN
    RETURN pg_catalog.pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (
        SELECT 1 FROM hardwon.members WHERE namespace OPERATOR(pg_catalog.=) ns AND (writes OR NOT writing)
        AND pg_catalog.pg_has_role(session_user, role, 'USAGE'));
END $$;
CREATE FUNCTION hardwon.check_entry(ns integer, kind text, holds bigint) RETURNS void LANGUAGE plpgsql
SET search_path = hardwon, pg_temp AS $$
BEGIN
    IF kind NOT IN ('episode', 'items', 'bank', 'import', 'forget', 'grade') OR kind = 'items' AND holds IS NULL THEN
        RAISE check_violation USING MESSAGE = format('an entry of kind %L with term %L is refused', kind, holds);
    END IF;
    IF kind = 'forget' AND NOT may_manage(ns) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s may not forget in namespace %s', session_user, ns);
    END IF;
    IF holds IS NOT NULL THEN
        PERFORM 1 FROM leases WHERE namespace = ns AND term = holds FOR UPDATE;
        IF NOT FOUND THEN
            RAISE SQLSTATE 'HW001' USING MESSAGE = format('term %s of namespace %s is over', holds, ns);
        END IF;
    END IF;
END $$;
REVOKE ALL ON FUNCTION hardwon.check_entry FROM PUBLIC;
CREATE OR REPLACE FUNCTION hardwon.on_append() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NEW.kind OPERATOR(pg_catalog.<>) 'episode' OR NEW.term IS NOT NULL THEN
        PERFORM hardwon.check_entry(NEW.namespace, NEW.kind, NEW.term);
    END IF;
    INSERT INTO hardwon.waiting VALUES (NEW.namespace, NEW.id);
    RETURN NULL;
END $$;
"""
"""Quicker appends of episodes. CHECK constraints are compiled and SQL functions planned for every statement, PL/pgSQL
once for a session. SET search_path costs more than the rest of the trigger; without it, each name has its schema: the
caller decides the search path."""

_INDEXED = "ALTER FUNCTION hardwon.assign_positions(integer) SET enable_seqscan = off;"
"""Positions at the cost of the entries that wait in one namespace. The plan that a session keeps reads the whole table
if most of its rows belonged to one namespace when the statistics were taken."""

_FOLDERS = """
CREATE TABLE hardwon.folders (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, url text NOT NULL UNIQUE);
ALTER TABLE hardwon.snapshots ADD COLUMN folder integer REFERENCES hardwon.folders, ADD COLUMN name text,
    ADD COLUMN secret bytea;
CREATE TABLE hardwon.unneeded (
    namespace integer, folder integer REFERENCES hardwon.folders, name text, due timestamptz NOT NULL,
    PRIMARY KEY (namespace, folder, name));
ALTER TABLE hardwon.unneeded ENABLE ROW LEVEL SECURITY;
CREATE POLICY managing ON hardwon.unneeded USING (hardwon.may_manage(namespace));
DO $$ DECLARE member record;
BEGIN
    FOR member IN SELECT role, bool_or(manages) AS manages FROM hardwon.members JOIN pg_roles ON rolname = role
        GROUP BY role LOOP
        EXECUTE format('GRANT SELECT ON hardwon.folders TO %I', member.role);
        IF member.manages THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON hardwon.unneeded TO %I', member.role);
        END IF;
    END LOOP;
END $$;
"""
"""Snapshots in folders outside the database, and the files there that nobody needs from a moment on."""

_VALUES = """
CREATE OR REPLACE FUNCTION hardwon.check_entry(ns integer, kind text, holds bigint) RETURNS void LANGUAGE plpgsql
SET search_path = hardwon, pg_temp AS $$
BEGIN
    IF kind NOT IN ('episode', 'items', 'bank', 'store', 'import', 'forget', 'grade')
        OR kind = 'items' AND holds IS NULL THEN
        RAISE check_violation USING MESSAGE = format('an entry of kind %L with term %L is refused', kind, holds);
    END IF;
    IF kind = 'forget' AND NOT may_manage(ns) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s may not forget in namespace %s', session_user, ns);
    END IF;
    IF holds IS NOT NULL THEN
        PERFORM 1 FROM leases WHERE namespace = ns AND term = holds FOR UPDATE;
        IF NOT FOUND THEN
            RAISE SQLSTATE 'HW001' USING MESSAGE = format('term %s of namespace %s is over', holds, ns);
        END IF;
    END IF;
END $$;
"""
"""Values of stores."""

MIGRATIONS = (_INITIAL, _UPKEEP, _GRADES, _QUICK, _INDEXED, _FOLDERS, _VALUES)
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
