"""Solve thousands of robust fits at once: damped Newton on the Huber loss of log loss, vectorised over the fits.

Model: log L = log sum_k exp(F_k theta). Its gradient is g = sum_k s_k F_k with softmax shares s, its Hessian sum_k s_k
F_k F_k' - g g'. Both are exact and cheap. With residuals r and Huber's psi(r) = clip(r, -delta, delta) the objective's
Hessian is

    H = sum w [ 1(|r| <= delta) g g' + psi(r) (sum_k s_k F_k F_k' - g g') ]

which may be indefinite far from the optimum. It is damped by the matrix of iteratively reweighted least squares, S =
sum w min(1, delta/|r|) g g': (H + damping S) step = -gradient. Little damping gives Newton's step; much damping gives a
short step that always descends. Each fit has its own damping. Chinchilla's delta of 1e-3 is a fifth of the residuals,
so the objective is nearly a sum of absolute values and full of kinks; `deltas` therefore falls step by step, and each
optimum is the start of the next. 98% of random starts end in the optimum of Epoch AI's refit (L-BFGS: 20 to 44%).
"""

from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from assay.base.shapes import Bool, Float64

Features = Float64[np.ndarray, "point term parameter"]
Theta = Float64[np.ndarray, "fit parameter"]
PerFit = Float64[np.ndarray, "fit point"]

CHUNK_POINTS = 61_440
"""Points of all fits in one batch: 256 fits of 240 points work on arrays of 2 MB, which stay in the cache."""
MAX_ITERATIONS = 60
TOLERANCE = 1e-12
"""A fit has converged when the next step promises to lower its objective by less than this share."""
_MIN_DAMPING, _MAX_DAMPING = 1e-12, 1e8
_SINGULAR = 1e-14
"""A matrix is singular if its smallest eigenvalue is below this share of the largest."""


def minimise(
    features: Features, log_losses: ArrayLike, weights: ArrayLike, starts: Theta, *, deltas: tuple[float, ...]
) -> Theta:
    """[fit, parameter]: a local minimum of each fit's weighted sum of Huber losses at the last of `deltas`.

    `log_losses` and `weights` are [point] for all fits or [fit, point]. A fit that does not improve stays at its start.
    """
    shape = (len(starts), len(features))
    targets = np.broadcast_to(np.asarray(log_losses, float), shape)
    counts = np.broadcast_to(np.asarray(weights, float), shape)
    theta = starts.copy()
    num_fits = max(1, CHUNK_POINTS // len(features))
    for begin in range(0, len(theta), num_fits):
        part = slice(begin, begin + num_fits)
        for delta in deltas:
            theta[part] = _minimise_batch(features, targets[part], counts[part], theta[part], delta)
    return theta


def log_sum_exp(features: Features, theta: Theta) -> PerFit:
    """[fit, point]: the model's log loss."""
    top, shares = _shares(features, theta)
    total: np.ndarray = top + np.log(_sum_of_terms(shares))
    return total


def objectives(
    features: Features,
    log_losses: Float64[np.ndarray, "*#fits point"],
    weights: Float64[np.ndarray, "*#fits point"],
    theta: Theta,
    delta: float,
) -> Float64[np.ndarray, "fit"]:
    """[fit]: weighted sum of Huber losses."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _huber_sum(log_sum_exp(features, theta) - log_losses, weights, delta)


class _Local(NamedTuple):
    """Objective and derivatives at a batch's thetas."""

    objective: Float64[np.ndarray, "fit"]
    gradient: Theta
    hessian: Float64[np.ndarray, "fit parameter parameter"]
    reweighted: Float64[np.ndarray, "fit parameter parameter"]


def _minimise_batch(features: Features, targets: PerFit, weights: PerFit, starts: Theta, delta: float) -> Theta:
    theta = starts.copy()
    damping = np.full(len(theta), 1e-2)
    live = np.arange(len(theta))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        current = _local(features, targets, weights, theta, delta)
        for _ in range(MAX_ITERATIONS):
            step = _damped_step(current, damping[live])
            proposals = theta[live] + step
            proposed = _local(features, targets[live], weights[live], proposals, delta)
            is_better = proposed.objective < current.objective
            theta[live[is_better]] = proposals[is_better]
            factor = np.where(is_better, 0.2, 6.0)
            damping[live] = np.clip(damping[live] * factor, _MIN_DAMPING, _MAX_DAMPING)
            promised = -(current.gradient * step).sum(-1)
            is_done = promised <= TOLERANCE * current.objective
            goes_on = ~is_done & (damping[live] < _MAX_DAMPING)
            current = _advance(current, proposed, is_better, goes_on)
            live = live[goes_on]
            if not len(live):
                break
    return theta


def _advance(
    current: _Local, proposed: _Local, is_better: Bool[np.ndarray, "fit"], goes_on: Bool[np.ndarray, "fit"]
) -> _Local:
    """Accept the better points, and return the values of the fits that go on."""
    for stood, came in zip(current, proposed, strict=True):
        stood[is_better] = came[is_better]
    return _Local(*(stood[goes_on] for stood in current))


def _damped_step(current: _Local, damping: Float64[np.ndarray, "fit"]) -> Theta:
    num_parameters = current.gradient.shape[1]
    # A term that underflows at all points leaves a zero row; the ridge keeps the matrix regular.
    ridge = 1e-9 * np.trace(current.reweighted, axis1=1, axis2=2)[:, None, None] / num_parameters
    positive = current.reweighted + (ridge + 1e-300) * np.eye(num_parameters)
    damped = current.hessian + damping[:, None, None] * positive
    is_broken = ~np.isfinite(damped).all(axis=(1, 2))
    damped[is_broken] = np.eye(num_parameters)
    sizes = np.linalg.eigvalsh(damped)
    # Also if it is singular up to rounding, when the points do not determine two parameters.
    is_indefinite = sizes[:, 0] <= _SINGULAR * sizes[:, -1]
    damped[is_indefinite] = (1 + damping[is_indefinite])[:, None, None] * positive[is_indefinite]
    step: np.ndarray = -np.linalg.solve(damped, current.gradient[..., None])[..., 0]
    return step


def _local(features: Features, targets: PerFit, weights: PerFit, theta: Theta, delta: float) -> _Local:
    num_points, num_terms, num_parameters = features.shape
    top, shares = _shares(features, theta)
    total = _sum_of_terms(shares)
    residuals = top + np.log(total) - targets
    shares /= total[..., None]
    sizes = np.abs(residuals)
    psi = weights * np.clip(residuals, -delta, delta)
    slopes = np.einsum("rnk,nkp->rnp", shares, features, optimize=True)
    transposed = slopes.transpose(0, 2, 1)
    products = np.einsum("nkp,nkq->nkpq", features, features).reshape(num_points * num_terms, -1)
    curved = (psi[..., None] * shares).reshape(len(theta), -1) @ products
    inner = weights * (sizes <= delta) - psi
    reweighting = weights * np.minimum(1.0, delta / np.maximum(sizes, 1e-300))
    return _Local(
        objective=_huber_sum(residuals, weights, delta),
        gradient=np.einsum("rn,rnp->rp", psi, slopes, optimize=True),
        hessian=curved.reshape(-1, num_parameters, num_parameters) + (transposed * inner[:, None]) @ slopes,
        reweighted=(transposed * reweighting[:, None]) @ slopes,
    )


def _shares(features: Features, theta: Theta) -> tuple[PerFit, Float64[np.ndarray, "fit point term"]]:
    """Return the log of each point's largest term [fit, point], and all terms divided by it [fit, point, term]."""
    num_points, num_terms, num_parameters = features.shape
    terms = (theta @ features.reshape(-1, num_parameters).T).reshape(-1, num_points, num_terms)
    # Term by term: NumPy's own maximum over an axis of three takes four times as long.
    top: np.ndarray = reduce(np.maximum, np.moveaxis(terms, -1, 0))
    return top, np.exp(terms - top[..., None])


def _sum_of_terms(shares: Float64[np.ndarray, "fit point term"]) -> PerFit:
    total: np.ndarray = reduce(np.add, np.moveaxis(shares, -1, 0))
    return total


def _huber_sum(
    residuals: PerFit, weights: Float64[np.ndarray, "*#fits point"], delta: float
) -> Float64[np.ndarray, "fit"]:
    sizes = np.abs(residuals)
    losses = np.where(sizes <= delta, 0.5 * sizes * sizes, delta * (sizes - 0.5 * delta))
    total: np.ndarray = (weights * losses).sum(-1)
    return total
