import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.records.run import Attempt, Run
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.metrics.curves import (
    events,
    last_sign_of_life_s,
    metric_series,
    metric_summaries,
)
from assay.store.metrics.fold import fold_run
from assay.store.metrics.segment import SegmentWriter, segment_path
from failing_ledger import Strike
from failing_ledger import strike as strike
from ledger_rows import all_rows, drop_tables
from machine import MACHINE


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/l.db" if is_sqlite else request.getfixturevalue("postgres_url")
    with open_ledger(url) as ledger:
        yield ledger
    if not is_sqlite:
        drop_tables(url)


def run_in(folder: Path, run_id: str = "a") -> Run:
    return Run(
        run_id=run_id,
        created_s=1.0,
        recipe={},
        recipe_sha256="r",
        dataset_fingerprint="d",
        code_version="0",
        run_dir=str(folder / run_id),
        store_url="unused",
        num_steps=10,
    )


def writer_of(run: Run, attempt: int = 1, rank: int = 0) -> SegmentWriter:
    path = segment_path(Path(run.run_dir), attempt, rank)
    return SegmentWriter(path, run_id=run.run_id, attempt=attempt, rank=rank)


def logged(run: Run, steps: range, *, attempt: int = 1, scale: float = 1.0) -> None:
    writer = writer_of(run, attempt)
    for step in steps:
        writer.log(step, {"loss": scale * step})
    writer.close()


def test_points_are_read_while_the_segment_is_written(ledger: Ledger, tmp_path: Path) -> None:
    run, folded = run_in(tmp_path), 0
    writer = writer_of(run)
    for step in range(2_500):
        writer.log(step, {"loss": step / 2})
        if step % 700 == 0:
            folded += fold_run(ledger, run)
            assert metric_series(ledger, "a", "loss").steps[-1] == step
    folded += fold_run(ledger, run)
    assert folded == 2_500
    curve = metric_series(ledger, "a", "loss", max_points=10_000)
    np.testing.assert_array_equal(curve.steps, np.arange(2_500))
    np.testing.assert_array_equal(curve.values, np.arange(2_500) / 2)
    assert np.all(np.diff(curve.at_s) >= 0)


def test_folding_again_adds_nothing_and_folding_anew_gives_the_same(ledger: Ledger, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    logged(run, range(3_000))
    assert fold_run(ledger, run) == 3_000
    before = metric_series(ledger, "a", "loss", max_points=5_000)
    assert fold_run(ledger, run) == 0
    with open_ledger(f"sqlite:///{tmp_path}/anew.db") as anew:
        assert fold_run(anew, run) == 3_000
        for old, new in zip(before, metric_series(anew, "a", "loss", max_points=5_000), strict=True):
            np.testing.assert_array_equal(old, new)


def test_folding_whose_statements_come_in_twice_leaves_what_it_leaves_once(
    ledger: Ledger, tmp_path: Path, strike: Strike
) -> None:
    run = run_in(tmp_path)
    writer = writer_of(run)
    with open_ledger(f"sqlite:///{tmp_path}/once.db") as once:
        troubles = strike(dict.fromkeys(range(10), "twice"))
        for step in range(2_100):
            writer.log(step, {"loss": step / 2})
            if step in (1_500, 2_099):
                fold_run(ledger, run)
        troubles.end()
        fold_run(once, run)
        assert all_rows(ledger) == all_rows(once)


def test_a_later_attempt_shadows_what_was_rolled_back_and_keeps_it_as_lost(ledger: Ledger, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    logged(run, range(1, 51))
    logged(run, range(31, 61), attempt=2, scale=-1)
    logged(run, range(21, 41), attempt=3, scale=100)
    fold_run(ledger, run)
    curve = metric_series(ledger, "a", "loss")
    np.testing.assert_array_equal(curve.steps, np.arange(1, 41))
    np.testing.assert_array_equal(curve.values, np.r_[np.arange(1, 21), np.arange(21, 41) * 100])
    lost = metric_series(ledger, "a", "loss", lost=True)
    np.testing.assert_array_equal(np.sort(lost.values), np.sort(np.r_[np.arange(21, 51), -np.arange(31, 61)]))


def test_an_attempt_that_only_began_shadows_already(ledger: Ledger, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    logged(run, range(1, 51))
    fold_run(ledger, run)
    ledger.record_attempt(Attempt(run_id="a", attempt=2, world_size=1, start_step=10, started_s=0.0, **MACHINE))
    assert metric_series(ledger, "a", "loss").steps[-1] == 10


def test_a_range_is_read_in_full_detail(ledger: Ledger, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    logged(run, range(20_000))
    fold_run(ledger, run)
    curve = metric_series(ledger, "a", "loss", x0=5_000, x1=5_100)
    np.testing.assert_array_equal(curve.steps, np.arange(5_000, 5_101))


def test_a_spike_shows_however_few_points_are_asked_for(ledger: Ledger, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    writer = writer_of(run)
    for step in range(5_000):
        writer.log(step, {"loss": 1e6 if step == 3_333 else 1.0})
    writer.close()
    fold_run(ledger, run)
    for max_points in (10, 100, 1_000, 2_000):
        curve = metric_series(ledger, "a", "loss", max_points=max_points)
        assert curve.values.max() == 1e6 and len(curve.steps) <= max_points


def test_summaries_and_events_tell_what_was_logged(ledger: Ledger, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    writer = writer_of(run)
    writer.event("began\x00 anew")
    for step, loss in enumerate((3.0, float("nan"), 1.0, 2.0), start=1):
        writer.log(step, {"loss": loss})
        fold_run(ledger, run)
    writer.event("done")
    writer.log(5, {"odd": float("nan")})
    fold_run(ledger, run)
    of_loss, outliers = metric_summaries(ledger, "a")
    assert (of_loss.minimum, of_loss.maximum, of_loss.last_value, of_loss.last_step) == (1.0, 3.0, 2.0, 4)
    assert (of_loss.num_points, of_loss.num_nan) == (4, 1)
    assert (outliers.last_value, outliers.minimum) == (None, None)
    assert [event.text for event in events(ledger, "a")] == ["began� anew", "done"]
    assert last_sign_of_life_s(ledger, "a") is not None


def test_ranks_have_curves_of_their_own(ledger: Ledger, tmp_path: Path) -> None:
    run = run_in(tmp_path)
    for rank in (0, 1):
        writer = writer_of(run, rank=rank)
        writer.log(1, {"loss": float(rank)})
        writer.close()
    fold_run(ledger, run)
    assert [metric_series(ledger, "a", "loss", rank=rank).values.tolist() for rank in (0, 1, 2)] == [
        [0],
        [1],
        [],
    ]


def test_two_folders_at_once_fold_each_point_once(ledger: Ledger, tmp_path: Path) -> None:
    run, counts = run_in(tmp_path), []
    writer = writer_of(run)
    stop = threading.Event()

    def fold() -> None:
        while not stop.is_set():
            counts.append(fold_run(ledger, run))

    threads = [threading.Thread(target=fold) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(4_000):
        writer.log(step, {"loss": float(step)})
    stop.set()
    for thread in threads:
        thread.join()
    counts.append(fold_run(ledger, run))
    assert sum(counts) == 4_000
    np.testing.assert_array_equal(metric_series(ledger, "a", "loss", max_points=5_000).values, np.arange(4_000))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attempts=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 80)), min_size=1, max_size=5),
    cuts=st.lists(st.floats(0, 1), max_size=4),
)
def test_the_curve_of_any_attempts_is_what_the_survivors_measured(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[int, int]], cuts: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    run = run_in(folder)
    survivors: dict[int, float] = {}
    with open_ledger(f"sqlite:///{folder}/l.db") as ledger:
        for number, (start, num_steps) in enumerate(attempts, start=1):
            ledger.record_attempt(
                Attempt(run_id="a", attempt=number, world_size=1, start_step=start, started_s=0.0, **MACHINE)
            )
            survivors = {step: value for step, value in survivors.items() if step <= start}
            steps = range(start + 1, start + num_steps + 1)
            logged(run, steps, attempt=number, scale=float(number))
            survivors |= {step: number * float(step) for step in steps}
            # Fold it as if the ranks had written it bit by bit.
            path = segment_path(Path(run.run_dir), number, 0)
            whole = path.read_bytes()
            for cut in sorted(cuts):
                path.write_bytes(whole[: int(cut * len(whole))])
                fold_run(ledger, run)
            path.write_bytes(whole)
        fold_run(ledger, run)
        curve = metric_series(ledger, "a", "loss")
    assert dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True)) == survivors
    assert curve.steps.tolist() == sorted(survivors)
