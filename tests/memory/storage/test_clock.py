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
        "2026-01-01T09:59:60Z", "20260101T095960Z", "2026-01-01T11:59:60+0200", "2026-001T10:00:00Z", "2026001T100000Z",
        "2026-01-01T10:00:00+00:00Z", "+002026-01-01T10:00:00.000Z", "2026-01-01T10-00-00", "20260101-100000",
        "20260101_100000", "20260101100000", 20260101100000, "202601011000", "20260101100000000", "@1767261600",
        "1767261600s", "1767261600000 ms", "1767261600000000us", "1767261600000000000ns",
        "/Date(1767261600000)/", "/Date(1767261600000+0200)/", "new Date(1767261600000)",
        "[01/Jan/2026:10:00:00 +0000]",
        "2026–01–01 10:00", "2026-01-01T05:00:00−05:00", {"seconds": 1_767_261_600, "nanos": 0},
        {"seconds": "1767261600"}, {"_seconds": 1_767_261_600, "_nanoseconds": 0}, {"secs": 1_767_261_600, "nsec": 0},
        {"epochSecond": 1_767_261_600, "nano": 0}, {"$timestamp": {"t": 1_767_261_600, "i": 1}},
        {"millis": 1_767_261_600_000}, {"value": "2026-01-01T10:00:00Z"},
        {"__type": "Date", "iso": "2026-01-01T10:00Z"},
        {"date": "2026-01-01 10:00:00.000000", "timezone": "UTC"}, {"N": "1767261600"}, {"S": "2026-01-01T10:00:00Z"},
        [2026, 1, 1, 10, 0], [2026, 1, 1, 10, 0, 0], [2026, 1, 1, 10, 0, 0, 0], [1_767_261_600, 0],
    ],
    ids=repr,
)  # fmt: skip
def test_a_time_is_its_moment(value):
    assert parse_time(value) == TEN
    assert normalize_time(value) == "2026-01-01T10:00:00+00:00"


@pytest.mark.parametrize(
    "value",
    [
        "Thu, 01 Jan 2026 12:00:00 +0200", "Thu, 1 Jan 2026 10:00:00 GMT", "1 Jan 2026 05:00 EST",
        "Thursday, 01-Jan-26 10:00:00 GMT", "Thu, 1 Jan 26 10:00:00 -0000", "thu, 1 jan 2026 10:00:00 UT",
        "Thu Jan  1 10:00:00 2026", "Thu Jan  1 11:00:00 CET 2026", "Thu Jan 01 12:00:00 +0200 2026",
        "Thu Jan 01 2026 12:00:00 GMT+0200 (Eastern European Standard Time)",
        "01/Jan/2026:12:00:00 +0200", "2026/01/01 10:00:00", "2026/1/1 10:00", "2026-1-1 10:00:00",
        "2026.01.01 10:00:00",
        "1.1.2026 10:00:00", "01.01.2026, 10:00", "01/01/2026 10:00:00", "1/1/2026, 10:00:00 AM",
        "1/1/2026, 10:00:00\u202fAM", "01-01-2026 10:00", "Jan 1, 2026, 10:00 AM",
        "January 1st, 2026 at 10:00:00 a.m.",
        "1st January 2026 10:00", "1. Januar 2026 10:00", "2026年1月1日 10:00:00", "2026年01月01日 10時00分00秒",
        "2026-01-01T12:00:00.000+02:00[Europe/Helsinki]", "2026-01-01 12:00:00.000000000 +0200 EET m=+0.000012345",
        "2026-01-01 02:00:00 PST", "  Thu, 01 Jan 2026\t10:00:00 +0000 ", "２０２６/０１/０１ １０:００:００",
    ],
)  # fmt: skip
def test_a_time_in_words_or_in_the_order_of_a_country_is_its_moment(value):
    assert parse_time(value) == TEN


@pytest.mark.parametrize(
    ("value", "iso"),
    [
        ("Sun, 29 Nov 2026 11:30:00 +0200", "2026-11-29T11:30:00+02:00"),
        ("11/29/2026, 11:30:05 PM", "2026-11-29T23:30:05Z"),
        ("11/29/2026, 12:30:05 AM", "2026-11-29T00:30:05Z"),
        ("29/11/2026 11:30", "2026-11-29T11:30Z"),
        ("05/06/2026, 1:30 PM", "2026-05-06T13:30Z"),
        ("29-11-2026 11:30:00,250", "2026-11-29T11:30:00.25Z"),
        ("29 Nov 2026", "2026-11-29"),
        ("31 Dec 1999 23:59:60 GMT", "2000-01-01"),
        ("Sunday, 06-Nov-94 08:49:37 GMT", "1994-11-06T08:49:37Z"),
    ],
)
def test_days_are_told_from_months(value, iso):
    assert parse_time(value) == parse_time(iso) is not None


@pytest.mark.parametrize(
    "value",
    [
        "05/06/2026 11:30", "5-6-2026", "32/01/2026", "31.02.2026", "29 Nov", "Nov 29 11:30:00", "11:30:00",
        "1.2.2026 beta", "1.2.2026 BETA-2",
        "version 1.2.2026", "order 2026/01/01", "2026/01/01 25:00", "Mon", "may", "may 2026 be good",
        "2026/01/01" + " " * 200,
        "10.0.0.2026", "2026-01-01T10:00:00 to 11:00:00", "1/2/3/2026", "Jan 1, 2026 and more",
        "1 Jan 2026 10:00 +99:00",
    ],
)  # fmt: skip
def test_what_may_be_two_days_or_has_other_words_is_no_time(value):
    assert parse_time(value) is None


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


@pytest.mark.parametrize(
    ("value", "iso"),
    [
        ("2026-060", "2026-03-01"), ("2024-060", "2024-02-29"), ("2026-365T23:59:59+01:00", "2026-12-31T22:59:59"),
        ("2026-01-01T24:00:00Z", "2026-01-02"), ("20260101", "2026-01-01"), ([2026, 1, 1], "2026-01-01"),
        ({"seconds": 1_767_261_600, "nanos": 5_000}, "2026-01-01T10:00:00.000005"),
        ("20260101100000123", "2026-01-01T10:00:00.123"), ([1_767_261_600, 250_000_000], "2026-01-01T10:00:00.25"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_day_of_the_year_a_part_and_a_midnight_are_their_moments(value, iso):
    assert (
        parse_time(value)
        == int(datetime.fromisoformat(f"{iso}{'' if 'T' in iso else 'T00:00'}+00:00").timestamp() * 10**6) * 10**3
    )


@pytest.mark.parametrize(
    "value",
    [
        "2026-000", [1], [True, 1], ["x", "y"], [2026, 13, 1], [1] * 8, {"seconds": None}, {"seconds": "x", "nanos": 1},
        {"seconds": -1, "nanos": 0}, {"high": 1, "low": 2}, {"value": {"value": {}}}, "20261301", "Date(",
        "1767261600 kg",
        [[2026, 1, 1]], {"seconds": 1.5, "nanos": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_an_object_or_a_list_without_a_moment_is_no_time(value):
    assert parse_time(value) in (None, 20261301 * 10**9)
