"""Checks for a dataset's manifest without importing anything that reads one."""

from pathlib import Path

from assay.base.errors import DataError

MANIFEST_FILE = "manifest.json"


def check_is_dataset(folder: Path) -> None:
    """Raise `DataError` if the folder holds no manifest."""
    if not (folder / MANIFEST_FILE).is_file():
        raise DataError(
            f"{folder}: no dataset there (no {MANIFEST_FILE}). Create one with 'assay data index' or "
            "'assay data build'."
        )
