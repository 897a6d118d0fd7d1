"""Decide who may call, how often, and how errors are answered."""
