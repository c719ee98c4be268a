"""Reads records that are informative only: corrupt files are reported and skipped."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from assay.base.errors import DataError
from assay.records.record import Record

RecordT = TypeVar("RecordT", bound=Record)


def readable(record_class: type[RecordT], paths: Iterable[Path]) -> tuple[list[RecordT], list[str]]:
    """Return the readable records, and a message for each unreadable file."""
    records, problems = [], []
    for path in paths:
        try:
            records.append(record_class.from_json(path.read_bytes(), source=path))
        except DataError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}.")
    return records, problems
