"""schemathesis: calls made from the OpenAPI description, right and wrong ones, are answered as it says."""

import json
from contextlib import suppress

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis.generation import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

from hardwon.apps.http.app import create_app  # noqa: E402

FOLLOWING = "/events"
"""Streams that follow do not end; they have tests of their own."""


@schemathesis.serializer("application/x-ndjson")
def _lines(context, value):
    return value.encode(errors="replace") if isinstance(value, str) else json.dumps(value).encode()


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """The description of a server over a library of its own."""
    folder = tmp_path_factory.mktemp("schema")
    app = create_app(folder / "library.db", runs=folder, rate=1e6)
    return schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "127.0.0.1"})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_api_does_as_it_is_described(described, mode):
    """Every operation; a wrong call is refused with a problem, and nothing is a failure of the server's.

    That a title is no blank and a state or a text is given, a schema does not say: what is valid by it may be refused.
    """
    tried, wrong = 0, {}
    for found in described.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(FOLLOWING):
            continue

        @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case):
            case.call_and_validate(headers={"Host": "127.0.0.1"}, excluded_checks=[positive_data_acceptance])

        try:
            with suppress(Unsatisfiable):  # nothing can be wrong of a call that takes nothing
                call()
        except Exception as error:
            wrong[operation.label] = str(error)
        tried += 1
    assert not wrong, "\n".join(f"{label}: {words}" for label, words in wrong.items())
    assert tried > 30
