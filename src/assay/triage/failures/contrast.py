"""How striking it is that a region failed so often: the log likelihood ratio, and the share of the excess.

Against the rest (a standing rate): the region and the rest each have a rate of their own, over one rate for
all. Against a baseline (a surge): the region has its own rate over that of before, less what is gained
likewise by the rest, which should be as it was. A region ranks by log LLR + log share, so that of two that
fit alike the one which explains more is first. Counts are effective ones: each attempt counts for what its
unit leaves it to say."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from assay.base.shapes import Float, Float64

TINY = 1e-30


class RegionContrast(NamedTuple):
    """What is striking, for each region and table."""

    llr: Float[np.ndarray, "region table"]
    share: Float[np.ndarray, "region table"]

    def score(self) -> Float[np.ndarray, "region table"]:
        """Higher is more striking; minus infinity where a region did not fail too often."""
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(self.llr, 0.0)), np.log(np.maximum(self.share, 0.0))
            return np.asarray(logs[0] + logs[1])


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """What the whole table holds, and by which likelihood it is read."""

    failures: Float[np.ndarray, "table"]
    size: float
    is_count: bool
    """Sizes count attempts, of which no more than all can fail; else they are exposures."""
    baseline: Float64[np.ndarray, "row"] | None
    """What each row was expected to fail, by the baseline; None against the rest."""

    def of_regions(
        self,
        failures: Float[np.ndarray, "region table"],
        sizes: Float[np.ndarray, "region"],
        baseline: Float[np.ndarray, "region"] | None,
    ) -> RegionContrast:
        """`baseline`: expected failures of each region, where there is one."""
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
        """The log likelihood at the rate that fits best."""
        return self._at(failures, sizes, failures)

    def _at(self, failures: Any, sizes: Any, expected: Any) -> Any:
        """The log likelihood where so many failures are expected."""
        rate = np.maximum(expected, TINY) / sizes
        if not self.is_count:
            return failures * np.log(rate) - expected
        passed, left = np.maximum(sizes - failures, 0.0), np.maximum(1.0 - rate, 1e-7)
        return failures * np.log(rate) + passed * np.log(left)
