"""Strategies: whole settings of an agent, chosen for every episode by what they achieved and what they cost."""
