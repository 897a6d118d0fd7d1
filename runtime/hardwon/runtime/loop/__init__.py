"""The loop of an episode: advise, decide, check, act, record."""
