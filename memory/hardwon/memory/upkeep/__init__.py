"""Maintenance of a library: write buffer, queries, integrity checks, forgetting, and import and export."""
