"""Share queries, checks and common parameters among the front ends."""
