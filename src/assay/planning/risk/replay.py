"""What becomes of a plan in many worlds at once, each with its own luck.

Every program has its own clock, which jumps from event to event: an activity ends, a date arrives, a
booking begins or ends. At each event, in the order of priority, whatever is ready and fits begins; nobody
knows how long anything will take. A job that a booking displaces yields, the last in priority first, and
goes on when there is room. NumPy handles each event of a block of worlds together, and of these looks only at
the activities in which something may happen; worlds that are over leave the block.

    draws + network --> replay --> when each activity began and ended, the device-hours that it held
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from assay.planning.risk.network import DEVICES, Array, Flags, Network, PredecessorLink

_WAITING, _PENDING, _BLOCKED, _RUNNING, _DONE, _CANCELLED = range(6)
"""For predecessors; for a date; for room; not waiting at all; over; called off."""

_TOLERANCE = 1e-9
"""How exactly capacities are compared: a tenth of a person ten times is one person."""

_WORLDS_AT_ONCE = 16_384
"""Worlds of one block: each event costs the same few hundred calls however many there are, and a row of numbers
of each activity should lie in a core's cache."""


@dataclass(frozen=True)
class Draws:
    """The luck of each world; every column is one world."""

    duration_h: Float[np.ndarray, "activity world"]
    """Hours of work, in working hours where people do it; repeated and lost work included."""
    delay_h: Float[np.ndarray, "activity world"]
    """Hours between all that it waits for and the moment it can really begin: data that comes late."""
    is_active: Bool[np.ndarray, "activity world"]
    """False: this world does without it (a branch not taken), and its successors do not wait."""
    cut_start_h: Float[np.ndarray, "cut world"]
    cut_end_h: Float[np.ndarray, "cut world"]
    """When each cut begins and ends; equal where it does not happen."""
    says_stop: Bool[np.ndarray, "activity world"]
    """For gates: its verdict, should the program get there."""

    def worlds(self, chosen: NDArray[np.intp] | slice) -> "Draws":
        """Some of the worlds, by their places."""
        return Draws(**{field.name: getattr(self, field.name)[:, chosen] for field in fields(self)})

    def apart_from(self, others: "Draws") -> NDArray[np.intp]:
        """The worlds whose luck is not that of the same world of others."""
        names = [field.name for field in fields(self)]
        same = [(getattr(self, name) == getattr(others, name)).all(axis=0) for name in names]
        return np.flatnonzero(~np.logical_and.reduce(same))


class Replay(NamedTuple):
    """What happened. NaN: never began, or was called off before its end."""

    start_h: Float[np.ndarray, "activity world"]
    finish_h: Float[np.ndarray, "activity world"]
    held_h: Float[np.ndarray, "activity world"]
    """Hours for which it held its devices or people (device-hours are these times its devices)."""


def replay(network: Network, draws: Draws) -> Replay:
    """Run every world to its end under the policy. Raises `ValueError` where an activity can never fit."""
    if not draws.duration_h.size:
        return Replay(*(np.zeros_like(draws.duration_h) for _ in Replay._fields))
    blocks = [
        _Block(network, draws.worlds(slice(first, first + _WORLDS_AT_ONCE))).run()
        for first in range(0, draws.duration_h.shape[1], _WORLDS_AT_ONCE)
    ]
    return Replay(*(np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)))


def together(lots: Sequence[Draws]) -> Draws:
    """All of these worlds, one lot after the other."""
    names = [field.name for field in fields(Draws)]
    return Draws(**{name: np.concatenate([getattr(each, name) for each in lots], axis=1) for name in names})


class _Block:
    """The state of some worlds, each at its own time."""

    def __init__(self, network: Network, draws: Draws) -> None:
        shape = draws.duration_h.shape
        self._network, self._draws = network, draws
        links = network.successors()
        self._after_start = [[link for link in each if link.of_start] for each in links]
        self._after_end = [[link for link in each if not link.of_start] for each in links]
        self._needs = [np.flatnonzero(row).tolist() for row in network.demand]
        self._worlds = np.arange(shape[1])
        self._now = np.zeros(shape[1])
        self._phase = np.full(shape, _WAITING, np.int8)
        self._missing = np.repeat([[len(links)] for links in network.predecessors], shape[1], axis=1)
        self._ready = np.repeat(network.not_before_h[:, None], shape[1], axis=1)
        self._remaining = draws.duration_h.copy()
        self._event = np.full(shape, np.inf)
        self._end = np.full(shape, np.inf)
        self._began = np.zeros(shape)
        self._used = np.zeros((len(network.capacity), shape[1]))
        self._room = np.zeros_like(self._used)
        self._edges = np.concatenate([draws.cut_start_h, draws.cut_end_h])
        self._start = np.full(shape, np.nan)
        self._finish = np.full(shape, np.nan)
        self._held = np.zeros(shape)
        self._may_have_events = np.zeros(shape[0], bool)
        self._may_be_blocked = np.zeros(shape[0], bool)
        self._found = Replay(self._start.copy(), self._finish.copy(), self._held.copy())

    def run(self) -> Replay:
        everyone = np.arange(len(self._now))
        for index, links in enumerate(self._network.predecessors):
            if not links:
                self._await_date(index, everyone)
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
            self._now = np.where(is_open, following, self._now)
            self._take_events()

    def _next_events(self) -> tuple[Array, Flags]:
        """When something happens next in each world, cuts included; and whether anything is still to happen."""
        following = np.full(len(self._now), np.inf)
        for index in np.flatnonzero(self._may_have_events).tolist():
            row = self._event[index]
            np.minimum(following, row, out=following)
            self._may_have_events[index] = row.min() < np.inf
        is_open = np.isfinite(following)
        for index in np.flatnonzero(self._may_be_blocked).tolist():
            is_blocked = self._phase[index] == _BLOCKED
            is_open |= is_blocked
            self._may_be_blocked[index] = is_blocked.any()
        return np.minimum(following, self._next_cut()), is_open

    def _leave_behind(self, is_open: Flags) -> None:
        """Worlds that are over: their results are kept, and they are looked at no more."""
        over, rest = np.flatnonzero(~is_open), np.flatnonzero(is_open)
        for found, own in zip(self._found, (self._start, self._finish, self._held), strict=True):
            found[:, self._worlds[over]] = own[:, over]
        for name, value in vars(self).items():
            if (
                isinstance(value, np.ndarray)
                and value.shape[-1] == len(is_open)
                and not name.startswith("_may")
            ):
                setattr(self, name, value[..., rest])
        self._draws = self._draws.worlds(rest)

    # Capacity

    def _see_capacity(self) -> None:
        room = np.repeat(self._network.capacity[:, None], len(self._now), axis=1)
        for index, cut in enumerate(self._network.cuts):
            has_begun = self._draws.cut_start_h[index] <= self._now
            is_taken = has_begun & (self._now < self._draws.cut_end_h[index])
            room[cut.resource] -= cut.amount * is_taken
        self._room = room

    def _next_cut(self) -> Array:
        edges: Array = np.where(self._edges > self._now, self._edges, np.inf)
        return np.asarray(edges.min(axis=0, initial=np.inf))

    def _yield_where_too_full(self) -> None:
        """Jobs give way to a booking; people who are at work finish what they do."""
        for index in reversed(range(len(self._network.names))):
            if not self._network.demand[index, DEVICES]:
                continue
            too_full = self._used[DEVICES] > self._room[DEVICES] + _TOLERANCE
            if not too_full.any():
                return
            where = np.flatnonzero(too_full & (self._phase[index] == _RUNNING))
            self._give_way(index, where)
            self._phase[index, where] = _BLOCKED
            self._may_be_blocked[index] = True

    # Transitions

    def _take_events(self) -> None:
        due = [
            (index, where)
            for index in np.flatnonzero(self._may_have_events).tolist()
            if (where := np.flatnonzero(self._event[index] <= self._now)).size
        ]
        for index, where in due:
            phase = self._phase[index, where]  # a gate of the same hour may have called it off
            is_over = self._end[index, where] <= self._now[where]
            self._block(index, where[phase == _PENDING])
            self._end_here(index, where[(phase == _RUNNING) & is_over])
            self._rest(index, where[(phase == _RUNNING) & ~is_over])

    def _begin_what_fits(self) -> None:
        # What completes may let one that stands behind it begin, so the rows are not gathered beforehand.
        for index in range(len(self._network.names)):
            if not self._may_be_blocked[index]:
                continue
            where = np.flatnonzero(self._phase[index] == _BLOCKED)
            if not where.size:
                continue
            is_active = self._draws.is_active[index, where]
            self._complete(index, where[~is_active])
            where = where[is_active]
            for resource in self._needs[index]:
                free = self._room[resource, where] - self._used[resource, where]
                where = where[free >= self._network.demand[index, resource] - _TOLERANCE]
            self._begin(index, where)

    def _begin(self, index: int, where: NDArray[np.int64]) -> None:
        if not where.size:
            return
        now, work = self._now[where], self._remaining[index, where]
        if self._network.in_working_hours[index]:
            calendar = self._network.working_time
            end = np.maximum(now, calendar.wall(calendar.worked(now) + work))
        else:
            end = now + work
        for resource in self._needs[index]:
            self._used[resource, where] += self._network.demand[index, resource]
        self._phase[index, where] = _RUNNING
        self._end[index, where] = end
        self._event[index, where] = np.minimum(end, now + self._network.longest_hold_h[index])
        self._may_have_events[index] = True
        self._began[index, where] = now
        is_first = np.isnan(self._start[index, where])
        self._start[index, where[is_first]] = now[is_first]
        self._release(self._after_start[index], where[is_first])

    def _leave(self, index: int, where: NDArray[np.int64], phase: int) -> None:
        """Stop running: give the room back, count what was held."""
        if not where.size:
            return
        for resource in self._needs[index]:
            self._used[resource, where] -= self._network.demand[index, resource]
        self._held[index, where] += self._now[where] - self._began[index, where]
        self._phase[index, where] = phase
        self._event[index, where] = np.inf

    def _give_way(self, index: int, where: NDArray[np.int64]) -> None:
        left = self._end[index, where] - self._now[where]
        self._remaining[index, where] = left + self._network.restart_h[index]
        self._leave(index, where, _PENDING)

    def _rest(self, index: int, where: NDArray[np.int64]) -> None:
        """It has held more than its share for as long as it may."""
        if where.size:
            self._give_way(index, where)
            self._event[index, where] = self._now[where] + self._network.gap_h
            self._may_have_events[index] = True

    def _end_here(self, index: int, where: NDArray[np.int64]) -> None:
        if where.size:
            self._leave(index, where, _DONE)
            self._complete(index, where)

    def _complete(self, index: int, where: NDArray[np.int64]) -> None:
        """It is over, or not needed: whoever waited for it goes on, unless it was the gate that says stop."""
        if not where.size:
            return
        self._phase[index, where] = _DONE
        self._finish[index, where] = self._now[where]
        if index in self._network.closing:
            says_stop = self._draws.says_stop[index, where] & self._draws.is_active[index, where]
            self._call_off(index, where[says_stop])
            where = where[~says_stop]
        if self._after_start[index]:
            self._release(self._after_start[index], where[np.isnan(self._start[index, where])])
        self._release(self._after_end[index], where)

    def _release(self, followers: Sequence[PredecessorLink], where: NDArray[np.int64]) -> None:
        """Those who waited for an end (or a start) no longer do."""
        if not followers or not where.size:
            return
        now = self._now[where]
        for follower, lag_h, _ in followers:
            self._ready[follower, where] = np.maximum(self._ready[follower, where], now + lag_h)
            missing = self._missing[follower, where] - 1
            self._missing[follower, where] = missing
            is_free = (missing == 0) & (self._phase[follower, where] == _WAITING)
            self._await_date(follower, where[is_free])

    def _await_date(self, index: int, where: NDArray[np.int64]) -> None:
        if not where.size:
            return
        ready = self._ready[index, where] + self._draws.delay_h[index, where]
        is_late = ready > self._now[where]
        self._phase[index, where[is_late]] = _PENDING
        self._event[index, where[is_late]] = ready[is_late]
        self._may_have_events[index] = True
        self._block(index, where[~is_late])

    def _block(self, index: int, where: NDArray[np.int64]) -> None:
        if where.size:
            self._phase[index, where] = _BLOCKED
            self._event[index, where] = np.inf
            self._may_be_blocked[index] = True

    def _call_off(self, gate: int, where: NDArray[np.int64]) -> None:
        """The gate said stop: only what closes the program is still done, and it waits for nothing called
        off."""
        if not where.size:
            return
        closing = self._network.closing[gate]
        rest = np.setdiff1d(np.arange(len(self._network.names)), list(closing))
        is_running = self._phase[np.ix_(rest, where)] == _RUNNING
        for row in np.flatnonzero(is_running.any(axis=1)).tolist():
            self._leave(int(rest[row]), where[is_running[row]], _CANCELLED)
        rows, columns = np.nonzero(self._phase[np.ix_(rest, where)] != _DONE)
        self._phase[rest[rows], where[columns]] = _CANCELLED
        self._event[rest[rows], where[columns]] = np.inf
        for index in sorted(closing):
            self._missing[index, where] = sum(
                self._is_awaited(link, where).astype(int)
                for link in self._network.predecessors[index]
                if link.predecessor in closing
            )
            is_free = (self._missing[index, where] == 0) & (self._phase[index, where] == _WAITING)
            self._await_date(index, where[is_free])

    def _is_awaited(self, link: PredecessorLink, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        is_open = self._phase[link.predecessor, where] != _DONE
        if link.of_start:
            is_open &= np.isnan(self._start[link.predecessor, where])
        return np.asarray(is_open)

    def _check_not_stuck(self, is_open: Flags, following: Array) -> None:
        stuck = np.flatnonzero(is_open & ~np.isfinite(following))
        if stuck.size:
            blocked = np.flatnonzero(self._phase[:, stuck[0]] == _BLOCKED)
            raise ValueError(f"no room for {', '.join(self._network.names[index] for index in blocked)}")
