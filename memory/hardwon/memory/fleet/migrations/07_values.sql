-- Values of stores.
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
