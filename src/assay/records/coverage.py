"""Which failure modes would be noticed, by which benchmark, and whose they are."""

from typing import Literal

from pydantic import PositiveFloat

from assay.records.record import Record

CellState = Literal["covered", "too small", "another version", "not run"]


class CoverageCell(Record):
    """One benchmark that looks for one failure mode."""

    suite: str
    benchmark: str
    state: CellState
    """`covered`: its power is known and suffices; `too small`: it would miss the least effect too often;
    `another version`: it was run, but not with the items, prompts and grader that it has now."""
    num_items: int | None = None
    """Scored items of the result that its power is known from; None where it was not run."""
    could_detect: float | None = None
    """Smallest worsening that it finds with the stated power, in its own unit."""
    items_needed: int | None = None
    """Independent items that would suffice; None where it is not too small."""
    result_sha256: str | None = None
    """SHA-256 of the BenchmarkResult."""


class CoveredMode(Record):
    """One failure mode."""

    name: str
    owner: str
    least_effect: PositiveFloat
    """The smallest worsening that must not go unnoticed, in the benchmarks' unit."""
    cells: tuple[CoverageCell, ...]
    is_hole: bool
    """No benchmark of known power covers it."""


class Coverage(Record):
    """Failure modes x benchmarks."""

    modes: tuple[CoveredMode, ...]
    power: float
    """With which the least effect has to be found."""

    @property
    def holes(self) -> tuple[CoveredMode, ...]:
        """Failure modes that nothing covers: a gate can demand that there be none."""
        return tuple(mode for mode in self.modes if mode.is_hole)
