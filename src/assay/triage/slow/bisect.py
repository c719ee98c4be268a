"""Which of some commits made a step slower, from noisy measurements.

    GOOD   c0   c1   c2   ...   BAD            one of c0 ... BAD is the first of the other level

Every measurement is a block: a run of some commit beside one of GOOD, as a log ratio. It is 0 before the
culprit and the whole difference from there on, plus noise. Of each commit the posterior that it is the culprit
has a closed form: difference and noise, which nobody knows, are integrated out (flat and Jeffreys' priors of a
linear model). The next block is of the commit that splits the posterior in halves, which tells most whatever
the noise; and it ends when one culprit has all but `error` of it (Horstein 1963; Waeber 2013). So a block by
itself decides nothing, and a commit that was measured unluckily is measured again.

Commits that do not run tell nothing: those that only they could tell apart stay together.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from assay.base.shapes import Bool, Float64


class CannotRun(Exception):  # noqa: N818
    """A commit cannot be measured; says why."""


class Bisected(NamedTuple):
    """Where a bisection ended."""

    culprits: tuple[int, ...]
    """The likeliest commit, by its place behind GOOD; several where only commits that do not run would tell."""
    probability: float
    """That it is one of these."""
    posterior: Float64[np.ndarray, "commit"]
    log_ratios: tuple[float, ...]
    """The blocks' from the culprit on."""
    skipped: dict[int, str]
    """Commits that do not run -> why."""
    is_decided: bool


class StepPosterior:
    """What is known of the culprit."""

    def __init__(self, is_candidate: Bool[np.ndarray, "commit"], of_bad: Sequence[float]) -> None:
        """`may_be`: whether a commit changes anything, BAD last; `of_bad`: log ratios of BAD to GOOD."""
        number = len(is_candidate)
        self._log_prior = np.where(is_candidate, 0.0, -math.inf)
        self._ratios: list[list[float]] = [[] for _ in range(number)]
        self._ratios[-1] = list(of_bad)
        self._is_measurable = np.ones(number, bool)

    def add(self, commit: int, log_ratio: float) -> None:
        """A block of a commit beside GOOD."""
        self._ratios[commit].append(log_ratio)

    def skip(self, commit: int) -> None:
        """It does not run."""
        self._is_measurable[commit] = False

    def probabilities(self) -> Float64[np.ndarray, "commit"]:
        """That each is the culprit."""
        counts = np.array([len(some) for some in self._ratios], np.float64)
        sums = np.array([sum(some) for some in self._ratios])
        squares = sum(ratio * ratio for some in self._ratios for ratio in some)
        after, sum_after = counts[::-1].cumsum()[::-1], sums[::-1].cumsum()[::-1]
        residual = np.maximum(squares - sum_after**2 / after, 1e-12 * squares + 1e-300)
        log = self._log_prior - 0.5 * np.log(after) - 0.5 * (counts.sum() - 1.0) * np.log(residual)
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())

    def groups(self) -> list[list[int]]:
        """Commits that may be the culprit, together where no commit that runs tells them apart."""
        found: list[list[int]] = [[]]
        for commit, prior in enumerate(self._log_prior):
            if prior == 0.0:
                found[-1].append(commit)
            if self._is_measurable[commit]:
                found.append([])
        return [group for group in found if group]

    def next_commit(self) -> int | None:
        """The one to be measured; None where none tells anything."""
        before = self.probabilities().cumsum()[:-1]
        is_informative = self._is_measurable[:-1] & (before > 0.0) & (before < 1.0)
        if not is_informative.any():
            return None
        return int(np.where(is_informative, np.abs(before - 0.5), np.inf).argmin())

    def log_ratios_from(self, commit: int) -> tuple[float, ...]:
        """All blocks' from a commit on."""
        return tuple(ratio for some in self._ratios[commit:] for ratio in some)


def bisect_commits(
    is_candidate: Bool[np.ndarray, "commit"],
    of_bad: Sequence[float],
    measure: Callable[[int], float],
    *,
    error: float,
    can_continue: Callable[[], bool],
    on_update: Callable[[Bisected], None] = lambda so_far: None,
) -> Bisected:
    """Measure until one culprit, or what cannot be told from it, has a probability of 1 - `error`.

    `measure`: a commit's place -> the log ratio of a block beside GOOD, or `CannotRun`. `may_go_on`: whether
    another block is allowed.
    """
    known, skipped = StepPosterior(is_candidate, of_bad), dict[int, str]()
    while True:
        found = _so_far(known, skipped, error=error)
        on_update(found)
        commit = known.next_commit()
        if found.is_decided or commit is None or not can_continue():
            return found
        try:
            known.add(commit, measure(commit))
        except CannotRun as reason:
            known.skip(commit)
            skipped[commit] = str(reason)


def _so_far(known: StepPosterior, skipped: dict[int, str], *, error: float) -> Bisected:
    posterior = known.probabilities()
    groups = known.groups()
    masses = [float(posterior[group].sum()) for group in groups]
    best = int(np.argmax(masses))
    return Bisected(
        culprits=tuple(groups[best]),
        probability=masses[best],
        posterior=posterior,
        log_ratios=known.log_ratios_from(groups[best][-1]),
        skipped=dict(skipped),
        is_decided=masses[best] >= 1.0 - error,
    )
