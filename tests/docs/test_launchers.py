"""The page about launchers has the table by which their contract test is parametrised."""

from pathlib import Path

from engines.engine import events_table


def test_the_table_of_events_is_that_of_the_contract() -> None:
    page = Path(__file__).parents[2] / "docs" / "launchers.md"
    assert events_table() in page.read_text()
