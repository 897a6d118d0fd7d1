"""Measure what recall, storage, the loop and HTTP cost."""
