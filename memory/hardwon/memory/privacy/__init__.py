"""Redaction of secrets, and private files and locks."""
