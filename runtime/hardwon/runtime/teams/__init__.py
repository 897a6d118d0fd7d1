"""Run several agents on one task, and share what they find."""
