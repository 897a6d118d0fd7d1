"""Start the command line: `hardwon`, or `python -m hardwon`."""

import sys


def main() -> None:
    """Run the `hardwon` command; Ctrl-C ends it quietly, also while its modules are imported."""
    try:
        from hardwon.apps.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
