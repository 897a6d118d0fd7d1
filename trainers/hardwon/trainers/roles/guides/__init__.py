"""The guide: what it decides or says, its credit, and what it imitates first."""
