-- Quicker appends of episodes. CHECK constraints are compiled and SQL functions planned for every statement, PL/pgSQL
-- once for a session. SET search_path costs more than the rest of the trigger; without it, each name has its schema: the
-- caller decides the search path.
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
