"""Recognizes a file of another kind, and names the command that reads it.

It is recognized by its top-level keys, so that a recipe given as a program gets one error, not one per key.
"""

from collections.abc import Mapping
from typing import Any

_KINDS = {
    "program": (
        {"calendar", "team", "capacity", "budget", "decision", "pilot"},
        "'assay plan check {path}' takes it",
    ),
    "progress": (
        {"now", "verdicts"},
        "'assay plan status PROGRAM FOLDER --notes {path}' takes it, or 'assay plan solve PROGRAM --earlier PLAN "
        "--progress {path}'",
    ),
    "recipe": ({"data", "loader", "method", "trainer", "retention"}, "'assay train {path} --check' takes it"),
    "campaign": (
        {"question", "recipe", "candidates", "seeds", "budget_device_hours", "rule"},
        "'assay decide run {path}' takes it",
    ),
}
"""Kind of file -> top-level keys that no other kind has, and the command that reads it."""
_SHOWN = {"program": "a program", "progress": "notes on a program's progress", "campaign": "a campaign"}
_RECORDS = {
    "plan": "a plan that was solved: 'assay plan export PROGRAM {path}' takes it",
    "offer": "an offer: 'assay plan status PROGRAM FOLDER' takes the folder that it lies in",
}


def other_kind(values: Mapping[str, Any], path: str, *, expected: str) -> str | None:
    """Return what a file looks like, and which command reads it; None if it may be an `expected` file
    (`program`, `progress`) with mistakes."""
    if "version" in values and (record := _RECORDS.get(str(values.get("kind")))):
        return f"this looks like {record.format(path=path)}."
    shared = {kind: len(own_keys & values.keys()) for kind, (own_keys, _) in _KINDS.items()}
    if shared.get(expected):
        return None
    if isinstance(values.get("stages"), list):
        return f"this looks like a pipeline: 'assay train {path} --check' takes it."
    found = max(shared, key=lambda kind: shared[kind])
    if shared[found] < (1 if found == "progress" else 2):
        return None
    return f"this looks like {_SHOWN.get(found, f'a {found}')}: {_KINDS[found][1].format(path=path)}."
