"""The dashboard: pages for people over the same functions as the command line.

NiceGUI carries its own scripts, styles and fonts; a policy in every answer keeps a browser from asking any other
host. `mount` puts the pages beside the API's routes; who may see what is decided by the same gate.
"""

from typing import TYPE_CHECKING

from hardwon.memory.errors import MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI


def mount(app: "FastAPI") -> None:
    """Add the pages to an API made by `hardwon.apps.http.app`. Once in a process: NiceGUI has one application."""
    try:
        import nicegui  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("nicegui", "serve") from error
    from . import pages

    pages.mount(app)
