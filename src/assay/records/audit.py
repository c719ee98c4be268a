"""The result of `assay runs audit`: whether a run trained on each row exactly once, as its receipts prove."""

from collections.abc import Mapping
from typing import Literal

from pydantic import NonNegativeInt

from assay.records.record import Record
from assay.records.rollout_log import PromptCounts

WeightsDepth = Literal["none", "last", "all"]
"""Commits whose weights are read: none, the newest, or all that can be resumed from."""
_OPTIONS: Mapping[WeightsDepth, str] = {"none": " --quick", "last": "", "all": " --deep"}
"""Option of `assay runs audit` by depth, shallowest first."""


class AuditReport(Record):
    """A comparison of a run's receipts with the row order, and of its files with their digests."""

    run_id: str
    verdict: Literal["pass", "fail", "incomplete"]
    """`incomplete`: no error, but the run is unfinished or something could not be checked."""
    step: NonNegativeInt
    """The last audited commit."""
    weights: WeightsDepth = "last"
    """Read from which commits."""
    epochs: NonNegativeInt
    rows_expected: NonNegativeInt
    """Over all epochs."""
    rows_trained: NonNegativeInt
    rows_quarantined: NonNegativeInt
    """Skipped: corrupt."""
    prompts: PromptCounts | None = None
    missing: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Other reasons to fail."""
    not_checked: tuple[str, ...] = ()
    """With reasons."""
    forked_from: str = ""
    """`RUN@STEP`; only later steps are audited."""
    strays: tuple[str, ...] = ()
    """Files that no commit references."""
    whole_checkpoints: NonNegativeInt | None = None
    """Another tool's checkpoints that were read and are as recorded; null for a run of our own."""

    def replaces(self, recorded: "AuditReport") -> bool:
        """Return whether this report supersedes `recorded`.

        A shallower audit does so only if it failed, or if the run has advanced since a report without errors.
        """
        depths = list(_OPTIONS)
        looked_at_less = depths.index(self.weights) < depths.index(recorded.weights)
        if not looked_at_less or self.verdict == "fail":
            return True
        return recorded.verdict != "fail" and self.step > recorded.step

    def command(self) -> str:
        """Return the command that repeats this audit."""
        return f"assay runs audit {self.run_id}{_OPTIONS[self.weights]}"
