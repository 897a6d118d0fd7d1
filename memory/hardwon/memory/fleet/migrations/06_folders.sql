-- Snapshots in folders outside the database, and the files there that nobody needs from a moment on.
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
