"""When a planned fault strikes."""

from pathlib import Path
from typing import Any

import pytest

from assay.base.clock import SystemClock
from assay.launch.ranks.faults import FaultPlan, RankFaults, describe_fault, have_struck
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
        store=open_store("memory:"), clock=clock,
    )  # fmt: skip
    struck = None
    for step in (1, 2, 3):
        for place, phase in enumerate(STEP):
            faults.at_moment(step, phase)  # type: ignore[arg-type]
            if struck is None and faults.clock.now_s() - clock.now_s() > 1e5:
                struck = step, place
    assert struck == moment
    assert have_struck(plan, tmp_path) == ([] if moment is None else [*plan.faults])


def test_who_wonders_is_told_which_entry_it_was() -> None:
    [fault] = jump(step=2, entry=3).faults
    assert "in entry 3 of phase 'compute' of step 2," in describe_fault(fault)
