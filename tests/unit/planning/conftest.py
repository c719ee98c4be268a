"""The shipped case, and a program small enough to reason about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.planning.program.file import read_program
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.schedule import Effort, schedule

CASE = Path(__file__).parents[3] / "programs" / "helpfulness.yaml"


@pytest.fixture(scope="session")
def case() -> Program:
    return read_program(CASE).program


@pytest.fixture(scope="session")
def case_plan(case: Program) -> Plan:
    return schedule(case, effort=Effort(seconds=60))


@pytest.fixture(scope="session")
def small_program() -> Callable[..., Program]:
    """Makes the small program, with changes."""
    return _small_program


def _small_program(**changes: Any) -> Program:
    """Two days of preparation, two runs, one day of memo; four devices to spare."""
    owners = {"responsible": "engineer", "accountable": "engineer"}
    program = Program.model_validate(
        {
            "name": "small",
            "title": "Small",
            "calendar": {"start": "2027-01-04", "weeks": 6},
            "decision": {"decided_by": "memo", "by": "end of week 2"},
            "team": {"engineer": 1},
            "capacity": {"devices": 20},
            "budget": {"device_hours": 1000},
            "events": {"data": {"title": "Data", "at": "week 1"}},
            "stages": {"one": {"title": "One", "owners": owners}},
            "activities": {
                "prepare": {
                    "title": "Prepare",
                    "stage": "one",
                    "after": ["data"],
                    "work": {"days": 2, "people": {"engineer": 1}},
                },
                "train": {
                    "title": "Train",
                    "stage": "one",
                    "after": ["prepare"],
                    "runs": {"count": 2, "modes": [{"devices": 8, "hours": 30}]},
                },
                "memo": {
                    "title": "Memo",
                    "stage": "one",
                    "after": ["train"],
                    "work": {"days": 1, "people": {"engineer": 1}},
                },
            },
        }
    )
    return program.changed(changes) if changes else program
