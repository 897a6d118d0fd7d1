"""A server for the tests of this room, started once."""

import itertools
import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.memory.fleet.server import PrivateServer, find_binaries

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
