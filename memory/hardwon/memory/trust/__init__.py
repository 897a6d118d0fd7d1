"""Decide how far to believe episodes and text that other programs sent."""
