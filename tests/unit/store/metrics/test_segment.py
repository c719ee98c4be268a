import errno
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import DamagedDataError, StoreError
from assay.store.metrics.segment import (
    Position,
    SegmentData,
    SegmentWriter,
    TimedSpan,
    read_segment,
    segment_path,
)


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now_s(self) -> float:
        return 1_000_000.0 + self.seconds

    def monotonic_s(self) -> float:
        self.seconds += 1.0
        return self.seconds

    def sleep_s(self, seconds: float) -> None:
        self.seconds += seconds


def opened(path: Path) -> SegmentWriter:
    return SegmentWriter(path, run_id="run", attempt=2, rank=3, clock=FakeClock())


def written(path: Path) -> bytes:
    writer = opened(path)
    writer.phase("data")
    for step in range(1, 4):
        writer.log(step, {"loss": 1.0 / step, "läuft": float(step)})
        writer.phase("compute")
    writer.event("évent ✓")
    writer.span("rendezvous", 104.5, 106.25)
    writer.log(4, {"loss": float("nan")})
    writer.log(5, {})
    writer.close()
    return path.read_bytes()


def flat(*reads: SegmentData) -> list[object]:
    """All that several consecutive reads found, as one comparable list."""
    points = [(name, *point) for r in reads for name, some in r.metrics.items() for point in zip(*some, strict=True)]
    found: list[object] = sorted(points, key=lambda point: (point[0], point[2]))
    found += [step for r in reads for step in r.step_ends.steps.tolist()]
    found += [change for r in reads for change in zip(*r.phase_changes, strict=True)]
    found += [event for r in reads for event in (*r.events, *r.spans)]
    return [str(part) for part in found]  # text, so that nan equals nan


def test_what_was_logged_is_read_in_order(tmp_path: Path) -> None:
    written(tmp_path / "a.seg")
    data = read_segment(tmp_path / "a.seg")
    assert data.header is not None and (data.header.run_id, data.header.attempt, data.header.rank) == (
        "run",
        2,
        3,
    )
    assert data.metrics["loss"].steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(data.metrics["loss"].values, [1.0, 1 / 2, 1 / 3, np.nan])
    assert data.metrics["läuft"].values.tolist() == [1.0, 2.0, 3.0]
    assert data.step_ends.steps.tolist() == [1, 2, 3, 4, 5]
    assert data.phase_changes.phases == ("data", "compute", "compute", "compute")
    assert data.events[0].text == "évent ✓"
    assert data.spans == (TimedSpan("rendezvous", 104.5, 106.25),)
    assert np.all(np.diff(data.step_ends.at_s) > 0)


def test_a_segment_cut_at_any_byte_gives_its_whole_frames_and_the_rest_when_completed(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.seg")
    expected = flat(read_segment(tmp_path / "a.seg"))
    cut = tmp_path / "cut.seg"
    for num_bytes in range(len(whole) + 1):
        cut.write_bytes(whole[:num_bytes])
        first = read_segment(cut)
        cut.write_bytes(whole)
        rest = read_segment(cut, Position.from_json(first.next.to_json()))
        assert first.corrupt_bytes == 0
        assert flat(first, rest) == expected, num_bytes
        assert rest.next.offset == len(whole)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), garbage=st.binary(min_size=1, max_size=200))
def test_garbage_behind_the_last_whole_frame_is_ignored_until_it_is_overwritten(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    path = tmp_path_factory.mktemp("segment") / "a.seg"
    whole = written(path)
    expected = flat(read_segment(path))
    path.write_bytes(whole[: cut % len(whole)] + garbage)
    first = read_segment(path)
    path.write_bytes(whole)
    assert flat(first, read_segment(path, first.next)) == expected


def test_a_flipped_byte_costs_one_frame_and_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    whole = bytearray(written(path))
    location = whole.index(struct.pack("<d", 0.5))
    whole[location] ^= 1
    path.write_bytes(whole)
    data = read_segment(path)
    assert data.metrics["loss"].steps.tolist() == [1, 3, 4]
    assert data.corrupt_bytes == 48
    assert data.next.offset == len(whole)


def test_reopening_drops_the_torn_tail_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    whole = written(path)
    path.write_bytes(whole[:-3])
    again = opened(path)
    again.log(9, {"other": 9.0})
    again.log(10, {"loss": 0.1})
    again.close()
    data = read_segment(path)
    assert data.metrics["loss"].steps.tolist() == [1, 2, 3, 4, 10]
    assert data.metrics["other"].values.tolist() == [9.0]
    assert data.corrupt_bytes == 0


@settings(max_examples=50, deadline=None)
@given(
    calls=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=False), max_size=3),
        min_size=1,
        max_size=30,
    )
)
def test_any_mix_of_metrics_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, calls: list[dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("segment") / "a.seg"
    writer = opened(path)
    for step, values in enumerate(calls):
        writer.log(step, values)
    writer.close()
    metrics = read_segment(path).metrics
    for name in "abc":
        expected = [(step, values[name]) for step, values in enumerate(calls) if name in values]
        points = metrics.get(name)
        assert (list(zip(points.steps, points.values, strict=True)) if points else []) == expected


def test_a_full_disk_is_one_clear_error_and_leaves_whole_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path / "a.seg")
    writer.log(1, {"loss": 1.0})
    real_write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 5:
            return real_write(fd, data[:-5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=r"a\.seg.*No space left.*free some space"):
        writer.log(2, {"loss": 2.0})
    monkeypatch.setattr(os, "write", real_write)
    writer.log(3, {"loss": 3.0})
    data = read_segment(tmp_path / "a.seg")
    assert data.metrics["loss"].steps.tolist() == [1, 3]
    assert data.corrupt_bytes == 0


def test_a_segment_that_shrank_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    whole = written(path)
    position = read_segment(path).next
    path.write_bytes(whole[:100])
    with pytest.raises(DamagedDataError, match="A segment only grows"):
        read_segment(path, position)


def test_a_missing_segment_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        read_segment(segment_path(tmp_path, 1, 0))


def test_a_metric_that_is_no_number_names_its_type(tmp_path: Path) -> None:
    writer = opened(tmp_path / "a.seg")
    with pytest.raises(TypeError, match="'loss': 'str'"):
        writer.log(1, {"loss": "low"})  # type: ignore[dict-item]


def test_what_a_call_returned_from_survives_sigkill(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from assay.store.metrics.segment import SegmentWriter\n"
        "writer = SegmentWriter(Path(sys.argv[1]), run_id='run', attempt=1, rank=0)\n"
        "for step in range(1, 10**9):\n"
        "    writer.log(step, {'loss': float(step)}); print(step, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.seg")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = "".join(process.stdout.readline() for _ in range(500))
        process.kill()
        acknowledged = (printed + process.stdout.read()).count("\n")
    steps = read_segment(tmp_path / "a.seg").metrics["loss"].steps
    assert steps.tolist() == list(range(1, len(steps) + 1))
    assert len(steps) >= acknowledged >= 500


def test_a_million_points_are_logged_and_read_within_the_budget(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "a.seg", run_id="run", attempt=1, rank=0)
    values = {f"metric_{index}": float(index) for index in range(10)}
    began_s = time.process_time()
    for step in range(100_000):
        writer.log(step, values)
    logged_s = time.process_time() - began_s
    began_s = time.process_time()
    data = read_segment(tmp_path / "a.seg")
    read_s = time.process_time() - began_s
    writer.close()
    assert sum(len(points.steps) for points in data.metrics.values()) == 1_000_000
    # Usually 1.5 µs a call and 0.1 s; CPU time of a loaded machine needs the slack.
    assert logged_s / 100_000 < 15e-6
    assert read_s < 0.5


@pytest.mark.parametrize("num_alike", [15, 16, 17, 18, 1_040, 1_041, 5_000, 20_000])
@pytest.mark.parametrize("cut_bytes", [0, 1, 40])
def test_many_frames_of_one_size_are_read_as_one_by_one(tmp_path: Path, num_alike: int, cut_bytes: int) -> None:
    path = tmp_path / "a.seg"
    writer = SegmentWriter(path, run_id="r", attempt=1, rank=0)
    for step in range(num_alike):
        writer.log(step, {"loss": float(step)})
    writer.phase("compute")
    for step in range(num_alike, num_alike + 20):
        writer.log(step, {"loss": float(step), "rate": -float(step)})
    writer.close()
    os.truncate(path, path.stat().st_size - cut_bytes)
    data = read_segment(path)
    steps = np.arange(num_alike + 20 - (cut_bytes > 0))
    np.testing.assert_array_equal(data.metrics["loss"].steps, steps)
    np.testing.assert_array_equal(data.metrics["loss"].values, steps)
    np.testing.assert_array_equal(data.metrics["rate"].values, -steps[num_alike:])
    assert data.phase_changes.phases == ("compute",)
    assert data.corrupt_bytes == 0


def test_a_damaged_frame_among_many_of_one_size_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    writer = SegmentWriter(path, run_id="r", attempt=1, rank=0)
    for step in range(20_000):
        writer.log(step, {"loss": float(step)})
    writer.close()
    content = bytearray(path.read_bytes())
    content[-40 * 2_000 + 20] ^= 1
    path.write_bytes(content)
    data = read_segment(path)
    np.testing.assert_array_equal(data.metrics["loss"].values, np.delete(np.arange(20_000), 18_000))
    assert data.corrupt_bytes == 40
