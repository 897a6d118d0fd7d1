"""Checklists, tournaments and preferences: how verdicts about traces become figures."""
