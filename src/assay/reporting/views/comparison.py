"""Runs compared with their baseline: quality, speed and cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from assay.base.config import changed_leaves
from assay.base.errors import DataError
from assay.base.units import number_of
from assay.records.evaluation import AUC, AnyComparison, AucComparison, Comparison, Estimate, Metric
from assay.records.run import AT_WORK, RunStatus
from assay.reporting.views.runs.run import RunView, WarningView, warning_view
from assay.reporting.views.runs.run_page import RunPage, run_page
from assay.reporting.views.view import View
from assay.statistics.verdict import SliceDifference
from assay.statistics.warnings import Warned, warnings_of_pair
from assay.store.launches import process_state
from assay.store.ledger.ledger import Ledger
from assay.store.run_results import keep_comparison

_STATES: Mapping[RunStatus, str] = {
    "running": "it is running",
    "unknown": "it may be running, which cannot be told from here",
    "gone": "its supervisor is gone",
    "preempted": "it was stopped",
    "failed": "it failed",
    "succeeded": "it has ended without that",
}
LOGGED = ("validation_loss", "loss")
"""Metrics of the log by which recorded runs are compared, the first that both have."""


class RecipeChange(View):
    """A recipe key whose value differs."""

    key: str
    baseline: Any
    candidate: Any


class ComparisonView(Comparison):
    """A candidate compared with its baseline."""

    num_rows: NonNegativeInt
    metric: Metric
    """If a script trained a run, whose rows are not observed (`num_rows`: 0), values are the last ones logged."""
    baseline_value: float
    candidate_value: float
    baseline_auc: float | None
    """Set if the metric is the AUC."""
    candidate_auc: float | None
    throughput_ratio: float | None
    """Rows per second."""
    baseline_device_s: float
    """Training."""
    candidate_device_s: float
    baseline_evaluation_s: float = 0.0
    candidate_evaluation_s: float = 0.0
    baseline_world_sizes: tuple[int, ...]
    candidate_world_sizes: tuple[int, ...]
    warnings: tuple[WarningView, ...] = ()
    changes: tuple[RecipeChange, ...] = ()
    page: str
    """The HTML file written."""

    def margin_text(self) -> str:
        """Return the non-inferiority margin, such as `1 percentage point` or `0.05 squared log tokens`."""
        if self.metric != AUC:
            return f"{self.allowed_loss:g} {self.metric.unit}"
        return f"{100 * self.allowed_loss:g} percentage point{'' if self.allowed_loss == 0.01 else 's'}"

    def rows_text(self) -> str:
        """Return the rows that it rests on, such as `512 rows`."""
        return number_of(self.num_rows, "row") if self.num_rows else "rows that were not observed"

    @property
    def is_better(self) -> bool:
        """Whether the whole interval of the difference is on the better side of zero."""
        end = self.difference.low if self.metric.higher_is_better else self.difference.high
        return end is not None and (end > 0.0 if self.metric.higher_is_better else end < 0.0)


@dataclass(frozen=True)
class ComparedRun:
    """A candidate compared with the baseline."""

    page: RunPage
    compared: ComparisonView
    slices: Sequence[SliceDifference]


@dataclass(frozen=True)
class ComparisonPage:
    """A baseline and its candidates."""

    baseline: RunPage
    candidates: Sequence[ComparedRun]


def comparison_page(
    ledger: Ledger,
    baseline_id: str,
    candidate_ids: Sequence[str],
    *,
    allowed_loss: float | None = None,
    out: Path | None = None,
) -> ComparisonPage:
    """Compare candidates with a baseline, and record each comparison in the ledger. `allowed_loss` is in the
    metric's unit; None is 0.01 for an AUC and zero for other metrics. `out` is the HTML file that the views
    name, by default comparison.html in the first candidate's folder."""
    baseline = run_page(ledger, baseline_id)
    pages = [run_page(ledger, run_id) for run_id in candidate_ids]
    written = str(out or Path(pages[0].view.run_dir) / "comparison.html")
    return ComparisonPage(baseline, [_candidate(ledger, baseline, page, allowed_loss, written) for page in pages])


def comparison_view(comparison: AnyComparison, baseline: RunView, candidate: RunView, *, page: str) -> ComparisonView:
    """Return the comparison with the speed and cost of both runs."""
    shared = (*Comparison.model_fields, "metric", "baseline_value", "candidate_value")
    of_auc = comparison if isinstance(comparison, AucComparison) else None
    return ComparisonView(
        **{name: getattr(comparison, name) for name in shared},
        baseline_auc=of_auc and of_auc.baseline_auc,
        candidate_auc=of_auc and of_auc.candidate_auc,
        warnings=tuple(_warnings(baseline, candidate)),
        **_speed_and_cost(baseline, candidate),
        page=page,
    )


def _speed_and_cost(baseline: RunView, candidate: RunView) -> dict[str, Any]:
    rates = [run.speed.rows_per_s if run.speed else None for run in (baseline, candidate)]
    return {
        "throughput_ratio": rates[1] / rates[0] if rates[0] and rates[1] else None,
        "baseline_device_s": baseline.held_s(),
        "candidate_device_s": candidate.held_s(),
        "baseline_evaluation_s": baseline.evaluation_s(),
        "candidate_evaluation_s": candidate.evaluation_s(),
        "baseline_world_sizes": baseline.world_sizes,
        "candidate_world_sizes": candidate.world_sizes,
        "changes": tuple(_changes(baseline, candidate)),
    }


def _warnings(baseline: RunView, candidate: RunView) -> Iterator[WarningView]:
    sides = baseline.run_id, candidate.run_id
    methods = _method(baseline), _method(candidate)
    methods = methods if all(methods) else ("", "")  # a script of its own names none
    of_pair = warnings_of_pair(*sides, steps=(baseline.step, candidate.step), methods=methods)
    yield from map(warning_view, of_pair)
    for side in (baseline, candidate):
        for warning in side.warnings:
            yield WarningView(rule=warning.rule, text=f"{side.run_id}: {warning.text}")


def _is_recorded(run: RunView) -> bool:
    return run.imported is not None and run.imported.is_recorded()


def _method(run: RunView) -> str:
    return str(run.recipe.get("method", {}).get("type", ""))


def _changes(baseline: RunView, candidate: RunView) -> Iterator[RecipeChange]:
    for key, (before, after) in changed_leaves(baseline.recipe, candidate.recipe).items():
        if key != "name":
            yield RecipeChange(key=key, baseline=before, candidate=after)


def _candidate(
    ledger: Ledger, baseline: RunPage, page: RunPage, allowed_loss: float | None, written: str
) -> ComparedRun:
    sides = baseline.view, page.view
    evaluations = [side.evaluation for side in sides if side.evaluation is not None]
    if len(evaluations) < 2:
        if any(map(_is_recorded, sides)):
            return ComparedRun(page, _logged_comparison(*sides, allowed_loss or 0.0, written), ())
        side = next(side for side in sides if side.evaluation is None)
        ledger.run(side.run_id).check_trained_here()
        raise DataError(f"run {side.run_id} has not been evaluated: {why_not_evaluated(side)}")
    # Here, for scipy is large, and every screen that says a word of a run imports this module.
    from assay.statistics.evaluate import compare_evaluations

    comparison, slices = compare_evaluations(
        *evaluations,
        baseline_dir=Path(baseline.view.run_dir),
        candidate_dir=Path(page.view.run_dir),
        allowed_loss=allowed_loss,
    )
    keep_comparison(ledger, page.view.run_dir, comparison)
    return ComparedRun(page, comparison_view(comparison, *sides, page=written), slices)


def why_not_evaluated(side: RunView) -> str:
    """Return the state of a run without an evaluation, and what to do."""
    if side.imported is not None:
        return "assay did not train it, so it observed none of its validation rows."
    if side.status in AT_WORK:
        return f"{_STATES[side.status]}. Compare it once it has ended."
    if any(process_state(launch) == "running" for launch in side.launches[-1:]):
        return "that is done now. Compare it in a moment, once its process has ended."
    if not Path(side.run_dir).is_dir():
        return f"{_STATES[side.status]}, and its folder is gone: {side.run_dir}."
    return f"{_STATES[side.status]}. Finish it with 'assay train --resume {side.run_id}' first."


def _logged_comparison(baseline: RunView, candidate: RunView, allowed_loss: float, written: str) -> ComparisonView:
    """Compare the last values that two runs logged, if the rows of one are not observed: no interval, no verdict."""
    logged = [{name: found.last for name, found in side.metrics.items()} for side in (baseline, candidate)]
    name = next((name for name in LOGGED if None not in [values.get(name) for values in logged]), None)
    if name is None:
        raise DataError(
            f"{baseline.run_id} and {candidate.run_id} have not both logged {' or '.join(LOGGED)}. Log one "
            "in both, or compare the runs on a suite, as the arms of a campaign: docs/campaign.md, 'runs'."
        )
    before, after = (float(values[name] or 0.0) for values in logged)
    unseen = " and ".join(side.run_id for side in (baseline, candidate) if _is_recorded(side))
    return ComparisonView(
        baseline_run_id=baseline.run_id,
        candidate_run_id=candidate.run_id,
        num_rows=0,
        difference=Estimate(value=after - before, method="the last value that each run logged"),
        allowed_loss=allowed_loss,
        verdict="undecided",
        weights_equal=baseline.weights_digest == candidate.weights_digest is not None,
        metric=Metric(name=name, unit="as logged", higher_is_better=False),
        baseline_value=before,
        candidate_value=after,
        baseline_auc=None,
        candidate_auc=None,
        warnings=(
            warning_view(Warned("rows not observed", {"unseen": unseen})),
            *_warnings(baseline, candidate),
        ),
        **_speed_and_cost(baseline, candidate),
        page=written,
    )
