"""Homes that older assays wrote (`tests/golden/home`), unpacked where a test wants them."""

import sqlite3
import tarfile
from pathlib import Path

ARCHIVES = Path(__file__).parent / "golden" / "home"
WRITTEN_AT = "/golden"
"""Stands in the records: run folders, stores and datasets were absolute paths."""


def unpack_home(folder: Path, commit: str) -> Path:
    """The home that an older assay wrote, with its ledger, as if it had been written below `folder`."""
    with tarfile.open(ARCHIVES / f"{commit}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".yaml", ".sql"):
            path.write_text(path.read_text().replace(WRITTEN_AT, str(folder)))
    home = folder / "runs"
    ledger = sqlite3.connect(home / "ledger.db")
    ledger.executescript((home / "ledger.sql").read_text())
    ledger.close()
    return home
