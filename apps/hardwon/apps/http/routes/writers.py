"""Writers: the name and the trust under which a caller's episodes and items enter the library."""

from hardwon.apps.http.access.auth import LOCAL, Caller
from hardwon.memory.records import Trust
from hardwon.memory.trust.intake import writer_name


def door_of(caller: Caller, without_token: Trust) -> tuple[str, Trust]:
    """Return the writer name and the trust of a caller.

    A token with the right to write is trusted; any other is not. A caller without a token is not identified, so its
    trust is `without_token`, which the operator set when starting the server.
    """
    if caller is LOCAL:
        return "http", without_token
    return writer_name("token", caller.name), "trusted" if caller.write else "untrusted"
