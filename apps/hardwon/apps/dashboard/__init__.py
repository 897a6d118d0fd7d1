"""Serve the dashboard: web pages that show the same data as the command line.

NiceGUI includes its own scripts, styles and fonts. The content security policy of every response keeps browsers from
contacting any other host. `mount` adds the pages next to the API's routes; the same gate controls access to both.
"""

from typing import TYPE_CHECKING

from hardwon.memory.errors import MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI


def mount(app: "FastAPI") -> None:
    """Add the pages to an API created by `hardwon.apps.http.app`.

    Call it once per process, because NiceGUI has only one application.

    Raises:
        MissingExtra: NiceGUI is not installed.
    """
    try:
        import nicegui  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("nicegui", "serve") from error
    from . import pages

    pages.mount(app)
