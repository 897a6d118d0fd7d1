"""Clients of a server on this machine."""

from fastapi.testclient import TestClient as Plain


class TestClient(Plain):
    """A client of this machine's server."""

    __test__ = False

    def __init__(self, app, **options):
        super().__init__(app, base_url="http://127.0.0.1:8420", **options)


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}
