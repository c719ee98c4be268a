"""A run as another tracker recorded it: the common form of what each reader returns.

    files of a tool --(its reader)--> RunBuilder --> ForeignRun --(folder.py)--> a run's folder in the home

Points are kept as the tool has them: NaN, infinities, repeated and falling steps, clocks that jump.
"""

import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
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


class _Columns(NamedTuple):
    """Points that grow: `Points` as arrays of the standard library, a third of the memory of lists."""

    steps: "array[int]"
    at_s: "array[float]"
    values: "array[float]"


class ForeignRun(NamedTuple):
    """One run of another tracker."""

    facts: ImportedFrom
    experiment: str
    """Group of runs that it belongs to: an experiment of MLflow, a project of W&B, trackio and Neptune."""
    params: Mapping[str, Any]
    attempts: Sequence[Series]
    """One series of points per life of the run. A later life replaces the steps from its first one on."""


class RunBuilder:
    """Collects the points of one run, and counts what its reader leaves out."""

    def __init__(self) -> None:
        self._lives: list[dict[str, _Columns]] = [{}]
        self._left_out: Counter[str] = Counter()

    def leave_out(self, text: str, num: int = 1) -> None:
        """Count something that is not imported, in a sentence with `{}` for the number."""
        self._left_out[text] += num

    def begin_life(self) -> None:
        """Begin a life of the run: points that are added later replace older ones from their first step on."""
        self._lives.append({})

    def add(self, name: str, step: object, at_s: object, value: object) -> None:
        """Add a point; a value or step that is no number is counted as left out."""
        number, index, time_s = _number(value), _number(step), _number(at_s)
        if number is None:
            self.leave_out("{} values that are no numbers")
        elif index is None or not abs(index) < 2**62:
            self.leave_out("{} points without a whole step")
        else:
            if (whole := math.floor(index)) != index:
                self.leave_out("{} points with their fractional step rounded down")
            columns = self._columns(name)
            columns.steps.append(whole)
            columns.at_s.append(math.nan if time_s is None else time_s)
            columns.values.append(number)

    def add_points(self, name: str, points: Points) -> None:
        """Add several points of one metric."""
        columns = self._columns(name)
        columns.steps.frombytes(points.steps.tobytes())
        columns.at_s.frombytes(points.at_s.tobytes())
        columns.values.frombytes(points.values.tobytes())

    def _columns(self, name: str) -> _Columns:
        life = self._lives[-1]
        return life.get(name) or life.setdefault(name, _Columns(array("q"), array("d"), array("d")))

    def run(self, *, experiment: str, params: Mapping[str, Any], **facts: Any) -> ForeignRun:
        """Return the run with what else is known of it; see `ImportedFrom` for the facts."""
        attempts = [self._series(life) for life in self._lives if life] or [{}]
        sentences = (text.replace("{}", f"{num:,}", 1) for text, num in self._left_out.items() if num)
        times = {name: _valid_time(facts.pop(name, None)) for name in ("started_s", "ended_s")}
        return ForeignRun(ImportedFrom(**facts, **times, left_out=tuple(sentences)), experiment, params, attempts)

    def _series(self, life: Mapping[str, _Columns]) -> Series:
        """Return points under names that a ledger can store, with times that a date can show."""
        series: Series = {}
        for name, columns in life.items():
            stored, steps, at_s, values = _stored_name(name), *map(np.asarray, columns)
            is_time = (at_s >= 0) & (at_s < END_OF_TIME_S)
            self.leave_out("{} metric names shortened", int(stored != name))
            self.leave_out("{} points had no valid time and got 1970", int((~is_time).sum()))
            points = Points(steps, np.where(is_time, at_s, 0.0), values)
            # Two names may differ in nothing that can be stored.
            series[stored] = _joined(series[stored], points) if stored in series else points
        return series


def _joined(first: Points, second: Points) -> Points:
    steps, at_s, values = (np.concatenate(columns) for columns in zip(first, second, strict=True))
    return Points(steps, at_s, values)


def _valid_time(seconds: float | None) -> float | None:
    """Return a time that a date can show, or None."""
    return seconds if seconds is not None and 0 <= seconds < END_OF_TIME_S else None


def _stored_name(name: str) -> str:
    text = name.encode("utf-8", "replace").decode()
    if len(text.encode()) <= LONGEST_NAME:
        return text
    return f"{text.encode()[: LONGEST_NAME - 20].decode(errors='ignore')}…{sha256_of_json(text)[:12]}"


def _number(value: object) -> float | int | None:
    """Return a number as it is. JSON of other tools spells NaN and infinities as text."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**1000 else None
    return float(value) if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity") else None


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
