"""The incidents of a run: one line of JSON each, in the run's folder; the supervisor writes them."""

from contextlib import suppress
from pathlib import Path

from assay.base.errors import DataError
from assay.records.incident import Incident

INCIDENTS_FILE = "incidents.jsonl"


def append_incident(run_dir: Path, incident: Incident) -> None:
    """Append an incident to the run's file."""
    with (run_dir / INCIDENTS_FILE).open("a", encoding="utf-8") as file:
        file.write(incident.to_json() + "\n")


def read_incidents(run_dir: Path) -> list[Incident]:
    """Return a run's incidents, oldest first; skip corrupt lines."""
    path = run_dir / INCIDENTS_FILE
    if not path.exists():
        return []
    incidents = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(DataError):
            incidents.append(Incident.from_json(line, source=path))
    return incidents
