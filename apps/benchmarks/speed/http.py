"""Measure an HTTP server of a library: recall throughput and latency, dashboard load time, and a long mixed load.

The server and the clients are separate processes on the loopback interface. A client sends its next request when the
previous one is answered.

    load      requests                                          rate
    known     recall of a state in a known situation            `clients` at full speed for `SECONDS`
    new       recall of a state in a new situation              the same; the query's vector is cached
    page      the dashboard's first page, on a large library    the first visit after the start, then repeated visits
    mixed     recalls, checks, records, edits, evolution        `RATE` per second for the given minutes

Memory grows because the library grows. To separate the two, a process without HTTP repeats the mixed load on a copy of
the library. `grown_mib` is the growth of the server, and `beyond_mib` is its growth in excess of that process.
"""

import http.client
import json
import multiprocessing
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fixtures import CachedEmbedder, Rooms, build
from benchmarks.harness.tables import Row
from benchmarks.harness.timing import summarize_ms, time_ms
from hardwon.memory import ExperienceLibrary, State, Trajectory
from hardwon.memory.retrieval.embedders import open_embedder
from hardwon.memory.wire import plain

BODIES = 400
"""Number of distinct recall requests."""
SECONDS = 15.0
"""Duration of each recall load."""
TIMEOUT_S = 300.0
"""Timeout of a request; it is long because a shared machine may stall."""
RATE = 60.0
"""Requests per second of the mixed load, over all clients."""
WARM = 0.2
"""Share of the mixed load that fills the bounded caches before memory is first measured."""
STEPS = 10
"""Steps per episode that the mixed load records."""
VISITS = 10
"""Visits of the first page after the first one."""
CHROMIUM = "/usr/bin/chromium"
_JSON = {"Content-Type": "application/json"}

Call = tuple[str, str, dict[str, Any]]
"""Method, path and body of a request."""
Content = tuple[str, str, bytes]
"""The same with the body in bytes."""


def measure(
    steps: int, large: int, clients: int, minutes: float, tell: Callable[[str], None], seconds: float = SECONDS
) -> list[Row]:
    """Run every load.

    Args:
        steps: size in steps of the library for recalls and the mixed load.
        large: size in steps of the library for the dashboard's first page; 0 skips it.
        clients: number of concurrent clients.
        minutes: duration of the mixed load; 0 skips it.
        tell: function that receives lines of progress.
        seconds: duration of each recall load.

    Returns:
        One row per load. All rows have the same columns; a figure that a load does not have is None.
    """
    rows: list[Row] = []
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        tell(f"building a library of {steps} steps ...")
        library, rooms, _ = build(Path(folder) / "library.db", steps, tell=tell)
        with library:
            states = [
                step.pre for row in library.episodes.find(limit=60) for step in library.episodes.get(row["id"]).steps
            ]
        loads = {"known": states[:BODIES], "new": [rooms.draw_new_state() for _ in range(BODIES)]}
        with start_server(Path(folder) / "library.db") as (_, port):
            for name, states in loads.items():
                tell(f"{clients} clients recall {name} situations for {seconds:.0f} s ...")
                rows.append({"load": name, "n": steps, **_measure_recalls(port, states, clients, seconds)})
        if large:
            rows.append(_measure_page(Path(folder) / "large.db", large, tell))
        if minutes:
            rows.append(_measure_mixed(Path(folder) / "library.db", clients, minutes, tell) | {"n": steps})
    return [_fill_columns(row) for row in rows]


def _fill_columns(row: Row) -> Row:
    """Return a row with all columns of the table, in order."""
    names = ("load", "n", "requests", "per_s", "p50_ms", "p99_ms", "errors", "grown_mib", "beyond_mib")
    return {name: row.get(name) for name in names}


# -- the server ---------------------------------------------------------------------------------------


@contextmanager
def start_server(path: Path) -> Iterator[tuple[int, int]]:
    """Serve a library from a new process, and yield its process id and port once it is healthy."""
    command = [sys.executable, "-m", "benchmarks.speed.http", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        # A bound port answers only after startup, and the first recall must not wait for it.
        while _request_once(port, "GET", "/healthz", b"") != 200:
            time.sleep(0.05)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(timeout=30)


def _request_once(port: int, method: str, path: str, body: bytes) -> int:
    """Send one request over a new connection, and return the status, or 0 if the connection breaks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, _JSON)
        response = connection.getresponse()
        response.read()
        return response.status
    except ConnectionError:
        return 0
    finally:
        connection.close()


def _serve(path: Path) -> None:
    """Serve a library in this process until it is terminated, and print the port on stdout."""
    import uvicorn

    from hardwon.apps.dashboard import mount
    from hardwon.apps.http.app import create_app
    from hardwon.apps.server import Server, log_lines

    log_lines()
    # Bind here and pass the socket on, so that no other process can take the port in between.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        app = create_app(path, embedder=CachedEmbedder(open_embedder()), rate=1e6, trust="trusted")
        mount(app)
        Server(uvicorn.Config(app, log_config=None, access_log=False), app).run([listener])


def resident_mib(pid: int) -> float | None:
    """Return the resident memory of a process in MiB, or None if the system has no /proc."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS:"))


# -- recalls ------------------------------------------------------------------------------------------


def _measure_recalls(port: int, states: Sequence[State], clients: int, seconds: float) -> Row:
    """Run the recall load from a client process, after one untimed request per body."""
    bodies = [json.dumps({"state": asdict(state)}).encode() for state in states]
    # One untimed request per body caches the vectors, which are not part of this measurement.
    for body in bodies:
        _request_once(port, "POST", "/v1/recall", body)
    # Clients have their own process: in this one they would compete with the benchmark for the interpreter lock.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        latencies, errors, wall = pool.apply(_send, (port, clients, partial(_list_recalls, bodies, seconds)))
    return _summarize(latencies, errors, wall)


def _list_recalls(bodies: list[bytes], seconds: float, number: int, began: float) -> Iterator[Content]:
    """Yield recalls at full speed for some seconds."""
    # Start each client at a different body, so that they do not send the same request at once.
    at = number * 17
    while time.perf_counter() - began < seconds:
        yield "POST", "/v1/recall", bodies[at % len(bodies)]
        at += 1


def _send(
    port: int, clients: int, list_requests: Callable[[int, float], Iterator[Content]]
) -> tuple[list[float], int, float]:
    """Send requests from `clients` threads, and return all latencies in ms, the errors and the wall time in seconds.

    Args:
        port: Port of the server.
        clients: Number of clients.
        list_requests: Function of the number of a client and the moment of the start; it waits before a request is due.
    """
    times_ms: list[list[float]] = [[] for _ in range(clients)]
    errors = [0] * clients
    began = time.perf_counter()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        for method, path, content in list_requests(number, began):
            ms, succeeded = time_ms(_request, connection, method, path, content)
            times_ms[number].append(ms)
            errors[number] += not succeeded
        connection.close()

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return [ms for own in times_ms for ms in own], sum(errors), time.perf_counter() - began


def _request(connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> bool:
    """Send a request over an open connection, and return whether it succeeded. A broken connection is closed."""
    try:
        connection.request(method, path, body, _JSON)
        # Read the body even if unused: the connection accepts its next request only after that.
        response = connection.getresponse()
        response.read()
        return response.status < 400
    except (OSError, http.client.HTTPException):
        connection.close()
        return False


def _summarize(ms: Sequence[float], errors: int, wall: float) -> Row:
    """Return count, throughput, latency percentiles and errors of a load."""
    return {"requests": len(ms), "per_s": round(len(ms) / wall, 1), **summarize_ms(ms, 2), "errors": errors}


# -- the first page -----------------------------------------------------------------------------------


def _measure_page(path: Path, steps: int, tell: Callable[[str], None]) -> Row:
    """Measure the dashboard's first page.

    With Chromium installed, a visit ends when the figures of the page are visible. Otherwise it only loads the HTML.
    """
    tell(f"building a library of {steps} steps ...")
    build(path, steps, tell=tell, embedded=False)[0].close()
    with start_server(path) as (_, port):
        visit = _start_browser(port)
        tell(f"visiting the first page {VISITS + 1} times ({'Chromium' if visit else 'HTML alone'}) ...")
        ms = [time_ms(visit or (lambda: _request_once(port, "GET", "/", b"")))[0] for _ in range(VISITS + 1)]
        if visit:
            visit(close=True)
    return {
        "load": "page in Chromium" if visit else "page",
        "n": steps,
        "requests": len(ms),
        "p50_ms": round(statistics.median(ms[1:]), 1),
        "p99_ms": round(ms[0], 1),
        "errors": 0,
    }


def _start_browser(port: int) -> Any:
    """Start Chromium.

    Returns:
        A function that visits the first page in a new browser context, or closes the browser. None if Playwright or
        Chromium is not installed.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not Path(CHROMIUM).exists():
        return None
    driver = sync_playwright().start()
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)

    def visit(*, close: bool = False) -> None:
        if close:
            browser.close()
            driver.stop()
            return
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/", wait_until="commit")
        page.wait_for_selector("dl.figures dd")
        context.close()

    return visit


# -- a mixed load -------------------------------------------------------------------------------------


def calls(seed: int, items: Sequence[str]) -> Iterator[Call]:
    """Yield the requests of one client without end, the same for the same seed.

    The mix is 70% recalls, 14% checks, 8% edits, 6% recorded episodes and 2% evolutions.

    Args:
        seed: seed of the client.
        items: ids of the items to edit.
    """
    rooms, rng = Rooms(seed), random.Random(seed)
    for number in range(10**9):
        share, state = rng.random(), rooms.draw_state()
        if share < 0.7:
            yield "POST", "/v1/recall", {"state": asdict(state), "k": 5}
        elif share < 0.84:
            yield "POST", "/v1/check", {"state": asdict(state), "action": rooms.draw_action(state)}
        elif share < 0.92 and items:
            changes = {"body": f"Seen again, {rng.randint(1, 50)} times."}
            yield "PATCH", f"/v1/items/{rng.choice(items)}", changes
        elif share < 0.98:
            (episode,) = rooms.generate_episodes(STEPS, lambda state, action: (f"* {action.split()[0]}", action))
            yield "POST", "/v1/episodes", {"episodes": [{**plain(Trajectory, episode), "id": f"{seed}-{number}"}]}
        else:
            yield "POST", "/v1/evolve", {}


def _measure_mixed(path: Path, clients: int, minutes: float, tell: Callable[[str], None]) -> Row:
    """Run the mixed load on a server, and then the same requests on a copy of the library without HTTP."""
    copy = path.with_name("copy.db")
    with ExperienceLibrary.open(path) as library:
        items = [item.id for item in library.items.find(limit=100)]
        # A copied file would miss the pages that are still in the write-ahead log.
        library._file.store.connection.execute("VACUUM INTO ?", (str(copy),))
    each = max(1, int(minutes * 60 * RATE / clients))
    tell(f"a mixed load of {each * clients} requests by {clients} clients in {minutes:g} minutes ...")
    context = multiprocessing.get_context("spawn")
    with start_server(path) as (pid, port), context.Pool(1) as pool:
        load = pool.apply_async(_send, (port, clients, partial(_list_mixed, items, clients, each)))
        memory = _watch_memory(load.ready, pid, minutes * 60)
        latencies, errors, wall = load.get()
    tell("the same calls on the library alone ...")
    with context.Pool(1) as pool:
        alone = pool.apply(_replay, (str(copy), items, clients, each))
    grown = memory[1] - memory[0] if memory else None
    beyond = None if grown is None or alone is None else round(grown - alone, 1)
    figures = _summarize(latencies, errors, wall)
    grown_mib = None if grown is None else round(grown, 1)
    return {"load": f"mixed, {minutes:g} min", **figures, "grown_mib": grown_mib, "beyond_mib": beyond}


def _watch_memory(done: Callable[[], bool], pid: int, seconds: float) -> tuple[float, float] | None:
    """Return the server's memory in MiB after the warm-up and at the end of the load."""
    began, first, last = time.monotonic(), None, None
    while not done():
        time.sleep(0.2)
        last = resident_mib(pid) or last
        if first is None and time.monotonic() - began >= WARM * seconds:
            first = last
    return None if first is None or last is None else (first, last)


def _list_mixed(items: list[str], clients: int, each: int, number: int, began: float) -> Iterator[Content]:
    """Yield the requests of one client of the mixed load, at `RATE`."""
    for at, (method, path, body) in zip(range(each), calls(number, items), strict=False):
        # The schedule is fixed in advance: a slow answer does not lower the rate of later requests.
        time.sleep(max(0.0, began + at * clients / RATE - time.perf_counter()))
        yield method, path, json.dumps(body).encode()


def _replay(path: str, items: list[str], clients: int, each: int) -> float | None:
    """Apply the mixed load to a library without HTTP, and return this process's growth in MiB after the warm-up."""
    import os

    # The server imports these as well. Import them before the first measurement, so that they do not count as growth.
    from fastapi import FastAPI
    from pydantic import TypeAdapter

    del FastAPI
    episodes, first = TypeAdapter(list[Trajectory]), None
    with ExperienceLibrary.open(path, CachedEmbedder(open_embedder())) as library:
        own = [calls(number, items) for number in range(clients)]
        for at in range(each):
            if at == int(WARM * each):
                first = resident_mib(os.getpid())
            for method, where, body in map(next, own):
                if where == "/v1/recall":
                    library.recall(State(**body["state"]), k=body["k"])
                elif where == "/v1/check":
                    library.check(State(**body["state"]), body["action"])
                elif method == "PATCH":
                    library.items.update(where.rpartition("/")[2], **body)
                elif where == "/v1/episodes":
                    library.record_many(episodes.validate_python(body["episodes"]))
                else:
                    library.evolve()
        last = resident_mib(os.getpid())
    return None if first is None or last is None else last - first


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
