"""Scaling laws against what is known: a published refit, published ladders, simulated coverage, and bands for
forgotten runs.

    python benchmarks/evidence_scaling.py [--worlds 200] [--band-worlds 6]

Takes about five minutes on one core. The last line is one JSON object. The points of Hoffmann et al. 2022 are
read from $ASSAY_DATA (by default the folder `../shared/data` of the checkout).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.statistics.scaling.bootstrap import bootstrap, resample_counts, scaling_law, standard_errors
from assay.statistics.scaling.extrapolate import check_bands
from assay.statistics.scaling.fit import HUBER_DELTA, LEAST_ABSOLUTE_DELTA, fit_scaling_law
from assay.statistics.scaling.forms import FORMS
from assay.statistics.scaling.points import ScalingPoints, read_points, scaling_points
from assay.statistics.scaling.study import study
from harness import PUBLISHED_DATA, options_of, print_result

# Besiroglu et al. 2024, arXiv 2404.10102, with the digits that are given.
HUBER = {"A": 477.84, "B": 2143.86, "E": 1.81724, "alpha": 0.34731, "beta": 0.36718}
HEADLINE = {"A": 482.01, "B": 2085.43, "E": 1.8169, "alpha": 0.3478, "beta": 0.3659}
HEADLINE_ERRORS = {"A": 124.5, "B": 1293.3, "E": 0.0257, "alpha": 0.0154, "beta": 0.0206}
PUBLISHED_SEED, NUM_RESAMPLES = 42, 4000
"""NumPy's legacy generator with this seed draws the resamples that their standard errors come from."""
WORLD_RESAMPLES = 400


def hoffmann() -> ScalingPoints:
    """Return the points of Hoffmann et al. 2022."""
    return read_points(PUBLISHED_DATA / "chinchilla" / "svg_extracted_data.csv").without_highest_losses(5)


def chinchilla() -> dict[str, float]:
    """The published refit: largest relative error of a parameter, of a standard error, and seconds for both."""
    points = hoffmann()
    began_s = time.perf_counter()
    huber = fit_scaling_law(points)
    drawn = np.random.RandomState(PUBLISHED_SEED).choice(points.num_points, size=(NUM_RESAMPLES, points.num_points))
    counts = np.array([np.bincount(item, minlength=points.num_points) for item in drawn])
    errors = standard_errors(huber, bootstrap(huber, counts))
    seconds = time.perf_counter() - began_s
    least_absolute = fit_scaling_law(points, delta=LEAST_ABSOLUTE_DELTA)
    fitted = [(huber.parameters(), HUBER), (least_absolute.parameters(), HEADLINE)]
    for found, published in [*fitted, (errors, HEADLINE_ERRORS)]:
        print("  ".join(f"{name} {found[name]:.5g} ({published[name]:g})" for name in published))
    return {
        "chinchilla_max_relative_error": max(_largest_error(*entry) for entry in fitted),
        "chinchilla_max_relative_se_error": _largest_error(errors, HEADLINE_ERRORS),
        "chinchilla_s": seconds,
    }


def band_coverage() -> dict[str, float]:
    """Share of Hoffmann's larger runs that nominal 90% bands from the smaller ones held."""
    return {"bands_90_covered": check_bands(hoffmann(), FORMS["chinchilla"], delta=HUBER_DELTA).covered}


def published_ladders() -> dict[str, float]:
    """Runs of 1.4 and 6.9 B parameters forecast from those of 10 to 411 M (Gadre et al. 2024), by the form that
    the small runs choose: how many within 2%, and how many in their 90% bands."""
    errors, held = [], []
    for path in sorted((PUBLISHED_DATA / "ladders").glob("*_largest.csv")):
        larger = read_points(path)
        targets = [
            dict(zip(("parameters", "tokens"), map(float, entry), strict=True))
            for entry in zip(larger.variables["parameters"], larger.variables["tokens"], strict=True)
        ]
        found = study(read_points(path.with_name(path.name.replace("_largest", ""))), targets=targets)
        for loss, request in zip(larger.loss, found.targets, strict=True):
            if request.prediction is not None:
                expected = request.prediction.loss
                errors.append(expected.value / float(loss) - 1)
                held.append(expected.low <= loss <= expected.high)
        print(f"{path.stem}: {found.fit.form.name}, " + ", ".join(f"{error:+.2%}" for error in errors[-3:]))
    return {
        "ladders_forecast": len(errors),
        "ladders_within_2_percent": float(np.sum(np.abs(errors) < 0.02)),
        "ladders_in_90_bands": float(np.sum(held)),
    }


def simulated_bands(num_simulations: int) -> dict[str, float]:
    """The same over made-up ladders of 60 runs: the law is right, or bends, or each size has its own luck."""
    found = {}
    for name, spoil in SPOILERS.items():
        rng = np.random.default_rng(11)
        checks = [
            check_bands(_ladder(rng, spoil), FORMS["chinchilla"], delta=HUBER_DELTA) for _ in range(num_simulations)
        ]
        found[f"bands_90_{name}"] = float(np.mean([check.covered for check in checks]))
        print(f"{name}: {found[f'bands_90_{name}']:.3f}", flush=True)
    return found


def interval_coverage(num_simulations: int) -> dict[str, float]:
    """Share of nominal 95% intervals that hold the truth: losses drawn anew on the design of Hoffmann."""
    points = hoffmann()
    truth = fit_scaling_law(points)
    expected, residuals = truth.log_loss(points.variables), truth.residuals()
    rng, hits = np.random.default_rng(7), dict.fromkeys(truth.parameters(), 0)
    for _ in range(num_simulations):
        loss = np.exp(expected + rng.choice(residuals - np.median(residuals), points.num_points))
        variables: dict[str, Any] = dict(points.variables)
        world = scaling_points(loss, **variables)
        fit = fit_scaling_law(world, num_starts=8)
        law = scaling_law(fit, bootstrap(fit, resample_counts(world.groups, WORLD_RESAMPLES, rng)))
        for parameter in law.parameters:
            low, high = parameter.estimate.low, parameter.estimate.high
            assert low is not None and high is not None, "a bootstrap gives an interval"
            hits[parameter.name] += low <= truth.parameters()[parameter.name] <= high
    covered = {f"interval_95_{name}": count / num_simulations for name, count in hits.items()}
    return {**covered, "interval_95_mean": float(np.mean(list(covered.values())))}


def _ladder(rng: np.random.Generator, spoil: Callable[..., np.ndarray]) -> ScalingPoints:
    ratios = np.array([5.0, 10.0, 20.0, 40.0, 80.0])
    parameters = np.repeat(np.geomspace(1e7, 3e9, 12), len(ratios))
    tokens = parameters * np.tile(ratios, 12)
    log_loss = np.log(1.82 + 480 / parameters**0.35 + 2100 / tokens**0.37) + 0.004 * rng.standard_t(4, 60)
    return scaling_points(np.exp(log_loss + spoil(rng, parameters, tokens)), parameters=parameters, tokens=tokens)


def _bend(rng: np.random.Generator, parameters: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    far = np.log(parameters * tokens) - np.log(parameters * tokens).mean()
    bend: np.ndarray = rng.normal(0.0, 0.004) * far * far / 4
    return bend


def _noise_of_sizes(rng: np.random.Generator, parameters: np.ndarray, _: np.ndarray) -> np.ndarray:
    size = np.unique(parameters, return_inverse=True)[1]
    random_draws: np.ndarray = rng.normal(0.0, 0.004, size.max() + 1)[size]
    return random_draws


SPOILERS: dict[str, Callable[..., np.ndarray]] = {
    "right_law": lambda rng, parameters, tokens: np.zeros(len(parameters)),
    "bent_law": _bend,
    "lucky_sizes": _noise_of_sizes,
}


def _largest_error(found: dict[str, float], published: dict[str, float]) -> float:
    return max(abs(found[name] / published[name] - 1) for name in published)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--worlds", type=int, default=200, help="Simulated data sets; 0 leaves simulation out.")
    parser.add_argument("--band-worlds", type=int, default=6, help="Simulated ladders of each kind.")
    options = parser.parse_args()
    found = chinchilla() | band_coverage() | published_ladders()
    if options.band_worlds:
        found |= simulated_bands(options.band_worlds)
    if options.worlds:
        found |= interval_coverage(options.worlds)
    print_result(found, digits=5)


if __name__ == "__main__":
    main()
