"""Other systems that benchmarks compare with, each in a process and a virtual environment of its own.

`python .../peers SCRIPT VARIANT PHASE FOLDER DATA [...]` runs the script of a system with the Python of its
environment. It prints what it found as JSON lines on stdout. The scripts do not import hardwon.
"""
