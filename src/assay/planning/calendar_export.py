"""Exports a plan as iCalendar, as CSV, and as Slurm reservations.

A reservation is a block of devices that one activity holds. Times are local wall-clock times of the program,
without a time zone.
"""

import csv
import datetime
import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from assay.base.names import shell_line
from assay.planning.program.plan import Plan, Planned, held_devices
from assay.planning.program.program import Program


class Reservation(NamedTuple):
    """A constant number of devices that an activity holds for some hours."""

    activity: str
    start_h: int
    end_h: int
    devices: int


def reservations(plan: Plan) -> tuple[Reservation, ...]:
    """Return every block of devices in order of time; together they equal what the plan's runs hold."""
    found = [Reservation(item.name, *block) for item in plan.items for block in held_devices(item.runs)]
    return tuple(sorted(found, key=lambda block: (block.start_h, block.end_h, block.activity)))


def to_csv(program: Program, plan: Plan) -> str:
    """Return one line per activity and gate, with its owners."""
    rows: list[dict[str, Any]] = []
    for item in plan.items:
        node, owners = program.nodes()[item.name], program.owners_of(item.name)
        start, end = (program.calendar.date_of(hour) for hour in (item.start_h, item.end_h))
        rows.append(
            {
                "name": item.name,
                "stage": node.stage,
                "title": node.title,
                "start": start.isoformat(sep=" ", timespec="minutes"),
                "end": end.isoformat(sep=" ", timespec="minutes"),
                "devices": max((run.devices for run in item.runs), default=""),
                "runs": len(item.runs) or "",
                "device_hours": item.device_hours() or "",
                "people": "; ".join(f"{name} {fte:g}" for name, fte in item.people.items()),
                "responsible": owners.responsible,
                "accountable": owners.accountable,
            }
        )
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_icalendar(program: Program, plan: Plan, *, stamp: datetime.datetime) -> str:
    """Return the plan as iCalendar (RFC 5545): people's work and gates by duration, runs as reservations.

    `stamp` is the creation time in UTC. An event keeps its UID across plans, so that calendars move it
    instead of adding another.
    """
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//assay//plan//EN",
        f"X-WR-CALNAME:{_escaped(program.title)}",
    ]
    for item in plan.items:
        node, owners = program.nodes()[item.name], program.owners_of(item.name)
        for suffix, start_h, end_h, holds in _entries(program, item):
            lines += [
                "BEGIN:VEVENT",
                f"UID:{program.name}.{item.name}{suffix}@assay",
                f"DTSTAMP:{stamp:%Y%m%dT%H%M%SZ}",
                f"DTSTART:{program.calendar.date_of(start_h):%Y%m%dT%H%M%S}",
                f"DTEND:{program.calendar.date_of(end_h):%Y%m%dT%H%M%S}",
                f"SUMMARY:{_escaped(f'{item.name}: {holds}' if holds else item.name)}",
                f"DESCRIPTION:{_escaped(f'{node.title}. Responsible: {owners.responsible}.')}",
                f"CATEGORIES:{_escaped(node.stage)}",
                "END:VEVENT",
            ]
    lines.append("END:VCALENDAR")
    return "".join(f"{folded}\r\n" for line in lines for folded in _folded(line))


def _entries(program: Program, item: Planned) -> Iterator[tuple[str, int, int, str]]:
    """Yield (suffix of the UID, from, until, text) of each calendar entry."""
    if not item.runs:
        people = ", ".join(f"{program.title_of(name)} ({fte:g})" for name, fte in item.people.items())
        yield "", item.start_h, item.end_h, people
    for index, (start_h, end_h, devices) in enumerate(held_devices(item.runs)):
        yield f"-{index}", start_h, end_h, f"{devices} {program.capacity.device}"


def _escaped(text: str) -> str:
    return re.sub(r"\r\n?|\n", r"\\n", re.sub(r"([\\;,])", r"\\\1", text))


def _folded(line: str) -> Iterator[str]:
    """Split a line into parts of at most 75 octets, as RFC 5545 requires; continuation lines begin with a
    space."""
    room, part = 75, ""
    for character in line:
        if len((part + character).encode()) > room:
            yield part
            part = " "
        part += character
    yield part


def to_slurm(
    program: Program, plan: Plan, *, account: str, partition: str | None, now: datetime.datetime | None = None
) -> str:
    """Return a script with `scontrol create reservation` for each block of devices.

    Slurm rejects start times in the past: blocks that ended before `now` (local time) are left out, and
    running blocks start at `now`. FLEX allows ready jobs to start early or end late; PURGE_COMP releases a
    block after half an hour idle.
    """
    lines = ["#!/bin/sh", f"# Reservations of '{program.name}', plan of program {plan.program_sha256[:12]}."]
    for number, block in enumerate(reservations(plan), start=1):
        begins, ends = program.calendar.date_of(block.start_h), program.calendar.date_of(block.end_h)
        if now is not None and ends <= now:
            continue
        words = [
            "scontrol",
            "create",
            "reservation",
            f"ReservationName={program.name}_{number:03d}_{block.activity}",
            f"StartTime={'now' if now is not None and begins <= now else f'{begins:%Y-%m-%dT%H:%M:%S}'}",
            f"EndTime={ends:%Y-%m-%dT%H:%M:%S}",
            f"TRES=gres/gpu={block.devices}",
            f"Accounts={account}",
            *([f"PartitionName={partition}"] if partition else []),
            "Flags=FLEX,PURGE_COMP=00:30:00",
        ]
        lines.append(shell_line(*words))
    return "\n".join(lines) + "\n"
