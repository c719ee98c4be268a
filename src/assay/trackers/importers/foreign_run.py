"""A run as another tracker recorded it: the common form of what each reader returns.

    files of a tool --(its reader)--> ForeignRun --(folder.py)--> a run's folder in the home

Points are kept as the tool has them: NaN, infinities, repeated and falling steps, clocks that jump.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from assay.base.digest import sha256_of_json
from assay.records.run import ImportedFrom
from assay.store.metrics.segment import Points

LONGEST_NAME = 1_000
"""Bytes of a metric's name. PostgreSQL indexes at most 2,700; longer names are cut and get a digest."""
END_OF_TIME_S = 253_402_300_800.0
"""The year 10,000, which no date can show."""
Series = dict[str, Points]
"""Points by the metric's name; times are seconds since the epoch."""


class ForeignRun(NamedTuple):
    """One run of another tracker."""

    facts: ImportedFrom
    experiment: str
    """Group of runs that it belongs to: an experiment of MLflow, a project of W&B, trackio and Neptune."""
    params: Mapping[str, Any]
    attempts: Sequence[Series]
    """One series of points per life of the run. A later life replaces the steps from its first one on."""


class Losses(Counter[str]):
    """What a reader left out: sentence with `{}` for the number -> number."""

    def sentences(self) -> tuple[str, ...]:
        """Return what was left out, in order of appearance."""
        return tuple(text.format(f"{count:,}") for text, count in self.items() if count)


class SeriesBuilder:
    """Collects points one at a time, by metric."""

    def __init__(self, losses: Losses) -> None:
        self._rows: dict[str, list[tuple[int, float, float]]] = {}
        self._losses = losses

    def add(self, name: str, step: object, at_s: float, value: object) -> None:
        """Add a point; a value or step that is no number is counted as left out."""
        number, index = _number(value), _number(step)
        if number is None:
            self._losses["{} values that are no numbers"] += 1
        elif index is None or not abs(index) < 2**62:
            self._losses["{} points without a whole step"] += 1
        else:
            self._losses["{} points with their fractional step rounded down"] += index != math.floor(index)
            self._rows.setdefault(name, []).append((math.floor(index), at_s, number))

    def series(self) -> Series:
        """Return the points, each metric's in the order they were added."""
        return named_series(((name, points_of(rows)) for name, rows in self._rows.items()), self._losses)


def points_of(rows: Sequence[tuple[int, float, float]]) -> Points:
    """Return points from rows of step, time and value."""
    steps, at_s, values = zip(*rows, strict=True)
    return Points(np.array(steps, np.int64), np.array(at_s, np.float64), np.array(values, np.float64))


def named_series(found: Iterable[tuple[str, Points]], losses: Losses) -> Series:
    """Return series under names that a ledger can store, with times that a date can show."""
    series: Series = {}
    for name, points in found:
        stored, is_time = _stored_name(name), (points.at_s >= 0) & (points.at_s < END_OF_TIME_S)
        losses["{} metric names shortened"] += stored != name
        losses["{} points had no valid time and got 1970"] += int((~is_time).sum())
        series[stored] = points._replace(at_s=np.where(is_time, points.at_s, 0.0))
    return series


def valid_time(seconds: float | None) -> float | None:
    """Return a time that a date can show, or None."""
    return seconds if seconds is not None and 0 <= seconds < END_OF_TIME_S else None


def _stored_name(name: str) -> str:
    text = name.encode("utf-8", "replace").decode()
    if len(text.encode()) <= LONGEST_NAME:
        return text
    return f"{text.encode()[: LONGEST_NAME - 20].decode(errors='ignore')}…{sha256_of_json(text)[:12]}"


def _number(value: object) -> float | int | None:
    """Return a number as it is. JSON of other tools spells NaN and infinities as text."""
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, int):
        return value if abs(value) < 2**1000 else None
    return value if isinstance(value, float) else None


def plain_value(value: Any) -> Any:
    """Return a parameter as JSON that a record can hold."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain_value(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "replace").decode()


def json_or_text(text: str) -> Any:
    """Return the value that a text encodes as JSON, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def seconds_of(time: str) -> float:
    """Return the seconds since the epoch of an ISO 8601 time, in UTC if it names no zone; NaN if it is none."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
