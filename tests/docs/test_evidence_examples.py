"""The examples of docs/evidence.md print what the page says."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"


def test_every_example_prints_what_the_page_says() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 15
    assert found.failed == 0


def test_every_line_that_the_page_names_is_one_that_the_benchmark_prints() -> None:
    section = PAGE.read_text().partition("## The lines that show it")[2].partition("\n## ")[0]
    named = [line.split("|")[2] for line in section.splitlines() if line.startswith("|")][2:]
    folder = PAGE.parents[1] / "benchmarks"
    printed = "".join(
        (folder / name).read_text() for name in ("evidence.py", "evidence_coverage.py", "evidence_kinds.py")
    )
    keys = [key for cell in named for key in re.findall(r"`(\w+)`", cell)]
    assert len(keys) > 20
    assert [key for key in keys if f'"{key}":' not in printed] == []
