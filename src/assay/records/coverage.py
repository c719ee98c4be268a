"""Failure modes with the benchmarks that detect them and their owners."""

from typing import Literal

from pydantic import PositiveFloat

from assay.records.record import Record

CellState = Literal["covered", "too small", "another version", "not run"]


class CoverageCell(Record):
    """A benchmark for a failure mode."""

    suite: str
    benchmark: str
    state: CellState
    """`too small`: insufficient power. `another version`: of items, prompts or grader."""
    num_items: int | None = None
    could_detect: float | None = None
    """Smallest regression that it detects."""
    items_needed: int | None = None
    """Independent ones."""
    result_sha256: str | None = None


class CoveredMode(Record):
    """A failure mode."""

    name: str
    owner: str
    least_effect: PositiveFloat
    """Smallest regression that must be detected."""
    cells: tuple[CoverageCell, ...]
    is_hole: bool
    """No benchmark covers it."""


class Coverage(Record):
    """Failure modes by benchmark."""

    modes: tuple[CoveredMode, ...]
    power: float
    """To detect `least_effect`."""

    @property
    def holes(self) -> tuple[CoveredMode, ...]:
        """Return the failure modes without a benchmark; a gate can require that there are none."""
        return tuple(mode for mode in self.modes if mode.is_hole)
