"""Lay out explanations and plots for people."""
