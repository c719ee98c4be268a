"""What is commonly done instead of `assay triage`, written plainly: a G-test that takes attempts for independent,
t-tests of neighbours, the line with "error", and p-values that are looked at again and again."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.special import xlogy
from scipy.stats import chi2, hypergeom

from assay.triage.attempts.table import AttemptTable

LEVEL = 0.05
LEAST_ATTEMPTS = 4
"""Of a region of the G-test, as our scan wants units."""
NEIGHBOURS = 12
"""Values on either side of a place that the t-test compares."""


class GTest(NamedTuple):
    """What a G-test of each region against the rest finds."""

    p_value: float
    """Of the most striking region, times the number of regions (Bonferroni)."""
    regions: list[dict[str, str]]
    """The three most striking: factor -> value."""


def g_test(table: AttemptTable) -> GTest:
    """All values of factors, and all pairs of values of two factors, each against the rest of the attempts."""
    owner = np.concatenate([np.full(len(f.values), k) for k, f in enumerate(table.factors)])
    names = [(factor.name, value) for factor in table.factors for value in factor.values]
    members = np.zeros((len(names), table.num_rows))
    begins = 0
    for factor in table.factors:
        members[begins + factor.codes, factor.rows] = 1.0
        begins += len(factor.values)
    # The diagonal is a value alone. A pair that is all of one of its values is a longer name for it.
    sizes, failed = members @ members.T, (members * table.failures) @ members.T
    alone = np.diag(sizes)
    is_pair = (owner[:, None] < owner) & (sizes < np.minimum(alone[:, None], alone))
    request = (is_pair | np.eye(len(names), dtype=bool)) & (sizes >= LEAST_ATTEMPTS) & (sizes < table.num_rows)
    first, second = np.nonzero(request)
    inside, failures = sizes[request], failed[request]
    statistic = _g(inside, failures, table.num_rows, float(table.failures.sum()))
    best = np.argsort(-statistic, kind="stable")[:3]
    p_value = min(float(chi2.sf(statistic[best[0]], 1)) * len(statistic), 1.0)
    return GTest(p_value, [dict((names[first[k]], names[second[k]])) for k in best])


def _g(
    inside: Float64[np.ndarray, " region"], failures: Float64[np.ndarray, " region"], number: int, failed: float
) -> Float64[np.ndarray, " region"]:
    """Twice the log likelihood ratio of a region having a rate of its own; 0 where it fails less often."""
    observed = np.stack([failures, inside - failures, failed - failures, number - inside - failed + failures])
    rate = failed / number
    sizes = np.stack([inside, inside, number - inside, number - inside])
    expected = sizes * np.array([rate, 1 - rate, rate, 1 - rate])[:, None]
    statistic = 2.0 * (xlogy(observed, observed) - xlogy(observed, expected)).sum(axis=0)
    return np.asarray(np.where(failures > inside * rate, statistic, 0.0))


def t_test_changes(values: Float64[np.ndarray, " row"]) -> list[int]:
    """Where Welch's t-test of the twelve values on either side is significant at 5% over all places: the
    strongest place of each stretch of such places."""
    from scipy.stats import ttest_ind

    windows = np.lib.stride_tricks.sliding_window_view(values, NEIGHBOURS)
    p_values = ttest_ind(windows[:-NEIGHBOURS], windows[NEIGHBOURS:], axis=1, equal_var=False).pvalue
    found: list[int] = []
    order = np.argsort(p_values, kind="stable")
    for location in order[p_values[order] < LEVEL / len(p_values)]:
        if all(abs(location + NEIGHBOURS - number) >= NEIGHBOURS for number in found):
            found.append(int(location) + NEIGHBOURS)
    return found


def last_error(lines: Sequence[str]) -> list[int]:
    """Numbers (from 1) of the last three lines that say "error"."""
    return [number for number, line in enumerate(lines, 1) if re.search("error", line, re.IGNORECASE)][:-4:-1]


def first_significant(before: Float64[np.ndarray, " before"], after: Float64[np.ndarray, " after"]) -> int | None:
    """After how many attempts Fisher's exact test first says that fewer fail, one-sided, p < .05; None if it
    never does. It is looked at after each."""
    looks = np.arange(1, len(after) + 1)
    failed = np.cumsum(after)
    # Fewer failures after, of all failures there are: the chance of so few or fewer.
    p_values = hypergeom.cdf(failed, len(before) + looks, before.sum() + failed, looks)
    reached = np.flatnonzero(p_values < LEVEL)
    return int(reached[0]) + 1 if len(reached) else None
