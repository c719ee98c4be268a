"""When a planned fault strikes."""

from pathlib import Path
from typing import Any

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.elastic.faults import (
    STOP_WAIT_S,
    FaultPlan,
    RankFaults,
    check_plan,
    describe_fault,
    have_struck,
)
from assay.store.objects import open_store

STEP = ("data", "generation", "compute", "communication", "compute", "communication", "compute")
"""Phases of a step of two updates."""


def jump(**when: Any) -> FaultPlan:
    return FaultPlan.model_validate({"faults": [{"type": "clock_jump", "jump_s": 1e6, **when}]})


@pytest.mark.parametrize(
    ("when", "moment"),
    [
        ({"step": 2}, (2, 2)),
        ({"step": 2, "phase": "generation"}, (2, 1)),
        ({"step": 2, "entry": 3}, (2, 6)),
        ({"step": 1, "phase": "communication", "entry": 2}, (1, 5)),
        ({"step": 1, "entry": 4}, None),
        ({"step": 4}, None),
    ],
)
def test_a_fault_strikes_at_the_named_entry_of_a_phase(when: Any, moment: Any, tmp_path: Path) -> None:
    plan, clock = jump(**when), SystemClock()
    faults = RankFaults(
        plan, attempt=1, rank=0, supervisor_pid=0, run_dir=tmp_path, ledger_path=None,
        store=open_store("memory:"), clock=clock, is_stopping=lambda: False,
    )  # fmt: skip
    struck = None
    for step in (1, 2, 3):
        for location, phase in enumerate(STEP):
            faults.at_moment(step, phase)  # type: ignore[arg-type]
            if struck is None and faults.clock.now_s() - clock.now_s() > 1e5:
                struck = step, location
    assert struck == moment
    assert have_struck(plan, tmp_path) == ([] if moment is None else [(plan.faults[0], 0)])


def of_node(kind: str, **when: Any) -> FaultPlan:
    return FaultPlan.model_validate({"faults": [{"type": kind, **when}]})


class CountingClock:
    """Time passes when it is waited for, or when a test says so."""

    at_s = 0.0
    stop_requested_s = 0.0
    """When a supervisor's word to stop reaches the rank."""

    def now_s(self) -> float:
        return self.at_s

    monotonic_s = now_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds


def faults_of(plan: FaultPlan, rank: int, folder: Path, clock: CountingClock, pid: int = 0) -> RankFaults:
    return RankFaults(
        plan, attempt=1, rank=rank, supervisor_pid=pid, run_dir=folder, ledger_path=None,
        store=open_store("memory:"), clock=clock, is_stopping=lambda: clock.at_s >= clock.stop_requested_s,
        nodes=(2, 3, 1),
    )  # fmt: skip


def test_the_lanes_of_all_ranks_of_a_slow_node_take_so_much_longer_and_no_others(tmp_path: Path) -> None:
    plan, took = of_node("slow_node", node=1, step=1, factor=3.0), {}
    for rank in range(6):
        clock = CountingClock()
        faults, took[rank] = faults_of(plan, rank, tmp_path, clock), []
        for step, work_s in enumerate((1.0, 1.0, 2.0, 1.0), start=1):
            faults.at_moment(step, "data")
            began_s = clock.at_s
            faults.at_moment(step, "compute")
            clock.at_s += work_s
            faults.at_moment(step, "communication")
            faults.at_moment(step, "compute")
            took[rank].append(clock.at_s - began_s)
    # Each step is longer by twice the work of the one before; the first has none before it.
    assert took == {rank: [1, 3, 4, 5] if rank in (2, 3, 4) else [1, 1, 2, 1] for rank in range(6)}
    assert have_struck(plan, tmp_path) == [(plan.faults[0], 2)]


@pytest.mark.parametrize(("node", "its_first"), [(0, 0), (1, 2), (2, 5)])
def test_a_nodes_first_rank_has_it_leave(
    node: int, its_first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    plan = of_node("leave", node=node, step=2)
    for rank in range(6):
        faults_of(plan, rank, tmp_path, CountingClock(), pid=100 + rank).at_moment(2, "compute")
    assert sent == [(100 + its_first, 15)]
    assert describe_fault(plan.faults[0]).startswith(f"'leave' struck node {node} in phase 'compute' of step 2,")


@pytest.mark.parametrize(
    ("when", "stop_requested_s", "goes_on_s"),
    [
        ({"type": "terminate"}, 0.2, 0.2),
        ({"type": "leave", "node": 0}, 0.2, 0.2),
        ({"type": "terminate"}, 60.0, STOP_WAIT_S),  # of a supervisor that stands still
        ({"type": "terminate", "after_s": 30.0}, 60.0, 0.0),
        ({"type": "store", "how": "error"}, 60.0, 0.0),
    ],
)
def test_who_has_had_its_supervisor_told_to_stop_waits_for_the_word(
    when: Any, stop_requested_s: float, goes_on_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.kill", lambda pid, number: None)
    monkeypatch.setattr("threading.Timer.start", lambda timer: None)
    clock = CountingClock()
    clock.stop_requested_s = stop_requested_s
    plan = FaultPlan.model_validate({"faults": [{"step": 2, **when}]})
    faults_of(plan, 0, tmp_path, clock, pid=100).at_moment(2, "compute")
    assert clock.at_s == pytest.approx(goes_on_s, abs=0.002)


@pytest.mark.parametrize(
    ("plan", "num_nodes", "message"),
    [
        (
            of_node("leave", node=0, step=2),
            1,
            r"faults.0 \(leave\): this run has one node.*--nodes 2.*'terminate'",
        ),
        (of_node("join", node=0, step=2), 1, r"faults.0 \(join\): this run has one node"),
        (
            of_node("slow_node", node=2, step=2, factor=2.0),
            2,
            r"no node 2 in attempt 1: it has at most 2.*at most 1",
        ),
        (of_node("leave", node=4, step=2, attempt=2), 2, r"no node 4 in attempt 2: it has at most 4"),
        (of_node("leave", node=1, step=99), 2, r"step 99 is never reached"),
    ],
)
def test_what_no_node_can_do_is_refused(plan: FaultPlan, num_nodes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_plan(plan, world_size=4, num_steps=20, num_nodes=num_nodes)


def test_a_later_attempt_may_have_nodes_that_have_come() -> None:
    check_plan(of_node("leave", node=3, step=2, attempt=2), world_size=4, num_steps=20, num_nodes=2)
    check_plan(of_node("slow_node", node=0, step=2, factor=2.0), world_size=4, num_steps=20)


def test_who_wonders_is_told_which_entry_it_was() -> None:
    [fault] = jump(step=2, entry=3).faults
    assert "in entry 3 of phase 'compute' of step 2," in describe_fault(fault)
