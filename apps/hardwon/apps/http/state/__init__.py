"""Hold what a server has open: libraries, runs, metrics."""
