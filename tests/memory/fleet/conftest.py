"""A server for the tests of this room, started once."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.memory.fleet.server import PrivateServer, find_binaries

from hardwon.memory import ExperienceLibrary
from hardwon.memory.fleet.library import FleetLibrary

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateServer]:
    """Start a private server, unless PostgreSQL or psycopg is missing."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: pip install '.[postgres]'")
    server = PrivateServer(binaries)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def url(server: PrivateServer) -> str:
    """Return the address of an empty database."""
    return server.create_database(f"test_{os.getpid()}_{next(_numbers)}")


@pytest.fixture
def connect(url: str, tmp_path: Path) -> Iterator[Callable[..., FleetLibrary]]:
    """Return a factory for libraries of the database, each with a replica in a folder of this name."""
    with ExitStack() as opened:

        def make(folder: str = "a", namespace: str = "default", **options: Any) -> FleetLibrary:
            library = ExperienceLibrary.open(url, namespace=namespace, replica=tmp_path / folder, **options)
            assert isinstance(library, FleetLibrary)
            return opened.enter_context(closing(library))

        yield make
