"""Runs that are not over: their steps are on the disk before the episode is recorded.

Each step is appended to a file of its run, in the folder `experience.db.runs/` beside the library (for a library on a
server: in the user's cache), without waiting for the disk: a killed process loses nothing, a crash of the machine may
lose the last steps. The file is removed when the episode is recorded. What a process left behind is recorded by the
next one that opens or evolves the library, with an unknown outcome.
"""

from .folder import ABANDONED as ABANDONED, PAUSED_S as PAUSED_S, OpenRun as OpenRun, OpenRuns as OpenRuns
