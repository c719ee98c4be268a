"""Whether a run learned each row exactly once: what the receipts prove, and the rows that they do not."""

from collections.abc import Mapping
from typing import Literal

from pydantic import NonNegativeInt

from assay.records.journal import PromptCounts
from assay.records.record import Record

WeightsDepth = Literal["none", "last", "all"]
"""Whose weights are read: of no commit, of the newest, of all that can be resumed from."""
_OPTIONS: Mapping[WeightsDepth, str] = {"none": " --quick", "last": "", "all": " --deep"}
"""Those of `assay audit`; what looks at least comes first."""


class AuditReport(Record):
    """A run's receipts against its dataset's order, and its files against their digests."""

    run_id: str
    verdict: Literal["pass", "fail", "incomplete"]
    """`incomplete`: nothing is wrong so far, but the run is not finished, or its rows could not be checked."""
    step: NonNegativeInt
    """Step of the last commit that was audited; 0 if there is none."""
    weights: WeightsDepth = "last"
    """Whose weights were read."""
    epochs: NonNegativeInt
    """Epochs that were audited, the last perhaps in part."""
    rows_expected: NonNegativeInt
    """Rows that the committed steps should have learned, over all epochs."""
    rows_learned: NonNegativeInt
    rows_quarantined: NonNegativeInt
    """Skipped because their bytes are damaged, and reported in a commit; part of `rows_expected`."""
    prompts: PromptCounts | None = None
    """What became of the learned rows where these are prompts; null where no journal was kept."""
    missing: tuple[str, ...] = ()
    """Rows that were expected and not learned, in words: `epoch 0 row 1234 (a.parquet, row 34)`."""
    repeated: tuple[str, ...] = ()
    """Rows that were learned more than once, likewise."""
    problems: tuple[str, ...] = ()
    """Everything else that keeps the audit from passing: a changed shard, a receipt that is not there."""
    not_checked: tuple[str, ...] = ()
    """What the audit did not look at, and why: the verdict says nothing of it."""
    forked_from: str = ""
    """`RUN@STEP` whose weights the run began with: what is said here is of the steps behind it. Empty where it
    is no fork."""
    strays: tuple[str, ...] = ()
    """Files in the run's log or checkpoints that no commit names. Nothing reads them."""

    def replaces(self, kept: "AuditReport") -> bool:
        """Whether this one goes on record in place of `kept`.

        What looked at less says nothing of what the other found, unless it found something wrong itself or
        the run has gone on since without a fault.
        """
        depths = list(_OPTIONS)
        looked_at_less = depths.index(self.weights) < depths.index(kept.weights)
        if not looked_at_less or self.verdict == "fail":
            return True
        return kept.verdict != "fail" and self.step > kept.step

    def command(self) -> str:
        """What makes it again."""
        return f"assay audit {self.run_id}{_OPTIONS[self.weights]}"
