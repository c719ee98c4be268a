"""The figures of a comparison: is it as good, where is it not, how much faster, at what cost."""

from collections.abc import Iterator
from dataclasses import replace

from assay.base.units import duration_text, percent_text
from assay.records.evaluation import ClassifierEvaluation, Estimate
from assay.reporting.figures.evidence_plots import (
    ForestEntry,
    ForestRow,
    calibration_chart,
    forest_chart,
    forest_rows,
    roc_chart,
)
from assay.reporting.figures.figure import Figure, Table, both_widths
from assay.reporting.figures.plots import PHASES
from assay.reporting.figures.run_figures import series_figure
from assay.reporting.views.comparison import ComparedRun, ComparisonPage, ComparisonView
from assay.reporting.views.curves import Series
from assay.reporting.views.run_page import RunPage
from assay.reporting.views.verdict import (
    device_hours_text,
    estimate_text,
    margin_text,
)


def difference_figures(page: ComparisonPage) -> Iterator[Figure]:
    """The rule, then the same question in each slice."""
    yield _rule(page)
    for candidate in page.candidates:
        # Equal weights differ nowhere: there is nothing to look for.
        if not candidate.compared.weights_equal and any(each.difference for each in candidate.slices):
            yield _slices(candidate)


def overlay_figures(page: ComparisonPage) -> Iterator[Figure]:
    """Both runs in one plot."""
    runs = _runs(page)
    losses = [_renamed(each, each.curves.loss) for each in runs if each.curves.loss is not None]
    if losses:
        yield series_figure(
            losses,
            title="Convergence",
            caption="Training loss over steps. Equal global batches make equal steps comparable: "
            "lines that lie on each other mean that the candidate learns the same thing.",
            y_label="loss",
        )
    rates = [_renamed(each, each.curves.throughput) for each in runs if each.curves.throughput is not None]
    if rates:
        yield series_figure(
            rates,
            title="Throughput",
            caption="Tokens per second over all ranks of each run.",
            y_label="tokens per second",
            zero_based=True,
        )
    yield from _quality(page)


def cost_table(page: ComparisonPage) -> Table:
    """Speed and cost side by side."""
    runs = [each.view for each in _runs(page)]
    ratios = [None, *(each.compared.throughput_ratio for each in page.candidates)]
    rows: list[tuple[str, ...]] = [
        (
            "rows per second",
            *(
                f"{each.speed.rows_per_s:,.1f}" if each.speed and each.speed.rows_per_s else "—"
                for each in runs
            ),
        ),
        (
            "… over the baseline's",
            *("1" if k == 0 else f"{r:.2f}x" if r else "—" for k, r in enumerate(ratios)),
        ),
        ("world sizes", *(" → ".join(map(str, each.world_sizes)) or "—" for each in runs)),
        ("device time", *(device_hours_text(each.held_s()) for each in runs)),
        ("goodput", *(percent_text(each.goodput or 0.0) for each in runs)),
    ]
    rows += [
        (f"· {name}", *(duration_text(each.device_seconds.get(name, 0.0)) for each in runs))
        for name in PHASES
        if any(each.device_seconds.get(name) for each in runs)
    ]
    rows.append(("audit", *(each.audit.verdict if each.audit else "—" for each in runs)))
    rows.append(("weights", *((each.weights_digest or "—")[:12] for each in runs)))
    rows.append(("recipe", *(each.recipe_sha256[:12] for each in runs)))
    return Table(("", *(each.run_id for each in runs)), rows)


def _runs(page: ComparisonPage) -> list[RunPage]:
    return [page.baseline, *(each.page for each in page.candidates)]


def _renamed(page: RunPage, series: Series) -> Series:
    return replace(series, name=page.view.run_id)


def _rule(page: ComparisonPage) -> Figure:
    found = [each.compared for each in page.candidates]
    metric, limit = found[0].metric, _limit(found[0])
    rows = [ForestRow(each.candidate_run_id, each.difference, each.verdict) for each in found]
    wide, narrow = both_widths(
        lambda width: forest_chart(
            rows,
            width=width,
            label=f"Difference of {metric.title} with its 95% interval for each candidate",
            reference=0.0,
            limit=limit,
            x_label=f"candidate's {metric.title} minus the baseline's",
        )
    )
    return Figure(
        title="Against the rule",
        caption=f"A candidate may lose {margin_text(found[0])} of {metric.title}: the dashed line. It passes "
        f"if its whole interval lies to the {'right' if metric.higher_is_better else 'left'} of it.",
        wide=wide,
        narrow=narrow,
        table=Table(
            (
                "candidate",
                "rows",
                f"baseline's {metric.title}",
                f"candidate's {metric.title}",
                "difference",
                "verdict",
            ),
            [
                (
                    each.candidate_run_id,
                    f"{each.num_rows:,}",
                    f"{each.baseline_value:.5f}",
                    f"{each.candidate_value:.5f}",
                    estimate_text(each.difference, digits=5, signed=True),
                    each.verdict,
                )
                for each in found
            ],
        ),
    )


def _slices(candidate: ComparedRun) -> Figure:
    found = candidate.compared
    rows = forest_rows(
        [
            ForestEntry(
                each.column,
                ForestRow(
                    each.value, each.difference, f"{each.num_rows:,} rows", _is_worse(each.difference, found)
                ),
            )
            for each in candidate.slices
        ]
    )
    wide, narrow = both_widths(
        lambda width: forest_chart(
            rows,
            width=width,
            label=f"Difference of {found.metric.title} with its 95% interval in each slice",
            reference=0.0,
            limit=_limit(found),
            x_label=f"candidate's {found.metric.title} minus the baseline's",
        )
    )
    return Figure(
        title=f"Slice by slice: {candidate.compared.candidate_run_id}",
        caption="An average can hide a part that got worse. One interval in twenty misses its truth, so a "
        "single slice beyond the line is a question, not an answer.",
        wide=wide,
        narrow=narrow,
        table=Table(
            ("column", "value", "rows", f"difference of {found.metric.title}"),
            [
                (each.column, each.value, f"{each.num_rows:,}", estimate_text(each.difference, signed=True))
                for each in candidate.slices
            ],
        ),
    )


def _limit(found: ComparisonView) -> float:
    """Where the allowed loss lies on the axis of the difference."""
    return -found.allowed_loss if found.metric.higher_is_better else found.allowed_loss


def _is_worse(difference: Estimate | None, found: ComparisonView) -> bool:
    if difference is None or difference.low is None or difference.high is None:
        return False
    if found.metric.higher_is_better:
        return difference.high < -found.allowed_loss
    return difference.low > found.allowed_loss


def _quality(page: ComparisonPage) -> Iterator[Figure]:
    evaluated = [
        (each, each.view.evaluation)
        for each in _runs(page)
        if isinstance(each.view.evaluation, ClassifierEvaluation)
    ]
    legend = [(f"s{index + 1}", each.view.run_id) for index, (each, _) in enumerate(evaluated)]
    curves = [each.roc for each, _ in evaluated if each.roc is not None]
    if evaluated and len(curves) == len(evaluated):
        yield Figure(
            title="Ranking",
            caption="Both ROC curves on the same rows; where one lies above, it ranks better.",
            wide=roc_chart(curves, label="ROC curves of all runs"),
            legend=legend,
            table=Table(
                ("run", "AUC"),
                [(found.run_id, estimate_text(found.overall.auc, digits=5)) for _, found in evaluated],
            ),
            size="half",
        )
    if evaluated:
        yield Figure(
            title="Calibration",
            caption="Dots on the dashed line: a probability means what it says.",
            wide=calibration_chart(
                [found.overall.calibration for _, found in evaluated], label="Calibration of all runs"
            ),
            legend=legend,
            table=Table(
                ("run", "calibration error", "log-loss"),
                [
                    (
                        found.run_id,
                        f"{found.overall.expected_calibration_error:.4f}",
                        estimate_text(found.overall.log_loss),
                    )
                    for _, found in evaluated
                ],
            ),
            size="half",
        )
