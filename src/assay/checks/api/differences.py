"""What a loop's client sees undisturbed, and what counts as a difference from it."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

NOISE_FACTOR = 10.0
"""The difference of a number counts from this multiple of its difference between undisturbed loops."""
SAME_SUM = 1e-5
"""Largest distance of numbers that may just have been summed in another order, such as with other rows of a batch."""
METRICS = ("metrics of ", "update of ")
"""Observations that may hold durations."""
ROUNDING = 1e-3
"""A metric that differs by more between undisturbed loops is no function of the requests, and is not compared."""
MOST_LOOPS = 5
"""Undisturbed loops that may tell which metrics those are: two durations may be equal."""


class UndisturbedLoop:
    """What a client sees without faults."""

    def __init__(self, seen: Mapping[str, Any], num_requests: int = 1) -> None:
        """`num_requests`: of one pass."""
        self.seen, self.num_requests = seen, num_requests
        self._observations = dict(_observations(seen))
        self._noise = dict.fromkeys(self._observations, 0.0)
        self._num_loops = 1

    def compare(self, seen: Mapping[str, Any]) -> str:
        """Learn from another undisturbed loop what varies; describe what must not: samples, or a lack of logprobs."""
        self._num_loops += 1
        for about, difference in self.differences(seen).items():
            if difference == math.inf and not _is_metric(about):
                return self._describe(about, seen)
            self._noise[about] = max(self._noise.get(about, 0.0), difference)
        return ""

    def difference(self, seen: Mapping[str, Any], play: Callable[[], Mapping[str, Any]]) -> str:
        """Describe what a client saw otherwise; empty if nothing. Where only metrics differ, `play` further loops."""
        found = self._first_difference(seen)
        while _is_metric(found) and self._num_loops < MOST_LOOPS:
            self.compare(play())
            found = self._first_difference(seen)
        return found and self._describe(found, seen)

    def varying_metrics(self) -> list[str]:
        """Return the metrics that are not compared."""
        return [*dict.fromkeys(about.partition(", ")[2] for about in self._noise if self._is_varying(about))]

    def noise(self) -> float:
        """Return the largest relative difference of a logprob between undisturbed loops."""
        return max((noise for about, noise in self._noise.items() if not _is_metric(about)), default=0.0)

    def differences(self, seen: Mapping[str, Any]) -> dict[str, float]:
        """Return the distance of each observation: of logprobs together, and of metrics one by one."""
        one, other = self._observations, dict(_observations(seen))
        return {about: distance(one.get(about), other.get(about)) for about in {**one, **other}}

    def _first_difference(self, seen: Mapping[str, Any]) -> str:
        """Return the first observation that differs by more than its noise, metrics last."""
        for about, difference in sorted(self.differences(seen).items(), key=lambda item: _is_metric(item[0])):
            most = max(SAME_SUM, NOISE_FACTOR * self._noise.get(about, 0.0))
            if difference > most and not self._is_varying(about):
                return about
        return ""

    def _is_varying(self, about: str) -> bool:
        return _is_metric(about) and self._noise.get(about, 0.0) > ROUNDING

    def _describe(self, about: str, seen: Mapping[str, Any]) -> str:
        other = dict(_observations(seen)).get(about)
        return f"{about}: {str(other)[:80]} instead of {str(self._observations.get(about))[:80]}"


def distance(first: Any, second: Any) -> float:
    """Return the largest relative difference between numbers of two lists; infinity if anything else differs."""
    if isinstance(first, float) and isinstance(second, float):
        if first == second or (math.isnan(first) and math.isnan(second)):
            return 0.0
        difference = abs(first - second) / max(1.0, abs(first), abs(second))
        return math.inf if math.isnan(difference) else difference
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return max(map(distance, first, second), default=0.0)
    return 0.0 if first == second else math.inf


def _is_metric(about: str) -> bool:
    return about.startswith(METRICS)


def _observations(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        about = f"{prefix}, {key}" if prefix else key
        if isinstance(value, dict):
            yield from _observations(value, about)
        else:
            yield about, value
