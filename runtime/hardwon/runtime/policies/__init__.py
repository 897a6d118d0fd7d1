"""Policies, which choose the next action: episodic, random, and by a chat model."""
