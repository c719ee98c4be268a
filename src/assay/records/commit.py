"""A commit: weights, optimizer, cursor and receipts that become visible together, or not at all.

The run's log is a sequence of entries `log/00000000.json`, `log/00000001.json`, ... in the run's store. Each
is put only if absent, so the log has one writer at a time without any lock: an attempt begins by taking the
next number, and an older attempt that comes back to life finds its next number taken (it is *fenced*).

    attempt 1 | commit step 100 | commit step 200 | attempt 2 | commit step 300 ...
                                                   ^ attempt 1 wakes, tries to put its commit here: refused
"""

from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.cursor import Cursor
from assay.records.log_entry import classes_by_type
from assay.records.record import Record
from assay.records.rollout_log import PromptCounts


class FileDigest(Record):
    """A file with its digest."""

    kind: ClassVar[str] = "file"

    path: str
    num_bytes: NonNegativeInt
    sha256: str


class Quarantined(Record):
    """A row group that a run skipped, and why; the audit counts it."""

    kind: ClassVar[str] = "quarantined_row_group"

    row_group: NonNegativeInt
    """Index into the manifest's row groups."""
    shard: str
    num_rows: PositiveInt
    reason: str


class AttemptBegan(Record):
    """An attempt acquired the log; earlier attempts can no longer append."""

    type: Literal["attempt"] = "attempt"
    attempt: PositiveInt
    world_size: PositiveInt
    began_s: float


class Commit(Record):
    """One durable state of a run; the last intact one is where a new attempt resumes."""

    type: Literal["commit"] = "commit"
    attempt: NonNegativeInt
    """0 for the commit of the parent run of a fork."""
    world_size: PositiveInt
    step: NonNegativeInt
    """Optimizer updates behind these weights, over all epochs."""
    cursor: Cursor
    committed_s: float
    folder: str
    """The folder of the checkpoint's files, in the run's store, e.g. `checkpoints/00000200-0001`."""
    files: tuple[FileDigest, ...]
    """Every file of the folder: tensors, DCP's metadata, `receipts.npz`, perhaps `journal.parquet`."""
    weights_digest: str
    """SHA-256 over the model's tensors by name: equal weights, equal digest, whatever the world size."""
    receipts_from_step: NonNegativeInt
    """`receipts.npz` covers the steps (receipts_from_step, step]."""
    rows_trained: NonNegativeInt
    """Rows of those steps, over all lanes."""
    prompts: PromptCounts | None = None
    """Outcomes of the rows, if they are prompts."""
    quarantined: tuple[Quarantined, ...] = ()
    """Row groups skipped in those steps because their bytes are damaged."""
    metric: float | None = None
    """Value of the recipe's `keep_best` metric at this step; None without an evaluation."""
    is_verified: bool = False
    """A spot check of every rank passed in this step."""
    retires: tuple[str, ...] = ()
    """Folders of earlier commits that may be deleted once this one is visible."""
    adopted_from: str = ""
    """Absolute folder of a checkpoint that another tool wrote: `files` are there, `folder` is empty, `weights_digest`
    is of the weights' files, and nothing proves the rows. Empty for a commit of our own."""

    @property
    def is_inherited(self) -> bool:
        """Return whether this is a fork's copy of its parent's commit; the receipts remain with the parent."""
        return self.attempt == 0


class CommitQuarantined(Record):
    """A commit that was found torn or changed. Its files stay for inspection and are never used again."""

    type: Literal["quarantine"] = "quarantine"
    attempt: PositiveInt
    folder: str
    step: NonNegativeInt
    reason: str


class RunFinished(Record):
    """The run reached its last step. Nothing is appended after this."""

    type: Literal["finished"] = "finished"
    attempt: PositiveInt
    step: NonNegativeInt
    weights_digest: str


LogEntry = AttemptBegan | Commit | CommitQuarantined | RunFinished

ENTRY_CLASSES = classes_by_type(LogEntry)
