"""Measure generating and training."""
