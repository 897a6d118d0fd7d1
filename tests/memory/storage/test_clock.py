"""Times in the forms that other programs write."""

from datetime import datetime

import pytest

from hardwon.memory.storage.clock import normalize_time, parse_time

TEN = 1_767_261_600 * 10**9
"""2026-01-01 10:00 UTC in nanoseconds."""


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-01T10:00:00Z", "2026-01-01T10:00:00", "2026-01-01 10:00:00", "2026-01-01T12:00:00+02:00",
        "2026-01-01 05:00:00 -0500", "2026-01-01 10:00:00.000 UTC", "2026-01-01T10:00", "20260101T100000000000Z",
        1_767_261_600, 1_767_261_600.0, 1_767_261_600_000, 1_767_261_600_000_000, TEN, "1767261600", "1767261600000",
        str(TEN), "1.7672616e9", datetime(2026, 1, 1, 10),
        "2026-01-01T10:00:00z", "2026-01-01t10:00:00z", "2026-W01-4T10:00:00Z", "2026W014T100000Z",
        "2026-01-01T09:59:60Z", "20260101T095960Z", "2026-01-01T11:59:60+0200",
    ],
)  # fmt: skip
def test_a_time_is_its_moment(value):
    assert parse_time(value) == TEN
    assert normalize_time(value) == "2026-01-01T10:00:00+00:00"


@pytest.mark.parametrize(
    ("value", "more_ns"),
    [
        ("2026-01-01T10:00:00.500Z", 500_000_000),
        ("2026-01-01 10:00:00,5", 500_000_000),
        ("2026-01-01T10:00:00.123456789Z", 123_456_789),
        ("20260101T100000123456Z", 123_456_000),
        (1_767_261_600.25, 250_000_000),
        (1_767_261_600_001, 1_000_000),
        (str(TEN + 7), 7),
    ],
)
def test_fractions_count(value, more_ns):
    assert parse_time(value) == TEN + more_ns


@pytest.mark.parametrize(
    "value",
    [None, "", "yesterday", True, [], {}, float("nan"), float("inf"), 10**40, "9" * 5000, "2026-13-01", "1e999"],
)
def test_what_is_no_time_is_none(value):
    assert parse_time(value) is None


@pytest.mark.parametrize("value", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z"])
def test_a_time_that_does_not_fit_into_64_bits_is_none(value):
    assert parse_time(value) is None
