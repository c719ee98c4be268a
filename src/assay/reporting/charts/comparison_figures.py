"""The figures of a comparison: overall difference, slices, learning curves, cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from assay.base.units import duration_text, number_of, percent_text
from assay.records.evaluation import ClassifierEvaluation
from assay.reporting.charts.evidence_plots import (
    ForestRow,
    calibration_plot,
    forest_plot,
    forest_rows,
    is_worse,
    roc_plot,
)
from assay.reporting.charts.plots import PHASES, under
from assay.reporting.charts.run_figures import series_figure
from assay.reporting.document import Drawing, Figure, Table, figure
from assay.reporting.values import device_hours_text, estimate_text, value_text
from assay.reporting.views.comparison import ComparedRun, ComparisonPage, ComparisonView
from assay.reporting.views.runs.run_page import RunPage
from assay.reporting.views.runs.series import THROUGHPUT, Series


def difference_figures(page: ComparisonPage) -> Iterator[Figure]:
    """Yield the overall difference, then the differences by slice."""
    yield _rule(page)
    for candidate in page.candidates:
        # Equal weights differ nowhere: there is nothing to look for.
        if not candidate.compared.weights_equal and any(slice_part.difference for slice_part in candidate.slices):
            yield _slices(candidate)


def overlay_figures(page: ComparisonPage) -> Iterator[Figure]:
    """Yield the metrics of all runs in shared plots."""
    runs = _runs(page)
    losses = _curves_of(runs, "loss")
    rewards = _curves_of(runs, "reward")
    if rewards:
        yield series_figure(
            rewards,
            title="Reward",
            caption="Mean reward of the completions of each training step.",
            y_label="reward",
            has_baseline=True,
        )
    elif losses:
        yield series_figure(
            losses,
            title="Convergence",
            caption="Training loss over steps. With equal global batches, steps are comparable: "
            "coinciding lines mean that the candidate learns the same.",
            y_label="loss",
            has_baseline=True,
        )
    if rates := _curves_of(runs, THROUGHPUT):
        yield series_figure(
            rates,
            title="Throughput",
            caption="Tokens per second over all ranks of each run.",
            y_label="tokens per second",
            zero_based=True,
            has_baseline=True,
            pages_only=True,
        )
    yield from _quality(page)


def changes_table(comparison: ComparisonView) -> Table:
    """Return the differing recipe keys."""
    return Table.of(
        comparison.changes,
        ("key", lambda change: change.key),
        ("baseline", lambda change: value_text(change.baseline)),
        (comparison.candidate_run_id, lambda change: value_text(change.candidate)),
    )


def cost_table(page: ComparisonPage) -> Table:
    """Return speed and cost of all runs."""
    runs = [run.view for run in _runs(page)]
    ratios = [candidate.compared.throughput_ratio for candidate in page.candidates]
    rates = [run.speed.rows_per_s if run.speed else None for run in runs]
    rows: list[tuple[str, ...]] = [
        ("rows per second", *(f"{rate:,.1f}" if rate else "—" for rate in rates)),
        ("… over the baseline's", "1", *(f"{ratio:.2f}x" if ratio else "—" for ratio in ratios)),
        ("world sizes", *(" → ".join(map(str, run.world_sizes)) or "—" for run in runs)),
        ("device time of training", *(device_hours_text(run.held_s()) for run in runs)),
        *(
            [("evaluation, apart", *(device_hours_text(run.evaluation_s()) for run in runs))]
            if any(run.evaluation_s() for run in runs)
            else []
        ),
        ("goodput", *(percent_text(run.goodput or 0.0) for run in runs)),
    ]
    rows += [
        (f"· {name}", *(duration_text(run.device_seconds.get(name, 0.0)) for run in runs))
        for name in PHASES
        if any(run.device_seconds.get(name) for run in runs)
    ]
    rows += [
        ("audit", *(run.audit.verdict if run.audit else "—" for run in runs)),
        ("weights", *((run.weights_digest or "—")[:12] for run in runs)),
        ("recipe", *(run.recipe_sha256[:12] for run in runs)),
    ]
    return Table(("", *(run.run_id for run in runs)), rows)


def _runs(page: ComparisonPage) -> list[RunPage]:
    return [page.baseline, *(candidate.page for candidate in page.candidates)]


def _curves_of(runs: Sequence[RunPage], name: str) -> list[Series]:
    """Return a metric of the runs that have it, under the runs' names."""
    return [replace(run.curves[name], name=run.view.run_id) for run in runs if name in run.curves]


def _rule(page: ComparisonPage) -> Figure:
    comparisons = [candidate.compared for candidate in page.candidates]
    metric = comparisons[0].metric
    return figure(
        _forest(
            comparisons[0],
            [
                ForestRow(comparison.candidate_run_id, comparison.difference, comparison.verdict)
                for comparison in comparisons
            ],
            what="for each candidate",
        ),
        title="Against the rule",
        caption=f"A candidate may lose {comparisons[0].margin_text()} of {metric.title}: the dashed line. It passes "
        f"if its whole interval lies to the {'right' if metric.higher_is_better else 'left'} of it.",
        table=Table.of(
            comparisons,
            ("candidate", lambda row: row.candidate_run_id),
            ("rows", lambda row: f"{row.num_rows:,}" if row.num_rows else "not observed"),
            (f"baseline's {metric.title}", lambda row: f"{row.baseline_value:.5f}"),
            (f"candidate's {metric.title}", lambda row: f"{row.candidate_value:.5f}"),
            ("difference", lambda row: estimate_text(row.difference, digits=5, signed=True)),
            ("verdict", lambda row: row.verdict),
        ),
    )


def _slices(candidate: ComparedRun) -> Figure:
    comparison = candidate.compared
    entries = []
    for slice_part in candidate.slices:
        worse = is_worse(slice_part.difference, _limit(comparison), higher_is_better=comparison.metric.higher_is_better)
        row = ForestRow(slice_part.value, slice_part.difference, f"{number_of(slice_part.num_rows, 'row')}", worse)
        entries.append((slice_part.column, row))
    return figure(
        _forest(comparison, forest_rows(entries), what="in each slice"),
        title=f"Slice by slice: {comparison.candidate_run_id}",
        caption="An average can hide a slice that got worse. One interval in twenty misses the true value, so a "
        "single slice beyond the line is no proof.",
        table=Table.of(
            candidate.slices,
            ("column", lambda slice_difference: slice_difference.column),
            ("value", lambda slice_difference: slice_difference.value),
            ("rows", lambda slice_difference: f"{slice_difference.num_rows:,}"),
            (
                f"difference of {comparison.metric.title}",
                lambda slice_difference: estimate_text(slice_difference.difference, signed=True),
            ),
        ),
    )


def _forest(comparison: ComparisonView, rows: Sequence[ForestRow], *, what: str) -> Callable[[int], str]:
    """Return a function that draws differences of the compared metric with the allowed loss."""
    title = comparison.metric.title
    return lambda width: forest_plot(
        rows,
        width=width,
        label=f"Difference of {title} with its 95% interval {what}",
        reference=0.0,
        limit=_limit(comparison),
        x_label=f"candidate's {title} minus the baseline's",
    )


def _limit(comparison: ComparisonView) -> float:
    """Return the allowed loss as a value on the difference axis."""
    return -comparison.allowed_loss if comparison.metric.higher_is_better else comparison.allowed_loss


def _quality(page: ComparisonPage) -> Iterator[Figure]:
    evaluated = [
        (run, run.view.evaluation) for run in _runs(page) if isinstance(run.view.evaluation, ClassifierEvaluation)
    ]
    legend = [
        (f"s{index}{under(index - 1, len(evaluated))}", run.view.run_id) for index, (run, _) in enumerate(evaluated, 1)
    ]
    evaluations = [evaluation for _, evaluation in evaluated]
    curves = [run.roc for run, _ in evaluated if run.roc is not None]
    if evaluated and len(curves) == len(evaluated):
        yield Figure(
            title="Ranking",
            caption="ROC curves on the same rows; the higher curve ranks better.",
            chart=Drawing(lambda _: roc_plot(curves, label="ROC curves of all runs")),
            has_one_width=True,
            legend=legend,
            table=Table.of(
                evaluations,
                ("run", lambda evaluation: evaluation.run_id),
                ("AUC", lambda evaluation: estimate_text(evaluation.overall.auc, digits=5)),
            ),
            size="half",
            pages_only=True,
        )
    if evaluated:
        yield Figure(
            title="Calibration",
            caption="Points on the dashed line: probabilities are calibrated.",
            chart=Drawing(
                lambda _: calibration_plot(
                    [evaluation.overall.calibration for evaluation in evaluations], label="Calibration of all runs"
                )
            ),
            has_one_width=True,
            legend=legend,
            table=Table.of(
                evaluations,
                ("run", lambda evaluation: evaluation.run_id),
                ("calibration error", lambda evaluation: f"{evaluation.overall.expected_calibration_error:.4f}"),
                ("log-loss", lambda evaluation: estimate_text(evaluation.overall.log_loss)),
            ),
            size="half",
            pages_only=True,
        )
