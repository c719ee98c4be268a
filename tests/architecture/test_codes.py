"""Records hold codes; the catalogues of reporting have a sentence for every code that is written."""

import ast
from collections.abc import Iterator
from pathlib import Path

from assay.reporting.views import statements, triage_statements
from import_graph import syntax

SOURCE = Path(__file__).parents[2] / "src" / "assay"


def literals(node: ast.expr) -> Iterator[str]:
    """Yield the strings that an expression may be, if it is written out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*literals(node.body), *literals(node.orelse))


def codes_of(folder: str) -> set[str]:
    calls = [
        node
        for path in (SOURCE / folder).rglob("*.py")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Statement"
    ]
    return {code for call in calls for key in call.keywords if key.arg == "code" for code in literals(key.value)}


def test_every_code_of_a_decision_has_a_sentence() -> None:
    codes = codes_of("decision") | codes_of("workflows/campaign")
    assert len(codes) > 5 and codes <= set(statements._STATEMENTS)


def test_every_code_of_triage_has_a_sentence() -> None:
    codes = codes_of("triage")
    assert len(codes) > 10 and codes <= {*triage_statements._TEXTS, "no factor"}
