"""Run the experiments behind docs/results.md."""
