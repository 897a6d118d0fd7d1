"""Guidance: hints for the policy, from retrieval or a model."""
