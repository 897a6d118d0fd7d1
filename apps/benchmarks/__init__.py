"""Measure speed, retrieval, learning and training from a clone; see `hardwon bench`."""
