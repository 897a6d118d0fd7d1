"""A library with something to look at, its server, and a headless Chromium that may reach nothing else."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Item, State, Step, Trajectory
from hardwon.memory.reasons import Reasons

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def _episode(number, library, guardrail):
    """Opens the box and eats the apple, or bites the raw potato; the last ones are kept from that."""
    task = "eat the apple"
    closed = State("You are in the pantry. You see a raw potato and a closed box.", location="pantry", task=task)
    opened = State("You are in the pantry. You see a raw potato and an open box.", location="pantry", task=task)
    fails = number % 2
    shown = {"recalled": [guardrail], "value": 0.4, "n": 3, "key": "*"} if number > 10 else {}
    stuck = Diagnosis(False, Failure.NO_EFFECT, 0.0, True, evidence="Nothing happens.")
    steps = [Step(closed, "wait", closed, stuck, 0.0, 0, library.episodes.keys(closed, "wait"), Reasons.of(shown))]
    why = Reasons.of({**shown, "blocked": [guardrail]} if number > 20 else shown)
    steps.append(
        Step(closed, "open box", opened, Diagnosis(True), 0.0, 1, library.episodes.keys(closed, "open box"), why)
    )
    action, reward = ("bite raw potato", 0.0) if fails else ("eat apple", 1.0)
    judged = Diagnosis(False, Failure.TASK_LOST) if fails else Diagnosis(True, progress=1.0)
    steps.append(Step(opened, action, opened, judged, reward, 2, library.episodes.keys(opened, action)))
    arm = "control" if number % 3 == 0 else "retrieved"
    return Trajectory(task, tuple(steps), not fails, reward, arm, number // 3, "task_lost" if fails else "success")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a library and a training run."""
    made = tmp_path_factory.mktemp("browser")
    with ExperienceLibrary.open(made / "library.db") as library:
        forbid = Item(
            "guardrail", "do not `bite raw potato`", "it made the agent sick", condition={"text": "raw potato"},
            forbids="bite raw potato",
        )  # fmt: skip
        guardrail = library.add(forbid).item_id
        library.record_many(_episode(number, library, guardrail) for number in range(40))
        library.evolve()
        library.add(Item("insight", "A stranger's advice", trust="untrusted", source="client"))
        library.add(Item("insight", "Another stranger's advice", trust="untrusted", source="client"))
        library.add(Item("insight", "Apples lie in boxes", "Look into every box."))
        library.admin.index()
    run = made / "runs" / "coin"
    run.mkdir(parents=True)
    lines = [{"iteration": n, "kind": "train", "reward": n / 10, "loss": 1 / (n + 1)} for n in range(5)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return made


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """Starts a server: `serve(path, "--runs", folder)` is its address. Its log goes to a file: a pipe would fill up."""
    running = []

    def start(path, *options):
        command = [
            sys.executable,
            "-c",
            "from hardwon.apps.cli.app import main; main()",
            "serve",
            str(path),
            "--port",
            "0",
        ]
        log = tmp_path_factory.mktemp("log") / "log"
        with log.open("w") as written:
            process = subprocess.Popen([*command, *map(str, options)], stderr=written)
        running.append(process)
        while "\n" not in (told := log.read_text()):
            assert process.poll() is None, told
            time.sleep(0.1)
        url = told.partition(": ")[2].split("/   ")[0]
        while True:
            try:
                if httpx.get(f"{url}/healthz").status_code == 200:
                    return url
            except httpx.TransportError:
                time.sleep(0.1)

    yield start
    for process in running:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


@pytest.fixture(scope="session")
def url(folder, serve):
    return serve(folder / "library.db", "--runs", folder / "runs")


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, url):
    """Opens a page of the dashboard: `visit("/items", width=390)`; what goes wrong in it is in `wrong`."""
    contexts = []

    def go(path, *, width=1280, at=url):
        context = chromium.new_context(viewport={"width": width, "height": 850}, base_url=at)
        contexts.append(context)
        page = context.new_page()
        page.wrong = []
        page.on("console", lambda one: page.wrong.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("requestfailed", lambda request: page.wrong.append(f"{request.url} {request.failure}"))
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(path)
        page.wait_for_selector("main h1")
        page.wait_for_timeout(400)
        return page

    yield go
    for context in contexts:
        context.close()
