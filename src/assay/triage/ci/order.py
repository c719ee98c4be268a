"""Orders tests so that the first failure comes early.

For independent tests the optimal order is by probability of failure per second, highest first (Mitten 1960).
The probability is the share of failed runs with half a failure and one run added, so that a test without
failures keeps a position.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from assay.records.ci_report import FirstFailure
from assay.triage.ci.flaky import Group, group_of
from assay.triage.ci.recorded import FileRun

MIN_S = 1e-3
"""Minimal seconds of a test."""


class FailureCounts:
    """Failed runs and runs of each test, in total and by group."""

    def __init__(self, files: Sequence[FileRun]) -> None:
        self.tests = list(dict.fromkeys(case.test for file in files for case in file.cases))
        self.index = {test: index for index, test in enumerate(self.tests)}
        self.of_groups: dict[Group, np.ndarray] = defaultdict(lambda: np.zeros((2, len(self.tests))))
        for file in files:
            of_group = self.of_groups[group_of(file)]
            for case in file.cases:
                of_group[0, self.index[case.test]] += case.failures > 0
                of_group[1, self.index[case.test]] += case.failures + case.passes > 0
        self.total = np.sum(list(self.of_groups.values()), axis=0)

    def priorities(self, seconds: Mapping[str, float], *, without: Group | None = None) -> np.ndarray:
        """Return each test's probability of failure per second, optionally without one group's runs."""
        failed, runs = self.total - self.of_groups[without] if without else self.total
        durations = np.array([max(seconds[test], MIN_S) for test in self.tests])
        return np.asarray((failed + 0.5) / (runs + 1.0) / durations)


def failing_first(files: Sequence[FileRun], seconds: Mapping[str, float]) -> tuple[str, ...]:
    """Return all tests in that order; empty without recorded results."""
    counts = FailureCounts(files)
    if not counts.total[1].any():
        return ()
    priorities = counts.priorities(seconds)
    return tuple(counts.tests[index] for index in np.argsort(-priorities, kind="stable"))


def first_failure(files: Sequence[FileRun], seconds: Mapping[str, float]) -> FirstFailure | None:
    """Return what the order gains over the recorded one in failed runs. Each run is ordered by the other
    commits only, so the gain is out of sample."""
    counts = FailureCounts(files)
    recorded, ordered = [], []
    for file in files:
        group = group_of(file)
        others = counts.total[1] - counts.of_groups[group][1]
        failing = [case.failures > 0 for case in file.cases]
        if not any(failing) or not others.any():
            continue
        durations = np.array([seconds[case.test] for case in file.cases])
        ranks = counts.priorities(seconds, without=group)[[counts.index[case.test] for case in file.cases]]
        turn = np.argsort(-ranks, kind="stable")
        recorded.append(_until_first(durations, np.array(failing)))
        ordered.append(_until_first(durations[turn], np.array(failing)[turn]))
    if not recorded:
        return None
    return FirstFailure(
        recorded_s=statistics.median(recorded), ordered_s=statistics.median(ordered), runs=len(recorded)
    )


def _until_first(durations: np.ndarray, failing: np.ndarray) -> float:
    return float(np.cumsum(durations)[int(np.argmax(failing))])
