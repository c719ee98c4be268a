"""Writes runs of other trackers into a home, as folders that are read like those of our own runs.

    ForeignRun -> HOME/NAME-DIGEST/metrics/attempt-K/rank-00000.seg    new points are appended
                                  /run.json                            written last; replaced if facts changed

The segment is the record of what was imported: an import appends the points of the source that it does not hold yet.
So a repeated import changes nothing, and one that was killed goes on where its last whole frame ends.
"""

import fcntl
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from assay.base.code_version import code_version
from assay.base.digest import sha256_of_json
from assay.records.run import ImportedFrom, Run
from assay.reporting.views.runs.run_list import ImportLine
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.writer import marking
from assay.store.metrics.fold import fold_run
from assay.store.metrics.segment import Points, SegmentWriter, read_segment, segment_path
from assay.store.objects import open_store
from assay.trackers.importers.foreign_run import ForeignRun, Series, plain_value
from assay.trackers.importers.sources import read_runs

LOCK_FILE = "import.lock"


class _Epoch:
    """A clock at 0, so that a segment's times are seconds since the epoch, bit for bit."""

    def now_s(self) -> float:
        return 0.0

    def monotonic_s(self) -> float:
        return 0.0

    def sleep_s(self, seconds: float) -> None:
        """Return at once."""


def import_runs(home: Home, ledger: Ledger, source: Path, tool: str | None) -> Iterator[ImportLine]:
    """Import the runs that a tool left in a file or folder into a home and its ledger, one after the other."""
    for foreign in read_runs(source, tool):
        run, num_new = _write_run(home, foreign)
        with marking(home, run.run_id):
            ledger.record_run(run)
            fold_run(ledger, run)
            ledger.record_write(run.run_id)
        num_points = sum(len(points.steps) for series in foreign.attempts for points in series.values())
        yield ImportLine.of(run.imported, run_id=run.run_id, num_points=num_points, num_new=num_new)


def _write_run(home: Home, foreign: ForeignRun) -> tuple[Run, int]:
    """Add a run, or what is new of it, to a home; return its record and the number of new points."""
    run_id = _run_id(foreign.facts)
    folder = home.run_dir(run_id)
    with _locked(folder):
        existing = home.run(run_id) if home.has_run(run_id) else None
        if existing is not None and existing.imported is None:
            raise home.name_conflict(run_id)
        num_new = sum(
            _append_new(segment_path(folder, attempt, 0), run_id, attempt, series)
            for attempt, series in enumerate(foreign.attempts, 1)
        )
        run = _record(run_id, folder, foreign)
        if existing is not None and run.model_copy(update={"code_version": existing.code_version}) == existing:
            return existing, num_new
        open_store(str(folder)).put(RUN_FILE, run.to_sealed_json().encode())
    return run, num_new


def _run_id(facts: ImportedFrom) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", facts.name).strip("._-")[:60] or facts.tool
    return f"{plain}-{sha256_of_json([facts.tool, _text(facts.tool_run_id)])[:8]}"


def _record(run_id: str, folder: Path, foreign: ForeignRun) -> Run:
    all_points = [points for series in foreign.attempts for points in series.values()]
    texts = {name: _text(getattr(foreign.facts, name)) for name in ("source", "name", "tool_run_id", "tool_status")}
    tags = {_text(key): _text(value) for key, value in foreign.facts.tags.items()}
    recipe = {"name": _text(foreign.experiment) or texts["name"], "params": plain_value(foreign.params)}
    first_s = min((float(points.at_s.min()) for points in all_points), default=0.0)
    return Run(
        run_id=run_id,
        created_s=first_s if foreign.facts.started_s is None else foreign.facts.started_s,
        recipe=recipe,
        recipe_sha256=sha256_of_json(recipe),
        dataset_fingerprint="",
        code_version=code_version(),
        run_dir=str(folder),
        store_url=str(folder),
        num_steps=max([1, *(int(points.steps.max()) for points in all_points)]),
        imported=foreign.facts.model_copy(update={**texts, "tags": tags}),
    )


def _text(text: str) -> str:
    """Return a text that JSON can hold: without halves of characters, which names of files may have."""
    return text.encode("utf-8", "replace").decode()


def _append_new(path: Path, run_id: str, attempt: int, series: Series) -> int:
    """Append the points that a segment lacks; return their number."""
    stored = read_segment(path).metrics if path.exists() else {}
    new = {name: _missing(stored.get(name), points) for name, points in series.items()}
    new = {name: points for name, points in new.items() if len(points.steps)}
    if new:
        writer = SegmentWriter(path, run_id=run_id, attempt=attempt, rank=0, clock=_Epoch())
        for name, points in new.items():
            writer.log_series(name, points)
        writer.close()
    return sum(len(points.steps) for points in new.values())


def _missing(stored: Points | None, source: Points) -> Points:
    """Return the source's points that are not stored, each as often as it is missing, in the source's order."""
    if stored is None:
        return source
    held, missing_bits = _bits(stored), _bits(source)
    if len(held) <= len(missing_bits) and np.array_equal(held, missing_bits[: len(held)]):
        is_new = np.arange(len(missing_bits)) >= len(held)
    else:
        left = Counter(map(bytes, held))
        is_new = np.zeros(len(missing_bits), bool)
        for index, point in enumerate(map(bytes, missing_bits)):
            if left[point]:
                left[point] -= 1
            else:
                is_new[index] = True
    return Points(source.steps[is_new], source.at_s[is_new], source.values[is_new])


def _bits(points: Points) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return a row of integers per point, as NaN equals no NaN."""
    return np.stack([np.ascontiguousarray(column).view(np.int64) for column in points], axis=1)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a run's folder: two imports at a time would append every point twice."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
