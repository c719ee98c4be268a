"""Tags and notes of a run, in `notes.json` in its folder. The file is replaced atomically."""

import getpass
from collections.abc import Iterable
from pathlib import Path

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.records.run import Note, Run, RunNotes
from assay.store.objects import open_store

NOTES_FILE = "notes.json"


def saved_notes(run: Run) -> RunNotes:
    """Return a run's tags and notes."""
    path = Path(run.run_dir) / NOTES_FILE
    if not path.is_file():
        return RunNotes(run_id=run.run_id)
    return RunNotes.from_json(path.read_bytes(), source=path)


def tag(run: Run, *, add: Iterable[str], remove: Iterable[str]) -> RunNotes:
    """Add and remove tags of a run."""
    run_notes, gone = saved_notes(run), set(remove)
    for text in add:
        if not text or not text.isprintable() or any(sign in text for sign in " ,"):
            raise ConfigError(f"{text!r:.80} is not a valid tag: use one word without commas.")
    if unknown := sorted(gone - set(run_notes.tags)):
        existing = ", ".join(run_notes.tags) or "none"
        raise ConfigError(f"run '{run.run_id}' has no tag '{unknown[0]}'; it has: {existing}. Nothing was changed.")
    return _saved(run, run_notes.model_copy(update={"tags": tuple(sorted({*run_notes.tags, *add} - gone))}))


def note(run: Run, text: str, *, by: str = "") -> RunNotes:
    """Add a note to a run, signed with the name of this process's user by default."""
    if not text.strip():
        raise ConfigError("the note is empty. Write its text in quotes.")
    run_notes = saved_notes(run)
    new = Note(at_s=SystemClock().now_s(), by=by or getpass.getuser(), text=text.strip())
    return _saved(run, run_notes.model_copy(update={"notes": (*run_notes.notes, new)}))


def _saved(run: Run, run_notes: RunNotes) -> RunNotes:
    open_store(run.run_dir).put(NOTES_FILE, run_notes.to_sealed_json().encode())
    return run_notes
