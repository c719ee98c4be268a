"""Distributes tests over machines to minimize the longest time.

Longest test first, each to the machine with the least so far (Graham 1969: at most 4/3 - 1/(3 N) of the
optimum; with many short tests, close to it).
"""

import heapq
from collections.abc import Mapping

from assay.records.ci_report import CiShard


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
