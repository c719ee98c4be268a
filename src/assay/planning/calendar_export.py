"""A plan for other people's tools: a calendar for everybody, a table, and reservations for the cluster.

A reservation is what the infrastructure team can rely on: a block of devices that one activity holds from an
hour to an hour. Times are local wall-clock times of the program, without a time zone.
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
    """Devices that an activity holds without a change."""

    activity: str
    start_h: int
    end_h: int
    devices: int


def reservations(plan: Plan) -> tuple[Reservation, ...]:
    """Every block of devices, in the order of time; together they are exactly what the plan's runs hold."""
    found = [Reservation(item.name, *block) for item in plan.items for block in held_devices(item.runs)]
    return tuple(sorted(found, key=lambda block: (block.start_h, block.end_h, block.activity)))


def to_csv(program: Program, plan: Plan) -> str:
    """One line per activity and gate, with its owners."""
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
    """The plan as iCalendar (RFC 5545): people's work and gates as they last, runs as their reservations.

    `stamp` is when it was made, in UTC. An event keeps its UID from plan to plan, so that calendars move it.
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
    """(end of its UID, from, until, what is held) of each entry in the calendar."""
    if not item.runs:
        people = ", ".join(f"{program.title_of(name)} ({fte:g})" for name, fte in item.people.items())
        yield "", item.start_h, item.end_h, people
    for index, (start_h, end_h, devices) in enumerate(held_devices(item.runs)):
        yield f"-{index}", start_h, end_h, f"{devices} {program.capacity.device}"


def _escaped(text: str) -> str:
    return re.sub(r"\r\n?|\n", r"\\n", re.sub(r"([\\;,])", r"\\\1", text))


def _folded(line: str) -> Iterator[str]:
    """Lines of at most 75 octets; what follows begins with a space."""
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
    """`scontrol create reservation` for each block of devices, as a script.

    Slurm refuses to begin in the past: what is over before `now` (local time) is left out, what is under way
    begins at `now`, as Slurm writes it.
    FLEX lets a job that is ready begin early or end late; PURGE_COMP gives back what lies idle half an hour.
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
