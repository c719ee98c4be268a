"""Windows of curves against NumPy over all points, with stored levels that are small enough to be reached."""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.records.run import Attempt, Run
from assay.reporting.views.runs.curve_window import (
    QUANTILES,
    CurveColumns,
    CurveCursor,
    CurveWindow,
    curve_bytes,
    grouped,
    metric_names,
    run_columns,
    window_curve,
)
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.metrics import fold, levels, windows
from assay.store.metrics.fold import append_points
from assay.store.metrics.segment import Points, SegmentHeader
from machine import MACHINE

SMALL = {
    "CHUNK_POINTS": 4,
    "BLOCK_NODES": 4,
    "NODE_POINTS": 2,
    "TOP_NODES": 2,
    "MAX_RAW_CHUNKS": 6,
    "MEAN_RAW_CHUNKS": 1,
}


class Logged(NamedTuple):
    """One call of a rank."""

    attempt: int
    steps: list[int]
    values: list[float]


class Began(NamedTuple):
    """An attempt begins."""

    attempt: int
    start_step: int


Event = Logged | Began
VALUES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 7.0]))
STEPS = st.one_of(st.integers(0, 60), st.integers(-3, 3), st.integers(-(2**40), 2**40))


@st.composite
def histories(draw: st.DrawFn, max_events: int = 8) -> list[Event]:
    """Attempts that begin anywhere, and points in any order: growing, repeated and falling steps."""
    events: list[Event] = [Began(1, 0)]
    for _ in range(draw(st.integers(1, max_events))):
        attempt = max(event.attempt for event in events)
        if draw(st.integers(0, 3)) == 0:
            events.append(Began(attempt + 1, draw(st.integers(0, 60))))
            continue
        if draw(st.booleans()):
            first, stride = draw(st.integers(0, 60)), draw(st.integers(0, 3))
            steps = [first + stride * index for index in range(draw(st.integers(1, 40)))]
        else:
            steps = draw(st.lists(STEPS, min_size=1, max_size=12))
        # Now and then the points of an attempt that was believed dead come late.
        writer = draw(st.sampled_from([attempt, attempt, attempt, 1]))
        pool = draw(st.lists(VALUES, min_size=1, max_size=5))
        events.append(Logged(writer, steps, [pool[index % len(pool)] for index in range(len(steps))]))
    return events


@pytest.fixture(autouse=True, scope="module")
def small_levels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            for module in (fold, levels, windows):
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{tmp_path_factory.mktemp('home')}/ledger.db") as ledger:
        yield ledger


run_ids = map("run-{}".format, itertools.count())
"""A run for each example: a ledger for each would take most of the time."""


def apply(ledger: Ledger, run_id: str, event: Event) -> None:
    if isinstance(event, Began):
        where = {"run_id": run_id, "attempt": event.attempt, "start_step": event.start_step}
        ledger.record_attempt(Attempt.model_validate({"world_size": 1, "started_s": 0.0, **where, **MACHINE}))
        return
    times = np.arange(len(event.steps), dtype=float)
    points = Points(np.array(event.steps, np.int64), times, np.array(event.values, float))
    header = SegmentHeader(run_id, event.attempt, 0, 0.0, 0.0, "host", 1, ())
    with ledger.writing() as connection:
        append_points(connection, run_id, header, {"loss": points})


REWOUND = [
    Began(1, 0),
    Logged(1, list(range(40)), [1.0] * 40),
    Began(2, 10),
    Logged(2, list(range(11, 30)), [2.0] * 19),
    Logged(1, [9, 9, 50], [math.nan, 3.0, math.inf]),
]


RESUMED_LOW = [Began(1, 0), Logged(1, [60, 6, -66, -271, 2], [5.0] * 5), Began(2, 7), Logged(2, [-3968], [7.0])]
OVERWRITTEN = [Began(1, 0), Logged(1, list(range(40)), [1.0] * 40), Logged(1, [39, 39], [5.0, 6.0])]
"""The last points are not in the levels yet, and count more than those of equal steps that are."""


class Raw(NamedTuple):
    """All points, the last one of equal steps behind."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    is_lost: npt.NDArray[np.bool_]


def raw_points(events: list[Event]) -> Raw:
    starts = {event.attempt: event.start_step for event in events if isinstance(event, Began)}
    rows = [
        (step, event.attempt, index, value)
        for index, event in enumerate(events)
        if isinstance(event, Logged)
        for step, value in zip(event.steps, event.values, strict=True)
    ]
    rows.sort(key=lambda row: row[:3])
    lost = [any(step > start for later, start in starts.items() if later > attempt) for step, attempt, _, _ in rows]
    steps, values = [row[0] for row in rows], [row[3] for row in rows]
    return Raw(np.array(steps, np.int64), np.array(values, float), np.array(lost, bool))


def expected_columns(raw: Raw, width: int, first: int | None, last: int | None, *, lost: bool) -> list[list[float]]:
    """Return the rows of `Columns` from the points alone."""
    if not len(raw.steps):
        return []
    first = int(raw.steps.min()) if first is None else first
    last = max(first, int(raw.steps.max()) if last is None else last)
    columns = raw.steps // width
    rows = []
    for column in np.unique(columns):
        values = raw.values[(columns == column) & (raw.is_lost == lost)]
        if first // width <= column <= last // width and len(values):
            finite = values[np.isfinite(values)]
            drawn = [finite.min(), finite.max(), finite[-1]] if len(finite) else [math.nan] * 3
            counts = [len(values), np.isnan(values).sum(), (values == math.inf).sum(), (values == -math.inf).sum()]
            rows.append([float(column * width), *map(float, drawn), *map(float, counts)])
    return rows


def rows_of(columns: CurveColumns) -> list[list[float]]:
    return [list(row) for row in zip(*(field.astype(float).tolist() for field in columns), strict=True)]


def assert_same(found: list[list[float]], expected: list[list[float]]) -> None:
    np.testing.assert_array_equal(np.array(found).reshape(-1, 8), np.array(expected).reshape(-1, 8))


WINDOWS = st.tuples(st.none() | STEPS, st.none() | STEPS, st.integers(1, 40)).filter(
    lambda window: window[0] is None or window[1] is None or window[0] <= window[1]
)


@given(events=histories(), window=WINDOWS)
@settings(deadline=None, max_examples=40)
@example(REWOUND, (None, None, 9))
@example(REWOUND, (None, None, 1))
@example(OVERWRITTEN, (None, None, 9))
@example(RESUMED_LOW, (None, None, 22))
def test_each_column_has_the_extremes_of_the_points_in_it(
    ledger: Ledger, events: list[Event], window: tuple[int | None, int | None, int]
) -> None:
    first, last, columns = window
    run_id = next(run_ids)
    for event in events:
        apply(ledger, run_id, event)
    raw = raw_points(events)
    found = window_curve(ledger, run_id, "loss", first_step=first, last_step=last, columns=columns)
    assert found.num_points == len(raw.steps)
    for stream, lost in ((found.committed, False), (found.lost, True)):
        assert_same(rows_of(stream), expected_columns(raw, found.step_width, first, last, lost=lost))


class CountingConnection:
    """Counts the blobs that a connection returns."""

    def __init__(self, connection: Any) -> None:
        self.connection, self.num_blobs = connection, 0

    def execute(self, statement: str, values: Any = {}) -> list[tuple[Any, ...]]:  # noqa: B006 (not changed)
        rows = self.connection.execute(statement, values)
        self.num_blobs += sum(isinstance(value, bytes) for row in rows for value in row)
        return list(rows)

    def execute_all(self, statement: str, rows: Any) -> None:
        self.connection.execute_all(statement, rows)


@contextmanager
def counting_blobs(ledger: Ledger) -> Iterator[list[CountingConnection]]:
    """Count blobs of each read transaction; the levels must be up to date already."""
    connections: list[CountingConnection] = []
    reading = ledger.reading

    @contextmanager
    def counted() -> Iterator[CountingConnection]:
        with reading() as connection:
            connections.append(CountingConnection(connection))
            yield connections[-1]

    def refused() -> None:
        raise AssertionError("the levels were up to date, but are written")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "reading", counted)
        patch.setattr(ledger, "writing", refused)
        yield connections


class Page:
    """What a browser holds of a curve: it asks with its cursor, and puts the answer into what it has."""

    def __init__(self) -> None:
        self.cursor: CurveCursor | None = None
        self.streams: tuple[dict[float, list[float]], ...] = ({}, {})

    def update(self, fetched: CurveWindow) -> None:
        first = -math.inf if fetched.replaces_from is None else fetched.replaces_from
        for stream, columns in zip(self.streams, (fetched.committed, fetched.lost), strict=True):
            for step in [step for step in stream if step >= first]:
                del stream[step]
            new = {row[0]: row for row in rows_of(columns)}
            assert not new.keys() & stream.keys(), "a column is sent that is not said to be replaced"
            stream.update(new)
        self.cursor = CurveCursor.from_text(fetched.cursor.to_text())


@given(events=histories(), window=WINDOWS)
@settings(deadline=None, max_examples=40)
@example(REWOUND, (None, None, 9))
@example(REWOUND, (0, 8, 9))
def test_a_page_that_asks_for_what_is_new_holds_what_a_new_page_gets(
    ledger: Ledger, events: list[Event], window: tuple[int | None, int | None, int]
) -> None:
    first, last, columns = window
    run_id, page = next(run_ids), Page()
    etag_of: dict[str, str] = {}
    for event in events:
        apply(ledger, run_id, event)
        bounds = {"first_step": first, "last_step": last, "columns": columns}
        page.update(window_curve(ledger, run_id, "loss", since=page.cursor, **bounds))
        whole = window_curve(ledger, run_id, "loss", **bounds)
        for stream, columns_of in zip(page.streams, (whole.committed, whole.lost), strict=True):
            assert_same(sorted(stream.values()), rows_of(columns_of))
        fetched = repr(whole._replace(etag=""))
        assert etag_of.setdefault(fetched, whole.etag) == whole.etag
        assert len(set(etag_of.values())) == len(etag_of), "two answers have one etag"


def test_only_columns_from_the_first_new_point_on_are_sent(ledger: Ledger) -> None:
    run_id = next(run_ids)
    apply(ledger, run_id, Logged(1, list(range(30)), [1.0] * 30))
    before = window_curve(ledger, run_id, "loss", columns=100)
    assert len(window_curve(ledger, run_id, "loss", columns=100, since=before.cursor).committed.steps) == 0
    apply(ledger, run_id, Logged(1, [30, 31], [2.0, 3.0]))
    new = window_curve(ledger, run_id, "loss", columns=100, since=before.cursor)
    assert new.step_width == before.step_width == 2
    assert (new.replaces_from, new.committed.steps.tolist()) == (30, [30])


@given(events=histories(max_events=14), window=WINDOWS)
@settings(deadline=None, max_examples=40)
def test_a_window_reads_few_blobs(
    ledger: Ledger, events: list[Event], window: tuple[int | None, int | None, int]
) -> None:
    first, last, columns = window
    run_id = next(run_ids)
    for event in events:
        apply(ledger, run_id, event)
    bounds = {"first_step": first, "last_step": last, "columns": columns}
    expected = window_curve(ledger, run_id, "loss", **bounds)
    with counting_blobs(ledger) as connections:
        assert window_curve(ledger, run_id, "loss", **bounds).etag == expected.etag
    # Committed and lost nodes in blocks that are at least half full, and the incomplete chunk.
    of_levels = 2 * (max(2, columns) // (SMALL["BLOCK_NODES"] // 2) + 2) + 1
    assert sum(connection.num_blobs for connection in connections) <= max(SMALL["MAX_RAW_CHUNKS"] + 1, of_levels)


@given(runs=st.lists(histories(max_events=4), min_size=1, max_size=6), window=WINDOWS)
@settings(deadline=None, max_examples=40)
def test_a_groups_curve_is_numpys_over_all_runs(
    ledger: Ledger, runs: list[list[Event]], window: tuple[int | None, int | None, int]
) -> None:
    first, last, columns = window
    ids = [next(run_ids) for _ in runs]
    for run_id, events in zip(ids, runs, strict=True):
        for event in events:
            apply(ledger, run_id, event)
    raws = [raw_points(events) for events in runs]
    group = grouped(run_columns(ledger, ids, "loss", first_step=first, last_step=last, columns=columns))
    steps = np.concatenate([raw.steps for raw in raws])
    if not len(steps):
        assert not len(group.steps)
        return
    first = int(steps.min()) if first is None else first
    last = max(first, int(steps.max()) if last is None else last)
    width, expected = group.step_width, []
    by_run = [{row[0]: row for row in expected_columns(raw, width, first, last, lost=False)} for raw in raws]
    for step in sorted(set().union(*by_run)):
        rows = np.array([rows[step] for rows in by_run if step in rows and not math.isnan(rows[step][3])])
        if len(rows):
            lasts = rows[:, 3]
            expected.append(
                [step, len(rows), lasts.mean(), rows[:, 1].min(), rows[:, 2].max(), *np.quantile(lasts, QUANTILES)]
            )
    found = np.vstack([group.steps, group.num_runs, group.mean, group.minimum, group.maximum, group.quantiles]).T
    np.testing.assert_allclose(found, np.array(expected).reshape(-1, 10), rtol=1e-12, atol=1e-9)


def test_runs_share_columns_and_a_run_without_the_metric_is_empty(ledger: Ledger) -> None:
    with_points, without = next(run_ids), next(run_ids)
    apply(ledger, with_points, Logged(1, [1, 2, 9], [5.0, 6.0, 7.0]))
    runs = run_columns(ledger, [without, with_points], "loss", columns=100)
    assert runs.steps.tolist() == [1, 2, 9]
    assert runs.last[1].tolist() == [5.0, 6.0, 7.0] and np.isnan(runs.last[0]).all()


def test_the_bytes_of_a_window_are_columns_of_equal_length(ledger: Ledger) -> None:
    run_id = next(run_ids)
    for event in [Began(1, 0), Logged(1, [1, 2, 3, 4], [1.0, math.nan, 3.0, 4.0]), Began(2, 3)]:
        apply(ledger, run_id, event)
    table = np.frombuffer(curve_bytes(window_curve(ledger, run_id, "loss")), "<f8").reshape(10, -1)
    nan = math.nan
    expected = [
        [1, 2, 3, 4], *[[1, nan, 3, nan]] * 3,
        [0, 1, 0, nan], [0, 0, 0, nan], [0, 0, 0, nan], *[[nan, nan, nan, 4]] * 3,
    ]  # fmt: skip
    np.testing.assert_array_equal(table, expected)


def test_names_come_in_pages(ledger: Ledger) -> None:
    run_id = next(run_ids)
    for attempt in (1, 2):
        header = SegmentHeader(run_id, attempt, 0, 0.0, 0.0, "host", 1, ())
        points = Points(np.array([attempt]), np.zeros(1), np.zeros(1))
        with ledger.writing() as connection:
            names = [f"layer/{index:03d}" for index in range(50)] + ["Loss%_", "é" * 300]
            append_points(connection, run_id, header, dict.fromkeys(names, points))
        apply(ledger, run_id, Began(attempt, 0))
    page = metric_names(ledger, run_id, prefix="layer/", offset=40, limit=20)
    assert page.num_names == 50 and page.names == tuple(f"layer/{index:03d}" for index in range(40, 50))
    assert metric_names(ledger, run_id).num_names == 52
    assert metric_names(ledger, run_id, prefix="Loss%").names == ("Loss%_",)
    assert metric_names(ledger, run_id, prefix="none").names == metric_names(ledger, "no run").names == ()


def run_in(folder: Path, run_id: str) -> Run:
    return Run(
        run_id=run_id, created_s=1.0, recipe={}, recipe_sha256="r", dataset_fingerprint="d", code_version="0",
        run_dir=str(folder / run_id), store_url="unused", num_steps=10,
    )  # fmt: skip


@pytest.mark.parametrize(("columns", "first", "last"), [(0, None, None), (9, 5, 4)])
def test_a_window_that_makes_no_sense_is_refused(
    ledger: Ledger, columns: int, first: int | None, last: int | None
) -> None:
    with pytest.raises(ConfigError):
        window_curve(ledger, "a", "loss", columns=columns, first_step=first, last_step=last)
    with pytest.raises(ConfigError, match="expected the cursor"):
        CurveCursor.from_text("8-x")


def test_any_step_may_be_asked_for(ledger: Ledger) -> None:
    run_id = next(run_ids)
    apply(ledger, run_id, Logged(1, [1], [5.0]))
    assert window_curve(ledger, run_id, "loss", first_step=-(10**30), last_step=10**30).committed.last.tolist() == [5.0]
