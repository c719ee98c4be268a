"""The figures of a run's page: timeline, learning curves, model quality."""

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

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
from assay.reporting.charts.plots import PHASES, LineChart, PhaseTotal, StackedBars, bucketed, phase_totals
from assay.reporting.charts.timeline_plot import timeline_plot
from assay.reporting.document import Cell, CurveLine, Drawing, Figure, Size, Table, Text, Tone, figure, name, number
from assay.reporting.values import STATUS_WORDS, device_hours_text, estimate_text
from assay.reporting.views.runs.run import AttemptView, RunView
from assay.reporting.views.runs.run_page import RunPage
from assay.reporting.views.runs.series import (
    ENDS,
    GRADER_REWARD,
    MFU,
    RATIOS,
    THROUGHPUT,
    VALIDATION_CURVE,
    Curves,
    Series,
)

if TYPE_CHECKING:  # they bring pyarrow along
    from assay.statistics.classifier.curves import RocCurve, ScoreHistogram

TABLE_ROWS = 25
"""Rows in the table of a series."""


class _Plot(NamedTuple):
    title: str
    names: tuple[str, ...]
    """Patterns of the metrics that share the plot."""
    unit: str
    caption: str
    zero_based: bool = False
    dots: bool = False
    is_brief: bool = False
    """Shown on terminals, too."""


_REWARD = _Plot(
    "Reward",
    ("reward", "validation_reward"),
    "reward",
    "The mean over the completions of a step, and over one completion to each held-out prompt. If training rises and "
    "held-out prompts do not follow, the policy exploits the grader or its prompts.",
    is_brief=True,
)
_GRADERS = _Plot(
    "Score by grader",
    (GRADER_REWARD,),
    "score",
    "Before weights. A grader that rises alone may be the one that is exploited.",
    is_brief=True,
)
_OF_REWARDS = (
    _GRADERS,
    _Plot(
        "Completion length",
        ("length",),
        "tokens",
        "Growth without more reward on held-out prompts is a bias of loss or grader.",
        zero_based=True,
        is_brief=True,
    ),
    _Plot("Truncated", ("truncated",), "share", "Completions cut at method.sampling.max_tokens.", is_brief=True),
    _Plot(
        "Groups without spread",
        ("zero_std",),
        "share",
        "Groups whose completions all have one reward: nothing is learned from them.",
        is_brief=True,
    ),
    _Plot(
        "KL",
        ("kl",),
        "nats per token",
        "Divergence of the policy from the reference. A steep rise often precedes exploitation of the grader.",
        is_brief=True,
    ),
    _Plot(
        "Entropy",
        ("entropy",),
        "nats per token",
        "Of the next token. Near zero, the policy has one answer to each prompt and explores no more.",
        is_brief=True,
    ),
    _Plot("Distinct completions", ("distinct",), "share", "Different completions within a group."),
    _Plot("Failed grades", ("failed_grades",), "share", "Completions without a reward because a grader failed."),
    _Plot(
        "Sampler against policy",
        ("logprob_gap", "drift"),
        "nats per token",
        "Mean distance of their logprobs. A jump means stale weights or other sampling settings.",
    ),
    _Plot("Clipped tokens", ("clipped",), "share", "Tokens whose ratio of new to old probability was clipped."),
)
_OF_METHODS = (
    _Plot(
        "Rewards",
        ("chosen_reward", "rejected_reward"),
        "reward",
        "Of chosen and rejected completions, against the reference. A chosen reward below zero means that the chosen "
        "completions became less likely, too, which a growing margin hides.",
        is_brief=True,
    ),
    _Plot("Margin", ("margin",), "reward", "Chosen minus rejected reward.", is_brief=True),
    _Plot("Accuracy in training", ("accuracy",), "share", "On the rows of each step, before it learned them."),
    _Plot("Mean reward", ("mean_reward",), "reward", "Over both sides of the pairs. It drifts unless it is centred."),
    _Plot("Entropy", ("entropy",), "nats per token", "Of the next token."),
    _Plot("Token accuracy", ("token_accuracy",), "share", "Trained tokens that were the most likely ones."),
)
_GRADIENT = _Plot(
    "Gradient norm", ("gradient_norm",), "norm", "Before clipping. A steady rise often precedes divergence."
)
_RATE = _Plot("Learning rate", ("learning_rate",), "learning rate", "As scheduled.", zero_based=True)
_SPEED = _Plot(
    "Throughput",
    (THROUGHPUT,),
    "tokens per second",
    "Over all ranks. A flat line is good; look for the cause of a drop at its step.",
    zero_based=True,
)
_MFU = _Plot(
    "MFU",
    (MFU,),
    "share",
    "Model FLOPs over the card's rate in bfloat16. Look for the cause of a drop at its step.",
    zero_based=True,
)
_NUMBERS = {"tokens per second": ",.0f"}
"""Format of a value by unit, if it is not four digits behind the point."""
_LINE = "The line is smoothed; the band spans the minimum to the maximum."


def curve_figures(curves: Curves, run_id: str) -> Iterator[Figure]:
    """Yield metrics over steps; the first says what the run learned: the reward of a run on rewards, else the loss."""
    is_of_rewards = "reward" in curves
    lost = any(curve.is_lost and any(curve.is_lost) for curve in curves.values())
    resumed = " No jump at the end of an attempt means that resuming changed nothing."
    rolled_back = " Red dots or dashes are steps that were rolled back and repeated." if lost else ""
    loss = _Plot(
        "Policy loss" if is_of_rewards else "Training loss",
        ("loss",),
        "loss",
        "A surrogate whose gradient is the policy's. It stays near 0 and is no measure of quality."
        if is_of_rewards
        else f"{_LINE}{resumed}{rolled_back}",
        is_brief=not is_of_rewards,
    )
    name = next((name for name in curves if name.startswith(VALIDATION_CURVE)), "")
    validation = _Plot(
        f"Validation {metric_title(name.removeprefix(VALIDATION_CURVE))}",
        (name,),
        metric_title(name.removeprefix(VALIDATION_CURVE)),
        "One dot per evaluation during training. After a plateau, more steps do not help.",
        dots=True,
        is_brief=True,
    )
    if is_of_rewards:
        reward = _REWARD._replace(caption=f"{_REWARD.caption} {_LINE}{rolled_back}")
        plots = [reward, *_OF_REWARDS, loss, _GRADIENT, _RATE, _SPEED, _MFU]
    else:
        plots = [loss, validation, *_OF_METHODS, _GRADIENT, _RATE, _SPEED, _MFU]
    shown = [(plot, drawn) for plot in plots if (drawn := _drawn(plot, curves))]
    for index, (plot, drawn) in enumerate(shown):
        is_half = index > 0 and (index % 2 == 0 or index + 1 < len(shown))
        yield series_figure(
            list(drawn.values()),
            lines=[curve_line(series, metric, run_id) for metric, series in drawn.items()],
            title=plot.title,
            caption=plot.caption,
            y_label=plot.unit,
            zero_based=plot.zero_based,
            dots=plot.dots,
            size="half" if is_half else "full",
            ends=ENDS if is_of_rewards and plot.is_brief else 1,
            pages_only=not plot.is_brief,
        )


def curve_line(series: Series, metric: str, run_id: str) -> CurveLine:
    """Return where the points of a line come from."""
    numerator, divisor = RATIOS.get(metric, (metric, ""))
    return CurveLine(series.name, run_id, numerator, divisor, series.scale)


def _drawn(plot: _Plot, curves: Curves) -> dict[str, Series]:
    """Return the series of a plot by metric, under the names that its legend shows."""
    names = [name for pattern in plot.names for name in fnmatch.filter(curves, pattern)]
    if plot is _GRADERS:
        names = [name for name in names if name not in ("reward", "reward_std")]
    found = [curves[name] for name in names]
    if plot.names == ("failed_grades",):
        found = [curve for curve in found if any(curve.values)]
    if plot.dots:
        found = [curve for curve in found if len(set(curve.steps)) > 1]
    words = {"reward": "training", "validation_reward": "held-out prompts"}
    return {
        curve.name: replace(curve, name=words.get(curve.name, curve.name.removeprefix("reward_").replace("_", " ")))
        for curve in found
    }


def rewards_table(figures: Sequence[Figure]) -> Table:
    """Return what changed from the first to the last steps, given the figures of a run on rewards."""
    rows = []
    for drawn in figures:
        if not isinstance(chart := drawn.chart, LineChart) or chart.ends == 1:
            continue
        for series in chart.series:
            if (ends := chart.end_texts(series)) is not None:
                first, last, size = ends
                title = f"{drawn.title}: {series.name}" if len(chart.series) > 1 else drawn.title
                rows.append((title, first, last, chart.y_label, f"{number_of(size, 'point')} at each end"))
    return Table((name("metric"), number("beginning"), number("end"), name("unit"), "mean of"), rows)


def reward_reading(curves: Curves) -> Cell | None:
    """Return whether the reward of held-out prompts follows that of training; None for runs of other methods."""
    if "reward" not in curves:
        return None
    held_out = curves.get("validation_reward")
    values = held_out.committed_points()[1] if held_out else []
    trained = curves["reward"].committed_points()[1]
    if len(values) < 2 or len(trained) < 2 * ENDS:
        return Cell(
            "Whether the policy exploits its grader is not measured: held-out prompts were evaluated fewer than twice, "
            f"or there are fewer than {2 * ENDS} steps. 'trainer.evaluate_every' evaluates during training.",
            "open",
        )
    gain, held_out_gain = (sum(trained[-ENDS:]) - sum(trained[:ENDS])) / ENDS, values[-1] - values[0]
    gains = f"The training reward changed by {gain:+.4g}, that of held-out prompts by {held_out_gain:+.4g}"
    if gain > 0.0 and held_out_gain < gain / 2:
        return Cell(f"{gains}: the policy may exploit its grader. Read the best completions.", "bad")
    if gain <= 0.0:
        return Cell(f"{gains}: the policy did not learn to earn more.", "open")
    return Cell(f"{gains}: it learned what generalizes, and nothing here says that it exploits its grader.", "good")


def life_figures(run: RunView) -> Iterator[Figure]:
    """Yield the run over time, and its device time by phase."""
    if run.attempts:
        yield _life(run)
    if run.held_s():
        yield phase_figure("Where the device time went", phase_figure_caption(run), phase_totals(run))


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
    ends: int = 1,
    has_baseline: bool = False,
    pages_only: bool = False,
    lines: Sequence[CurveLine] = (),
) -> Figure:
    """Return a figure of metrics over steps."""
    rows = [
        (curve.name, f"{step:,.0f}", f"{mean:.5g}", f"{low:.5g}", f"{high:.5g}")
        for curve in series
        for step, mean, low, high in zip(
            *bucketed(curve.steps, curve.values, curve.lows, curve.highs, buckets=TABLE_ROWS), strict=True
        )
    ]
    label = f"{title} over steps: {', '.join(curve.name for curve in series)}"
    limits = (0.0, 1.0) if y_label == "share" else (-math.inf, math.inf)
    chart = LineChart(
        series,
        label,
        y_label,
        zero_based=zero_based,
        dots=dots,
        limits=limits,
        log_ratio={"loss": 15.0, "reward": math.inf}.get(y_label, 100.0),
        has_baseline=has_baseline,
        number=_NUMBERS.get(y_label, ".4f") if ends == 1 else ".4g",
        ends=ends,
    )
    return Figure(
        title=title,
        caption=caption,
        chart=chart,
        legend=[(chart.colour(index), curve.name) for index, curve in enumerate(series)] if len(series) > 1 else (),
        table=Table(("series", *map(number, ("step (mean)", "mean", "min", "max"))), rows),
        size=size,
        pages_only=pages_only,
        lines=lines,
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


def _outcome(run: RunView, attempt: AttemptView) -> Text:
    # Nobody was left to write down how it ended.
    is_gone = attempt.outcome == "running" and run.status == "gone"
    outcome = "gone" if is_gone else attempt.outcome
    tones: dict[str, Tone] = {"succeeded": "good", "preempted": "open", "running": "open"}
    return Cell(STATUS_WORDS.get(outcome, outcome), tones.get(outcome, "bad"))


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
            (number("attempt"), lambda attempt: str(attempt.attempt)),
            (number("ranks"), lambda attempt: str(attempt.world_size)),
            (name("began", drop_order=2), lambda attempt: utc_text(attempt.started)),
            (number("took"), lambda attempt: "—" if attempt.held_s is None else duration_text(attempt.held_s)),
            (number("from step"), lambda attempt: f"{attempt.start_step:,}"),
            (number("to step"), lambda attempt: "—" if attempt.end_step is None else f"{attempt.end_step:,}"),
            (name("outcome"), lambda attempt: _outcome(run, attempt)),
            ("reason", lambda attempt: attempt.reason or "—"),
        ),
    )


def phase_figure(title: str, caption: str, totals: Sequence[PhaseTotal]) -> Figure:
    """Return device time by phase: of all first, then of its parts."""
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
        title=title,
        caption=caption,
        chart=StackedBars(totals, label),
        legend=[(f"phase {name}", f"{name} {tenths_text(totals[0][1][name] / held_s)}") for name in present],
        table=Table(("", *present, "held"), rows),
    )


def _ranking(roc: "RocCurve", auc: Estimate) -> Figure:
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


def _scores(histogram: "ScoreHistogram") -> Figure:
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
