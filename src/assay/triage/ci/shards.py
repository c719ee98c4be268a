"""Tests spread over machines so that the last one ends early.

Longest first, each to the machine that has least so far (Graham 1969: at most 4/3 - 1/(3 N) of the best; where
many tests are short, nearly the best)."""

import heapq
from collections.abc import Mapping

from assay.records.ci_report import CiShard


def bound_s(seconds: Mapping[str, float], count: int) -> float:
    """Seconds that no way to cut beats: the longest test, an even share, or two of the `count` + 1 longest, for
    which some machine has to run both."""
    longest = sorted(seconds.values(), reverse=True)
    pair = longest[count - 1] + longest[count] if len(longest) > count else 0.0
    return max(longest[0], sum(longest) / count, pair)


def sharded(seconds: Mapping[str, float], count: int) -> tuple[CiShard, ...]:
    """`count` shards, the longest first; of more shards than tests, some are empty."""
    members: list[list[str]] = [[] for _ in range(count)]
    ends = [(0.0, index) for index in range(count)]
    for test in sorted(seconds, key=lambda test: (-seconds[test], test)):
        end, index = heapq.heappop(ends)
        members[index].append(test)
        heapq.heappush(ends, (end + seconds[test], index))
    shards = [CiShard(seconds=sum(seconds[test] for test in member), tests=tuple(member)) for member in members]
    return tuple(sorted(shards, key=lambda shard: -shard.seconds))
