"""Finds tests that pass and fail on the same commit and configuration, and estimates how often they fail.

A commit that breaks a test fails it in every run of that commit, so only tests with both results are flaky. Commits
whose runs all failed may be broken, so the rate comes from the others; the likelihood is conditioned on not all
runs having failed (a truncated binomial):

    P(k failures of n | k < n) = C(n, k) p^k (1 - p)^(n - k) / (1 - p^n)

A run in which many more tests fail than in its commit's other runs indicates a bad machine, not flaky tests.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from assay.base.shapes import Int64
from assay.records.ci_report import FlakyTest
from assay.triage.ci.recorded import FileRun

BAD_RUN_TESTS, BAD_RUN_SHARE, BAD_RUN_TIMES = 5, 0.2, 3.0
"""A run is bad if at least this many tests, this share of them, and more than this multiple of the median
number fail that pass in another run of the commit."""
# Equally likely under Jeffreys' prior, Beta(1/2, 1/2): its quantiles.
_RATES = np.sin(np.pi / 2 * (np.arange(20_000) + 0.5) / 20_000) ** 2

Group = tuple[str, str]
"""(commit, configuration), or the file alone if its commit is unknown."""


def group_of(run: FileRun) -> Group:
    """Return the group within which runs are compared."""
    return (run.commit, run.config) if run.commit else ("", run.file)


def flaky_tests(files: Sequence[FileRun]) -> tuple[FlakyTest, ...]:
    """Return the flaky tests, most frequent failures first."""
    counts: dict[str, dict[Group, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for file in files:
        for case in file.cases:
            count = counts[case.test][group_of(file)]
            count[0] += case.failures
            count[1] += case.passes
    found = [flaky for test, groups in counts.items() if (flaky := _flaky(test, list(groups.values())))]
    return tuple(sorted(found, key=lambda flaky: (-flaky.rate, flaky.test)))


def _flaky(test: str, groups: list[list[int]]) -> FlakyTest | None:
    num_flaky = sum(failures > 0 and passes > 0 for failures, passes in groups)
    if not num_flaky:
        return None
    informative = np.array([group for group in groups if sum(group) > 1 and group[1] > 0])
    failures, runs = informative[:, 0], informative.sum(axis=1)
    rate, low, high = flake_rate(failures, runs)
    return FlakyTest(
        test=test, rate=rate, low=low, high=high, failures=int(failures.sum()), runs=int(runs.sum()), commits=num_flaky
    )


def flake_rate(failures: Int64[np.ndarray, "group"], runs: Int64[np.ndarray, "group"]) -> tuple[float, float, float]:
    """Return the failures per run of groups with at least two runs, not all failed: median, and 2.5% and 97.5%
    quantiles, of the posterior under Jeffreys' prior."""
    logs = failures.sum() * np.log(_RATES) + (runs - failures).sum() * np.log1p(-_RATES)
    for size, number in zip(*np.unique(runs, return_counts=True), strict=True):
        logs -= number * np.log1p(-(_RATES**size))
    mass = np.cumsum(np.exp(logs - logs.max()))
    low, rate, high = np.interp([0.025, 0.5, 0.975], mass / mass[-1], _RATES)
    return float(rate), float(low), float(high)


def bad_runs(files: Sequence[FileRun]) -> set[str]:
    """Return the files whose failures indicate a bad run."""
    passed = {(group_of(file), case.test) for file in files for case in file.cases if case.passes}
    unexpected = {
        file.file: sum(
            case.failures > 0 and not case.passes and (group_of(file), case.test) in passed for case in file.cases
        )
        for file in files
    }
    usual = statistics.median(unexpected.values())
    return {
        file.file
        for file in files
        if unexpected[file.file] >= max(BAD_RUN_TESTS, BAD_RUN_SHARE * len(file.cases))
        and unexpected[file.file] > BAD_RUN_TIMES * usual
    }
