"""The examples of docs/evidence.md print what the page says."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"


def test_every_example_prints_what_the_page_says() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 15
    assert found.failed == 0
