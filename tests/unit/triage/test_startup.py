"""Where the time before the first step goes: each second in one span, from moments that are known."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from assay.records.launch import Launch
from assay.records.run import Attempt
from assay.store.metrics.segment import SegmentData, SegmentWriter, read_beginning
from assay.triage.startup import FirstStep, grown, start_of
from machine import MACHINE

EPOCH_S = 1_000_000.0


class SetClock:
    """At the second that it is told; the monotonic clock began 900,000 seconds after the epoch."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return EPOCH_S + self.at_s

    def monotonic_s(self) -> float:
        return 100_000.0 + self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds


def segment(
    path: Path,
    *,
    rank: int = 0,
    opened: float = 3.0,
    imports: tuple[float, float] | None = None,
    parts: dict[str, float] | None = None,
    evaluated: tuple[float, float] | None = None,
    first_step: float | None = 10.0,
) -> SegmentData:
    """What a rank wrote down, by the seconds at which it did; `parts` by their ends."""
    clock = SetClock()
    clock.at_s = opened
    writer = SegmentWriter(path, run_id="run", attempt=1, rank=rank, clock=clock)
    writer.phase("startup")
    if imports is not None:
        writer.span("imports", *(100_000.0 + moment for moment in imports))
    began = opened
    for name, ended in (parts or {}).items():
        writer.span(name, 100_000.0 + began, 100_000.0 + ended)
        began = ended
    for name, at_s in zip(("evaluation", "data"), evaluated or (), strict=False):
        clock.at_s = at_s
        writer.phase(name)
    if first_step is not None:
        clock.at_s = first_step
        writer.log(1, {"loss": 1.0})
        clock.at_s = first_step + 1
        writer.log(2, {"loss": 1.0})
    writer.close()
    return read_beginning(path)


def attempt(number: int = 1, *, started: float) -> Attempt:
    return Attempt(run_id="run", attempt=number, world_size=2, start_step=0, started_s=EPOCH_S + started, **MACHINE)


def launch(started: float, requested_s: float | None = None) -> Launch:
    return Launch(
        run_id="run", number=1, launcher="here", job="1", host="n1", started_by="me", started_s=EPOCH_S + started,
        requested_s=None if requested_s is None else EPOCH_S + requested_s, world_size=2, log="",
    )  # fmt: skip


PARTS = {"rendezvous": 4.0, "dataset": 4.5, "model": 6.0, "restore": 6.25}


def test_every_second_of_a_first_attempt_is_in_one_span(tmp_path: Path) -> None:
    quick = segment(tmp_path / "0.seg", imports=(0.5, 2.75), parts=PARTS, first_step=9.0)
    slow = segment(tmp_path / "1.seg", rank=1, opened=3.0, imports=(0.5, 2.75), parts=PARTS, evaluated=(6.5, 8.5))
    start = start_of(attempt(started=1.0), None, launch(0.25, requested_s=-1.0), [quick, slow])
    assert start is not None
    assert (start.rank, start.total_s, start.unaccounted_s) == (1, 11.0, 0.0)
    assert start.spans == {
        "command": 1.25, "launch": 0.75, "imports": 1.75, "process": 0.25, "rendezvous": 1.0, "dataset": 0.5,
        "model": 1.5, "restore": 0.25, "evaluation": 2.0, "first_step": 1.75,
    }  # fmt: skip


def test_a_restart_counts_from_the_death_before_it_and_a_launch_by_hand_from_itself(tmp_path: Path) -> None:
    read = [segment(tmp_path / "0.seg", opened=3.0, imports=(-50.0, -47.0), parts=PARTS)]
    again = start_of(attempt(2, started=2.5), EPOCH_S + 2.0, launch(-60.0, requested_s=-61.0), read)
    assert again is not None and again.total_s == 8.0
    assert again.spans["restart"] == again.spans["process"] == 0.5
    assert not again.spans.keys() & {"command", "launch", "imports"}, "the server had imported all, long before"
    expected = start_of(attempt(2, started=2.5), EPOCH_S - 40_000, launch(2.0, requested_s=1.5), read)
    assert expected is not None and expected.total_s == 8.5
    assert "restart" not in expected.spans, "a night between them is no startup"


def test_what_nobody_wrote_down_is_in_no_span(tmp_path: Path) -> None:
    older = start_of(attempt(started=1.0), None, launch(0.5), [segment(tmp_path / "0.seg")])
    assert older is not None
    assert older.spans == {"launch": 0.5, "process": 2.0} and older.unaccounted_s == 7.0
    assert start_of(attempt(started=1.0), None, None, [segment(tmp_path / "1.seg", first_step=None)]) is None
    assert start_of(attempt(started=1.0), None, None, []) is None


@given(st.lists(st.floats(0.0, 50.0), min_size=9, max_size=9), st.floats(-5.0, 60.0))
def test_spans_never_come_to_more_than_the_whole(
    tmp_path_factory: pytest.TempPathFactory, moments: list[float], first_step: float
) -> None:
    """Whatever clocks say: of different hosts they may disagree."""
    requested_s, started, began, opened, *rest = moments
    parts = dict(zip(PARTS, sorted(rest[:4]), strict=True))
    path = tmp_path_factory.mktemp("segment") / "0.seg"
    read = segment(path, opened=opened, imports=(rest[4], rest[4] + 1.0), parts=parts, first_step=first_step)
    start = start_of(attempt(started=began), None, launch(started, requested_s=requested_s), [read])
    assert start is not None and all(seconds > 0.0 for seconds in start.spans.values())
    assert sum(start.spans.values()) + start.unaccounted_s == pytest.approx(start.total_s)


def starts(imports: list[float], model: list[float]) -> list[FirstStep]:
    return [
        FirstStep("run", 1, 0, 10.0, {"imports": one, "model": two}) for one, two in zip(imports, model, strict=True)
    ]


def test_what_grew_is_named_with_welchs_interval() -> None:
    before = starts([2.0, 2.1, 1.9, 2.05], [1.0, 1.1, 0.9, 1.0])
    after = starts([5.1, 5.0, 4.9], [1.02, 0.95, 1.1])
    (found,) = grown(after, before)
    reference = ttest_ind([5.1, 5.0, 4.9], [2.0, 2.1, 1.9, 2.05], equal_var=False).confidence_interval(0.95)
    assert found.span == "imports" and found.seconds == pytest.approx(2.9875)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert grown(before, before) == []
    single = grown(after[:1], before)
    assert [(span.span, span.low) for span in single] == [("imports", None)]
    assert np.isclose(single[0].seconds, 5.1 - 2.0125)
    assert {span.span for span in grown(before, after)} == {"unaccounted"}, "the whole is as long, the parts less"
