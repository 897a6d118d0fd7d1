"""Provide sample tasks for `hardwon team`."""
