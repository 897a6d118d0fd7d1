"""Planners, plans, and progress of a plan."""
