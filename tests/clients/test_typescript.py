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


@pytest.fixture
def documents(tmp_path):
    """The outlines of the API as it is, and of the document that the client is generated from."""
    document = create_app(tmp_path / "library.db").openapi()
    file = CLIENT / "openapi.json"
    if os.environ.get("HARDWON_FREEZE"):
        file.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return outline(document), outline(json.loads(file.read_text(encoding="utf-8")))


def test_every_call_and_field_of_the_client_is_in_the_api(documents):
    """A call that the API gained may wait for the next release of the client; one that it lost breaks programs."""
    (operations, schemas), (known_operations, known_schemas) = documents
    generated = (CLIENT / "src" / "schema.ts").read_text(encoding="utf-8")
    for operation in known_operations:
        assert operation in operations
        assert f'"{operation.split()[1]}"' in generated, f"{operation} is missing in schema.ts: npm run generate"
    for name, fields in known_schemas.items():
        assert set(fields) <= set(schemas.get(name, ())), name


@pytest.mark.slow
def test_the_client_has_every_call_of_the_api(documents):
    """Before a release: HARDWON_FREEZE=1 python -m pytest tests/clients; then npm run generate."""
    assert documents[0] == documents[1]


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
