"""Every error raised on purpose in this project.

    HardwonError
    ├── ConfigError (ValueError)              a setting or argument has a value that cannot work
    │   └── WrongType (TypeError)             an argument or field is of another type than it takes
    ├── UnknownName (LookupError)             an environment, game, policy, arm or item that does not exist
    ├── MissingExtra (ImportError)            an optional package is not installed
    ├── LibraryError (RuntimeError)           the library file cannot be used as asked
    │   ├── NotALibrary                       the path is something else
    │   ├── NewerSchema                       written by a newer hardwon
    │   ├── EmbedderMismatch                  its vectors were made by another embedder
    │   ├── LibraryReadOnly                   a write to a library that may only be read
    │   ├── LibraryUnwritable                 disk full, no permission, or locked for too long
    │   ├── LibraryMissing (FileNotFoundError)    its file was removed or replaced while it was open
    │   ├── LibraryDamaged (ValueError)       a row of it was changed by the disk, not by us
    │   ├── LibraryForbidden (PermissionError)    a token does not allow what was asked of a served library
    │   └── LibraryUnreachable (ConnectionError)  a served library does not answer
    ├── EnvironmentFailure (RuntimeError)     the environment, not the agent, failed
    │   ├── EnvironmentCrashed
    │   └── EnvironmentHung
    ├── PolicyFailure (RuntimeError)          no usable action came out of the policy
    └── EngineFailure (RuntimeError)          the engine that generates refused, or answered what cannot be used
        ├── EngineUnreachable (ConnectionError)
        └── AdapterRefused

A message names the thing, the value seen, and the next step. What one episode does wrong is
recorded on its trajectory; only what the caller can act on is raised. To add an error, give it a
standard-library second parent and a line above.
"""

import difflib
from collections.abc import Iterable


class HardwonError(Exception):
    """Base of every error raised on purpose here. Catch this to catch us."""


class ConfigError(HardwonError, ValueError):
    """A setting or argument has a value that cannot work."""


class WrongType(ConfigError, TypeError):
    """An argument, or a field of a record, is of another type than it takes."""


class TooMuchFeedback(HardwonError, RuntimeError):
    """A client speaks of an item again in the same episode, or too often."""


class UnknownName(HardwonError, LookupError):
    """A name that does not exist; the message lists those that do."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> "UnknownName":
        """`unknown game 'coinn'. Did you mean 'coin'? There are: coin, twc.`"""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return cls(f"unknown {kind} {name!r}.{hint} There are: {', '.join(names) or 'none'}.")


class MissingExtra(HardwonError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""

    @classmethod
    def of(cls, package: str, extra: str) -> "MissingExtra":
        """`textworld_express is not installed. In your clone of hardwon, run: pip install '.[textworld]'`"""
        return cls(f"{package} is not installed. In your clone of hardwon, run: pip install '.[{extra}]'")


class LibraryError(HardwonError, RuntimeError):
    """The library file cannot be used as asked."""


class NotALibrary(LibraryError):
    """The path holds something else than a hardwon library."""


class NewerSchema(LibraryError):
    """The library was written by a newer hardwon than this one."""


class EmbedderMismatch(LibraryError):
    """The library's vectors were made by another embedder than the one given."""


class LibraryReadOnly(LibraryError):
    """A write was asked of a library that may only be read."""


class LibraryUnwritable(LibraryError):
    """The disk is full, the file may not be written, or another writer held it for too long."""


class LibraryMissing(LibraryError, FileNotFoundError):
    """The file of an open library was removed, or another one was put in its place."""


class LibraryDamaged(LibraryError, ValueError):
    """A stored row holds something else than was written, by a fault of the disk or by hand."""

    rows: tuple[str, ...] = ()
    """The damaged rows, with their tables, as far as they were looked for."""


class LibraryForbidden(LibraryError, PermissionError):
    """The token that was given to a served library does not allow what was asked."""


class LibraryUnreachable(LibraryError, ConnectionError):
    """The server of a library does not answer, after bounded retries."""


class EnvironmentFailure(HardwonError, RuntimeError):
    """The environment failed, not the agent; the episode is retried or excluded, never scored."""


class EnvironmentCrashed(EnvironmentFailure):
    """The environment raised, or its process died."""


class EnvironmentHung(EnvironmentFailure):
    """The environment did not answer in time."""


class PolicyFailure(HardwonError, RuntimeError):
    """No usable action came out of the policy after its bounded retries."""


class EngineFailure(HardwonError, RuntimeError):
    """The engine that generates refused a request, or its answer cannot be used."""


class EngineUnreachable(EngineFailure, ConnectionError):
    """The server of an engine does not answer, after bounded retries."""


class AdapterRefused(EngineFailure):
    """The engine does not take an adapter."""
