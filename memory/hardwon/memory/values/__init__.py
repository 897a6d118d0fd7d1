"""Estimate the value of actions and items from past steps."""
