"""Runs `assay triage` on files and reads its JSON."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from in_process import AssayAt


def triage(*arguments: str, folder: Path) -> Any:
    """Return what `assay triage ARGUMENTS --json` prints. Raises AssertionError if the command fails."""
    return json.loads(AssayAt(folder / "home", folder)("triage", *arguments, "--json").out)


def is_in_held_out_half(name: str) -> bool:
    """Draw the half of an incident, independent of what its index decides."""
    return zlib.crc32(name.encode()) % 2 == 1


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """Write a table whose cells hold no commas."""
    lines = [",".join(header), *(",".join("" if cell is None else str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path
