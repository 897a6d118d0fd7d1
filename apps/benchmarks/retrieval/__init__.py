"""Measure whether recalled steps predict the next action."""
