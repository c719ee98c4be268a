"""The gates of a ladder, beside a campaign's own: each is a clause from the records of both arms' runs.

    gain          the campaign's decision          pass: scale; fail: harm is shown
    loss_band     `assay scaling`'s law of smaller runs of the base, and the held-out loss of the change's runs
    base_loss     likewise, of the base's own runs: if it fails, the ladder stops
    step_time     `assay throughput`'s forecast of each arm's recipe, and the steps that were made
    code_length   `assay scaling code-length` of the pairs
    warnings      what `assay runs show` warns of, and losses that are not finite

A clause holds codes and numbers; `reporting.documents.ladder` has the words. A gate that cannot be judged (no law,
other rows) is undecided with the reason `not judged`, and blocks nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.base.errors import AssayError, DataError
from assay.records.decision import Clause, Decision, GateVerdict
from assay.records.ladder import NO_VERDICT
from assay.records.run import Run
from assay.reporting.views.evidence import harm_shown
from assay.statistics.code_length import code_length, compare_code_lengths
from assay.statistics.scaling.from_runs import points_of_runs
from assay.statistics.scaling.points import ScalingPoints
from assay.statistics.scaling.study import study
from assay.statistics.warnings import RuleName
from assay.store.attempts import saved_attempts
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.fold import fold_run
from assay.throughput.cluster import Cluster
from assay.throughput.compare import compare_forecast
from assay.workflows.campaign.folder import LoadedCampaign
from assay.workflows.ladder.config import CodeLengthGate, LossBandGate, StepTimeGate
from assay.workflows.throughput.attempt import longest_attempt
from assay.workflows.throughput.calibrate import calibrate_throughput

NUMERICAL: frozenset[RuleName] = frozenset(("diverged", "spikes", "one score", "sampler mismatch"))
"""Warnings about a run's numbers; the others are about its data or its quality, which the campaign judges."""
NOT_FINITE = "loss not finite"


def gain_clause(decision: Decision) -> Clause:
    """Return what the campaign decided: `pass` if it scales the change, `fail` if harm is shown."""
    is_harmful = harm_shown(decision) is not None
    verdict: GateVerdict = "pass" if decision.recommendation == "scale" else "fail" if is_harmful else "undecided"
    values = {"effect": decision.effect.model_dump(), "by": decision.decided_by}
    return _clause("gain", verdict, value=decision.effect.value, unit=decision.unit, values=values)


def loss_band_clause(
    gate: LossBandGate, points: ScalingPoints, ledger: Ledger, run_ids: Sequence[str], *, is_base: bool
) -> Clause:
    """Compare the mean held-out loss of runs with the band of a law of smaller runs. A change may be better than the
    law of the base; the base itself may not, since the law does not hold then either."""
    runs = points_of_runs(ledger, run_ids)
    loss = float(runs.loss.mean())
    name = "base_loss" if is_base else "loss_band"
    shared = sorted(runs.variables.keys() & points.variables.keys() - {"compute"}) or ["compute"]
    target = {name: float(runs.variables[name].mean()) for name in shared}
    values: dict[str, Any] = {"target": target, "runs": len(run_ids)}
    try:
        (found,) = study(points, targets=[target], confidence=gate.confidence).targets
    except AssayError as error:
        return _no_verdict(name, str(error))
    if found.prediction is None:
        return _no_verdict(name, str(found.error))
    band = found.prediction.loss
    assert band.low is not None and band.high is not None, "a prediction has a band"
    is_above, is_below = loss > band.high, loss < band.low
    values |= {"band": band.model_dump(), "is_untested": found.is_untested}
    verdict: GateVerdict = "fail" if is_above or (is_below and is_base) else "pass"
    reason = "above" if is_above else "below" if is_below else "inside"
    return _clause(name, verdict, reason=reason, value=loss, bound=band.high, values=values)


def step_time_clause(
    gate: StepTimeGate, campaign: LoadedCampaign, home: Home, runs: Mapping[str, Sequence[Run]]
) -> Clause:
    """Compare the steps of a change with the forecast of its recipe, by arm: the baseline's show how busy the machine
    was."""
    cluster = Cluster(campaign.config.workers, None, None, 0.0, None)
    found: dict[str, tuple[float, float, float]] = {}
    try:
        for arm, of_arm in runs.items():
            calibration = calibrate_throughput(home, campaign.recipe_of(arm), seconds=gate.measure_s)
            checks = [compare_forecast(calibration, longest_attempt(run), cluster) for run in of_arm]
            forecast = checks[0].step_s
            assert forecast.high is not None, "a forecast has an interval"
            found[arm] = float(np.median([check.measured_step_s for check in checks])), forecast.value, forecast.high
    except AssayError as error:
        return _no_verdict("step_time", str(error))
    (before_s, before_forecast_s, _), (measured_s, forecast_s, high_s) = found.values()
    machine = before_s / before_forecast_s
    bound = machine * high_s * (1.0 + gate.tolerance)
    values = {"forecast_s": machine * forecast_s, "before_s": before_s, "machine": machine}
    return _clause("step_time", measured_s <= bound, value=measured_s, bound=bound, unit="s", values=values)


def code_length_clause(gate: CodeLengthGate, ledger: Ledger, pairs: Sequence[tuple[str, str]]) -> Clause:
    """Compare the code lengths of the pairs (known-good, change) of runs."""
    try:
        for run_id in {run_id for pair in pairs for run_id in pair}:
            fold_run(ledger, ledger.run(run_id))
        codes = [(code_length(ledger, before), code_length(ledger, after)) for before, after in pairs]
        saved = compare_code_lengths(codes)
    except DataError as error:
        return _no_verdict("code_length", str(error))
    assert saved.low is not None and saved.high is not None, "a comparison has an interval"
    verdict: GateVerdict = "fail" if saved.high < -gate.margin else "pass" if saved.low >= -gate.margin else "undecided"
    values = {"saved": saved.model_dump()}
    return _clause("code_length", verdict, value=saved.value, bound=-gate.margin, unit="bits per row", values=values)


def warnings_clause(decision: Decision | None, runs: Mapping[str, Sequence[Run]]) -> Clause:
    """Compare the warnings about the numbers of both arms' runs; without a decision, of runs that failed."""
    (_, before), (arm, after) = [(name, _numerical(name, of_arm, decision)) for name, of_arm in runs.items()]
    new = {rule: run_ids for rule, run_ids in after.items() if rule not in before}
    values = {"new": new, "before": sorted(before), "runs": len(runs[arm])}
    return _clause("warnings", not new, value=float(len(new)), bound=0.0, values=values)


def is_not_finite(run: Run) -> bool:
    """Return whether a run's training met a loss or gradient that is not finite."""
    failures = [attempt.failure for attempt in saved_attempts(Path(run.run_dir))]
    return any(failure is not None and failure.failure_kind == "loss_not_finite" for failure in failures)


def _numerical(arm: str, runs: Sequence[Run], decision: Decision | None) -> dict[str, list[str]]:
    """Return the runs of an arm by the warning about their numbers."""
    found: dict[str, list[str]] = {}
    if not_finite := [run.run_id for run in runs if is_not_finite(run)]:
        found[NOT_FINITE] = not_finite
    for run in decision.runs if decision is not None else ():
        for rule in NUMERICAL.intersection(run.warning_rules) if run.arm == arm else ():
            found.setdefault(rule, []).append(run.run_id)
    return found


def _no_verdict(gate: str, problem: str) -> Clause:
    return _clause(gate, "undecided", reason=NO_VERDICT, values={"problem": problem})


def _clause(gate: str, verdict: GateVerdict | bool, *, value: float | None = None, **others: Any) -> Clause:
    if isinstance(verdict, bool):
        verdict = "pass" if verdict else "fail"
    return Clause(name=gate.replace("_", " "), type=gate, verdict=verdict, value=value, **{"reason": verdict, **others})
