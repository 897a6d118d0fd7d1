"""Episodes out of other programs' files: logs of conversations, transcripts, runs and spans.

    format, episodes = read(Path("log.jsonl"))
    write(library, episodes, source=format)

A file is read to its end, a value at a time, before anything is written, and is held on disk, not in memory. An
episode's id is made of what tells it from others, so the same file twice adds nothing. Files of `hardwon memory
export` are read by the library itself; here they are only recognized.
"""

from .filing import count as count, episodes as episodes, write as write
from .reading import FORMATS as FORMATS, Format as Format, read as read
from .spool import LoggedEpisode as LoggedEpisode

__all__ = ["FORMATS", "Format", "LoggedEpisode", "count", "episodes", "read", "write"]
