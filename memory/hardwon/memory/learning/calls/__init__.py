"""Calls: remedies that say when a call of a tool works, from all uses of it."""
