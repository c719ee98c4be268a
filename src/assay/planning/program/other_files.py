"""Recognizes a file of another kind, and names the command that reads it.

It is recognized by its top-level keys, so that a recipe given as a program gets one error, not one per key.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Kind(NamedTuple):
    """A kind of file that people write."""

    called: str
    own_keys: frozenset[str]
    """Top-level keys that no other kind has."""
    command: str


_PROGRAM = _Kind(
    "program",
    frozenset({"calendar", "team", "capacity", "budget", "decision", "pilot"}),
    "'assay plan check {path}' takes it",
)
_PROGRESS = _Kind(
    "progress",
    frozenset({"now", "verdicts"}),
    "'assay plan status PROGRAM FOLDER --notes {path}' takes it, or 'assay plan solve PROGRAM --earlier PLAN "
    "--progress {path}'",
)
_KINDS = (
    _PROGRAM,
    _PROGRESS,
    _Kind(
        "recipe",
        frozenset({"data", "loader", "method", "trainer", "retention"}),
        "'assay train {path} --check' takes it",
    ),
    _Kind(
        "campaign",
        frozenset({"question", "recipe", "candidates", "seeds", "budget_device_hours", "rule"}),
        "'assay decide run {path}' takes it",
    ),
)
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
    if any(kind.own_keys & values.keys() for kind in _KINDS if kind.called == expected):
        return None
    if isinstance(values.get("stages"), list):
        return f"this looks like a pipeline: 'assay train {path} --check' takes it."
    found = max(_KINDS, key=lambda kind: len(kind.own_keys & values.keys()))
    least = 1 if found is _PROGRESS else 2
    if len(found.own_keys & values.keys()) < least:
        return None
    return f"this looks like {_SHOWN.get(found.called, f'a {found.called}')}: {found.command.format(path=path)}."
