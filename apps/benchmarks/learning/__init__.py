"""Measure what agents and teams learn, and what crafted episodes do."""
