"""Serve the dashboard: web pages that show the same data as the command line.

NiceGUI includes its own scripts, styles and fonts. The content security policy of every response keeps browsers from
contacting any other host. `mount` adds the pages next to the API's routes; the same gate controls access to both.
"""

from typing import TYPE_CHECKING

from hardwon.memory.errors import MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0b5cad"/>'
    '<path d="M8 10h16M16 10v13" stroke="#fff" stroke-width="4" stroke-linecap="round"/></svg>'
)


def mount(app: "FastAPI") -> None:
    """Add the pages to an API created by `hardwon.apps.http.app`.

    Call it once per process, because NiceGUI has only one application.
    """
    try:
        import nicegui  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("nicegui", "agent") from error
    from nicegui import ui

    from . import episode_pages, frame, item_pages, login, overview_page, run_pages, search_page, situation_page

    frame.add_error_pages()
    login.add(app, app.state.tokens)
    for part in (overview_page, search_page, item_pages, episode_pages, situation_page, run_pages):
        part.add(app)
    ui.run_with(
        app, title="hardwon", language="en-US", tailwind=False, reconnect_timeout=5.0,
        show_welcome_message=False, favicon=ICON,
    )  # fmt: skip
