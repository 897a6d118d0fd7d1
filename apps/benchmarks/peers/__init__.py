"""Adapters and scripts that `hardwon bench peers` runs, one per memory system.

`python .../peers SCRIPT VARIANT PHASE FOLDER DATA [...]` runs one phase of one system in a separate process, with the
Python of that system's virtual environment. It prints its measurements as JSON lines on stdout. Only `ours` imports
hardwon. The scripts measure and `benchmarks.peers.compare` checks whether the answers are correct.
"""
