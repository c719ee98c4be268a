"""Reads JUnit XML: test cases are attempts. A document that declares entities or a document type is rejected
unread."""

import xml.etree.ElementTree as ElementTree
from typing import Any
from xml.parsers import expat

from assay.base.errors import DataError
from assay.triage.attempts.columns import Columns, columns_of


def junit_columns(source: str, text: str) -> Columns:
    """Return every test case that ran; the unit is the test."""
    suites = suites_of(junit_root(source, text))
    rows: list[dict[str, str | None]] = [
        {
            "failed": str(int(case.find("failure") is not None or case.find("error") is not None)),
            "at": suite.get("timestamp"),
            "unit": name_of_test(case),
            "suite": suite.get("name", ""),
            "host": suite.get("hostname", ""),
            "class": case.get("classname", ""),
            "file": case.get("file", ""),
        }
        for suite in suites
        for case in suite.findall("testcase")
        if case.find("skipped") is None
    ]
    has_times = all(row["at"] for row in rows)
    factors = ("host", "suite", "file", "class")
    return columns_of(rows, source, failed="failed", at="at" if has_times else None, unit="unit", factors=factors)


def junit_root(source: str, text: str) -> ElementTree.Element:
    """Return the root element. Raises `DataError` if it is not JUnit's XML."""
    refuse_declarations(source, text)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(f"{source}: not readable as XML: {error}.") from error
    if not suites_of(root):
        raise DataError(f"{source}: XML without a testsuite. Expected JUnit's.")
    return root


def suites_of(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Return all suites, including nested ones."""
    return list(root.iter("testsuite"))


def name_of_test(case: ElementTree.Element) -> str:
    """Return a test's name as used by all commands."""
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def refuse_declarations(source: str, text: str) -> None:
    """Raise `DataError` if the document declares a type or an entity, so that no entity is ever expanded."""

    def refuse(*_: Any) -> None:
        raise DataError(
            f"{source}: it declares a document type or entities, which JUnit's XML does not: it may be an "
            "XML bomb, and was not read."
        )

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise DataError(f"{source}: not readable as XML: {error}.") from error
