-- Positions at the cost of the entries that wait in one namespace. The plan that a session keeps reads the whole table
-- if most of its rows belonged to one namespace when the statistics were taken.
ALTER FUNCTION hardwon.assign_positions(integer) SET enable_seqscan = off;
