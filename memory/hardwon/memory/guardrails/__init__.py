"""Match guardrails against actions, put them on probation, and drop the useless ones."""
