"""Compute advantages, losses and updates from sampled tokens."""
