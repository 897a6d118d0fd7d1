"""A library behind HTTP: recalls a second and their latency, the dashboard's first page, and a long mixed load.

The server is a process of its own; so are the clients, who send the next request when the last one is answered.
All of it is on this machine's loopback, for a time and at a rate that are given beforehand.

    known      recall of a state whose situation was met            8 clients, as fast as they can
    new        recall of a state whose situation was not            the same; the query's vector is known
    page       the dashboard's first page over a large library      the first visit after the start, and later ones
    mixed      recalls, checks, records, edits, evolution           so many minutes at RATE a second

Memory grows because the library does: a bare process that does the same to the same library, without HTTP, tells
how much. What the server grew beyond that is `beyond_mib`.
"""

import http.client
import json
import multiprocessing
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.fixtures import CachedEmbedder, Rooms, build
from hardwon.memory import ExperienceLibrary, State
from hardwon.memory.retrieval.embedders import open_embedder

BODIES = 400
"""Different recalls that are asked in turn."""
SECONDS = 15.0
"""How long each recall load goes on."""
TIMEOUT_S = 300.0
"""How long a client waits for an answer; a shared machine may stand still for a while."""
RATE = 60.0
"""Requests a second of the mixed load."""
WARM = 0.2
"""Share of the mixed load before memory is first weighed: caches fill up to their bounds."""
STEPS = 10
"""Steps of an episode that the mixed load records."""
VISITS = 10
CHROMIUM = "/usr/bin/chromium"
_JSON = {"Content-Type": "application/json"}

Row = dict[str, Any]
Call = tuple[str, str, dict[str, Any]]
"""Method, path and body."""


def measure(
    steps: int, large: int, clients: int, minutes: float, tell: Callable[[str], None], seconds: float = SECONDS
) -> list[Row]:
    """A row for every load."""
    rows: list[Row] = []
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        tell(f"building a library of {steps} steps ...")
        library, rooms, _ = build(Path(folder) / "library.db", steps, tell=tell)
        with library:
            known = [step.pre for row in library.trajectories(limit=60) for step in library.trajectory(row["id"]).steps]
        asked = {"known": known[:BODIES], "new": [rooms.unknown() for _ in range(BODIES)]}
        with serving(Path(folder) / "library.db") as (_, port):
            for name, states in asked.items():
                tell(f"{clients} clients recall {name} situations for {seconds:.0f} s ...")
                rows.append({"load": name, "n": steps, **_recalls(port, states, clients, seconds)})
        if large:
            rows.append(_page(Path(folder) / "large.db", large, tell))
        if minutes:
            rows.append(_mixed(Path(folder) / "library.db", clients, minutes, tell) | {"n": steps})
    return [_in_order(row) for row in rows]


def _in_order(row: Row) -> Row:
    """Every row has the same columns, for one table."""
    names = ("load", "n", "requests", "per_s", "p50_ms", "p99_ms", "errors", "grown_mib", "beyond_mib")
    return {name: row.get(name) for name in names}


# -- the server ---------------------------------------------------------------------------------------


@contextmanager
def serving(path: Path) -> Iterator[tuple[int, int]]:
    """A server of this library in a process of its own: its process id and its port."""
    command = [sys.executable, "-m", "benchmarks.speed.http", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        while _answer(port, "GET", "/healthz", b"") != 200:
            time.sleep(0.05)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answer(port: int, method: str, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, _JSON)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except ConnectionError:
        return 0
    finally:
        connection.close()


def _serve(path: Path) -> None:
    """In the server's process: the port on stdout, then until it is terminated."""
    import uvicorn

    from hardwon.apps.dashboard import mount
    from hardwon.apps.http.app import create_app
    from hardwon.apps.server import Server, log_lines

    log_lines()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        app = create_app(path, embedder=CachedEmbedder(open_embedder()), rate=1e6, runs=path.parent, trust="trusted")
        mount(app)
        Server(uvicorn.Config(app, log_config=None, access_log=False), app).run([listening])


def resident_mib(pid: int) -> float | None:
    """Memory of a process; None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS:"))


# -- recalls ------------------------------------------------------------------------------------------


def _recalls(port: int, states: Sequence[State], clients: int, seconds: float) -> Row:
    """All clients at once, in a process of their own; every body is asked once before the clock starts."""
    bodies = [json.dumps({"state": asdict(state)}).encode() for state in states]
    for body in bodies:
        _answer(port, "POST", "/v1/recall", body)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        took, errors, wall = pool.apply(_ask, (port, bodies, clients, seconds))
    return _figures(took, errors, wall)


def _ask(port: int, bodies: list[bytes], clients: int, seconds: float) -> tuple[list[float], int, float]:
    took: list[list[float]] = [[] for _ in range(clients)]
    errors = [0] * clients
    began = time.perf_counter()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        at = number * 17
        while (start := time.perf_counter()) - began < seconds:
            good = _good(connection, "POST", "/v1/recall", bodies[at % len(bodies)])
            took[number].append(time.perf_counter() - start)
            errors[number] += not good
            at += 1
        connection.close()

    _together(client, clients)
    return [one for own in took for one in own], sum(errors), time.perf_counter() - began


def _good(connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> bool:
    """Whether a request is answered well; a connection that broke is made anew by the next one."""
    try:
        connection.request(method, path, body, _JSON)
        answer = connection.getresponse()
        answer.read()
        return answer.status < 400
    except (OSError, http.client.HTTPException):
        connection.close()
        return False


def _together(client: Callable[[int], None], clients: int) -> None:
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _figures(took: Sequence[float], errors: int, wall: float) -> Row:
    ms = np.asarray(took) * 1000
    return {
        "requests": len(ms),
        "per_s": round(len(ms) / wall, 1),
        "p50_ms": round(float(np.percentile(ms, 50)), 2),
        "p99_ms": round(float(np.percentile(ms, 99)), 2),
        "errors": errors,
    }


# -- the first page -----------------------------------------------------------------------------------


def _page(path: Path, steps: int, tell: Callable[[str], None]) -> Row:
    """Seconds to the first page: as HTML, or where Chromium is here, until its figures are seen."""
    tell(f"building a library of {steps} steps ...")
    build(path, steps, tell=tell, embedded=False)[0].close()
    with serving(path) as (_, port):
        visit = _browser(port)
        tell(f"visiting the first page {VISITS + 1} times ({'Chromium' if visit else 'HTML alone'}) ...")
        took = [_timed(visit or (lambda: _answer(port, "GET", "/", b""))) for _ in range(VISITS + 1)]
        if visit:
            visit(close=True)
    return {
        "load": "page in Chromium" if visit else "page",
        "n": steps,
        "requests": len(took),
        "p50_ms": round(statistics.median(took[1:]) * 1000, 1),
        "p99_ms": round(took[0] * 1000, 1),
        "errors": 0,
    }


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _browser(port: int) -> Any:
    """What visits the first page in Chromium, with nothing kept from the visit before; None where there is none."""
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
    """What one client does: 70% recalls, 14% checks, 8% edits, 6% episodes recorded, 2% evolutions."""
    rooms, rng = Rooms(seed), random.Random(seed)
    for number in range(10**9):
        drawn, state = rng.random(), rooms.state()
        if drawn < 0.7:
            yield "POST", "/v1/recall", {"state": asdict(state), "k": 5}
        elif drawn < 0.84:
            yield "POST", "/v1/check", {"state": asdict(state), "action": rooms.action(state)}
        elif drawn < 0.92 and items:
            changes = {"body": f"Seen again, {rng.randint(1, 50)} times."}
            yield "PATCH", f"/v1/items/{rng.choice(items)}", changes
        elif drawn < 0.98:
            (episode,) = rooms.episodes(STEPS, lambda state, action: (f"* {action.split()[0]}", action))
            yield "POST", "/v1/episodes", {"episodes": [{**asdict(episode), "id": f"{seed}-{number}"}]}
        else:
            yield "POST", "/v1/evolve", {}


def _mixed(path: Path, clients: int, minutes: float, tell: Callable[[str], None]) -> Row:
    """The load on a server, then the same calls on a copy of the library in a bare process."""
    copy = path.with_name("copy.db")
    with ExperienceLibrary.open(path) as library:
        items = [item.id for item in library.items(limit=100)]
        library._store.connection.execute("VACUUM INTO ?", (str(copy),))
    each = max(1, int(minutes * 60 * RATE / clients))
    tell(f"a mixed load of {each * clients} requests by {clients} clients in {minutes:g} minutes ...")
    context = multiprocessing.get_context("spawn")
    with serving(path) as (pid, port), context.Pool(1) as pool:
        load = pool.apply_async(_send, (port, items, clients, each))
        weights = _weighed(load.ready, pid, minutes * 60)
        took, errors, wall = load.get()
    tell("the same calls on the library alone ...")
    with context.Pool(1) as pool:
        alone = pool.apply(_do, (str(copy), items, clients, each))
    grown = weights[1] - weights[0] if weights else None
    beyond = None if grown is None or alone is None else round(grown - alone, 1)
    told = None if grown is None else round(grown, 1)
    return {"load": f"mixed, {minutes:g} min", **_figures(took, errors, wall), "grown_mib": told, "beyond_mib": beyond}


def _weighed(done: Callable[[], bool], pid: int, seconds: float) -> tuple[float, float] | None:
    """The server's memory when the load is warm, and at its end."""
    began, first, last = time.monotonic(), None, None
    while not done():
        time.sleep(0.2)
        last = resident_mib(pid) or last
        if first is None and time.monotonic() - began >= WARM * seconds:
            first = last
    return None if first is None or last is None else (first, last)


def _send(port: int, items: list[str], clients: int, each: int) -> tuple[list[float], int, float]:
    took: list[list[float]] = [[] for _ in range(clients)]
    errors = [0] * clients
    began = time.perf_counter()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        for at, (method, path, body) in zip(range(each), calls(number, items), strict=False):
            wait_s = began + at * clients / RATE - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            told = json.dumps(body).encode()
            start = time.perf_counter()
            good = _good(connection, method, path, told)
            took[number].append(time.perf_counter() - start)
            errors[number] += not good
        connection.close()

    _together(client, clients)
    return [one for own in took for one in own], sum(errors), time.perf_counter() - began


def _do(path: str, items: list[str], clients: int, each: int) -> float | None:
    """The same calls without HTTP; by how much this process grew from when the load was warm."""
    import os

    from fastapi import FastAPI  # the server has it too: what importing takes is not growth
    from pydantic import TypeAdapter

    from hardwon.memory import Trajectory

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
                    library.update(where.rpartition("/")[2], **body)
                elif where == "/v1/episodes":
                    library.record_many(episodes.validate_python(body["episodes"]))
                else:
                    library.evolve()
        last = resident_mib(os.getpid())
    return None if first is None or last is None else last - first


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
