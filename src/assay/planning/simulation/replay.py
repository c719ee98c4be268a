"""Simulates a plan in many samples at once.

Every sample has its own clock, which jumps from event to event: an activity ends, a date arrives, a booking
starts or ends. At each event, in order of priority, every activity that is ready and fits starts, without
knowledge of durations. A job displaced by a booking yields, the lowest priority first, and continues when there
is capacity. NumPy processes one event of all samples of a block at once, and only the activities in which
something may happen; finished samples leave the block. The state of an activity is an array of its own, because
NumPy indexes a row several times faster than a table.

    samples + network --> replay --> start and end of each activity, hours in which it held its devices
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.base.shapes import Bool, Float
from assay.planning.simulation.network import DEVICES, Array, Flags, Network, PredecessorLink

_WAITING, _PENDING, _BLOCKED, _RUNNING, _DONE, _CANCELLED = range(6)
"""States: waits for predecessors, for a date, for capacity; running; done; called off."""

_TOLERANCE = 1e-9
"""Tolerance of capacity comparisons: ten times a tenth of a person is one person."""

_BLOCK_SIZE = 16_384
"""Samples per block: an event costs the same few hundred calls for any number of samples, and one row per
activity should fit a core's cache."""


@dataclass(frozen=True)
class ReplaySamples:
    """Inputs of a replay; every column is one sample."""

    duration_h: Float[np.ndarray, "activity sample"]
    """Working hours for people's work, wall hours otherwise; including repeated and lost work."""
    delay_h: Float[np.ndarray, "activity sample"]
    """Hours between the readiness of all predecessors and the possible start: late data."""
    is_active: Bool[np.ndarray, "activity sample"]
    """False: this sample does without it, and its successors do not wait."""
    reduction_start_h: Float[np.ndarray, "reduction sample"]
    reduction_end_h: Float[np.ndarray, "reduction sample"]
    """Start and end of each reduction; equal if it does not occur."""
    is_stop: Bool[np.ndarray, "activity sample"]
    """For gates: whether the verdict is stop, if the program gets there."""

    def select(self, chosen: NDArray[np.intp] | slice) -> "ReplaySamples":
        return ReplaySamples(**{field.name: getattr(self, field.name)[:, chosen] for field in fields(self)})

    def differing_samples(self, others: "ReplaySamples") -> NDArray[np.intp]:
        """Return the indices of samples that differ from the same sample of `others`."""
        names = [field.name for field in fields(self)]
        same = [(getattr(self, name) == getattr(others, name)).all(axis=0) for name in names]
        return np.flatnonzero(~np.logical_and.reduce(same))


class Replay(NamedTuple):
    """What happened. NaN: never started, or called off before its end."""

    start_h: Float[np.ndarray, "activity sample"]
    finish_h: Float[np.ndarray, "activity sample"]
    held_h: Float[np.ndarray, "activity sample"]
    """Hours in which it held its devices or people."""


def replay(network: Network, replay_samples: ReplaySamples) -> Replay:
    """Simulate every sample to its end. Raises `ValueError` if an activity can never fit."""
    if not replay_samples.duration_h.size:
        return Replay(*(np.zeros_like(replay_samples.duration_h) for _ in Replay._fields))
    blocks = [
        _Block(network, replay_samples.select(slice(first, first + _BLOCK_SIZE))).run()
        for first in range(0, replay_samples.duration_h.shape[1], _BLOCK_SIZE)
    ]
    return Replay(*(np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)))


def concatenated(batch: Sequence[ReplaySamples]) -> ReplaySamples:
    """Concatenate the samples of several programs."""
    names = [field.name for field in fields(ReplaySamples)]
    return ReplaySamples(
        **{name: np.concatenate([getattr(samples, name) for samples in batch], axis=1) for name in names}
    )


def _rows(table: NDArray[Any]) -> list[NDArray[Any]]:
    return list(table)


class _Block:
    """State of a block of samples, each at its own time: one row per activity, resource or reduction."""

    def __init__(self, network: Network, replay_samples: ReplaySamples) -> None:
        shape = replay_samples.duration_h.shape
        self._network = network
        links = network.successors()
        self._after_start = [[link for link in followers if link.of_start] for followers in links]
        self._after_end = [[link for link in followers if not link.of_start] for followers in links]
        self._needs = [
            [(resource, float(row[resource])) for resource in np.flatnonzero(row).tolist()] for row in network.demand
        ]
        self._can_yield = (network.demand[:, DEVICES] > 0).tolist()
        self._can_rest = np.isfinite(network.longest_hold_h).tolist()
        self._can_be_delayed = [
            bool(date_h > 0 or delay_h.any() or any(link.lag_h for link in before))
            for date_h, delay_h, before in zip(
                network.not_before_h, replay_samples.delay_h, network.predecessors, strict=True
            )
        ]
        self._is_certain = [bool(row.all()) for row in replay_samples.is_active]
        self._sample_indices = np.arange(shape[1])
        self._now = np.zeros(shape[1])
        self._is_active, self._is_stop = _rows(replay_samples.is_active), _rows(replay_samples.is_stop)
        self._delay_h = _rows(replay_samples.delay_h)
        self._reduction_start_h, self._reduction_end_h = (
            _rows(replay_samples.reduction_start_h),
            _rows(replay_samples.reduction_end_h),
        )
        self._edges = _rows(np.concatenate([replay_samples.reduction_start_h, replay_samples.reduction_end_h]))
        self._phase = _rows(np.full(shape, _WAITING, np.int8))
        self._missing = [np.full(shape[1], len(before), np.int32) for before in network.predecessors]
        self._ready = [np.full(shape[1], date_h) for date_h in network.not_before_h]
        self._remaining = _rows(replay_samples.duration_h.copy())
        self._event, self._end = _rows(np.full(shape, np.inf)), _rows(np.full(shape, np.inf))
        self._began, self._held = _rows(np.zeros(shape)), _rows(np.zeros(shape))
        self._start, self._finish = _rows(np.full(shape, np.nan)), _rows(np.full(shape, np.nan))
        self._used = _rows(np.zeros((len(network.capacity), shape[1])))
        self._room: list[Array] = []
        self._has_events = np.zeros(shape[0], bool)
        self._is_blocked = np.zeros(shape[0], bool)
        self._found = Replay(*(np.empty(shape) for _ in Replay._fields))

    def run(self) -> Replay:
        all_samples = np.arange(len(self._now))
        for index, links in enumerate(self._network.predecessors):
            if not links:
                self._await_date(index, all_samples)
        while True:
            self._see_capacity()
            self._yield_where_too_full()
            self._begin_what_fits()
            following, is_open = self._next_events()
            num_open = np.count_nonzero(is_open)
            if 2 * num_open <= len(is_open):
                following = following[is_open]
                self._leave_behind(is_open)
                if not num_open:
                    return self._found
                is_open = np.ones(num_open, bool)
            self._check_not_stuck(is_open, following)
            np.copyto(self._now, following, where=is_open)
            self._take_events()

    def _next_events(self) -> tuple[Array, Flags]:
        """Return the next event time of each sample, including reductions, and whether it has events left."""
        following = np.full(len(self._now), np.inf)
        for index in self._has_events.nonzero()[0].tolist():
            row = self._event[index]
            np.minimum(following, row, out=following)
            self._has_events[index] = row.min() < np.inf
        is_open = np.isfinite(following)
        for index in self._is_blocked.nonzero()[0].tolist():
            is_blocked = self._phase[index] == _BLOCKED
            is_open |= is_blocked
            self._is_blocked[index] = is_blocked.any()
        for edge in self._edges:
            np.putmask(edge, edge <= self._now, np.inf)
            np.minimum(following, edge, out=following)
        return following, is_open

    def _leave_behind(self, is_open: Flags) -> None:
        """Save the results of finished samples, and drop them from the block."""
        over, rest = np.flatnonzero(~is_open), np.flatnonzero(is_open)
        sample_indices = self._sample_indices[over]
        for found, own in zip(self._found, (self._start, self._finish, self._held), strict=True):
            for whole, row in zip(found, own, strict=True):
                whole[sample_indices] = row[over]
        self._now, self._sample_indices = self._now[rest], self._sample_indices[rest]
        for rows in vars(self).values():
            if isinstance(rows, list) and rows and isinstance(rows[0], np.ndarray):
                rows[:] = [row[rest] for row in rows]

    # Capacity

    def _see_capacity(self) -> None:
        self._room = [np.full(len(self._now), units) for units in self._network.capacity]
        for (resource, amount), start_h, end_h in zip(
            self._network.reductions, self._reduction_start_h, self._reduction_end_h, strict=True
        ):
            self._room[resource] -= amount * ((start_h <= self._now) & (self._now < end_h))

    def _yield_where_too_full(self) -> None:
        """Jobs yield to a booking; people finish their current work."""
        for index in reversed(range(len(self._network.names))):
            if not self._can_yield[index]:
                continue
            too_full = self._used[DEVICES] > self._room[DEVICES] + _TOLERANCE
            if not too_full.any():
                return
            where = (too_full & (self._phase[index] == _RUNNING)).nonzero()[0]
            self._give_way(index, where)
            self._block(index, where)

    # Transitions

    def _take_events(self) -> None:
        due = [
            (index, where)
            for index in self._has_events.nonzero()[0].tolist()
            if (where := (self._event[index] <= self._now).nonzero()[0]).size
        ]
        for index, where in due:
            phase = self._phase[index][where]  # a gate of the same hour may have called it off
            is_running = phase == _RUNNING
            if not is_running.all():
                awaited = where[phase == _PENDING]
                self._event[index][awaited] = np.inf
                self._block(index, awaited)
                where = where[is_running]
            if self._can_rest[index]:
                is_over = self._end[index][where] <= self._now[where]
                self._pause(index, where[~is_over])
                where = where[is_over]
            self._end_here(index, where)

    def _begin_what_fits(self) -> None:
        # What completes may let one that stands behind it begin, so the rows are not gathered beforehand.
        for index in range(len(self._network.names)):
            if not self._is_blocked[index]:
                continue
            where = (self._phase[index] == _BLOCKED).nonzero()[0]
            if where.size and not self._is_certain[index]:
                is_active = self._is_active[index][where]
                self._complete(index, where[~is_active])
                where = where[is_active]
            for resource, demand in self._needs[index]:
                free = self._room[resource][where] - self._used[resource][where]
                where = where[free >= demand - _TOLERANCE]
            self._begin(index, where)

    def _begin(self, index: int, where: NDArray[np.intp]) -> None:
        if not where.size:
            return
        now, work = self._now[where], self._remaining[index][where]
        if self._network.in_working_hours[index]:
            calendar = self._network.working_time
            end = np.maximum(now, calendar.wall(calendar.working(now) + work))
        else:
            end = now + work
        for resource, demand in self._needs[index]:
            self._used[resource][where] += demand
        self._phase[index][where] = _RUNNING
        self._end[index][where] = end
        if self._can_rest[index]:
            end = np.minimum(end, now + self._network.longest_hold_h[index])
        self._event[index][where] = end
        self._has_events[index] = True
        self._began[index][where] = now
        if self._can_yield[index] or self._can_rest[index]:
            is_first = np.isnan(self._start[index][where])
            now, where = now[is_first], where[is_first]
        self._start[index][where] = now
        self._release(self._after_start[index], where)

    def _leave(self, index: int, where: NDArray[np.intp], phase: int) -> None:
        """Stop running: release capacity, add up the hold."""
        if not where.size:
            return
        for resource, demand in self._needs[index]:
            self._used[resource][where] -= demand
        self._held[index][where] += self._now[where] - self._began[index][where]
        self._phase[index][where] = phase
        self._event[index][where] = np.inf

    def _give_way(self, index: int, where: NDArray[np.intp]) -> None:
        left = self._end[index][where] - self._now[where]
        self._remaining[index][where] = left + self._network.restart_h[index]
        self._leave(index, where, _PENDING)

    def _pause(self, index: int, where: NDArray[np.intp]) -> None:
        """Pause a job that has exceeded its fair share for the allowed hours."""
        if where.size:
            self._give_way(index, where)
            self._event[index][where] = self._now[where] + self._network.gap_h

    def _end_here(self, index: int, where: NDArray[np.intp]) -> None:
        if where.size:
            self._leave(index, where, _DONE)
            self._complete(index, where)

    def _complete(self, index: int, where: NDArray[np.intp]) -> None:
        """Finish an activity: its successors may start, unless it is a gate that stops."""
        if not where.size:
            return
        self._phase[index][where] = _DONE
        self._finish[index][where] = self._now[where]
        if index in self._network.closing:
            is_stop = self._is_stop[index][where] & self._is_active[index][where]
            self._call_off(index, where[is_stop])
            where = where[~is_stop]
        if self._after_start[index]:
            self._release(self._after_start[index], where[np.isnan(self._start[index][where])])
        self._release(self._after_end[index], where)

    def _release(self, followers: Sequence[PredecessorLink], where: NDArray[np.intp]) -> None:
        """Decrement the waiting count of successors."""
        if not followers or not where.size:
            return
        now = self._now[where]
        for follower, lag_h, _ in followers:
            if self._can_be_delayed[follower]:
                ready = self._ready[follower]
                ready[where] = np.maximum(ready[where], now + lag_h)
            missing = self._missing[follower][where] - 1
            self._missing[follower][where] = missing
            is_free = (missing == 0) & (self._phase[follower][where] == _WAITING)
            self._await_date(follower, where[is_free])

    def _await_date(self, index: int, where: NDArray[np.intp]) -> None:
        if where.size and self._can_be_delayed[index]:
            ready = self._ready[index][where] + self._delay_h[index][where]
            is_late = ready > self._now[where]
            late = where[is_late]
            self._phase[index][late] = _PENDING
            self._event[index][late] = ready[is_late]
            self._has_events[index] = True
            where = where[~is_late]
        self._block(index, where)

    def _block(self, index: int, where: NDArray[np.intp]) -> None:
        if where.size:
            self._phase[index][where] = _BLOCKED
            self._is_blocked[index] = True

    def _call_off(self, gate: int, where: NDArray[np.intp]) -> None:
        """After a stop only closing activities continue, and they wait for nothing that was called off."""
        if not where.size:
            return
        closing = self._network.closing[gate]
        for index in range(len(self._network.names)):
            if index not in closing:
                phase = self._phase[index][where]
                if self._has_events[index]:
                    self._leave(index, where[phase == _RUNNING], _CANCELLED)
                    self._event[index][where] = np.inf
                self._phase[index][where[phase != _DONE]] = _CANCELLED
        for index in sorted(closing):
            missing = sum(
                self._is_awaited(link, where).astype(int)
                for link in self._network.predecessors[index]
                if link.predecessor in closing
            )
            self._missing[index][where] = missing
            is_free = (self._missing[index][where] == 0) & (self._phase[index][where] == _WAITING)
            self._await_date(index, where[is_free])

    def _is_awaited(self, link: PredecessorLink, where: NDArray[np.intp]) -> Flags:
        is_open = self._phase[link.predecessor][where] != _DONE
        if link.of_start:
            is_open &= np.isnan(self._start[link.predecessor][where])
        return np.asarray(is_open)

    def _check_not_stuck(self, is_open: Flags, following: Array) -> None:
        stuck = np.flatnonzero(is_open & ~np.isfinite(following))
        if stuck.size:
            phases = zip(self._network.names, self._phase, strict=True)
            blocked = (name for name, phase in phases if phase[stuck[0]] == _BLOCKED)
            raise ValueError(f"no room for {', '.join(blocked)}")
