"""JSON Lines files: items, samples and logs of other tools.

Lines end at line feeds only: texts may contain U+2028 and U+0085, at which `splitlines` would split.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assay.base.errors import DataError
from assay.base.parsing.nesting import object_of_pairs, parse_json

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL; an odd number of preceding backslashes would make it literal text."""


def json_lines(data: bytes, source: Path, *, of_what: str) -> dict[int, dict[str, Any]]:
    """Parse to line number (from 1) -> object, without blank lines. Raises `DataError` that names an invalid line."""
    found: dict[int, dict[str, Any]] = {}
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json_value(line)
        except ValueError as error:
            cut = " It is the last one and has no end: was the file cut short?" if number == len(lines) else ""
            raise DataError(f"{source}: line {number} is not JSON: {error}.{cut}") from error
        if not isinstance(row, dict):
            raise DataError(f"{source}: line {number} is not a JSON object.")
        found[number] = row
    if not found:
        raise DataError(f"{source}: no {of_what} in it.")
    return found


def json_lines_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a line of JSON for each row."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def json_value(data: bytes) -> Any:
    """Parse UTF-8 JSON with or without a byte order mark. Raises `ValueError` if an object repeats a key."""
    return parse_json(data.decode("utf-8-sig"), object_pairs_hook=object_of_pairs)


def holds_nul(text: str) -> bool:
    """Return whether a string in this JSON contains U+0000."""
    return "\0" in text or _NUL.search(text) is not None
