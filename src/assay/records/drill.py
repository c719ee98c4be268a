"""What a resume drill found: evidence that a recipe survives, which a gate may demand before a large run."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from assay.base.config import dotted_leaves
from assay.records.record import Record

UNDRILLED = frozenset(
    {
        "name",
        "seed",
        "loader.seed",
        "data.dataset",
        "trainer.epochs",
        "trainer.max_steps",
        "trainer.commit_every",
        "trainer.evaluate_every",
        "trainer.spot_check_every",
    }
)
"""Keys of a recipe in which a drill may differ from the run it speaks for: what it is called, its luck, its
rows, how long it is, and how often it stops to look."""
UNDRILLED_PARTS = ("evaluation", "retention")


def drilled_parts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of what decides whether a resolved recipe survives: everything but `UNDRILLED`.

    Numbers with a fraction in the optimizer (rates, decays) are left out, too: no state, exchange or commit
    depends on them.
    """
    return {
        key: value
        for key, value in dotted_leaves(recipe)
        if key not in UNDRILLED
        and not key.startswith(UNDRILLED_PARTS)
        and not (key.startswith("trainer.optimizer.") and isinstance(value, float))
    }


class Exercise(Record):
    """A run with an injected fault."""

    name: str
    run_id: str
    weights_digest: str
    num_attempts: NonNegativeInt
    seconds: NonNegativeFloat
    problem: str
    """Empty if it passed."""


class DrillReport(Record):
    """The exercises of one recipe; the first is the undisturbed run."""

    recipe_sha256: str
    """For the shortened recipe."""
    parts: dict[str, Any]
    """Settings that another recipe must share."""
    workers: PositiveInt
    exercises: tuple[Exercise, ...]
    verdict: Literal["pass", "fail"]
    """`pass`: all weights equal the undisturbed run's, and audits are clean."""

    @classmethod
    def of(
        cls,
        recipe: Mapping[str, Any],
        exercises: tuple[Exercise, ...],
        *,
        recipe_sha256: str,
        workers: int,
    ) -> Self:
        """The report of a resolved recipe, with the verdict that follows from the exercises."""
        verdict = _verdict(exercises)
        return cls(
            recipe_sha256=recipe_sha256,
            parts=drilled_parts(recipe),
            workers=workers,
            exercises=exercises,
            verdict=verdict,
        )

    @model_validator(mode="after")
    def _verdict_follows(self) -> Self:
        if self.verdict != (expected := _verdict(self.exercises)):
            raise ValueError(f"verdict is '{self.verdict}'; its exercises say '{expected}'")
        return self

    def difference_from(self, recipe: Mapping[str, Any]) -> str | None:
        """The first key in which a resolved recipe differs from the one that was drilled, with both values."""
        other = drilled_parts(recipe)
        for key in sorted({*self.parts, *other}):
            if self.parts.get(key) != other.get(key):
                return f"{key}={self.parts.get(key)!r}, not {other.get(key)!r}"
        return None

    def passed(self) -> bool:
        """A gate that asks for a drill may open."""
        return self.verdict == "pass"


def _verdict(exercises: tuple[Exercise, ...]) -> Literal["pass", "fail"]:
    """A drill without exercises proves nothing."""
    return "fail" if not exercises or any(exercise.problem for exercise in exercises) else "pass"
