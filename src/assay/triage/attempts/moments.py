"""Parses times and windows: seconds since the epoch, or ISO 8601.

A column must use one format. Epoch seconds mixed with ISO, or ISO with and without a time zone, are an error.
ISO without a time zone is read as UTC.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Bool, Float64
from assay.base.visible import written_out

LATEST_S = 1e11
"""Year 5138 in seconds since the epoch; larger numbers are milliseconds."""


class TimeWindow(NamedTuple):
    """A half-open time window."""

    from_s: float
    to_s: float
    text: str

    def holds(self, at_s: Float64[np.ndarray, "row"]) -> Bool[np.ndarray, "row"]:
        return (at_s >= self.from_s) & (at_s < self.to_s)


def window(text: str, option: str) -> TimeWindow:
    """Parse `FROM..TO`, half open."""
    begins, dots, ends = text.partition("..")
    if not dots or not begins.strip() or not ends.strip():
        raise ConfigError(f"{option} {text}: expected FROM..TO, each in epoch seconds or ISO 8601.")
    found = TimeWindow(moment(begins, option), moment(ends, option), text)
    if not found.from_s < found.to_s:
        raise ConfigError(f"{option} {text}: it is empty, for FROM is not before TO. A window is half open.")
    return found


def moment(text: str, option: str) -> float:
    """Parse a time given in an option."""
    try:
        return _moment(text)[0]
    except ValueError as error:
        raise ConfigError(f"{option} {text}: expected epoch seconds or ISO 8601, e.g. 2026-03-01T12:00Z.") from error


def moments(texts: Sequence[str | None], where: str) -> Float64[np.ndarray, "row"]:
    """Parse a column of times; `where` names it in errors."""
    seconds, kinds = np.empty(len(texts)), dict[str, str]()
    for index, text in enumerate(texts):
        try:
            seconds[index], kind = _moment(text or "")
        except ValueError as error:
            shown = written_out(repr(text))[:80]
            raise DataError(
                f"{where}, row {index + 1}: {shown} is no moment. Expected epoch seconds or ISO 8601."
            ) from error
        kinds.setdefault(kind, text or "")
    if len(kinds) > 1:
        clocks = " beside ".join(f"{kind} ('{written_out(text)}')" for kind, text in kinds.items())
        raise DataError(f"{where}: the clocks disagree: {clocks}. Write all moments in one way, with a time zone.")
    return seconds


def _moment(text: str) -> tuple[float, str]:
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            return found.replace(tzinfo=UTC).timestamp(), "ISO without a time zone"
        return found.timestamp(), "ISO with a time zone"
    if not 0 <= number < LATEST_S:
        raise ValueError("not seconds")
    return number, "epoch seconds"
