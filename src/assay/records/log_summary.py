"""Summary of the first entries of a run's log, so that readers need not read them all."""

from typing import Self

from pydantic import Field, NonNegativeInt

from assay.records.commit import AttemptBegan, Commit, CommitQuarantined, LogEntry, RunFinished
from assay.records.record import Record


class LogSummary(Record):
    """A function of the entries: whoever writes it down writes the same. The default is that of no entries."""

    num_entries: NonNegativeInt = 0
    entry_sha256: str = ""
    """The digest of the last of them, which holds that of the one before it, and so on to the first."""
    attempt: NonNegativeInt = 0
    """The newest that began; it alone may append."""
    commits: tuple[Commit, ...] = ()
    """Those that may be resumed from, oldest first: neither quarantined nor retired."""
    quarantined: tuple[CommitQuarantined, ...] = ()
    last_steps: dict[int, int] = Field(default_factory=dict)
    """Attempt -> step of its last commit, whatever became of that; attempts without one are left out."""
    retires: tuple[str, ...] = ()
    """Folders retired by the newest commit; a crash may have left their files."""
    finished: RunFinished | None = None
    """Set if it is the last entry."""

    def after(self, entry: LogEntry, sha256: str) -> Self:
        """The summary with one entry more."""
        changed: dict[str, object] = {
            "num_entries": self.num_entries + 1,
            "entry_sha256": sha256,
            "attempt": max(self.attempt, entry.attempt),
            "finished": None,
        }
        match entry:
            case Commit():
                remaining = [commit for commit in self.commits if commit.folder not in entry.retires]
                changed["commits"] = (*remaining, entry)
                changed["last_steps"] = {**self.last_steps, entry.attempt: entry.step}
                changed["retires"] = entry.retires
            case CommitQuarantined():
                remaining = [commit for commit in self.commits if commit.folder != entry.folder]
                changed["commits"] = tuple(remaining)
                changed["quarantined"] = (*self.quarantined, entry)
            case RunFinished():
                changed["finished"] = entry
            case AttemptBegan():
                pass
        return self.model_copy(update=changed)
