"""Store episodes, states and what is derived from them in one SQLite file."""
