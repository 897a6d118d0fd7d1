"""The open state of a server: libraries, runs and metrics."""
