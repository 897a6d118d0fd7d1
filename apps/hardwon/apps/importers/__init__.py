"""Import episodes from files of other programs: conversation logs, transcripts, runs and spans.

    format, episodes = read(Path("log.jsonl"))
    write(library, episodes, source=format)

A file is read to its end, one value at a time, before anything is written, and its content is kept on disk instead of
in memory. The id of an episode is a digest of its identifying content, so importing a file twice adds nothing. Files
of `hardwon memory export` are only recognized here; the library reads them itself.
"""

from .filing import count as count, episodes as episodes, measure as measure, write as write
from .reading import FORMATS as FORMATS, Format as Format, read as read
from .source import copy_pipe as copy_pipe
from .spool import LoggedEpisode as LoggedEpisode

__all__ = ["FORMATS", "Format", "LoggedEpisode", "copy_pipe", "count", "episodes", "measure", "read", "write"]
