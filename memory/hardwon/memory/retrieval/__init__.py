"""Retrieval: find the items, steps and estimates that match a situation."""
