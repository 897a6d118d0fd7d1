"""Guardrails: match them against actions, put them on probation, and retire useless ones."""
