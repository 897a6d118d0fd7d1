"""The TypeScript client: it describes the API as it is, and works in Node against a real server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hardwon.apps.http.access.auth import Tokens
from hardwon.apps.http.app import create_app
from hardwon.memory import ExperienceLibrary

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"


def outline(document):
    """Every operation with its answers, and every schema with its fields: what a change of the API changes."""
    operations = {
        f"{method.upper()} {path}": sorted(operation.get("responses", {}))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    schemas = {name: sorted(schema.get("properties", {})) for name, schema in document["components"]["schemas"].items()}
    return operations, schemas


def test_the_client_is_generated_from_the_api_as_it_is(tmp_path):
    """After a change of the API: HARDWON_FREEZE=1 python -m pytest tests/clients; then npm run generate."""
    document = create_app(tmp_path / "library.db").openapi()
    file = CLIENT / "openapi.json"
    if os.environ.get("HARDWON_FREEZE"):
        file.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    frozen = json.loads(file.read_text(encoding="utf-8"))
    assert outline(document) == outline(frozen)
    generated = (CLIENT / "src" / "schema.ts").read_text(encoding="utf-8")
    for path in frozen["paths"]:
        assert f'"{path}"' in generated, f"{path} is missing in schema.ts: npm run generate"


def test_the_client_is_not_in_the_wheel():
    text = (CLIENT.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert "clients" not in text.partition("[tool.hatch.build.targets.wheel]")[2].partition("[tool.pytest")[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node 20 and npm")
def test_the_client_works_in_node(tmp_path):
    """Installed, compiled and tested in a copy, so that nothing is left in the checkout."""
    folder = tmp_path / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    library = tmp_path / "library.db"
    ExperienceLibrary.open(library).close()
    token = Tokens.of(library).add("node", write=True)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "hardwon", "serve", str(library), "--port", "0", "--no-dashboard"]
    with log.open("w") as written:
        server = subprocess.Popen(command, stderr=written)
    try:
        while "   (stop with" not in (told := log.read_text()):
            assert server.poll() is None, told
            time.sleep(0.1)
        url = told[told.index("http://") :].partition("/   ")[0]
        for step in (["npm", "install", "--no-audit", "--no-fund"], ["npm", "test"]):
            done = subprocess.run(
                step, cwd=folder, env={**os.environ, "HARDWON_URL": url, "HARDWON_TOKEN": token},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=20)
    assert "# fail 0" in done.stdout
