"""The figures of a run's page: timeline, learning curves, model quality."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of, percent_text, tenths_text
from assay.records.evaluation import (
    AnyEvaluation,
    ClassifierEvaluation,
    ClassifierMetrics,
    Estimate,
    Metric,
    ScoreEvaluation,
    ScoreMetrics,
    ScoreSlice,
    SliceMetrics,
    metric_title,
)
from assay.records.goodput import USEFUL
from assay.reporting.charts.evidence_plots import (
    ForestRow,
    calibration_plot,
    forest_plot,
    forest_rows,
    is_worse,
    roc_plot,
    score_plot,
)
from assay.reporting.charts.label_plots import confusion_figure, fit_figure
from assay.reporting.charts.plots import PHASES, LineChart, StackedBars, bucketed, phase_totals
from assay.reporting.charts.timeline_plot import timeline_plot
from assay.reporting.document import Drawing, Figure, Size, Table, figure, legend_of, number
from assay.reporting.views.run import RunView
from assay.reporting.views.run_page import RunPage
from assay.reporting.views.series import RunSeries, Series
from assay.reporting.views.verdict import device_hours_text, estimate_text
from assay.statistics.classifier.curves import RocCurve, ScoreHistogram

TABLE_ROWS = 25
"""Rows in the table of a series."""


_OF_METHODS = (
    (
        "Rewards",
        ("chosen_reward", "rejected_reward"),
        "reward",
        "Of what was chosen and of what was rejected, against the reference. Where the chosen one's is below "
        "zero, what was chosen has become less likely, too: displacement, which a growing margin hides.",
    ),
    ("Margin", ("margin",), "reward", "By how much what was chosen is ahead of what was rejected."),
    ("Accuracy in training", ("accuracy",), "share", "On the rows of each step, before it learned them."),
    (
        "Mean reward",
        ("mean_reward",),
        "reward",
        "Of both sides of the pairs; it may drift where nothing centres it.",
    ),
    (
        "Entropy",
        ("entropy",),
        "nats a token",
        "Of what might have stood there. Near nothing, it says one thing only.",
    ),
    ("Token accuracy", ("token_accuracy",), "share", "Of the trained tokens, those that it held likeliest."),
)
"""Title, series, unit and caption of the metrics that methods log."""


def life_figures(run: RunView) -> Iterator[Figure]:
    """Yield the run over time, and its device time by phase."""
    if run.attempts:
        yield _life(run)
    if run.held_s():
        yield _phases(run)


def learning_figures(curves: RunSeries) -> Iterator[Figure]:
    """Yield metrics over steps."""
    if curves.loss is not None:
        lost = any(curves.loss.is_lost)
        yield series_figure(
            [curves.loss],
            title="Training loss",
            caption="The line is the mean; the band spans the minimum to the maximum. "
            "No jump at the end of an attempt means that resuming changed nothing."
            + (" Small dots are steps that were rolled back and repeated." if lost else ""),
            y_label="loss",
        )
    size: Size = "half" if curves.throughput and curves.validation else "full"
    if curves.throughput is not None:
        yield series_figure(
            [curves.throughput],
            title="Throughput",
            caption="Over all ranks. A flat line is good; look for the cause of a drop at its step.",
            y_label="tokens per second",
            zero_based=True,
            size=size,
        )
    if curves.validation is not None:
        yield series_figure(
            [curves.validation],
            title=f"{curves.validation.name.replace('_', ' ').capitalize()} during training",
            caption="One dot per evaluation. After a plateau, more steps do not help.",
            y_label=metric_title(curves.validation.name.removeprefix("validation_")),
            dots=True,
            size=size,
        )
    size = "half" if curves.gradient_norm and curves.learning_rate else "full"
    if curves.gradient_norm is not None:
        yield series_figure(
            [curves.gradient_norm],
            title="Gradient norm",
            caption="Before clipping. A steady rise often precedes divergence.",
            y_label="norm",
            size=size,
        )
    if curves.learning_rate is not None:
        yield series_figure(
            [curves.learning_rate],
            title="Learning rate",
            caption="As scheduled.",
            y_label="learning rate",
            zero_based=True,
            size=size,
        )


def method_figures(series: Sequence[Series]) -> Iterator[Figure]:
    """Yield the metrics of the run's method."""
    known = {curve.name: replace(curve, name=curve.name.replace("_", " ")) for curve in series}
    shown = [
        (title, drawn, unit, caption)
        for title, names, unit, caption in _OF_METHODS
        if (drawn := [known[name] for name in names if name in known])
    ]
    for index, (title, drawn, unit, caption) in enumerate(shown):
        has_neighbour = index % 2 == 1 or index + 1 < len(shown)
        size: Size = "half" if has_neighbour else "full"
        yield series_figure(drawn, title=title, caption=caption, y_label=unit, size=size)


def quality_figures(page: RunPage) -> Iterator[Figure]:
    """Yield the figures of the last evaluation."""
    evaluation = page.view.evaluation
    if isinstance(evaluation, ClassifierEvaluation):
        if page.roc is not None and evaluation.overall.auc is not None:
            yield _ranking(page.roc, evaluation.overall.auc)
        yield _calibration(evaluation)
        if page.histogram is not None:
            yield _scores(page.histogram)
    if isinstance(evaluation, ScoreEvaluation):
        if evaluation.overall.classes:
            yield confusion_figure(evaluation.overall.classes)
        if evaluation.overall.fit is not None:
            yield fit_figure(evaluation.overall.fit)
    if evaluation is not None and evaluation.slices:
        yield _slices(evaluation)


def metrics_table(metrics: ClassifierMetrics | ScoreMetrics) -> Table:
    """Return the metrics with their intervals and interval methods."""
    rows = [
        (
            _name_with_unit(measured.metric),
            estimate_text(measured.estimate),
            measured.estimate.method if measured.estimate else "a class is absent",
        )
        for measured in metrics.measured
    ]
    if isinstance(metrics, ClassifierMetrics):
        error = f"{metrics.expected_calibration_error:.4f}"
        rows.append(("calibration error", error, f"{len(metrics.calibration)} bins of equal count"))
    else:
        rows += _label_rows(metrics)
    return Table(("metric", "value [95% interval]", "interval by"), rows)


def _label_rows(metrics: ScoreMetrics) -> Iterator[tuple[str, str, str]]:
    """Yield metrics that are not means over rows."""
    if metrics.macro_f1 is not None:
        yield (
            "macro F1",
            f"{metrics.macro_f1:.4f}",
            "the mean over classes that occur here, each counting alike",
        )
    if (fit := metrics.fit) is not None:
        r_squared = "—" if fit.r_squared is None else f"{fit.r_squared:.4f}"
        yield (
            "R²",
            r_squared,
            f"labels: mean {fit.label_mean:.4g}, standard deviation {fit.label_deviation:.4g}",
        )
        yield "bias", f"{fit.bias:+.4g}", "mean of predicted - true"


def machines_table(run: RunView) -> Table:
    """Return the hosts, devices and code version of each attempt."""
    return Table.of(
        run.attempts,
        ("attempt", lambda attempt: str(attempt.attempt)),
        ("hosts", lambda attempt: ", ".join(dict.fromkeys(attempt.hosts)) or "—"),
        ("devices", lambda attempt: ", ".join(dict.fromkeys(attempt.devices)) or "—"),
        ("processor", lambda attempt: attempt.processor),
        ("assay", lambda attempt: attempt.code_version),
    )


def _name_with_unit(metric: Metric) -> str:
    is_redundant = metric.title == metric.unit or metric.unit == "share"
    return metric.title if is_redundant else f"{metric.title} ({metric.unit})"


def series_figure(
    series: Sequence[Series],
    *,
    title: str,
    caption: str,
    y_label: str,
    zero_based: bool = False,
    dots: bool = False,
    size: Size = "full",
) -> Figure:
    """Return a figure of metrics over steps."""
    rows = [
        (curve.name, f"{step:,.0f}", f"{mean:.5g}", f"{low:.5g}", f"{high:.5g}")
        for curve in series
        for step, mean, low, high in zip(*bucketed(curve.steps, curve.values, buckets=TABLE_ROWS), strict=True)
    ]
    label = f"{title} over steps: {', '.join(curve.name for curve in series)}"
    limits = (0.0, 1.0) if y_label == "share" else (-math.inf, math.inf)
    return Figure(
        title=title,
        caption=caption,
        chart=LineChart(series, label, y_label, zero_based=zero_based, dots=dots, limits=limits),
        legend=legend_of(curve.name for curve in series) if len(series) > 1 else (),
        table=Table(("series", *map(number, ("step (mean)", "mean", "min", "max"))), rows),
        size=size,
    )


def phase_figure_caption(run: RunView) -> str:
    """Return the goodput and the largest other phase in words."""
    rest = {name: run.device_seconds.get(name, 0.0) for name in PHASES if name not in USEFUL}
    largest = max(((seconds, name) for name, seconds in rest.items() if seconds > 0), default=None)
    apart = run.evaluation_s()
    apart_text = f" Evaluating commits held {device_hours_text(apart)} apart from training." if apart else ""
    text = (
        "A device is in exactly one phase at a time. "
        f"{percent_text(run.goodput or 0.0)} of training went into steps that were kept"
    )
    if largest is None:
        return f"{text}.{apart_text}"
    share = percent_text(largest[0] / run.held_s())
    return f"{text}; the largest other part is {largest[1]} with {share}.{apart_text}"


def _uninterrupted(run: RunView) -> str:
    if run.status in ("gone", "unknown"):
        return "The end of its last attempt is not recorded yet."
    if any(attempt.outcome == "preempted" for attempt in run.attempts):
        return "It was asked to stop and committed first; nothing failed."
    return "Nothing interrupted it."


def _life(run: RunView) -> Figure:
    num_kills = sum(attempt.outcome in ("killed", "failed") for attempt in run.attempts)
    counts = f"{number_of(len(run.attempts), 'attempt')} with {number_of(len(run.commits), 'commit')}"
    label = f"Steps over time in {counts}; {num_kills} died"
    fall = " A red line falls from the last step made to the last commit: that work was lost."
    return figure(
        lambda width: timeline_plot(run.attempts, run.commits, width=width, label=label),
        title="The life of the run",
        caption="Each dot is a commit, each vertical rule the beginning of an attempt with its ranks. "
        + (f"A cross is where an attempt died.{fall if run.lost_steps else ''}" if num_kills else _uninterrupted(run)),
        table=Table.of(
            run.attempts,
            ("attempt", lambda attempt: str(attempt.attempt)),
            ("ranks", lambda attempt: str(attempt.world_size)),
            ("began", lambda attempt: utc_text(attempt.started)),
            ("took", lambda attempt: "—" if attempt.held_s is None else duration_text(attempt.held_s)),
            ("from step", lambda attempt: f"{attempt.start_step:,}"),
            ("to step", lambda attempt: "—" if attempt.end_step is None else f"{attempt.end_step:,}"),
            ("outcome", lambda attempt: attempt.outcome),
            ("reason", lambda attempt: attempt.reason or "—"),
        ),
    )


def _phases(run: RunView) -> Figure:
    totals = phase_totals(run)
    present = [name for name in PHASES if totals[0][1].get(name)]
    label = "Device time by phase: " + ", ".join(f"{name} {duration_text(totals[0][1][name])}" for name in present)
    rows = [
        (
            name,
            *(duration_text(seconds.get(phase, 0.0)) for phase in present),
            duration_text(sum(seconds.values())),
        )
        for name, seconds in totals
    ]
    held_s = sum(totals[0][1].values())
    return Figure(
        title="Where the device time went",
        caption=phase_figure_caption(run),
        chart=StackedBars(totals, label),
        legend=[(f"phase {name}", f"{name} {tenths_text(totals[0][1][name] / held_s)}") for name in present],
        table=Table(("", *present, "held"), rows),
    )


def _ranking(roc: RocCurve, auc: Estimate) -> Figure:
    return Figure(
        title="Ranking",
        caption=f"The ROC curve. The dashed line is chance. The area below it is {estimate_text(auc)}.",
        chart=Drawing(lambda _: roc_plot([roc], label=f"ROC curve with area {auc.value:.4f}")),
        has_one_width=True,
        table=Table.of(
            list(zip(*roc, strict=True))[:: max(1, len(roc[0]) // 20)],
            ("false positive rate", lambda point: f"{point[0]:.3f}"),
            ("true positive rate", lambda point: f"{point[1]:.3f}"),
        ),
        size="third",
    )


def _calibration(evaluation: ClassifierEvaluation) -> Figure:
    overall = evaluation.overall
    return Figure(
        title="Calibration",
        caption="Points on the dashed line: of rows with predicted probability 30%, 30% are positive. "
        f"The mean distance is {overall.expected_calibration_error:.3f}.",
        chart=Drawing(
            lambda _: calibration_plot(
                [overall.calibration],
                label=f"Calibration diagram, expected calibration error {overall.expected_calibration_error:.4f}",
            )
        ),
        has_one_width=True,
        table=Table.of(
            overall.calibration,
            ("rows", lambda calibration_bin: f"{calibration_bin.num_rows:,}"),
            ("mean predicted", lambda calibration_bin: f"{calibration_bin.mean_predicted:.4f}"),
            ("observed", lambda calibration_bin: f"{calibration_bin.observed_rate:.4f}"),
        ),
        size="third",
    )


def _scores(histogram: ScoreHistogram) -> Figure:
    counts = zip(histogram.negative_rows.tolist(), histogram.positive_rows.tolist(), strict=True)
    rows = [
        (f"{low:.2f} to {high:.2f}", f"{negative:,}", f"{positive:,}")
        for (low, high), (negative, positive) in zip(pairwise(histogram.edges.tolist()), counts, strict=True)
    ]
    return Figure(
        title="Scores by class",
        caption="Distribution of scores for each class. Less overlap is better.",
        chart=Drawing(lambda _: score_plot(histogram, label="Histogram of predicted probabilities for both classes")),
        has_one_width=True,
        legend=[("negatives", "label 0"), ("positives", "label 1")],
        table=Table(("probability", "rows of label 0", "rows of label 1"), rows),
        size="third",
    )


def _slices(evaluation: AnyEvaluation) -> Figure:
    overall, metric = evaluation.overall, evaluation.headline.metric
    whole = evaluation.headline.estimate
    entries = []
    for slice_part in evaluation.slices:
        behind = f"{number_of(slice_part.metrics.num_rows, 'row')}"
        entries.append(
            (
                slice_part.column,
                ForestRow(slice_part.value, _headline(slice_part), behind, _is_weak(slice_part, whole)),
            )
        )
    titles = (
        ("positive", "AUC", "AP", "log-loss", "ECE")
        if isinstance(evaluation, ClassifierEvaluation)
        else tuple(measured.metric.title for measured in overall.measured)
    )
    return figure(
        lambda width: forest_plot(
            [ForestRow("all rows", whole, f"{number_of(overall.num_rows, 'row')}"), *forest_rows(entries)],
            width=width,
            label=f"{metric.title} with its 95% interval in each slice of each metadata column",
            reference=whole.value if whole else None,
            x_label=f"{metric.title} with its 95% interval",
        ),
        title="Slice by slice",
        caption=_slices_caption(evaluation),
        table=Table(
            ("column", "value", "rows", *titles), [_slice_cells(slice_part) for slice_part in evaluation.slices]
        ),
    )


def _slices_caption(evaluation: AnyEvaluation) -> str:
    metric, whole = evaluation.headline.metric, evaluation.headline.estimate
    worse_side = "left" if metric.higher_is_better else "right"
    text = (
        f"The rule is the {metric.title} of all rows; an interval wholly to its {worse_side} is a part where "
        "the model is weaker."
    )
    if whole is None:
        return text
    weak = [
        (estimate.value, slice_part)
        for slice_part in evaluation.slices
        if _is_weak(slice_part, whole) and (estimate := _headline(slice_part)) is not None
    ]
    if not weak:
        return f"{text} There is none."
    choose = min if metric.higher_is_better else max
    value, worst = choose(weak, key=lambda pair: pair[0])
    number = "It is" if len(weak) == 1 else f"There are {len(weak)}, the weakest is"
    return f"{text} {number} {worst.column} = {worst.value}, with {value:.3f}."


def _headline(slice_metrics: SliceMetrics | ScoreSlice) -> Estimate | None:
    return slice_metrics.metrics.measured[0].estimate


def _is_weak(slice_metrics: SliceMetrics | ScoreSlice, whole: Estimate | None) -> bool:
    higher_is_better = slice_metrics.metrics.measured[0].metric.higher_is_better
    return whole is not None and is_worse(_headline(slice_metrics), whole.value, higher_is_better=higher_is_better)


def _slice_cells(slice_metrics: SliceMetrics | ScoreSlice) -> tuple[str, ...]:
    metrics = slice_metrics.metrics
    measured = tuple(estimate_text(measured_metric.estimate, digits=3) for measured_metric in metrics.measured)
    where = (slice_metrics.column, slice_metrics.value, f"{metrics.num_rows:,}")
    if isinstance(metrics, ScoreMetrics):
        return (*where, *measured)
    positive = percent_text(metrics.num_positive / metrics.num_rows)
    return (*where, positive, *measured, f"{metrics.expected_calibration_error:.3f}")
