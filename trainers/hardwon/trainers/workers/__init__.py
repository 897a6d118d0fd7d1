"""Rollouts in other processes: agents, the learner's inference proxy, workers, and the pool that drives them."""
