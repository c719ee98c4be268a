"""The file in a run's folder in which people's tags and notes lie: `remarks.json`, written whole or not at
all."""

import getpass
from collections.abc import Iterable
from pathlib import Path

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.records.remarks import Note, Remarks
from assay.records.run import Run
from assay.store.objects import open_store

REMARKS_FILE = "remarks.json"


def saved_remarks(run: Run) -> Remarks:
    """What was said so far; nothing, mostly."""
    path = Path(run.run_dir) / REMARKS_FILE
    if not path.is_file():
        return Remarks(run_id=run.run_id)
    return Remarks.from_json(path.read_bytes(), source=path)


def tag(run: Run, *, add: Iterable[str], remove: Iterable[str]) -> Remarks:
    """Change the tags of a run."""
    remarks, gone = saved_remarks(run), set(remove)
    for each in add:
        if not each or not each.isprintable() or any(sign in each for sign in " ,"):
            raise ConfigError(f"{each!r:.80} is no tag: it must be one word, without commas.")
    if unknown := sorted(gone - set(remarks.tags)):
        there = ", ".join(remarks.tags) or "none"
        raise ConfigError(
            f"run '{run.run_id}' has no tag '{unknown[0]}'; it has: {there}. Nothing was changed."
        )
    return _saved(run, remarks.model_copy(update={"tags": tuple(sorted({*remarks.tags, *add} - gone))}))


def note(run: Run, text: str) -> Remarks:
    """Add a note."""
    if not text.strip():
        raise ConfigError("a note without words says nothing. Write it in quotes.")
    remarks = saved_remarks(run)
    new = Note(at_s=SystemClock().now_s(), by=getpass.getuser(), text=text.strip())
    return _saved(run, remarks.model_copy(update={"notes": (*remarks.notes, new)}))


def _saved(run: Run, remarks: Remarks) -> Remarks:
    open_store(run.run_dir).put(REMARKS_FILE, remarks.to_sealed_json().encode())
    return remarks
