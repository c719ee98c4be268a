"""What a law says about a run that nobody has made: a calibrated band, or a refusal that names the limit.

Two things are refused: a target smaller than all points; and one whose tokens per parameter lie outside what
was fitted by more than a factor of two, since no origin by compute says anything about that direction. A target
beyond the longest reach that a back-test on these points could check is refused if asked strictly; else it
gets its band, which grows with the reach as it did within it, and its record says how far that was tested.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from assay.base.errors import AssayError, ConfigError, DataError
from assay.base.shapes import Int
from assay.base.units import count_text, power_text
from assay.records.evaluation import Estimate
from assay.records.scaling import BandCheck, ScalingLaw, ScalingPrediction
from assay.statistics.interval import normal_quantile
from assay.statistics.scaling.backtest import (
    BackTest,
    Claim,
    band_scale,
    half_width_68,
    residual_scale,
    run_back_test,
)
from assay.statistics.scaling.bootstrap import resampled
from assay.statistics.scaling.fit import ScalingFit, fit_scaling_law
from assay.statistics.scaling.forms import ScalingForm, forms_that_suit
from assay.statistics.scaling.points import (
    MAX_VALUE,
    MIN_VALUE,
    ScalingPoints,
    Variables,
    completed_target,
)
from assay.statistics.scaling.solver import Theta

CONFIDENCE = 0.90
MAX_RATIO_FACTOR = 2.0
ORIGIN_RESAMPLES = 60
"""The resamples of each origin's bootstrap: only its middle 68% is used."""
ORIGIN_STARTS = 16
CHECKED_SHARES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
"""Shares of the points below which `check_bands` forgets the rest."""


class ChosenForm(NamedTuple):
    """The form of a law, and what it was chosen by."""

    form: ScalingForm
    errors: Mapping[str, float]
    """Form -> the mean error of its back-test; empty where there was nothing to choose, or no way to."""


def choose_form(points: ScalingPoints, *, delta: float, seed: int = 0) -> ChosenForm:
    """The form with the fewest parameters, of those that suit the points, among those whose predictions of
    larger runs erred least: by no more than one standard error above the least (Breiman et al. 1984).

    All are tested from the same origins. Where the points are too few for that, the first that suits is taken.
    """
    suiting = forms_that_suit(points)
    min_points = max(form.min_points for form in suiting)
    back_test: dict[str, tuple[float, float]] = {}
    for form in suiting if len(suiting) > 1 else ():
        with suppress(AssayError):
            found = back_test_law(points, form, delta=delta, seed=seed, min_points=min_points)
            back_test[form.name] = found.error()
    if not back_test:
        return ChosenForm(suiting[0], {})
    limit = sum(min(back_test.values()))
    as_good = [form for form in suiting if form.name in back_test and back_test[form.name][0] <= limit]
    simplest = min(as_good, key=lambda form: len(form.parameter_names))
    return ChosenForm(simplest, {name: error for name, (error, _) in back_test.items()})


def back_test_law(
    points: ScalingPoints,
    form: ScalingForm,
    *,
    delta: float,
    seed: int = 0,
    min_points: int | None = None,
) -> BackTest:
    """The law's own record on these points, in log loss. `least_points` of an origin: the form's, or more."""
    form.check(points)

    def claim(below: Int[np.ndarray, "below"], above: Int[np.ndarray, "above"]) -> Claim:
        fit = fit_scaling_law(points.where(below), form, delta=delta, num_starts=ORIGIN_STARTS, seed=seed)
        replicates = resampled(fit, num_resamples=ORIGIN_RESAMPLES, seed=seed)
        return claim_of(fit, replicates, points.where(above).variables)

    scale = points.variables[form.scale]
    return run_back_test(scale, np.log(points.loss), claim, min_points=min_points or form.min_points)


def claim_of(fit: ScalingFit, replicates: Theta, variables: Variables) -> Claim:
    """The log loss of other points, with the standard errors that the fit claims."""
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
    """The loss of one new run at `target`, or a `DataError` that says how far the points reach.

    `is_strict`: also where no back-test reached so far.
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
    """The target with all that the form needs, or a `ConfigError` that says what is missing."""
    if bad := [name for name, value in target.items() if not (np.isfinite(value) and value > 0)]:
        raise ConfigError(f"target: {bad[0]}={target[bad[0]]:g}; expected a positive number.")
    at = completed_target(target)
    if far := [name for name, value in at.items() if not MIN_VALUE <= value <= MAX_VALUE]:
        raise ConfigError(
            f"target: {far[0]}={at[far[0]]:g}; expected between {MIN_VALUE:g} and {MAX_VALUE:g}. Check its unit."
        )
    if missing := [name for name in form.variables if name not in at]:
        raise ConfigError(
            f"the target says {', '.join(target) or 'nothing'}; '{form.name}' ({form.formula}) needs also "
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
    """log(target's scale / largest fitted), or a `DataError` where the points do not reach so far."""
    scale, target_scale = points.variables[form.scale], target[form.scale]
    unit = " FLOP" if form.scale == "compute" else ""
    largest, smallest = float(scale.max()), float(scale.min())
    horizon = float(np.log(target_scale / largest))
    if is_strict and horizon > back_test.max_horizon:
        supported = float(np.exp(back_test.max_horizon))
        raise DataError(
            f"{form.scale} {power_text(target_scale)}{unit} is {power_text(target_scale / largest)} times the largest run "
            f"({power_text(largest)}{unit}). A back-test on these points can check predictions up to "
            f"{power_text(supported)} times beyond: up to {power_text(largest * supported)}{unit}. Ask for "
            f"that at most, or add runs: smaller ones lengthen the reach, one of "
            f"{power_text(target_scale / supported)}{unit} brings this target into it."
        )
    if target_scale < smallest:
        raise DataError(
            f"{form.scale} {power_text(target_scale)}{unit} is below the smallest run ({power_text(smallest)}{unit})"
            "; nothing was tested there. Train it: it is cheaper than any run that was fitted."
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


class _BandCoverage(NamedTuple):
    calibrated: float
    uncalibrated: float
    bootstrap: float
    num_predictions: int


def check_bands(
    points: ScalingPoints,
    form: ScalingForm | None = None,
    *,
    delta: float,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> BandCheck:
    """Forget the largest runs, calibrate on the rest, and count how many of the forgotten the bands held.

    Without a form it is chosen among the rest, too, each time.

    Only forgotten runs within the supported reach count. Each share of `CHECKED_SHARES` weighs the same; what
    a band is calibrated on never includes what it is checked on.
    """
    by = form or forms_that_suit(points)[0]
    order = np.argsort(points.variables[by.scale], kind="stable")
    coverages = []
    for share in CHECKED_SHARES:
        known = points.where(order[: int(share * points.num_points)])
        rest = points.where(order[int(share * points.num_points) :])
        used = form or choose_form(known, delta=delta, seed=seed).form
        if band_coverage := _coverage_of(known, rest, used, delta=delta, confidence=confidence, seed=seed):
            coverages.append(band_coverage)
    return BandCheck(
        confidence=confidence,
        num_predictions=sum(band_coverage.num_predictions for band_coverage in coverages),
        covered=float(np.mean([band_coverage.calibrated for band_coverage in coverages])),
        covered_uncalibrated=float(np.mean([band_coverage.uncalibrated for band_coverage in coverages])),
        covered_by_bootstrap_alone=float(np.mean([band_coverage.bootstrap for band_coverage in coverages])),
    )


def _coverage_of(
    known: ScalingPoints, rest: ScalingPoints, form: ScalingForm, *, delta: float, confidence: float, seed: int
) -> _BandCoverage | None:
    back_test = back_test_law(known, form, delta=delta, seed=seed)
    fit = fit_scaling_law(known, form, delta=delta, num_starts=ORIGIN_STARTS, seed=seed)
    claimed = claim_of(fit, resampled(fit, num_resamples=ORIGIN_RESAMPLES, seed=seed), rest.variables)
    horizons = np.log(rest.variables[form.scale] / known.variables[form.scale].max())
    supported = horizons <= back_test.max_horizon
    if not supported.any():
        return None
    errors, plain = np.abs(np.log(rest.loss) - claimed.predicted), normal_quantile(confidence)
    widths = back_test.multiplier(confidence) * band_scale(claimed.errors, horizons)
    return _BandCoverage(
        calibrated=float(np.mean((errors <= widths)[supported])),
        uncalibrated=float(np.mean((errors <= plain * claimed.errors)[supported])),
        bootstrap=float(np.mean((errors <= plain * claimed.bootstrap_errors)[supported])),
        num_predictions=int(np.count_nonzero(supported)),
    )
