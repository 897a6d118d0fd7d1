"""SQLite storage of episodes, states, items and their rollups."""
