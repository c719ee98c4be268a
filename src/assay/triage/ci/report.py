"""Reports where recorded CI runs spend their time, and which order and distribution of tests would cut it.

For independent tests the order that fails earliest is by probability of failure per second, highest first (Mitten
1960). Tests are distributed longest first, each to the machine with the least so far (Graham 1969: at most 4/3 - 1/(3
N) of the optimum; with many short tests, close to it).
"""

import heapq
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from assay.base.units import number_of
from assay.records.ci_report import CiReport, CiShard, CiSpans, FirstFailure
from assay.triage.ci.flaky import Group, bad_runs, flaky_tests, group_of
from assay.triage.ci.recorded import PHASES, FileRun, Recorded


def report_of(recorded: Recorded, num_shards: int | None) -> CiReport:
    """Report times as medians over runs, and outcomes without bad runs; `left_out` names these."""
    files = recorded.files
    seconds, left_out = _seconds_of_tests(files)
    bad = bad_runs(files)
    left_out |= dict.fromkeys(sorted(bad), "many tests failed that pass in its commit's other runs: no test's doing")
    valid = [file for file in files if file.file not in bad]
    flaky = flaky_tests(valid)
    walls = _walls_s(files)
    floor_test = max(seconds, key=lambda test: seconds[test])
    return CiReport(
        wall_s=statistics.median(walls),
        runs=len(walls),
        commits=len({file.origin.commit for file in files} - {""}),
        tests=len(seconds),
        spans=_spans(files),
        floor_s=seconds[floor_test],
        floor_test=floor_test,
        bound_s=bound_s(seconds, num_shards) if num_shards else None,
        shards=sharded(seconds, num_shards) if num_shards else (),
        flaky=flaky,
        flaky_because=_flaky_because(valid),
        order=failing_first(valid, seconds),
        first_failure=first_failure(valid, seconds),
        left_out=left_out,
        sources=recorded.sources,
    )


def _seconds_of_tests(files: Sequence[FileRun]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the median seconds of each test over files, and what has no recorded time."""
    found: dict[str, list[float]] = defaultdict(list)
    for file in files:
        own: dict[str, float] = {}
        for case in file.cases:
            found.setdefault(case.test, [])
            if case.seconds is not None:
                own[case.test] = own.get(case.test, 0.0) + case.seconds
        for test, seconds in own.items():
            found[test].append(seconds)
    untimed = [test for test, times in found.items() if not times]
    left_out = {f"the time of {number_of(len(untimed), 'test')}": "no file says it: taken for 0 s"} if untimed else {}
    return {test: statistics.median(times) if times else 0.0 for test, times in found.items()}, left_out


def _tests_s(file: FileRun) -> float:
    return sum(case.seconds or 0.0 for case in file.cases)


def _walls_s(files: Sequence[FileRun]) -> list[float]:
    """Return the seconds of each run; files of the same run ran in parallel."""
    walls: dict[tuple[str, str], float] = {}
    for file in files:
        run = (file.origin.commit, file.origin.run) if file.origin.run else ("", file.file)
        wall = file.wall_s if file.wall_s is not None else _tests_s(file)
        walls[run] = max(walls.get(run, 0.0), wall)
    return list(walls.values())


def _spans(files: Sequence[FileRun]) -> CiSpans:
    phases: list[float | None] = []
    for index in range(len(PHASES)):
        times = [case.phases[index] for file in files for case in file.cases]
        known = [time for time in times if time is not None]
        phases.append(sum(known) if known else None)
    parts = [_around_tests(file) for file in files]
    outside = [part[0] for part in parts]
    idle = [part[1] for part in parts]
    workers = [part[2] for part in parts]
    return CiSpans(
        tests_s=sum(_tests_s(file) for file in files),
        setup_s=phases[0],
        call_s=phases[1],
        teardown_s=phases[2],
        outside_s=_sum_known(outside),
        idle_s=_sum_known(idle),
        workers=None if None in workers else max(worker for worker in workers if worker is not None),
    )


def _around_tests(file: FileRun) -> tuple[float | None, float | None, int | None]:
    """Return (seconds outside tests, idle seconds, workers) of one file; None if unknown."""
    busy: dict[str, float] = defaultdict(float)
    for case in file.cases:
        busy[case.worker] += case.seconds or 0.0
    if file.wall_s is None or not busy:
        return None, None, None
    longest = max(busy.values())
    if "" not in busy:
        return max(0.0, file.wall_s - longest), sum(longest - busy_s for busy_s in busy.values()), len(busy)
    total = sum(busy.values())
    # Rounded to milliseconds, the tests of one process may add up to a little more than its time.
    if total > 1.01 * file.wall_s:
        return None, None, None
    return max(0.0, file.wall_s - total), None, 1


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _flaky_because(files: Sequence[FileRun]) -> str:
    outcomes = [file for file in files if any(case.failures + case.passes for case in file.cases)]
    if not outcomes:
        return "cannot tell: no outcome is on record. JUnit XML of runs has them."
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for file in outcomes:
        sizes[group_of(file)] += 1
    num_repeated = sum(size > 1 for size in sizes.values())
    unknown = sum(not file.origin.commit for file in outcomes)
    hint = "Give --commit, --path '{commit}/{run}.xml', or a property `commit` in the file."
    if unknown == len(outcomes):
        return f"cannot tell beyond tries within one file: no file says of which commit it is. {hint}"
    if not num_repeated:
        return (
            "cannot tell beyond tries within one file: no commit was run twice in one configuration. Run "
            "one again (20 times find a test that fails in 5% of runs with a chance of 64%), or say by --path "
            "what is alike."
        )
    rest = f"; {number_of(unknown, 'file')} without a commit left aside. {hint}" if unknown else "."
    pairs = number_of(len(sizes), "commit and configuration", "commits and configurations")
    return f"{num_repeated:,} of {pairs} ran more than once{rest}"


def bound_s(seconds: Mapping[str, float], count: int) -> float:
    """Return a lower bound for any distribution: the longest test, an even share, or two of the `count` + 1
    longest, because some machine must run both."""
    longest = sorted(seconds.values(), reverse=True)
    pair = longest[count - 1] + longest[count] if len(longest) > count else 0.0
    return max(longest[0], sum(longest) / count, pair)


def sharded(seconds: Mapping[str, float], count: int) -> tuple[CiShard, ...]:
    """Return `count` shards, longest first; some are empty if there are more shards than tests."""
    members: list[list[str]] = [[] for _ in range(count)]
    ends = [(0.0, index) for index in range(count)]
    for test in sorted(seconds, key=lambda test: (-seconds[test], test)):
        end, index = heapq.heappop(ends)
        members[index].append(test)
        heapq.heappush(ends, (end + seconds[test], index))
    shards = [CiShard(seconds=sum(seconds[test] for test in member), tests=tuple(member)) for member in members]
    return tuple(sorted(shards, key=lambda shard: -shard.seconds))


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
