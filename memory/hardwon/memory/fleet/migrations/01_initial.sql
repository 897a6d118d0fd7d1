-- The log with the places of its entries, the lease of the process that learns, and who may read and write.
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
