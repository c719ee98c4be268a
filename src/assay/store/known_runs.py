"""Run ids, found before a command imports the heavier modules that load a run.

Reads only folder names, and the rows of a SQLite ledger with Python's own driver.
"""

import difflib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from assay.base.errors import ConfigError

RUN_FILE = "run.json"
"""A run's record, in its folder."""


def run_ids_in(folder: Path, ledger_file: Path, *, table: str = "runs") -> list[str] | None:
    """Return the ids of runs in a folder or a ledger file; None if the ledger cannot be read."""
    found = {path.parent.name for path in folder.glob(f"*/{RUN_FILE}")}
    if not ledger_file.exists():
        return sorted(found)
    try:
        uri = f"{ledger_file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=0)) as ledger:
            found |= {run_id for (run_id,) in ledger.execute(f"SELECT DISTINCT run_id FROM {table}")}
    except sqlite3.Error:
        return None
    return sorted(found)


def match_run_id(id_or_prefix: str, known: Sequence[str]) -> str:
    """Return the run with this id or unique prefix. Raises `ConfigError` with suggestions otherwise."""
    if id_or_prefix in known:
        return id_or_prefix
    matches = sorted(run_id for run_id in known if id_or_prefix and run_id.startswith(id_or_prefix))
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
        raise ConfigError(f"'{id_or_prefix}' begins the ids of {len(matches)} runs: {shown}. Write more of it.")
    raise ConfigError(f"no run '{id_or_prefix}'. {_hint(id_or_prefix, known)}")


def _hint(requested_id: str, known: Sequence[str]) -> str:
    if not known:
        return "The ledger holds no runs: is $ASSAY_HOME (or $ASSAY_LEDGER) the one that they were recorded in?"
    if close := difflib.get_close_matches(requested_id, known, n=3):
        return f"Perhaps you meant {' or '.join(close)}. 'assay runs' lists all."
    return "'assay runs' lists those that there are."
