"""Benchmarks of what agents and teams learn, and of attacks by crafted episodes."""
