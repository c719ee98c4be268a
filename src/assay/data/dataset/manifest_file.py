"""The file by which a folder is a dataset: told before anything that reads one is imported."""

from pathlib import Path

from assay.base.errors import DataError

MANIFEST_FILE = "manifest.json"


def check_is_dataset(folder: Path) -> None:
    """Raise `DataError` where no manifest lies in the folder."""
    if not (folder / MANIFEST_FILE).is_file():
        raise DataError(
            f"{folder}: no dataset there (no {MANIFEST_FILE}). Make one with 'assay data index' or 'assay data build'."
        )
