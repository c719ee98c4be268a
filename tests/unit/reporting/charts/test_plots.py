"""Drawings: right at their edges, whatever the numbers."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.records.evaluation import Estimate
from assay.reporting.charts.evidence_plots import HIDDEN, ForestRow, forest_plot, forest_rows, unique_short_names
from assay.reporting.charts.plots import LineChart, StackedBars, bucketed, phase_totals
from assay.reporting.charts.svg import Scale, decades, domain, tag, text, ticks
from assay.reporting.charts.timeline_plot import timeline_plot
from assay.reporting.views.runs.series import Series

NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def found(svg: str, class_: str) -> list[ElementTree.Element]:
    return [element for element in parsed(svg).iter() if class_ in (element.get("class") or "").split()]


@settings(max_examples=100, deadline=None)
@example([0.0, 5e-324], 360)
@given(st.lists(NUMBERS, max_size=300), st.sampled_from([360, 500, 1036]))
def test_any_series_makes_a_drawing_without_a_number_that_is_none(values, width):
    series = Series("loss", list(range(len(values))), values)
    svg = LineChart([series], "loss", "loss").svg(width)
    parsed(svg)
    assert "nan" not in svg
    assert "inf" not in svg


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500))
def test_thinning_keeps_the_extremes_and_the_order(values):
    thinned = bucketed(range(len(values)), values, buckets=20)
    assert min(thinned.lows) == min(values)
    assert max(thinned.highs) == max(values)
    assert thinned.steps == sorted(thinned.steps)


@settings(max_examples=100, deadline=None)
@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e9), st.integers(2, 10))
def test_ticks_are_inside_and_evenly_apart(low, length, target):
    positions = ticks(low, low + length, target)
    gaps = np.diff(positions)
    assert all(low - 1e-6 * length <= position <= low + length * (1 + 1e-6) for position in positions)
    assert len(positions) <= target + 1
    assert np.allclose(gaps, gaps[:1] if gaps.size else 0, rtol=1e-3, atol=1e-6)


def test_a_scale_puts_its_ends_where_they_belong():
    scale = Scale(10, 20, 300, 50)
    assert [scale(10), scale(15), scale(20)] == [300, 175, 50]


def test_a_constant_metric_still_has_a_range():
    assert domain([0.5, 0.5]) == (0.0, 1.5)


def test_text_is_escaped():
    assert "<script>" not in text("<script>", 0, 0)
    assert tag("rect", x=1.25, class_="a", text_anchor=None) == '<rect x="1.2" class="a"/>'


def test_the_life_of_a_killed_run_shows_its_death_and_what_was_lost(run_page):
    run = run_page.view
    svg = timeline_plot(run.attempts, run.commits, width=1036, label="life")
    assert len(found(svg, "dot")) == len(run.commits)
    assert [len(found(svg, class_)) for class_ in ("bad", "good", "fall", "began")] == [1, 1, 1, 2]
    assert "28 steps after the last commit were lost" in svg


def test_the_parts_of_a_phase_bar_are_as_long_as_their_share(run_page):
    svg = StackedBars(phase_totals(run_page.view), "phases").svg(1036)
    bars = found(svg, "compute")
    attempts = sum(float(bar.get("width")) + 1 for bar in bars[1:])
    assert float(bars[0].get("width")) + 1 == pytest.approx(attempts, abs=0.5)


def test_lost_points_are_drawn_apart_from_the_line():
    series = Series("loss", [1, 2, 3, 3, 4], [5.0, 4.0, 9.0, 3.0, 2.0], [False, False, True, False, False])
    svg = LineChart([series], "loss", "loss").svg(360)
    assert len(found(svg, "lost-point")) == 1


def test_equal_curves_are_both_seen():
    series = Series("a", list(range(20)), [float(value) for value in range(20)])
    svg = LineChart([series, series], "loss", "loss", has_baseline=True).svg(360)
    assert [len(found(svg, name)) for name in ("under", "s2")] == [1, 2]


def test_a_long_column_is_cut_but_its_notable_values_stay():
    entries = [
        ("language", ForestRow(f"l{k}", Estimate(value=0.5) if k < 16 else None, "9 rows", k == 15)) for k in range(20)
    ]
    rows = forest_rows(entries)
    names = ["language", *(f"l{k}" for k in range(8)), "l15"]
    assert [row.name for row in rows] == [*names, "4 with too few rows to rank", "7 more, in the table"]
    assert {row.note for row in rows[-2:]} == {HIDDEN}


@pytest.mark.parametrize("width", [360, 1036])
def test_a_forest_without_any_estimate_is_still_a_drawing(width):
    rows = [ForestRow("rare", None, "3 rows")]
    svg = forest_plot(rows, width=width, label="forest", reference=None, x_label="AUC")
    assert "too few rows to rank" in svg


def test_a_loss_that_spans_decades_is_drawn_on_a_logarithmic_axis_and_one_that_does_not_is_not():
    wild, tame = np.geomspace(0.69, 3000.0, 50).tolist(), np.linspace(0.69, 0.3, 50).tolist()
    drawn = [LineChart([Series("loss", list(range(50)), values)], "loss", "loss").svg(1036) for values in (wild, tame)]
    assert ["logarithmic" in svg for svg in drawn] == [True, False]
    numbers = [element.text for element in found(drawn[0], "tick")]
    assert {"1", "10", "100", "1,000"} <= set(numbers)


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-200, 1e190), st.floats(100.0, 1e9), st.integers(2, 10))
def test_marks_of_a_logarithmic_axis_are_few_and_inside(low, ratio, target):
    marks = decades(low, low * ratio, target)
    assert all(low * (1 - 1e-6) <= mark <= low * ratio * (1 + 1e-6) for mark in marks)
    assert 1 <= len(marks) <= 3 * target + 3


@pytest.mark.parametrize("longest", [17, 36])
def test_no_two_names_of_a_forest_are_shortened_to_one(longest):
    names = [f"docstrings-of-the-packages-1122-1517{n:02}-{tail}" for n in range(3) for tail in ("3786", "d7ef")]
    shown = unique_short_names([*names, "short"], longest)
    assert len(set(shown.values())) == 7 and shown["short"] == "short"
    assert all(len(item) <= longest for item in shown.values())
    assert unique_short_names(["a" * 50], 17) == {"a" * 50: "a" * 16 + "…"}
    rows = [ForestRow(name, Estimate(value=0.1, low=0.0, high=0.2), "pass") for name in names]
    svg = forest_plot(rows, width=400, label="forest", reference=0.0, x_label="AUC")
    assert all(unique_short_names(names, 17)[name] in svg for name in names)
