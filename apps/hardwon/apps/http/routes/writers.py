"""Writers: under which name, and with which trust, a caller's episodes and items come into the library."""

from hardwon.apps.http.access.auth import LOCAL, Caller
from hardwon.memory.records import Trust
from hardwon.memory.trust.intake import writer_name


def door_of(caller: Caller, without_token: Trust) -> tuple[str, Trust]:
    """Return the name and the trust of a caller as a writer.

    A token that may write is trusted, any other is not. A caller without a token is as trusted as the operator of the
    server said when it was started (`without_token`): nobody asked it who it is.
    """
    if caller is LOCAL:
        return "http", without_token
    return writer_name("token", caller.name), "trusted" if caller.write else "untrusted"
