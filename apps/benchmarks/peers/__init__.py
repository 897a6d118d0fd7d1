"""The memories that `hardwon bench peers` measures: a small script for each, run by the Python of its own environment.

`python .../peers SCRIPT VARIANT PHASE FOLDER DATA [...]` runs one phase of one system in a process of its
own and tells what it finds as lines of JSON on stdout. Only `ours` imports anything of hardwon. These
scripts judge nothing: whether an answer is right is for `benchmarks.peers.compare` to say.
"""
