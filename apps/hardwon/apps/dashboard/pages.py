"""Register all pages and configure NiceGUI."""

from fastapi import FastAPI
from nicegui import ui

from . import episode_pages, item_pages, login, map_page, overview_page, run_pages

RECONNECT_S = 5.0
"""Seconds that the server keeps the state of a page whose connection is lost."""


def mount(api: FastAPI) -> None:
    """Add every page to the API's application."""
    login.add(api, api.state.tokens)
    for part in (overview_page, item_pages, map_page, episode_pages, run_pages):
        part.add(api)
    ui.run_with(
        api, title="hardwon", language="en-US", tailwind=False, reconnect_timeout=RECONNECT_S,
        show_welcome_message=False, favicon=ICON,
    )  # fmt: skip


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0b5cad"/>'
    '<path d="M8 10h16M16 10v13" stroke="#fff" stroke-width="4" stroke-linecap="round"/></svg>'
)
