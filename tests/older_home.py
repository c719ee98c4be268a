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
    # It was judged by statistics that are gone; that each row counts alone was the default of its day.
    for decision in home.glob("campaigns/*/decisions/*.json"):
        decision.unlink()
    campaign = folder / "campaign.yaml"
    campaign.write_text(campaign.read_text().replace("type: predictions", "type: predictions\n  cluster: null"))
    ledger = sqlite3.connect(home / "ledger.db")
    ledger.executescript((home / "ledger.sql").read_text())
    ledger.execute("DELETE FROM decisions")
    ledger.commit()
    ledger.close()
    return home
