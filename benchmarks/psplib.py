"""Instances of PSPLIB (Kolisch and Sprecher 1996), the yardstick of project scheduling, as problems of ours."""

import re
from pathlib import Path

from assay.base.errors import DataError
from assay.planning.problem import ExecutionMode, Group, Precedence, Problem, Resource


def read_psplib(path: Path) -> Problem:
    """A single-mode instance (`.sm`); its time unit becomes an hour, its sink the decision."""
    text = path.read_text(encoding="ascii")
    try:
        successors = {row[0]: row[3:] for row in _rows(text, "PRECEDENCE RELATIONS:")}
        requests = {row[0]: row[2:] for row in _rows(text, "REQUESTS/DURATIONS:")}
        (units,) = _rows(text, "RESOURCEAVAILABILITIES:")
        horizon = sum(hours for hours, *_ in requests.values())
        groups = {
            str(job): Group(str(job), 1, (_way(hours, needs),), 0, horizon, is_work=False)
            for job, (hours, *needs) in requests.items()
        }
        links = [
            Precedence(str(job), str(after), 0, from_start=False) for job, jobs in successors.items() for after in jobs
        ]
    except (ValueError, IndexError) as error:
        raise DataError(f"{path}: not a single-mode PSPLIB instance ({error}).") from error
    return Problem(
        groups=groups,
        links=tuple(links),
        resources={f"R{number}": Resource(count) for number, count in enumerate(units, start=1)},
        spending=(),
        half_days=(),
        horizon_h=horizon,
        decision=str(max(requests)),
    )


def _way(hours: int, needs: list[int]) -> ExecutionMode:
    demands = {f"R{number}": count for number, count in enumerate(needs, start=1) if count}
    return ExecutionMode(0, (hours,), 0, demands, 0)


def _rows(text: str, heading: str) -> list[list[int]]:
    """The rows of numbers between a heading and the next line of stars."""
    _, found, rest = text.partition(heading)
    if not found:
        raise ValueError(f"no '{heading}'")
    block = rest.split("*" * 20)[0]
    return [
        [int(word) for word in line.split()] for line in block.splitlines() if re.fullmatch(r"[\d\s]*\d[\d\s]*", line)
    ]
