"""Sample tasks, play groups of episodes, and keep their tokens."""
