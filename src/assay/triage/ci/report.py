"""Reports where recorded CI runs spend their time, which tests flake, and how tests would be distributed.

Tests are distributed longest first, each to the machine with the least so far (Graham 1969: at most 4/3 - 1/(3
N) of the optimum; with many short tests, close to it).
"""

import heapq
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from assay.records.ci_report import CiReport, CiShard, CiSpans
from assay.records.statement import Statement
from assay.triage.ci.flaky import Group, bad_runs, flaky_tests, group_of
from assay.triage.ci.recorded import PHASES, FileRun


def report_of(files: Sequence[FileRun], sources: dict[str, str], num_shards: int | None) -> CiReport:
    """Report times as medians over runs, and outcomes without bad runs."""
    seconds, num_untimed = _seconds_of_tests(files)
    bad = bad_runs(files)
    valid = [file for file in files if file.file not in bad]
    flaky = flaky_tests(valid)
    walls = _walls_s(files)
    floor_test = max(seconds, key=lambda test: seconds[test])
    return CiReport(
        wall_s=statistics.median(walls), runs=len(walls), commits=len({file.commit for file in files} - {""}),
        tests=len(seconds), spans=_spans(files), floor_s=seconds[floor_test], floor_test=floor_test,
        bound_s=bound_s(seconds, num_shards) if num_shards else None,
        shards=sharded(seconds, num_shards) if num_shards else (), flaky=flaky, flaky_because=_flaky_because(valid),
        bad_runs=tuple(sorted(bad)), untimed_tests=num_untimed, sources=sources,
    )  # fmt: skip


def _seconds_of_tests(files: Sequence[FileRun]) -> tuple[dict[str, float], int]:
    """Return the median seconds of each test over files, and the number of tests without any."""
    found: dict[str, list[float]] = defaultdict(list)
    for file in files:
        own: dict[str, float] = {}
        for case in file.cases:
            found.setdefault(case.test, [])
            if case.seconds is not None:
                own[case.test] = own.get(case.test, 0.0) + case.seconds
        for test, seconds in own.items():
            found[test].append(seconds)
    num_untimed = sum(not times for times in found.values())
    return {test: statistics.median(times) if times else 0.0 for test, times in found.items()}, num_untimed


def _tests_s(file: FileRun) -> float:
    return sum(case.seconds or 0.0 for case in file.cases)


def _walls_s(files: Sequence[FileRun]) -> list[float]:
    """Return the seconds of each run; files of the same run ran in parallel."""
    walls: dict[tuple[str, str], float] = {}
    for file in files:
        run = (file.commit, file.run) if file.run else ("", file.file)
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
        tests_s=sum(_tests_s(file) for file in files), setup_s=phases[0], call_s=phases[1], teardown_s=phases[2],
        outside_s=_sum_known(outside), idle_s=_sum_known(idle),
        workers=None if None in workers else max(worker for worker in workers if worker is not None),
    )  # fmt: skip


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


def _flaky_because(files: Sequence[FileRun]) -> Statement:
    outcomes = [file for file in files if any(case.failures + case.passes for case in file.cases)]
    if not outcomes:
        return Statement(code="no outcome")
    sizes: dict[Group, int] = defaultdict(int)
    for file in outcomes:
        sizes[group_of(file)] += 1
    num_repeated = sum(size > 1 for size in sizes.values())
    num_unknown = sum(not file.commit for file in outcomes)
    if num_unknown == len(outcomes):
        return Statement(code="no commit")
    if not num_repeated:
        return Statement(code="no repeats")
    values = {"repeated": num_repeated, "groups": len(sizes), "files": num_unknown}
    return Statement(code="repeats without commit" if num_unknown else "repeats", values=values)


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
