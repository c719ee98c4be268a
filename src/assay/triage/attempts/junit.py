"""Reads JUnit XML: test cases are attempts. A document that declares entities or a document type is rejected
unread."""

import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from xml.parsers import expat

from assay.base.errors import DataError
from assay.triage.attempts.columns import Columns, columns_of


def junit_columns(source: str, text: str) -> Columns:
    """Return every test case that ran; the unit is the test."""
    suites = suites_of(junit_root(source, text))
    cases = [(case, suite) for suite in suites for case in suite.findall("testcase") if has_run(case)]
    ambiguous = ambiguous_names((name_of_test(case), suite_of(case, suite)) for case, suite in cases)
    rows: list[dict[str, str | None]] = [
        {
            "failed": str(int(case.find("failure") is not None or case.find("error") is not None)),
            "at": suite.get("timestamp"),
            "unit": name_of_test(case, suite if name_of_test(case) in ambiguous else None),
            "suite": suite.get("name", ""), "host": suite.get("hostname", ""), "class": case.get("classname", ""),
            "file": case.get("file", ""),
        }
        for case, suite in cases
    ]  # fmt: skip
    factors = ("host", "suite", "file", "class")
    return columns_of(rows, source, failed="failed", at="at", unit="unit", factors=factors)


def junit_root(source: str, text: str) -> ElementTree.Element:
    """Return the root element. Raises `DataError` if it is not JUnit's XML."""
    refuse_declarations(source, text)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(f"{source}: not readable as XML: {error}.") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # without its namespace
    if not suites_of(root):
        raise DataError(f"{source}: XML without a testsuite. Expected JUnit's.")
    return root


def suites_of(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Return all suites, including nested ones."""
    return list(root.iter("testsuite"))


def name_of_test(case: ElementTree.Element, suite: ElementTree.Element | None = None) -> str:
    """Return a test's name as used by all commands; with its suite or file, if its name is ambiguous."""
    name = f"{case.get('classname', '')}::{case.get('name', '')}"
    return name if suite is None else f"{suite_of(case, suite)}::{name}"


def suite_of(case: ElementTree.Element, suite: ElementTree.Element) -> str:
    """Return what tells tests of equal names apart."""
    return case.get("file") or suite.get("file") or suite.get("name") or ""


def ambiguous_names(tests: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names, of (name, suite), that stand in several suites. Equal names in one suite are tries of one
    test."""
    suites: dict[str, set[str]] = defaultdict(set)
    for name, suite in tests:
        suites[name].add(suite)
    return {name for name, found in suites.items() if len(found) > 1}


NOT_RUN = {"notrun", "suppressed", "skipped", "disabled", "ignored", "pending", "inconclusive", "not run"}
"""Values of a test case's `status` or `result`, as GoogleTest, CTest and NUnit write them."""


def has_run(case: ElementTree.Element) -> bool:
    """Return whether a test was run: it was neither skipped nor disabled."""
    states = {case.get("status", "").lower(), case.get("result", "").lower()}
    return case.find("skipped") is None and not states & NOT_RUN and case.get("executed", "").lower() != "false"


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
