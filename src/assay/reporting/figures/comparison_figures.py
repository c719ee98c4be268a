"""The figures of a comparison: is it as good, where is it not, how much faster, at what cost."""

from collections.abc import Iterator
from dataclasses import replace

from assay.base.units import duration_text, percent_text
from assay.records.evaluation import Estimate
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
from assay.reporting.views.comparison import ComparedRun, ComparisonPage
from assay.reporting.views.curves import Series
from assay.reporting.views.run import RunView
from assay.reporting.views.run_page import RunPage
from assay.reporting.views.verdict import (
    device_hours_text,
    estimate_text,
    interval_text,
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
            y_label="loss (nats per row)",
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
        ("in steps that were kept", *(percent_text(each.goodput or 0.0) for each in runs)),
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
    allowed = found[0].allowed_loss
    rows = [ForestRow(each.candidate_run_id, each.difference, each.verdict) for each in found]
    wide, narrow = both_widths(
        lambda width: forest_chart(
            rows,
            width=width,
            label="Difference of AUC with its 95% interval for each candidate",
            reference=0.0,
            limit=-allowed,
            x_label="candidate's AUC minus the baseline's",
        )
    )
    return Figure(
        title="Against the rule",
        caption=f"A candidate may lose {100 * allowed:g} percentage point{'' if allowed == 0.01 else 's'} of "
        "AUC: the dashed line. It passes if its whole interval lies to the right of it.",
        wide=wide,
        narrow=narrow,
        table=Table(
            ("candidate", "rows", "baseline's AUC", "candidate's AUC", "difference", "verdict"),
            [
                (
                    each.candidate_run_id,
                    f"{each.num_rows:,}",
                    f"{each.baseline_auc:.5f}",
                    f"{each.candidate_auc:.5f}",
                    estimate_text(each.difference, digits=5, signed=True),
                    each.verdict,
                )
                for each in found
            ],
        ),
    )


def _slices(candidate: ComparedRun) -> Figure:
    allowed = candidate.compared.allowed_loss
    rows = forest_rows(
        [
            ForestEntry(
                each.column,
                ForestRow(
                    each.value, each.difference, f"{each.num_rows:,} rows", _is_worse(each.difference, allowed)
                ),
            )
            for each in candidate.slices
        ]
    )
    wide, narrow = both_widths(
        lambda width: forest_chart(
            rows,
            width=width,
            label="Difference of AUC with its 95% interval in each slice",
            reference=0.0,
            limit=-allowed,
            x_label="candidate's AUC minus the baseline's",
        )
    )
    return Figure(
        title=f"Slice by slice: {candidate.compared.candidate_run_id}",
        caption="An average can hide a part that got worse. One interval in twenty misses its truth, so a "
        "single slice beyond the line is a question, not an answer.",
        wide=wide,
        narrow=narrow,
        table=Table(
            ("column", "value", "rows", "difference of AUC"),
            [
                (each.column, each.value, f"{each.num_rows:,}", estimate_text(each.difference, signed=True))
                for each in candidate.slices
            ],
        ),
    )


def _is_worse(difference: Estimate | None, allowed: float) -> bool:
    return difference is not None and difference.high is not None and difference.high < -allowed


def _quality(page: ComparisonPage) -> Iterator[Figure]:
    evaluated = [each for each in _runs(page) if each.view.evaluation is not None]
    runs = [each.view for each in evaluated]
    legend = [(f"s{index + 1}", each.run_id) for index, each in enumerate(runs)]
    curves = [each.roc for each in evaluated if each.roc is not None]
    if runs and len(curves) == len(runs):
        yield Figure(
            title="Ranking",
            caption="Both ROC curves on the same rows; where one lies above, it ranks better.",
            wide=roc_chart(curves, label="ROC curves of all runs"),
            legend=legend,
            table=Table(("run", "AUC"), [(each.run_id, _auc(each)) for each in runs]),
            size="half",
        )
    if runs:
        yield Figure(
            title="Calibration",
            caption="Dots on the dashed line: a probability means what it says.",
            wide=calibration_chart(
                [each.evaluation.overall.calibration for each in runs if each.evaluation],
                label="Calibration of all runs",
            ),
            legend=legend,
            table=Table(
                ("run", "calibration error", "log-loss"),
                [
                    (
                        each.run_id,
                        f"{each.evaluation.overall.expected_calibration_error:.4f}",
                        estimate_text(each.evaluation.overall.log_loss),
                    )
                    for each in runs
                    if each.evaluation
                ],
            ),
            size="half",
        )


def _auc(run: RunView) -> str:
    auc = run.evaluation.overall.auc if run.evaluation else None
    return f"{auc.value:.5f}{interval_text(auc, digits=5)}" if auc else "—"
