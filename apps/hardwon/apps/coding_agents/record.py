"""Record the finished turns of coding agents; hooks start this program and do not wait for it."""

import argparse
import sys

from .events import AGENTS
from .journal import log_failure


def main(arguments: list[str] | None = None) -> int:
    """Record every turn that waits. Return 0 in every case; failures go to the log, and the turn waits further."""
    parser = argparse.ArgumentParser(prog="hardwon hook record")
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("--library", required=True)
    parser.add_argument("--session", required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--trust", choices=("own", "trusted", "untrusted"), default="own")
    try:
        from .experience import record_pending

        record_pending(parser.parse_args(arguments))
    except BaseException as error:
        log_failure(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
