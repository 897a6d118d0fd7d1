"""The commands of Compose and Kubernetes that serve a shared library run here, without containers."""

import os
import shlex
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest
from tests import warm
from tests.deploy.test_manifests import COMPOSE, list_commands, list_pods, read_compose
from tests.memory.fleet.conftest import server, url

from hardwon.memory import ExperienceLibrary

__all__ = ["server", "url"]

HARDWON = [sys.executable, "-c", "from hardwon.apps.cli.app import main; main()"]
SERVING = [command for command in list_commands() if command[0] == "serve"]
READY_S = 180.0


@contextmanager
def start(command, log):
    """Run a command until the body ends; then end it as a container runtime does."""
    with log.open("w") as written:
        process = warm.Popen([*HARDWON, *command], stdout=written, stderr=written)
    try:
        yield process
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def move(command, address, port):
    """Return a command with another database and another port."""
    return [address if word.startswith("postgresql:") else word.replace("8321", str(port)) for word in command]


def find_free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The home of a container."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def add_as_compose(address, host):
    """Run the command of the first lines of the file; return what it prints."""
    (words,) = (line for line in COMPOSE.read_text().splitlines() if "token add" in line)
    before, _, command = words.partition(" run --rm serve ")
    assert before == "#     docker compose -f deploy/compose.yaml"
    done = warm.run([*HARDWON, *move(shlex.split(command), address, 0)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def add_as_kubernetes(address, host):
    """Run the container that runs first, twice as if the pod started again; return what it stored."""
    (pod,) = (pod for name, pod, _ in list_pods() if name == "hardwon-serve")
    (container,) = pod["spec"]["initContainers"]
    shim = host / "hardwon"
    shim.write_text(f'#!/bin/sh\nexec {shlex.join(HARDWON)} "$@"\n')
    shim.chmod(0o755)
    *shell, script = container["command"]
    (old,) = {word for word in shlex.split(script.replace("(", " ")) if word.startswith("postgresql:")}
    environment = {**os.environ, "HOME": str(host), "PATH": f"{host}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run([*shell, script.replace(old, shlex.quote(address))], env=environment, check=True)
    assert (host / "team.token").stat().st_mode & 0o077 == 0
    return (host / "team.token").read_text().strip()


@pytest.mark.parametrize(
    ("command", "add"), [*zip(SERVING, (add_as_compose, add_as_kubernetes), strict=True)], ids=["compose", "kubernetes"]
)
def test_serve_becomes_healthy_and_takes_a_token(command, add, url, host, episode):
    """In the order of the files: without a token, a server that listens beyond its machine does not start."""
    with ExperienceLibrary.open(url, replica=host / "other") as library:
        library.record(episode("open drawer", id="e1"))
    secret, port = add(url, host), find_free_port()
    check = move(read_compose()["services"]["serve"]["healthcheck"]["test"][1:], url, port)
    assert check[0] == "python"
    check[0] = sys.executable
    with start(move(command, url, port), host / "serve.log") as process:
        until = time.monotonic() + READY_S
        while subprocess.run(check, capture_output=True, check=False).returncode:
            assert process.poll() is None, (host / "serve.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.5)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert client.get("/v1/stats").status_code == 401
            answer = client.get("/v1/stats", headers={"Authorization": f"Bearer {secret}"})
    assert answer.json()["episodes"] == 1, answer.text


def test_the_database_checks_itself(server):
    """Both files ask with `pg_isready`, and get an answer for the user and the database that they create."""
    compose = read_compose()["services"]["postgres"]
    probes = [shlex.split(compose["healthcheck"]["test"][1])]
    containers = [container for _, pod, _ in list_pods() for container in pod["spec"]["containers"]]
    probes += [each["readinessProbe"]["exec"]["command"] for each in containers if each["name"] == "postgres"]
    assert len(probes) == 2
    for probe, *options in probes:
        asking = [str(server.binaries / probe), *options]
        assert options == ["-U", compose["environment"]["POSTGRES_USER"], "-d", compose["environment"]["POSTGRES_DB"]]
        assert subprocess.run(asking, env={**os.environ, "PGHOST": str(server.folder)}, check=False).returncode == 0
        assert subprocess.run(asking, env={**os.environ, "PGHOST": "/nowhere"}, check=False).returncode == 2
