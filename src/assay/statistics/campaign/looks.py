"""Repeated looks at one error rate: looks are declared, and each spends a part of the error.

Testing at 5% at each of five looks errs far more often than 5%. Two kinds of looks share the error rate:

*Gates* are declared before the first run, with their seeds (3, then 5, then 8 pairs). They use O'Brien & Fleming's
(1979) boundary, c / sqrt(information): very strict early, close to a single test at the end, at almost no cost in
power. c follows from the joint distribution of Student's statistic at all looks, from 200,000 simulated paths; with few
seeds the normal distribution's c is too small.

*Unscheduled looks* (somebody opened the dashboard at a checkpoint) share a reserved part: look number j spends 1 / (j
(j + 1)) of it. The parts sum to 1 for any number of looks, and the bound holds for any dependence between looks
(Bonferroni). Dependence matters: scoring one seed's checkpoints again gives no new information about a method, and no
item-level sequential test corrects for that.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtr, ndtri, stdtr

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError
from assay.base.shapes import Float64
from assay.records.decision import Look

_PATHS = 200_000


class LookPlan(FrozenConfig):
    """The declared looks, and the error rate that all looks share."""

    gate_seeds: tuple[int, ...] = (3, 5, 8)
    """Seed pairs at each scheduled look, rising."""
    error_rate: float = Field(default=0.05, gt=0.0, lt=0.5)
    """One-sided probability that any look claims a gain if there is none."""
    unscheduled_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the error rate reserved for unscheduled looks; the gates have the rest."""

    @model_validator(mode="after")
    def _gates_rise(self) -> Self:
        if not self.gate_seeds or self.gate_seeds[0] < 2 or sorted(set(self.gate_seeds)) != list(self.gate_seeds):
            raise ValueError(f"gate_seeds {list(self.gate_seeds)} must rise from 2 or more, e.g. [3, 5, 8]")
        return self

    def gate_error_rate(self) -> float:
        return self.error_rate * (1.0 - self.unscheduled_share)

    def gate_levels(self) -> tuple[float, ...]:
        """Return the one-sided confidence that each gate needs, e.g. 0.9999, 0.99, 0.96."""
        return tuple(level for level, _ in _gates(self.gate_seeds, self.gate_error_rate()))

    def gate_spending(self) -> tuple[float, ...]:
        """Return the error that each gate spends; they sum to `gate_error_rate`."""
        return tuple(spent for _, spent in _gates(self.gate_seeds, self.gate_error_rate()))

    def unscheduled_spending(self, number: int) -> float:
        """Return the error that unscheduled look `number` (from 1) spends."""
        assert number >= 1, number
        return self.error_rate * self.unscheduled_share / (number * (number + 1))


def take_look(plan: LookPlan, previous: Sequence[Look], *, name: str, num_seeds: int, is_gate: bool) -> Look:
    """Return the next look after the `previous` ones: its level, and the error spent up to it.

    Raises `ConfigError` for a gate that has been taken or was not declared.
    """
    if not is_gate:
        spent = plan.unscheduled_spending(1 + sum(not look.is_gate for look in previous))
        level = 1.0 - spent
    elif num_seeds not in plan.gate_seeds:
        raise ConfigError(
            f"{name}: a gate with {num_seeds} seed pairs was not declared (declared: {list(plan.gate_seeds)}). "
            "Run the missing seeds, or take it as an unscheduled look."
        )
    elif any(look.is_gate and look.num_seeds >= num_seeds for look in previous):
        raise ConfigError(f"{name}: the gate at {num_seeds} seed pairs has been passed; each is looked at once.")
    else:
        index = plan.gate_seeds.index(num_seeds)
        spent, level = plan.gate_spending()[index], plan.gate_levels()[index]
    return Look(
        name=name, num_seeds=num_seeds, is_gate=is_gate, level=level, spent=spent,
        spent_so_far=sum(look.spent for look in previous) + spent,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _gates(gate_seeds: tuple[int, ...], error_rate: float) -> tuple[tuple[float, float], ...]:
    """Return (confidence, spent error) of each gate."""
    share = np.asarray(gate_seeds) / gate_seeds[-1]
    scaled = _student_paths(gate_seeds) * np.sqrt(share)
    c = float(np.quantile(scaled.max(axis=1), 1.0 - error_rate))
    first = np.argmax(scaled > c, axis=1)
    spent = np.bincount(first[(scaled > c).any(axis=1)], minlength=len(gate_seeds)) / _PATHS
    # The quantile lies between two paths; the parts are scaled so that they sum to the error rate.
    spent = spent * (error_rate / spent.sum())
    levels = ndtr(c / np.sqrt(share))
    return tuple(zip(levels.tolist(), spent.tolist(), strict=True))


@lru_cache(maxsize=16)
def _student_paths(gate_seeds: tuple[int, ...]) -> Float64[np.ndarray, "path gate"]:
    """Simulate Student's statistic without an effect at each gate [path, gate], as the normal quantile of its
    p-value."""
    rng = np.random.default_rng(2024)
    total, squares, columns = np.zeros(_PATHS), np.zeros(_PATHS), []
    for before, count in zip((0, *gate_seeds), gate_seeds, strict=False):
        for _ in range(before, count):
            draw = rng.normal(size=_PATHS)
            total, squares = total + draw, squares + np.square(draw)
        variance = (squares - np.square(total) / count) / (count - 1)
        columns.append(-ndtri(stdtr(count - 1, -total / np.sqrt(count * variance))))
    return np.stack(columns, axis=1)
