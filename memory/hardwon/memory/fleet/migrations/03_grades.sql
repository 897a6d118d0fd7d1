-- Late grades of episodes.
ALTER TABLE hardwon.log DROP CONSTRAINT log_kind_check;
ALTER TABLE hardwon.log ADD CONSTRAINT log_kind_check
    CHECK (kind IN ('episode', 'items', 'bank', 'import', 'forget', 'grade'));
