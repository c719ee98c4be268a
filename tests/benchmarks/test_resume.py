"""The table of docs/resume.md: what it shows of a check, and that it is of all stacks, on the pinned releases."""

import re
from typing import Any

import pytest

import resume
from assay.checks.resume.properties import PROPERTIES, STATUSES
from harness import CHECKOUT


def checked(**statuses: str) -> dict[str, Any]:
    """A check's JSON in which all properties hold but those given."""
    results = dict.fromkeys(PROPERTIES, "holds") | statuses
    properties = {
        name: {"status": status, "seen": f"{name} was seen", "exercise": "step"} for name, status in results.items()
    }
    return {"properties": properties, "version": "1.2.3", "undisturbed": {"rows": "64 rows, 2 times each"}}


def table_of(text: str) -> list[dict[str, str]]:
    """The rows of the first Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:] if not row[0].startswith("-")]


def test_a_row_says_what_fails_what_follows_and_what_was_not_tried() -> None:
    text = resume.markdown({"lightning": checked(rows="fails", loss="follows", torn="untried", optimizer="unseen")})
    row = table_of(text)[0]
    assert row["stack"] == "Lightning"
    assert row["version"] == "1.2.3"
    assert [
        row[name] for name in ("each row once", "equal loss", "torn one refused", "optimizer", "newest checkpoint")
    ] == [
        "**no**",
        "no",
        "",
        "?",
        "yes",
    ]
    assert "- Lightning, each row once, in the exercise `step`: rows was seen (`lightning_fit.py`)" in text


def test_a_failure_without_a_column_is_named_below_the_table() -> None:
    assert "- Grain, `ElasticIterator`, kept, in" in resume.markdown({"grain": checked(kept="fails")})


@pytest.mark.parametrize("status", STATUSES)
def test_each_status_has_a_sign(status: str) -> None:
    assert len(table_of(resume.markdown({"grain": checked(rows=status)}))) == 1


@pytest.mark.parametrize(
    "sizes, cell",
    [
        ({"1,2": checked(), "2,1": checked()}, "yes"),
        ({"1,2": checked(), "2,1": checked(rows="fails")}, "**no**: 1 after 2"),
        ({"1,2": {"error": "no output"}, "2,1": checked()}, "**no**: 2 after 1"),
    ],
)
def test_another_world_size_holds_if_each_of_its_checks_does(sizes: dict[str, Any], cell: str) -> None:
    text = resume.markdown({"litdata": {**checked(), "sizes": sizes}, "torchdata": checked()})
    assert [row["other world size"] for row in table_of(text)] == [cell, "not documented"]


@pytest.mark.parametrize("rows", ["289 rows, 1 to 32 times each", "64 rows, 1 to 2 times each", "—not seen"])
def test_rows_that_are_not_the_tasks_are_an_error_and_no_result(rows: str) -> None:
    found = checked()
    assert resume._with_rows(found, 64) is found
    found["undisturbed"]["rows"] = rows
    assert rows in resume._with_rows(found, 64)["error"]


def test_the_page_has_stacks_at_their_pinned_releases() -> None:
    files = ("constraints.txt", "requirements-hosts.txt", "requirements-cookbook.txt")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", "\n".join((CHECKOUT / file).read_text() for file in files), re.M))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    rows = {row["stack"]: row["version"] for row in table_of(resume.PAGE.read_text())}
    expected = {stack.title: pins.get(stack.package.replace("_", "-")) for stack in resume.STACKS.values()}
    rows.pop("plain loop, `assay.torch`", None)
    assert rows
    assert rows == {title: expected[title] for title in rows}


def test_every_stack_has_its_script() -> None:
    assert {stack.script for stack in resume.STACKS.values()} == {
        file.name for file in resume.SCRIPTS.glob("*.py") if file.name != "task.py"
    }
