"""The table of algorithms is the one that the registries generate."""

from pathlib import Path

from hardwon.trainers.overview import format_table

ROOT = Path(__file__).parents[3]


def test_the_page_is_generated_from_the_registries():
    """After a change: python -m hardwon.trainers.overview > docs/algorithms.md."""
    assert (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8") == format_table()
