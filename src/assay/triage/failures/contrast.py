"""Scores a region's failures: log likelihood ratio, and share of the excess.

Against the rest (a persistent rate), region and rest have separate rates, compared with one common rate.
Against a baseline (a surge), the region has its own rate relative to the baseline, minus what the rest gains
likewise. Regions rank by log LLR + log share, so of two equally likely regions the one that explains more
comes first. Counts are effective: attempts of one unit are weighted down.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from assay.base.shapes import Float, Float64

TINY = 1e-30


class RegionContrast(NamedTuple):
    """Likelihood ratio and share of each region and table."""

    llr: Float[np.ndarray, "region table"]
    share: Float[np.ndarray, "region table"]

    def score(self) -> Float[np.ndarray, "region table"]:
        """Return the score; minus infinity if the region does not fail too often."""
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(self.llr, 0.0)), np.log(np.maximum(self.share, 0.0))
            return np.asarray(logs[0] + logs[1])


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Totals of the whole table, and the choice of likelihood."""

    failures: Float[np.ndarray, "table"]
    size: float
    is_count: bool
    """Sizes are attempts, so failures cannot exceed them; otherwise sizes are exposures."""
    baseline: Float64[np.ndarray, "row"] | None
    """Expected failures of each row by the baseline; None against the rest."""

    def of_regions(
        self,
        failures: Float[np.ndarray, "region table"],
        sizes: Float[np.ndarray, "region"],
        baseline: Float[np.ndarray, "region"] | None,
    ) -> RegionContrast:
        """Score regions; `baseline` has their expected failures, if there is one."""
        sizes = sizes[:, None].astype(failures.dtype)
        rest, rest_size = np.maximum(self.failures - failures, 0.0), np.maximum(self.size - sizes, TINY)
        if baseline is None:
            excess = failures - sizes * (rest / rest_size)
            pooled = self._fit(self.failures, np.asarray(self.size, failures.dtype))
            llr = self._fit(failures, sizes) + self._fit(rest, rest_size) - pooled
            return RegionContrast(np.where(excess > 0, llr, 0.0), excess / np.maximum(self.failures, TINY))
        assert self.baseline is not None
        before, all_before = baseline[:, None].astype(failures.dtype), float(self.baseline.sum())
        rest_before = np.maximum(all_before - before, TINY)
        excess, total = failures - before, self.failures - all_before
        gained = self._fit(failures, sizes) - self._at(failures, sizes, before)
        gained -= self._fit(rest, rest_size) - self._at(rest, rest_size, rest_before)
        return RegionContrast(np.where(excess > 0, gained, 0.0), np.minimum(excess / np.maximum(total, 1.0), 1.0))

    def _fit(self, failures: Any, sizes: Any) -> Any:
        """Return the log likelihood at the best rate."""
        return self._at(failures, sizes, failures)

    def _at(self, failures: Any, sizes: Any, expected: Any) -> Any:
        """Return the log likelihood at the expected failures."""
        rate = np.maximum(expected, TINY) / sizes
        if not self.is_count:
            return failures * np.log(rate) - expected
        passed, left = np.maximum(sizes - failures, 0.0), np.maximum(1.0 - rate, 1e-7)
        return failures * np.log(rate) + passed * np.log(left)
