"""Rollouts in other processes: agents, the learner's desk for requests, workers, and the pool that drives them."""
