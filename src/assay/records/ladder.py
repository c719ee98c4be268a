"""A ladder: changes to a known-good config, one at a time, and what became of each step.

A step names its campaign's decision by digest and repeats none of its numbers.
"""

from typing import Any, Literal

from pydantic import NonNegativeFloat

from assay.base.names import Name
from assay.records.decision import Clause
from assay.records.record import Record

LADDER_FILE = "ladder.json"
"""A ladder's declaration, in `campaigns/NAME`."""

BASE_STEP, TOGETHER_STEP = "base", "together"
"""The step before all changes, which trains the base at its rungs, and the one after them, which trains all adopted
changes together."""

OWN_SIZE = ""
"""The rung that is the base's own size."""

NO_VERDICT = "not judged"
"""Reason of a clause that could not be judged, as no law fits or other rows were learned. It blocks nothing."""

LadderAction = Literal["adopt", "keep out", "roll back", "stop", "continue"]
"""`keep out`: no gain is shown, and no harm. `roll back`: it harms, or breaks a gate. `stop`: the known-good config
breaks a gate, so nothing may be compared with it. `continue`: of the steps that are no change."""


class Ladder(Record):
    """The declaration of a ladder. Written once and never edited."""

    name: Name
    config: dict[str, Any]
    """The resolved file, without what may change later (budget, workers)."""
    config_sha256: str
    """SHA-256 of `config` and `recipe`."""
    recipe: dict[str, Any]
    """The base as given."""
    base_run: str
    """The finished run that shows that the base works."""
    base_dir: str
    """Folder of the ladder's file; its paths are relative to it."""
    created_s: float


class LadderTrial(Record):
    """A step at one rung."""

    rung: str
    """Empty: the base's own size."""
    campaign: str
    """Empty for the base's own runs."""
    decision_sha256: str | None = None
    """None if no decision was made: the base's runs, or a run whose loss was not finite."""
    clauses: tuple[Clause, ...]
    """One for each gate, the gain first."""


class LadderStep(Record):
    """What became of a change, of the base's rungs, or of all adopted changes together. Written once."""

    ladder_sha256: str
    step: str
    """The change, `base` or `together`."""
    action: LadderAction
    error_rate: NonNegativeFloat
    """Probability, of those that the ladder may spend, that the change is adopted without a gain."""
    trials: tuple[LadderTrial, ...]
    """From the smallest rung to the base's own size."""

    def clause(self, gate: str, rung: str = OWN_SIZE) -> Clause | None:
        """Return the verdict of a gate at a rung; None if it was not judged there."""
        found = [clause for trial in self.trials if trial.rung == rung for clause in trial.clauses]
        return next((clause for clause in found if clause.type == gate), None)
