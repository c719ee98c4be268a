"""A small program to play, the shipped one, and the policy once more in the plainest Python.

`plain_replay` plays one program at a time; the fast replay must agree with it. It shares no code with
`assay.planning.simulation` and reads a network's and the draws' plain numbers only.
"""

import math
from pathlib import Path

import pytest

from assay.planning.program.file import read_program
from assay.planning.program.program import Program

PROGRAMS = Path(__file__).parents[4] / "programs"


@pytest.fixture(scope="session")
def shipped() -> Program:
    return read_program(PROGRAMS / "helpfulness.yaml").program


@pytest.fixture
def small() -> Program:
    """People write, runs run, a gate reads their gain; once more if it cannot tell."""
    return Program.model_validate(SMALL)


@pytest.fixture(name="plain_replay")
def _plain_replay():
    return plain_replay


_OWNERS = {"responsible": "engineer", "accountable": "lead"}
SMALL = {
    "name": "small",
    "title": "A small program",
    "calendar": {"start": "2027-01-04", "weeks": 8},
    "decision": {"decided_by": "memo", "by": "end of week 3"},
    "team": {"engineer": 2.0},
    "stakeholders": {"lead": "Lead"},
    "capacity": {"devices": 16},
    "budget": {"device_hours": 900.0},
    "events": {"data": {"title": "Data arrives", "at": "week 1 day 3"}},
    "benchmarks": {"wins": {"items": 4000, "discordance": 0.3, "seed_sd": 1.0}},
    "pilot": {"benchmark": "wins", "gains": [3.0], "standard_error": 1.5},
    "stages": {"one": {"title": "One", "owners": _OWNERS}, "two": {"title": "Two", "owners": _OWNERS}},
    "activities": {
        "prepare": {"title": "Prepare", "stage": "one", "work": {"days": 2.0, "people": {"engineer": 1.0}}},
        "runs": {
            "title": "Runs",
            "stage": "one",
            "after": ["prepare", "data"],
            "runs": {"count": 4, "modes": [{"devices": 8, "hours": 10}]},
        },
        "extra": {
            "title": "Extra",
            "stage": "two",
            "after": ["gate"],
            "runs": {"count": 1, "modes": [{"devices": 16, "hours": 20}]},
        },
        "memo": {
            "title": "Memo",
            "stage": "two",
            "after": ["gate", "extra"],
            "work": {"days": 1.0, "people": {"engineer": 2.0}},
        },
    },
    "gates": {
        "gate": {
            "title": "Is there a gain?",
            "stage": "one",
            "after": ["runs"],
            "evidence": {"benchmark": "wins", "runs": "runs", "pass_at": 1.0, "stop_below": 0.0},
            "narrow": {"drops": ["extra"]},
            "again": {"activities": ["runs"]},
            "stop_goes_to": ["memo"],
        }
    },
    "risks": {
        "late": {
            "title": "Data is late",
            "probability": 0.5,
            "owner": "lead",
            "effect": {"type": "late", "what": "data", "days": [2, 4, 6]},
            "mitigations": {"ask": {"title": "Ask early", "changes": {"risks.late.probability": 0.1}}},
        }
    },
    "options": {"no_extra": {"title": "Without extra runs", "changes": {"activities.extra": None}, "gives_up": "Them"}},
}


def plain_replay(network, replay_samples, program):
    """{name: (start, finish, held)} of one program; None where it never began or never ended."""
    names = network.names
    state = dict.fromkeys(range(len(names)), "waiting")
    left = {a: float(replay_samples.duration_h[a, program]) for a in state}
    active = {a: bool(replay_samples.is_active[a, program]) for a in state}
    date = {a: float(network.not_before_h[a]) for a in state}
    delay = {a: float(replay_samples.delay_h[a, program]) for a in state}
    waits = {a: list(network.predecessors[a]) for a in state}
    start, finish, held = {}, {}, dict.fromkeys(state, 0.0)
    since, until = {}, {}
    resting = dict.fromkeys(state, 0.0)
    now = 0.0

    def room(resource):
        missing = 0.0
        for index, (reduced, amount) in enumerate(network.reductions):
            begins, ends = (
                replay_samples.reduction_start_h[index, program],
                replay_samples.reduction_end_h[index, program],
            )
            if reduced == resource and begins <= now < ends:
                missing += amount
        return network.capacity[resource] - missing

    def used(resource):
        return sum(network.demand[a, resource] for a in state if state[a] == "running")

    def moment(link):
        """When this predecessor lets go; None while it does not."""
        moments = start if link.of_start and link.predecessor in start else finish
        return moments[link.predecessor] + link.lag_h if link.predecessor in moments else None

    def ready_at(a):
        moments = [moment(link) for link in waits[a]]
        if state[a] != "waiting" or None in moments:
            return None
        return max(max([date[a], *moments]) + delay[a], resting[a])

    def may_begin(a):
        ready = ready_at(a)
        return ready is not None and ready <= now

    def put_down(a, new_state):
        held[a] += now - since[a]
        state[a] = new_state

    def complete(a):
        state[a], finish[a] = "done", now
        if a in network.closing and active[a] and replay_samples.is_stop[a, program]:
            closing = network.closing[a]
            for other in state:
                if other not in closing and state[other] != "done":
                    if state[other] == "running":
                        put_down(other, "off")
                    state[other] = "off"
            for other in closing:
                if state[other] == "waiting":
                    remaining = [link for link in waits[other] if link.predecessor != a or link.of_start]
                    waits[other] = [e for e in remaining if e.predecessor in closing or moment(e) is not None]

    while any(text in ("waiting", "running") for text in state.values()):
        for a in reversed(range(len(names))):
            if network.demand[a, 0] and state[a] == "running" and used(0) > room(0) + 1e-9:
                left[a] = until[a] - now + network.restart_h[a]
                put_down(a, "waiting")
        for a in range(len(names)):
            if not may_begin(a):
                continue
            if not active[a]:
                complete(a)
                continue
            needs = [r for r in range(len(network.capacity)) if network.demand[a, r]]
            if all(room(r) - used(r) >= network.demand[a, r] - 1e-9 for r in needs):
                state[a], since[a] = "running", now
                start.setdefault(a, now)  # those who count from its start may go
                until[a] = end_of_work(network, now, left[a]) if network.in_working_hours[a] else now + left[a]
        running = [a for a in state if state[a] == "running"]
        later = [min(until[a], since[a] + network.longest_hold_h[a]) for a in running]
        later += [t for t in map(ready_at, state) if t is not None and t > now]
        for index in range(len(network.reductions)):
            later += [
                t
                for t in (
                    replay_samples.reduction_start_h[index, program],
                    replay_samples.reduction_end_h[index, program],
                )
                if t > now
            ]
        if not any(text in ("waiting", "running") for text in state.values()):
            break
        now = min(later)
        for a in range(len(names)):
            if state[a] == "running" and until[a] <= now:
                put_down(a, "done")
                complete(a)
            elif state[a] == "running" and since[a] + network.longest_hold_h[a] <= now:
                left[a], resting[a] = until[a] - now + network.restart_h[a], now + network.gap_h
                put_down(a, "waiting")
    return {names[a]: (start.get(a), finish.get(a), held[a]) for a in state}


def end_of_work(network, now, work):
    """Walk through the calendar until the work is done."""
    wall, working = network.working_time.wall_h, network.working_time.working_h
    left = work
    if left <= 0:
        return now
    for begin, end, low, high in zip(wall[:-1], wall[1:], working[:-1], working[1:], strict=True):
        if high == low or end <= now:
            continue
        here = end - max(begin, now)
        if left <= here + 1e-12:
            return max(begin, now) + left
        left -= here
    return math.inf
