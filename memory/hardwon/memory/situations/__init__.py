"""Describe a state and an action by keys, patterns and conditions."""
