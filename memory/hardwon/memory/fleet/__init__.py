"""A library that many machines share: a log of everything written, and replicas that apply it in its order."""
