"""What others read is what the plan says."""

import csv
import datetime
import io
import re
import shlex

import pytest

from assay.planning.calendar_export import reservations, to_csv, to_icalendar, to_slurm
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program

STAMP = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.slow
def test_reservations_hold_exactly_what_the_runs_hold(case_plan: Plan) -> None:
    held = sum(block.devices * (block.end_h - block.start_h) for block in reservations(case_plan))
    assert held == case_plan.device_hours


def test_each_line_of_the_calendar_fits_and_each_event_is_whole(case: Program, case_plan: Plan) -> None:
    text = to_icalendar(case, case_plan, stamp=STAMP)
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n"))
    unfolded = text.replace("\r\n ", "")
    uids = re.findall(r"^UID:(.+)$", unfolded.replace("\r\n", "\n"), re.M)
    assert len(uids) == len(set(uids)) == unfolded.count("BEGIN:VEVENT") == unfolded.count("END:VEVENT")
    begins = re.findall(r"DTSTART:(\d{8}T\d{6})", unfolded)
    assert min(begins) == "20270104T090000"
    assert {item.name for item in case_plan.items} == {uid.split(".")[1].split("@")[0].split("-")[0] for uid in uids}


def test_the_table_has_a_row_for_everything_and_its_device_hours(case: Program, case_plan: Plan) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(case, case_plan))))
    assert [row["name"] for row in rows] == [item.name for item in case_plan.items]
    assert sum(int(row["device_hours"] or 0) for row in rows) == case_plan.device_hours


def test_slurm_is_asked_for_every_block_once(case: Program, case_plan: Plan) -> None:
    text = to_slurm(case, case_plan, account="tuning", partition="h100")
    pattern = r"ReservationName=(\w+) StartTime=(\S+) EndTime=(\S+) TRES=gres/gpu=(\d+) Accounts=tuning Part"
    found = re.findall(pattern, text)
    assert len(found) == len({name for name, *_ in found}) == len(reservations(case_plan))
    hours = sum(
        int(devices) * (datetime.datetime.fromisoformat(end) - datetime.datetime.fromisoformat(start)).total_seconds()
        for _, start, end, devices in found
    )
    assert hours == case_plan.device_hours * 3600


def test_nothing_of_an_account_is_run(case: Program, case_plan: Plan) -> None:
    lines = to_slurm(case, case_plan, account="$(id); rm x", partition="a b").splitlines()[2:]
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert {"Accounts=$(id); rm x", "PartitionName=a b"} <= set(words)
        assert "$(id)" not in line.replace(shlex.quote("Accounts=$(id); rm x"), "")


def test_slurm_is_not_asked_for_the_past(case: Program, case_plan: Plan) -> None:
    blocks = reservations(case_plan)
    now = case.calendar.date_of(blocks[3].start_h + 1)
    lines = to_slurm(case, case_plan, account="tuning", partition=None, now=now).splitlines()[2:]
    over = sum(case.calendar.date_of(block.end_h) <= now for block in blocks)
    in_progress = sum(case.calendar.date_of(block.start_h) <= now for block in blocks) - over
    assert len(lines) == len(blocks) - over
    assert over + in_progress >= 4
    assert sum("StartTime=now " in line for line in lines) == in_progress >= 1
