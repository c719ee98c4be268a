"""Coverage of failure modes by benchmarks: which failures would go unnoticed.

    coverage file (failure modes, owners, least effects) + suites + results -> matrix -> holes

A benchmark covers a failure mode if it declares it *and* a result shows enough power: its detectable effect, at the
stated power, is at most the least effect that matters. A benchmark that was never run, is too small, or was run with
other items than it has now, covers nothing.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field, PositiveFloat, model_validator

from assay.base.config import FrozenConfig, first_repeated, read_config_file, validated
from assay.base.errors import ConfigError
from assay.evals.config import Suite
from assay.evals.version import PresentSuite
from assay.records.benchmark import BenchmarkResult
from assay.records.coverage import Coverage, CoverageCell, CoveredMode


class FailureMode(FrozenConfig):
    """An undesired behaviour of a model whose rate must not rise."""

    name: str

    owner: str
    """The team or person responsible for it."""

    least_effect: PositiveFloat
    """The smallest worsening that must be detected, in the unit of its benchmarks (0.02: two percentage points)."""

    description: str = ""


class CoverageConfig(FrozenConfig):
    """The failure modes that must be covered."""

    failure_modes: tuple[FailureMode, ...] = Field(min_length=1)

    power: float = Field(default=0.8, gt=0.0, lt=1.0)
    """Probability with which the least effect must be detected. Results state theirs at 0.8."""

    @model_validator(mode="after")
    def _names_differ(self) -> "CoverageConfig":
        if twice := first_repeated([mode.name for mode in self.failure_modes]):
            raise ValueError(f"failure mode '{twice}' is listed twice")
        return self


def read_coverage_config(path: Path) -> CoverageConfig:
    """Read and check a coverage file."""
    return validated(CoverageConfig, read_config_file(path, ()))


def coverage(config: CoverageConfig, suites: Sequence[PresentSuite], results: Iterable[BenchmarkResult]) -> Coverage:
    """Return the matrix; of several results of a benchmark's present version, the newest counts.

    Raises `ConfigError` if a suite names a failure mode that the coverage file does not list.
    """
    _require_known_modes(config, [suite.suite for suite in suites])
    by_age = sorted(results, key=lambda result: result.evaluated_s)
    newest = [{result.benchmark: result for result in by_age if present.covers(result)} for present in suites]
    ever_run = {result.benchmark for result in by_age}
    modes = []
    for mode in config.failure_modes:
        cells = tuple(
            _cell(
                CoverageCell(
                    suite=present.suite.name,
                    benchmark=benchmark.name,
                    state="another version" if benchmark.name in ever_run else "not run",
                ),
                found.get(benchmark.name),
                mode.least_effect,
                config.power,
            )
            for present, found in zip(suites, newest, strict=True)
            for benchmark in present.suite.benchmarks
            if mode.name in benchmark.failure_modes
        )
        modes.append(
            CoveredMode(
                name=mode.name,
                owner=mode.owner,
                least_effect=mode.least_effect,
                cells=cells,
                is_hole=not any(cell.state == "covered" for cell in cells),
            )
        )
    return Coverage(modes=tuple(modes), power=config.power)


def _cell(without: CoverageCell, result: BenchmarkResult | None, least_effect: float, power: float) -> CoverageCell:
    """Return the cell of a result; `without` is the cell if there is none."""
    if result is None:
        return without
    detectable = result.could_detect
    if detectable is None:
        return without.model_copy(update={"state": "not run"})
    effect = detectable.effect * _rescaled(power, detectable.power, detectable.confidence)
    scored = result.num_items - result.num_failed
    is_enough = effect <= least_effect
    return CoverageCell(
        suite=without.suite,
        benchmark=without.benchmark,
        state="covered" if is_enough else "too small",
        num_items=scored,
        could_detect=effect,
        items_needed=None if is_enough else math.ceil(scored * (effect / least_effect) ** 2),
        result_sha256=result.digest(),
    )


def _rescaled(power: float, stated_power: float, confidence: float) -> float:
    """Return the factor on the detectable effect for another power than the stated one."""
    from scipy.special import ndtri

    level = ndtri((1 + confidence) / 2)
    return float((level + ndtri(power)) / (level + ndtri(stated_power)))


def _require_known_modes(config: CoverageConfig, suites: Sequence[Suite]) -> None:
    known = {mode.name for mode in config.failure_modes}
    for suite in suites:
        for benchmark in suite.benchmarks:
            if unknown := sorted(set(benchmark.failure_modes) - known):
                raise ConfigError(
                    f"suite '{suite.name}', benchmark '{benchmark.name}': failure mode '{unknown[0]}' "
                    f"is not in the coverage file, which lists {', '.join(sorted(known))}. Add it there, with "
                    "its owner."
                )
