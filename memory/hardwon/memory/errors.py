"""Exceptions that hardwon raises on purpose.

    HardwonError
    ├── ConfigError (ValueError)              a setting or argument has an invalid value
    │   ├── WrongType (TypeError)             an argument or field has the wrong type
    │   └── KeyTaken (FileExistsError)        the log of a shared library has other content under this key
    ├── TooMuchFeedback (RuntimeError)        a client sent too much feedback about an item
    ├── UnknownName (LookupError)             an environment, game, policy, arm or item does not exist
    ├── MissingExtra (ImportError)            an optional package is not installed
    ├── LibraryError (RuntimeError)           the library cannot do what was requested
    │   ├── NotALibrary                       the path is not a library
    │   ├── NewerSchema                       the library was written by a newer hardwon
    │   ├── EmbedderMismatch                  the library's vectors come from another embedder
    │   ├── LibraryReadOnly                   a write to a library that was opened read-only
    │   ├── LibraryUnwritable                 disk full, no permission, or locked for too long
    │   │   └── LibraryBusy (TimeoutError)    another thread or process holds a lock
    │   ├── LibraryMissing (FileNotFoundError)    the file was removed or replaced while it was open
    │   ├── LibraryDamaged (ValueError)       a stored row is corrupt
    │   ├── LibraryForbidden (PermissionError)    the token or the database role does not permit the request
    │   ├── LibraryUnreachable (ConnectionError)  the server of a library does not answer
    │   ├── OtherReplica (FileExistsError)        the file is not the replica of this database
    │   ├── ServerTooOld                          the database server lacks what the log needs
    │   └── LeaseLost (TimeoutError)              another process learns items for this namespace now
    ├── EnvironmentFailure (RuntimeError)     the environment, not the agent, failed
    │   ├── EnvironmentCrashed
    │   └── EnvironmentHung
    ├── CallForbidden (RuntimeError)          a guardrail forbids a call of a function
    ├── CannotBranch (RuntimeError)           an episode cannot begin with the given steps
    ├── PolicyFailure (RuntimeError)          the policy produced no usable action
    ├── CannotLearn (RuntimeError)            a training run has nothing to learn from
    ├── ModelUnavailable (RuntimeError)       a pretrained model cannot be downloaded or written
    └── EngineFailure (RuntimeError)          the inference engine refused, or its answer cannot be used
        ├── EngineUnreachable (ConnectionError)
        └── AdapterRefused

A message names the object, the value and the next step. Failures within an episode are recorded on its trajectory;
only errors that the caller can act on are raised. A new error needs a second parent from the standard library and a
line in the tree above.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class HardwonError(Exception):
    """Base class of every error that hardwon raises on purpose."""


class ConfigError(HardwonError, ValueError):
    """A setting or argument has an invalid value."""


class WrongType(ConfigError, TypeError):
    """An argument, or a field of a record, has the wrong type."""


class KeyTaken(ConfigError, FileExistsError):
    """The log of a shared library holds other content under the same key."""


class TooMuchFeedback(HardwonError, RuntimeError):
    """A client sent feedback about an item twice in one episode, or exceeded the rate limit."""


class UnknownName(HardwonError, LookupError):
    """A name does not exist. The message lists the existing names."""

    @classmethod
    def of(cls, kind: str, name: str, candidates: Iterable[str]) -> "UnknownName":
        """Create the error with a list of the existing names and the closest match.

        >>> UnknownName.of("game", "coinn", ["coin", "twc"])
        UnknownName("unknown game 'coinn'. Did you mean 'coin'? There are: coin, twc.")

        Args:
            kind: What the name refers to, such as "game".
            name: The unknown name.
            candidates: Existing names.
        """
        names = sorted(map(str, candidates))  # of a damaged library, a name may be no text
        matches = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {matches[0]!r}?" if matches else ""
        return cls(f"unknown {kind} {name!r:.200}.{hint} There are: {', '.join(names) or 'none'}.")


class MissingExtra(HardwonError, ImportError):
    """An optional package is not installed. The message names the extra that installs it."""

    @classmethod
    def of(cls, package: str, extra: str) -> "MissingExtra":
        """Create the error with the command that installs the package.

        >>> MissingExtra.of("textworld_express", "games")
        MissingExtra("textworld_express is not installed. In your clone of hardwon, run: pip install '.[games]'")
        """
        return cls(f"{package} is not installed. In your clone of hardwon, run: pip install '.[{extra}]'")


class LibraryError(HardwonError, RuntimeError):
    """The library cannot do what was requested."""


class NotALibrary(LibraryError):
    """The path is not a hardwon library."""


class NewerSchema(LibraryError):
    """The library was written by a newer version of hardwon."""


class EmbedderMismatch(LibraryError):
    """The library's vectors come from another embedder than the given one."""


class LibraryReadOnly(LibraryError):
    """A write was attempted on a library that was opened read-only."""


class LibraryUnwritable(LibraryError):
    """The disk is full, the file is not writable, or another process locked it for too long."""


class LibraryBusy(LibraryUnwritable, TimeoutError):
    """Another thread or process held a lock of the library for longer than the caller waits."""


class LibraryMissing(LibraryError, FileNotFoundError):
    """The file of an open library was removed or replaced."""


class LibraryDamaged(LibraryError, ValueError):
    """A stored row is corrupt, because of a disk fault or a manual change."""

    rows: tuple[str, ...] = ()
    """The damaged rows with their tables, if they were searched for."""


class LibraryForbidden(LibraryError, PermissionError):
    """The token of a served library, or the role in a database, does not permit this request."""


class LibraryUnreachable(LibraryError, ConnectionError):
    """The server of a library does not answer, after a limited number of retries."""


class OtherReplica(LibraryError, FileExistsError):
    """The file that should be the replica of a log follows another log, or is a library of its own."""


class ServerTooOld(LibraryError):
    """The database server is older than the log needs."""


class LeaseLost(LibraryError, TimeoutError):
    """The lease expired before the operation was committed, and nothing of it was written."""


class EnvironmentFailure(HardwonError, RuntimeError):
    """The environment failed, not the agent. The episode is retried or excluded, and never scored."""


class EnvironmentCrashed(EnvironmentFailure):
    """The environment raised an exception, or its process died."""


class EnvironmentHung(EnvironmentFailure):
    """The environment did not answer in time."""


class CallForbidden(HardwonError, RuntimeError):
    """A guardrail forbids this call of a function, so it did not run."""


class CannotBranch(HardwonError, RuntimeError):
    """An episode cannot begin with recorded steps: repeating them does not lead back, or must not be done."""


class PolicyFailure(HardwonError, RuntimeError):
    """The policy produced no usable action after a limited number of retries."""


class CannotLearn(HardwonError, RuntimeError):
    """A training run, or a role of it, has nothing to learn from."""


class ModelUnavailable(HardwonError, RuntimeError):
    """A pretrained model cannot be downloaded, or its folder cannot be written."""


class EngineFailure(HardwonError, RuntimeError):
    """The inference engine refused a request, or its answer cannot be used."""


class EngineUnreachable(EngineFailure, ConnectionError):
    """The server of an engine does not answer, after a limited number of retries."""


class AdapterRefused(EngineFailure):
    """The engine refused to load an adapter."""


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Turn a package that is missing inside the block into MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        # a missing module of our own is a bug, not an extra to install
        if package in ("", "hardwon"):
            raise
        raise MissingExtra.of(package, extra) from missing
