"""Predict the loss of a larger run with a calibrated band, or reject the target and name the limit.

Two kinds of target are always rejected: one smaller than all points, and one whose tokens per parameter lie more than a
factor of two outside the fitted range, because a back-test by compute says nothing about that direction. A target
beyond the longest tested horizon is rejected in strict mode; otherwise its band grows with the horizon, and the record
says how far bands were tested.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from assay.base.errors import AssayError, ConfigError, DataError
from assay.base.shapes import Bool, Int
from assay.base.units import count_text, power_text
from assay.records.evaluation import Estimate
from assay.records.scaling import BandCheck, ScalingLaw, ScalingPrediction
from assay.statistics.interval import normal_quantile
from assay.statistics.scaling.backtest import BackTest, Claim, band_scale, half_width_68, residual_scale, run_back_test
from assay.statistics.scaling.bootstrap import resampled
from assay.statistics.scaling.fit import ScalingFit, fit_scaling_law
from assay.statistics.scaling.forms import ScalingForm, forms_that_suit
from assay.statistics.scaling.points import MAX_VALUE, MIN_VALUE, ScalingPoints, Variables, completed_target
from assay.statistics.scaling.solver import Theta

CONFIDENCE = 0.90
MAX_RATIO_FACTOR = 2.0
ORIGIN_RESAMPLES = 60
"""Bootstrap samples for each origin; only their middle 68% is used."""
ORIGIN_STARTS = 16
CHECKED_SHARES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
"""`check_bands` hides the points above each of these shares."""


def choose_form(points: ScalingPoints, *, delta: float, seed: int = 0) -> tuple[ScalingForm, dict[str, float]]:
    """Choose the form whose back-test erred least; within one standard error of the best, the one with the fewest
    parameters (Breiman et al. 1984).

    All forms are tested from the same origins. If there are too few points for a back-test, the first suitable form is
    taken. Also return the mean error of each form's back-test, empty if there was only one form or no back-test.
    """
    suiting = forms_that_suit(points)
    min_points = max(form.min_points for form in suiting)
    back_test: dict[str, tuple[float, float]] = {}
    for form in suiting if len(suiting) > 1 else ():
        with suppress(AssayError):
            found = back_test_law(points, form, delta=delta, seed=seed, min_points=min_points)
            back_test[form.name] = found.error()
    if not back_test:
        return suiting[0], {}
    limit = sum(min(back_test.values()))
    as_good = [form for form in suiting if form.name in back_test and back_test[form.name][0] <= limit]
    simplest = min(as_good, key=lambda form: len(form.parameter_names))
    return simplest, {name: error for name, (error, _) in back_test.items()}


def back_test_law(
    points: ScalingPoints, form: ScalingForm, *, delta: float, seed: int = 0, min_points: int | None = None
) -> BackTest:
    """Back-test a law in log loss. `min_points` of an origin defaults to the form's."""
    form.check(points)

    def claim(below: Int[np.ndarray, "below"], above: Int[np.ndarray, "above"]) -> Claim:
        fit = fit_scaling_law(points.where(below), form, delta=delta, num_starts=ORIGIN_STARTS, seed=seed)
        replicates = resampled(fit, num_resamples=ORIGIN_RESAMPLES, seed=seed)
        return claim_of(fit, replicates, points.where(above).variables)

    scale = points.variables[form.scale]
    return run_back_test(scale, np.log(points.loss), claim, min_points=min_points or form.min_points)


def claim_of(fit: ScalingFit, replicates: Theta, variables: Variables) -> Claim:
    """Predict the log loss of other points, with the standard errors that the fit claims."""
    scale, num_parameters = fit.points.variables[fit.form.scale], len(fit.form.parameter_names)
    residual = residual_scale(fit.residuals(), scale, num_parameters=num_parameters)
    from_parameters = half_width_68(fit.log_losses(variables, replicates))
    return Claim(fit.log_loss(variables), np.hypot(from_parameters, residual), from_parameters)


def extrapolate(
    fit: ScalingFit,
    replicates: Theta,
    back_test: BackTest,
    law: ScalingLaw,
    target: Mapping[str, float],
    *,
    confidence: float = CONFIDENCE,
    is_strict: bool = False,
) -> ScalingPrediction:
    """Predict the loss of one new run at `target`.

    Raises `DataError` if the points do not support the target; with `is_strict`, also beyond the tested horizon.
    """
    at = target_of(fit.form, target)
    horizon = supported_horizon(fit.points, fit.form, back_test, at, is_strict=is_strict)
    claimed = claim_of(fit, replicates, {name: np.array([value]) for name, value in at.items()})
    middle, half_width = float(claimed.predicted[0]), back_test.half_width(claimed, horizon, confidence)
    return ScalingPrediction(
        law_sha256=law.digest(),
        target={name: at[name] for name in sorted({*fit.form.variables, fit.form.scale})},
        loss=Estimate(
            value=float(np.exp(middle)),
            low=float(np.exp(middle - half_width)),
            high=float(np.exp(middle + half_width)),
            confidence=confidence,
            method=f"back-test at {len(back_test.origins)} origins: "
            f"{back_test.multiplier(confidence):.2f} s sqrt(1 + h)",
        ),
        times_beyond_data=float(np.exp(horizon)),
        times_supported=float(np.exp(back_test.max_horizon)),
    )


def target_of(form: ScalingForm, target: Mapping[str, float]) -> dict[str, float]:
    """Complete the target's variables. Raises `ConfigError` if the form needs one that is missing."""
    if bad := [name for name, value in target.items() if not (np.isfinite(value) and value > 0)]:
        raise ConfigError(f"target: {bad[0]}={target[bad[0]]:g}; expected a positive number.")
    at = completed_target(target)
    if far := [name for name, value in at.items() if not MIN_VALUE <= value <= MAX_VALUE]:
        raise ConfigError(
            f"target: {far[0]}={at[far[0]]:g}; expected between {MIN_VALUE:g} and {MAX_VALUE:g}. Check the unit."
        )
    if missing := [name for name in form.variables if name not in at]:
        raise ConfigError(
            f"the target gives {', '.join(target) or 'nothing'}; '{form.name}' ({form.formula}) also needs "
            f"{' and '.join(missing)}."
        )
    return at


def supported_horizon(
    points: ScalingPoints,
    form: ScalingForm,
    back_test: BackTest,
    target: Mapping[str, float],
    *,
    is_strict: bool = False,
) -> float:
    """Return log(target's scale / largest fitted), or raise `DataError` if the points do not support the target."""
    scale, target_scale = points.variables[form.scale], target[form.scale]
    unit = " FLOP" if form.scale == "compute" else ""
    largest, smallest = float(scale.max()), float(scale.min())
    horizon = float(np.log(target_scale / largest))
    if is_strict and horizon > back_test.max_horizon:
        supported = float(np.exp(back_test.max_horizon))
        raise DataError(
            f"{form.scale} {power_text(target_scale)}{unit} is {power_text(target_scale / largest)} times the "
            f"largest run ({power_text(largest)}{unit}). A back-test on these points can check predictions up to "
            f"{power_text(supported)} times beyond: up to {power_text(largest * supported)}{unit}. Ask for "
            f"that at most, or add runs: smaller ones lengthen the reach, one of "
            f"{power_text(target_scale / supported)}{unit} brings this target into it."
        )
    if target_scale < smallest:
        raise DataError(
            f"{form.scale} {power_text(target_scale)}{unit} is below the smallest run "
            f"({power_text(smallest)}{unit}), where nothing was tested. Train this run: it is cheaper than any "
            "fitted run."
        )
    _check_token_ratio(points, form, target)
    return horizon


def _check_token_ratio(points: ScalingPoints, form: ScalingForm, target: Mapping[str, float]) -> None:
    if not {"parameters", "tokens"} <= set(form.variables):
        return
    seen = points.variables["tokens"] / points.variables["parameters"]
    ratio = target["tokens"] / target["parameters"]
    low, high = float(seen.min()) / MAX_RATIO_FACTOR, float(seen.max()) * MAX_RATIO_FACTOR
    if not low <= ratio <= high:
        raise DataError(
            f"{power_text(ratio)} tokens per parameter ({count_text(target['tokens'])} on "
            f"{count_text(target['parameters'])}); the runs that were fitted have {power_text(seen.min())} to "
            f"{power_text(seen.max())}, which supports {power_text(low)} to {power_text(high)}. Add small "
            f"runs with about {power_text(ratio)} tokens per parameter."
        )


def check_bands(
    points: ScalingPoints,
    form: ScalingForm | None = None,
    *,
    delta: float,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> BandCheck:
    """Hide the largest runs, calibrate on the rest, and count how many hidden runs lie inside their bands.

    Without a form, one is chosen on the visible runs each time. Only hidden runs within the tested horizon count, and
    each share of `CHECKED_SHARES` has the same weight.
    """
    by = form or forms_that_suit(points)[0]
    order = np.argsort(points.variables[by.scale], kind="stable")
    coverages, num_predictions = [], 0
    for share in CHECKED_SHARES:
        known = points.where(order[: int(share * points.num_points)])
        rest = points.where(order[int(share * points.num_points) :])
        used = form or choose_form(known, delta=delta, seed=seed)[0]
        is_inside = _are_inside(known, rest, used, delta=delta, confidence=confidence, seed=seed)
        if is_inside.size:
            coverages.append(is_inside.mean(axis=1))
            num_predictions += is_inside.shape[1]
    calibrated, uncalibrated, bootstrap = (float(np.mean(column)) for column in np.reshape(coverages, (-1, 3)).T)
    return BandCheck(
        confidence=confidence,
        num_predictions=num_predictions,
        covered=calibrated,
        covered_uncalibrated=uncalibrated,
        covered_by_bootstrap_alone=bootstrap,
    )


def _are_inside(
    known: ScalingPoints, rest: ScalingPoints, form: ScalingForm, *, delta: float, confidence: float, seed: int
) -> Bool[np.ndarray, "3 prediction"]:
    """Return which hidden runs within the tested horizon lie inside the calibrated band, the claimed errors' band, and
    the bootstrap's."""
    back_test = back_test_law(known, form, delta=delta, seed=seed)
    fit = fit_scaling_law(known, form, delta=delta, num_starts=ORIGIN_STARTS, seed=seed)
    claimed = claim_of(fit, resampled(fit, num_resamples=ORIGIN_RESAMPLES, seed=seed), rest.variables)
    horizon = np.log(rest.variables[form.scale] / known.variables[form.scale].max())
    supported = horizon <= back_test.max_horizon
    errors, plain = np.abs(np.log(rest.loss) - claimed.predicted), normal_quantile(confidence)
    widths = back_test.multiplier(confidence) * band_scale(claimed.errors, horizon)
    limits = np.stack([widths, plain * claimed.errors, plain * claimed.bootstrap_errors])
    is_inside: np.ndarray = (errors <= limits)[:, supported]
    return is_inside
