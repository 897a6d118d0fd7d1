import json

import pytest


@pytest.fixture
def file(tmp_path):
    """Writes a file: of lines, a document or text."""

    def write(*values, document=None, text=None):
        path = tmp_path / "log.jsonl"
        if text is None:
            text = "\n".join(map(json.dumps, values)) if document is None else json.dumps(document, indent=2)
        path.write_text(text, encoding="utf-8")
        return path

    return write
