"""Run the nodes of one step: advise, decide, check, act, record."""
