"""Whether a run learned each row exactly once: what the receipts prove, and the rows that they do not."""

from collections.abc import Mapping
from typing import Literal

from pydantic import NonNegativeInt

from assay.records.record import Record
from assay.records.rollout_log import PromptCounts

WeightsDepth = Literal["none", "last", "all"]
"""Whose weights are read: of no commit, of the newest, of all that can be resumed from."""
_OPTIONS: Mapping[WeightsDepth, str] = {"none": " --quick", "last": "", "all": " --deep"}
"""Those of `assay audit`; what looks at least comes first."""


class AuditReport(Record):
    """A run's receipts compared with the dataset's row order, and its files with their digests."""

    run_id: str
    verdict: Literal["pass", "fail", "incomplete"]
    """`incomplete`: no error, but the run is unfinished or some rows could not be checked."""
    step: NonNegativeInt
    """Step of the last audited commit."""
    weights: WeightsDepth = "last"
    """Which commits' weights were read."""
    epochs: NonNegativeInt
    rows_expected: NonNegativeInt
    """Over all epochs."""
    rows_trained: NonNegativeInt
    rows_quarantined: NonNegativeInt
    """Skipped because their bytes are corrupt."""
    prompts: PromptCounts | None = None
    missing: tuple[str, ...] = ()
    """E.g. `epoch 0 row 1234 (a.parquet, row 34)`."""
    repeated: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Other reasons to fail."""
    not_checked: tuple[str, ...] = ()
    """What was skipped, and why."""
    forked_from: str = ""
    """`RUN@STEP`; only later steps are audited."""
    strays: tuple[str, ...] = ()
    """Files that no commit references."""

    def replaces(self, recorded: "AuditReport") -> bool:
        """Whether this one goes on record in place of `kept`.

        What looked at less says nothing of what the other found, unless it found something wrong itself or
        the run has gone on since without a fault.
        """
        depths = list(_OPTIONS)
        looked_at_less = depths.index(self.weights) < depths.index(recorded.weights)
        if not looked_at_less or self.verdict == "fail":
            return True
        return recorded.verdict != "fail" and self.step > recorded.step

    def command(self) -> str:
        """What makes it again."""
        return f"assay audit {self.run_id}{_OPTIONS[self.weights]}"
