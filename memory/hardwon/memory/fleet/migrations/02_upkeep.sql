-- Forgetting, imports, snapshots and shared vectors; a third right, to manage a namespace; and wake-up calls.
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
