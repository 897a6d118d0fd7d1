"""Assemble the streams of the APIs: completions of chunks, and responses of events."""
