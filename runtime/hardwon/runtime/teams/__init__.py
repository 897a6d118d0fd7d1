"""Several agents that work on one task and share their findings."""
