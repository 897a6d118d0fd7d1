"""Run the command line with `python -m hardwon`."""

from hardwon.apps.cli.app import main

if __name__ == "__main__":
    main()
