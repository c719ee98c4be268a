import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from assay.records.run import Attempt
from assay.reporting.views.runs.curve_window import CurveWindow, window_curve
from assay.store.ledger import tables
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.metrics.curves import metric_series
from assay.store.metrics.fold import append_points
from assay.store.metrics.segment import Points, SegmentHeader
from ledger_rows import drop_tables
from machine import MACHINE

MAX_BLOBS = 64


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/l.db" if is_sqlite else request.getfixturevalue("postgres_url")
    with open_ledger(url) as ledger:
        yield ledger
    if not is_sqlite:
        drop_tables(url)


@pytest.fixture
def sqlite_ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{tmp_path}/l.db") as ledger:
        yield ledger


def log(ledger: Ledger, steps: npt.NDArray[np.int64], *, attempt: int = 1, name: str = "loss") -> None:
    """Append points whose values are their steps."""
    points = Points(steps, np.zeros(len(steps)), steps.astype(float))
    with ledger.writing() as connection:
        append_points(connection, "a", SegmentHeader("a", attempt, 0, 0.0, 0.0, "host", 1, ()), {name: points})


def begin(ledger: Ledger, attempt: int, start_step: int) -> None:
    where = {"run_id": "a", "attempt": attempt, "start_step": start_step}
    ledger.record_attempt(Attempt.model_validate({"world_size": 1, "started_s": 0.0, **where, **MACHINE}))


def total(window: CurveWindow) -> tuple[int, int]:
    return int(window.committed.num_points.sum()), int(window.lost.num_points.sum())


@contextmanager
def counting_blobs(ledger: Ledger) -> Iterator[list[int]]:
    """Count the blobs of each statement."""
    reading, counts = ledger.reading, []

    class Counting:
        def __init__(self, connection: Any) -> None:
            self.connection = connection

        def execute(self, statement: str, values: Any = {}) -> Any:  # noqa: B006 (not changed)
            rows = self.connection.execute(statement, values)
            counts.append(sum(isinstance(value, bytes) for row in rows for value in row))
            return rows

    @contextmanager
    def counted() -> Iterator[Any]:
        with reading() as connection:
            yield Counting(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "reading", counted)
        yield counts


SHUFFLED = np.random.default_rng(0).permutation(150_000)
CLUSTERS = (np.arange(150_000) // 40) * 10**7 + np.arange(150_000) % 40


THINNED = np.r_[np.arange(17_600), 10**6 * np.arange(1, 46_001)]


@pytest.mark.parametrize("steps", [np.arange(150_000), SHUFFLED, CLUSTERS, THINNED, np.arange(150_000) % 1_000])
def test_any_window_at_any_width_reads_few_blobs(sqlite_ledger: Ledger, steps: npt.NDArray[np.int64]) -> None:
    ledger = sqlite_ledger
    # Short parts leave the blocks half full.
    for part in np.array_split(steps, 600 if steps is THINNED else 30):
        log(ledger, part)
    last = int(steps.max())
    window_curve(ledger, "a", "loss")
    for columns in (1, 100, 1_000, 4_096, 10**6):
        for first, end in ((0, last), (last // 3, last // 2), (last // 2, last // 2 + 900), (last - 9, last)):
            with counting_blobs(ledger) as counts:
                window = window_curve(ledger, "a", "loss", first_step=first, last_step=end, columns=columns)
            assert sum(counts) <= MAX_BLOBS
            width = window.step_width
            is_inside = (steps // width >= first // width) & (steps // width <= end // width)
            assert total(window) == (is_inside.sum(), 0)


def test_a_run_of_many_attempts_reads_few_blobs(sqlite_ledger: Ledger) -> None:
    ledger = sqlite_ledger
    for attempt in range(1, 151):
        begin(ledger, attempt, 100 * (attempt - 1))
        log(ledger, np.arange(100 * (attempt - 1) + 1, 100 * attempt + 21), attempt=attempt)
    for columns in (2, 1_000, 4_096):
        window_curve(ledger, "a", "loss")
        with counting_blobs(ledger) as counts:
            window = window_curve(ledger, "a", "loss", columns=columns)
        assert sum(counts) <= MAX_BLOBS
        assert total(window) == (15_020, 149 * 20)


def test_levels_follow_points_and_attempts(ledger: Ledger) -> None:
    begin(ledger, 1, 0)
    for part in np.array_split(np.arange(1, 10_001), 7):
        log(ledger, part)
    assert total(window_curve(ledger, "a", "loss", columns=50)) == (10_000, 0)
    begin(ledger, 2, 6_000)
    assert total(window_curve(ledger, "a", "loss", columns=50)) == (6_000, 4_000)
    log(ledger, np.arange(6_001, 9_001), attempt=2)
    assert total(window_curve(ledger, "a", "loss", columns=50)) == (9_000, 4_000)
    begin(ledger, 3, 100)
    log(ledger, np.arange(101, 103), attempt=3)
    assert total(window_curve(ledger, "a", "loss", columns=50)) == (102, 9_900 + 3_000)
    curve = metric_series(ledger, "a", "loss", max_points=20_000)
    assert curve.steps.tolist() == list(range(1, 103))


def test_an_older_ledger_gets_its_levels_when_it_is_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with open_ledger(url) as ledger:
        begin(ledger, 1, 0)
        log(ledger, np.arange(20_000))
        expected = window_curve(ledger, "a", "loss", columns=100)
    with sqlite3.connect(tmp_path / "l.db") as older:
        older.executescript("DROP TABLE metric_levels; DROP TABLE metric_curves; DROP INDEX ix_metric_chunks_series_id")
    with open_ledger(url) as ledger:
        again = window_curve(ledger, "a", "loss", columns=100)
        assert again.etag == expected.etag
        with ledger.reading() as connection:
            assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ix_metric_chunks_series_id'")


def test_a_forgotten_run_leaves_no_levels(ledger: Ledger) -> None:
    log(ledger, np.arange(5_000))
    window_curve(ledger, "a", "loss")
    ledger.forget("a")
    with ledger.reading() as connection:
        for name in ("metric_series", "metric_chunks", *tables.CACHES):
            assert not connection.execute(f"SELECT 1 FROM {name}")


def test_a_reader_sees_each_point_once_while_points_are_folded(ledger: Ledger) -> None:
    """Whatever is folded between its statements."""
    begin(ledger, 1, 0)
    counts: list[int] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            counts.append(total(window_curve(ledger, "a", "loss", columns=64))[0])

    thread = threading.Thread(target=read)
    thread.start()
    for start in range(0, 30_000, 600):
        log(ledger, np.arange(start, start + 600))
    is_over.set()
    thread.join()
    assert all(count % 600 == 0 for count in counts)
    assert counts == sorted(counts)
