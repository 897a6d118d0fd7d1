"""The address of the upstream server is the proxy's alone: no path, query or page leads a request elsewhere."""

import contextlib
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.apps.proxy.conftest import serving

from hardwon.apps.proxy.address import PathRefused, join_path
from hardwon.apps.proxy.app import create_proxy
from hardwon.apps.proxy.library_access import LibraryAccess
from hardwon.memory import ExperienceLibrary

UPSTREAM = httpx.URL("http://model.example:8000/api/v1/")


@contextlib.contextmanager
def recording_server():
    """A server that keeps the targets of the requests that reach it."""
    targets: list[str] = []

    async def note(request):
        targets.append(request.url.path)
        return JSONResponse({"path": request.url.path, "query": request.url.query})

    with serving(Starlette(routes=[Route("/{path:path}", note, methods=["GET", "POST"])])) as url:
        yield url, targets


def send(address, target, *headers):
    """Send a request line as it is; HTTP clients would tidy it up. Return the status."""
    host, port = address.removeprefix("http://").split(":")
    lines = [f"GET {target} HTTP/1.1", "Authorization: Bearer sk-secret-key", "Connection: close", *headers]
    if not any(line.lower().startswith("host:") for line in headers):
        lines.append(f"Host: {host}:{port}")
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while received := connection.recv(65536):
            answer += received
    return int(answer.split()[1])


ELSEWHERE = [
    "/v1@{other}/x", "/v1{other}/x", "/v1:80@{other}/x", "/v1user:key@{other}/x", "/@{other}/x", "/:{port}/x",
    "/v1/@{other}/x", "/v1/:{port}/x", "//{other}/x", "/v1//{other}/x", "/v1///{other}/x", "/%2f{other}/x",
    "/v1/%2F{other}/x", "/v1%40{other}/x", "/v1%253a%2540{other}/x", "/v1/../admin", "/v1/%2e%2e/admin",
    "/v1/.%2e/admin", "/v1/%252e%252e/admin", "/v1/..%2fadmin", "/v1/models/..;/..;/admin", "/v1/models/../../admin",
    "/v1/..", "/v1/.", "/v1/..%5cadmin", "/v1/a%5c..%5cadmin", "/v1/a%0d%0aHost:%20{other}", "/v1/a%00b",
    "/v1/models%23@{other}", "/v1/%0d%0aHost:%20{other}",
]  # fmt: skip


@pytest.fixture(scope="module")
def servers():
    with recording_server() as upstream, recording_server() as other:
        yield upstream, other


@pytest.fixture
def address(proxied, servers):
    return str(proxied(url=f"{servers[0][0]}/v1").base_url).removesuffix("/v1/")


def test_no_target_reaches_another_server_or_leaves_the_base(address, servers):
    (_, reached), (url, elsewhere) = servers
    reached.clear()
    other = url.removeprefix("http://")
    targets = [target.format(other=other, port=other.split(":")[1]) for target in ELSEWHERE]
    answers = {target: send(address, target) for target in targets}
    assert answers == dict.fromkeys(targets, 400)
    assert reached == elsewhere == []


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_a_whole_url_as_target_reaches_no_other_server(tmp_path, servers, http):
    """Not even with the `Host` of the other server; one parser gives us the whole target, the other its path."""
    (upstream, _), (url, elsewhere) = servers
    app = create_proxy(LibraryAccess(lambda: ExperienceLibrary.open(tmp_path / "work.db")), f"{upstream}/v1")
    with serving(app, http=http) as address:
        assert send(address, f"{url}/v1/x") == (400 if http == "h11" else 200)
        assert send(address, f"{url}/v1/x", "Host: evil.example") == 403
    assert elsewhere == []


def test_a_redirect_is_not_followed(proxied, upstream, servers):
    (url, elsewhere) = servers[1]
    upstream.answer = lambda body: JSONResponse({}, 307, {"location": f"{url}/v1/chat/completions"})
    client = proxied()
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    assert httpx.post(f"{client.base_url}chat/completions", json=body).status_code == 307
    assert elsewhere == []


@pytest.mark.parametrize(
    "path",
    ["/models/meta-llama%2FLlama-3", "/models/ft:gpt-4o:org::id", "/models/@cf/llama", "/files/a%20b", "/models/", "",
     "/fine_tuning/jobs/x/cancel", "/models/%C3%A9", "/models/v1.5"],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_paths_below_the_base_are_kept_as_they_are(prefix, path):
    joined = join_path(UPSTREAM, f"{prefix}{path or '/'}".encode(), b"a=1&b=%20c")
    assert joined.raw_path.decode() == f"/api/v1{path or '/'}?a=1&b=%20c"
    assert (joined.host, joined.port) == ("model.example", 8000)


def test_a_first_segment_that_begins_like_the_version_is_another_segment():
    assert join_path(UPSTREAM, b"/v1beta/models", b"").path == "/api/v1/v1beta/models"


@pytest.mark.parametrize("query", [b"a=\x01", b"a=b#c"])
def test_a_query_is_data(query):
    with pytest.raises(PathRefused):
        join_path(UPSTREAM, b"/v1/models", query)


# ---- pages


PAGES = [
    ["Sec-Fetch-Site: cross-site"], ["Sec-Fetch-Site: same-site"], ["Origin: https://evil.example"],
    ["Origin: http://127.0.0.1:1"], ["Origin: null"], ["Origin: http://["], ["Host: evil.example"],
    ["Host: 127.0.0.1", "Host: evil.example"], ["Host: 127.0.0.1.evil.example"], ["Host: ["],
    ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"],
]  # fmt: skip


@pytest.mark.parametrize("headers", PAGES, ids=", ".join)
def test_requests_of_pages_are_refused(address, servers, headers):
    servers[0][1].clear()
    assert send(address, "/v1/models", *headers) in (400, 403)
    assert servers[0][1] == []


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_requests_of_nobody_else_pass(address, site):
    assert send(address, "/v1/models", f"Sec-Fetch-Site: {site}") == 200
