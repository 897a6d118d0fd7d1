"""Experiments behind docs/results.md."""
