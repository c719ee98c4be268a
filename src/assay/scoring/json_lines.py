"""Lines of JSON objects: how items, samples and the logs of other tools are written.

A line ends at its line feed and nowhere else: texts hold U+2028 and U+0085, where `splitlines` parts.
"""

import re
from pathlib import Path
from typing import Any

from assay.base.errors import DataError
from assay.base.parsing.nesting import object_of_pairs, parse_json

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""Behind an even number of backslashes: else it is the text of such an escape."""


def json_lines(data: bytes, source: Path, *, of_what: str) -> dict[int, dict[str, Any]]:
    """Line number (from 1) -> object; blank lines are left out. `DataError` names the line that is none."""
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
            raise DataError(f"{source}: line {number} is no JSON object.")
        found[number] = row
    if not found:
        raise DataError(f"{source}: no {of_what} in it.")
    return found


def json_value(data: bytes) -> Any:
    """What UTF-8 JSON says, with a byte-order mark or without; `ValueError` where an object has a key twice."""
    return parse_json(data.decode("utf-8-sig"), object_pairs_hook=object_of_pairs)


def holds_nul(text: str) -> bool:
    """Whether a string of this JSON has the character U+0000."""
    return "\0" in text or _NUL.search(text) is not None
