"""Lines of JSON objects: how items, samples and the logs of other tools are written."""

import json
from pathlib import Path
from typing import Any

from assay.base.errors import DataError


def json_lines(text: str, source: Path, *, of_what: str) -> dict[int, dict[str, Any]]:
    """Line number (from 1) -> object; blank lines are left out. `DataError` names the line that is none."""
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{source}: line {number} is not JSON: {error}.") from error
        if not isinstance(row, dict):
            raise DataError(f"{source}: line {number} is no JSON object.")
        found[number] = row
    if not found:
        raise DataError(f"{source}: no {of_what} in it.")
    return found
