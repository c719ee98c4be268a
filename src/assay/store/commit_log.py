"""The run's log of commits: what is durable, who may add to it, and what can be trusted.

Entries are `log/00000000.json`, `log/00000001.json`, ... each put only if absent (see `records.commit`). Of two
writers only one can put a number, so a replaced attempt notices when it loses one. Each entry has the digest of the
previous one, so a replaced or removed entry is detected.

    log/           00000000  00000001  ...  00000031  00000032  00000033
    log-summaries/                          00000032 (what the first 32 come to)

Only audits and the ledger read all entries. Resuming reads the newest summary and the entries after it. A summary is
a function of the entries, written after them and put only if absent. It is used if its own digest and that of its
last entry are correct; otherwise the entries are read.

Knows nothing of tensors: a checkpoint is a folder of files with digests.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from assay.base.digest import sha256_of_file
from assay.base.errors import DataError, FencedError, StoreAwayError, StoreError
from assay.records.commit import (
    ENTRY_CLASSES,
    AttemptBegan,
    Commit,
    CommitQuarantined,
    LogEntry,
    RunFinished,
)
from assay.records.log_summary import LogSummary
from assay.store.logs.entry import Known, changed, entry_text, read_entry
from assay.store.objects import ObjectStore

LOG_PREFIX = "log/"
SUMMARY_PREFIX = "log-summaries/"
CHECKPOINT_PREFIX = "checkpoints/"
JUDGE_SCORES_PREFIX = "judged/"
GENERATED_PREFIX = "made/"
PENDING_PREFIXES = (JUDGE_SCORES_PREFIX, GENERATED_PREFIX)
"""Folders STEP/ of data that cannot be regenerated, retained until a commit includes the step."""
SUMMARY_EVERY = 32
"""Entries between two summaries; bounds what a reader reads."""
ABANDONED_S = 3600.0
"""Longer than any write of one file."""
_READ_BYTES = 32 << 20


class CommitLog:
    """Reads and appends the log of one run."""

    def __init__(self, store: ObjectStore, *, attempt: int = 0) -> None:
        """`attempt`: the writer's number; 0 before `begin_attempt`."""
        self.store = store
        self.attempt = attempt
        self._is_read = False
        self._base = LogSummary()
        self._known: list[Known[LogEntry]] = []
        """The entries behind `_base`."""
        self._summary = LogSummary()
        """The summary of `_base` and the entries behind it."""
        self._num_summarized = 0

    def entries(self) -> list[LogEntry]:
        """Return all entries, oldest first. The cost grows with the log."""
        self.summary()
        if self._base.num_entries:
            whole = CommitLog(self.store)
            whole._read_behind(LogSummary())
            self._base, self._summary, self._known = whole._base, whole._summary, whole._known
        return [known.entry for known in self._known]

    def summary(self) -> LogSummary:
        """Return the summary of all entries. The cost does not grow with the log."""
        if not self._is_read:
            self._read_behind(self._newest_summary())
        while self.store.exists(key := self._next_key()):
            self._accept(_parse(self.store.get(key), key), key)
        return self._summary

    def begin_attempt(self, *, world_size: int, now_s: float) -> int:
        """Acquire the log, which fences all earlier attempts. Return the attempt's number.

        Raises `FencedError` if this log already began an attempt and another writer has begun a newer one, so
        that a replaced writer cannot take the run back.
        """
        while True:
            newest = self.summary().attempt
            if 0 < self.attempt < newest:
                raise self._fenced_by(newest)
            entry = AttemptBegan(attempt=newest + 1, world_size=world_size, began_s=now_s)
            if self._put(entry):
                self.attempt = entry.attempt
                self._summarize()
                return entry.attempt
            self.summary()
            if self.attempt and [known.entry for known in self._known[-1:]] == [entry]:
                self.attempt = entry.attempt  # our own put, whose answer got lost, fences nobody

    def append(self, entry: Commit | CommitQuarantined | RunFinished) -> None:
        """Make an entry visible, or raise `FencedError` if a newer attempt has begun."""
        assert entry.attempt == self.attempt, f"attempt {self.attempt} appends an entry of {entry.attempt}"
        while True:
            # What is known may already hold a newer attempt, and then the next number is still free.
            if self._summary.attempt > self.attempt:
                raise self._fenced_by(self._summary.attempt)
            if self._put(entry):
                break
            self.summary()
            if any(known.entry == entry for known in self._known):
                break  # there, but the answer to our own put got lost
        self._summarize()

    def commits(self) -> list[Commit]:
        """Return the resumable commits, oldest first: neither quarantined nor retired."""
        return list(self.summary().commits)

    def known_commits(self) -> list[Commit]:
        """Return the resumable commits of the entries read so far, without reading the store."""
        return list(self._summary.commits)

    def last_intact_commit(self) -> Commit | None:
        """Return the newest commit with intact files; quarantine newer corrupt ones."""
        for commit in reversed(self.commits()):
            problem = first_problem(self.store, commit)
            if problem is None:
                return commit
            self.append(CommitQuarantined(attempt=self.attempt, folder=commit.folder, step=commit.step, reason=problem))
        return None

    def quarantine_unverified(self, reason: str, *, up_to: int) -> None:
        """Quarantine commits of attempts up to `up_to` after the last verified or inherited one."""
        while (
            (commits := self.commits())
            and not (commits[-1].is_verified or commits[-1].is_inherited)
            and commits[-1].attempt <= up_to
        ):
            newest = commits[-1]
            self.append(CommitQuarantined(attempt=self.attempt, folder=newest.folder, step=newest.step, reason=reason))

    def finished(self) -> RunFinished | None:
        """Return the entry of the run's end, or None."""
        return self.summary().finished

    def sweep_retired(self, commit: Commit) -> None:
        """Delete the files that a commit retires, like `sweep`, at a cost that does not grow with the log."""
        quarantined = {item.folder for item in self._summary.quarantined}
        gone = set(commit.retires) - quarantined
        for known in (*self._base.commits, *(item.entry for item in self._known)):
            if isinstance(known, Commit) and known.folder in gone and parse_checkpoint_folder(known.folder) is not None:
                for file in known.files:
                    if file.path not in RETAINED_NAMES:
                        self.store.delete(f"{known.folder}/{file.path}")

    def sweep(self, *, from_step: int | None = None) -> None:
        """Delete the files of retired commits, and of checkpoints that never became a commit: all of them, or
        those of `from_step` and later, and what the newest commit has retired.

        Spares receipts and journals of retired commits (the audit needs them), whatever is quarantined, and the
        folders of this attempt or later ones, which may be in the making.
        """
        summary = self.summary()
        retained = {commit.folder for commit in summary.commits} | {bad.folder for bad in summary.quarantined}
        after = "" if from_step is None else checkpoints_from(from_step)
        prefixes = [(CHECKPOINT_PREFIX, after), *((f"{folder}/", "") for folder in summary.retires)]
        for item in [item for prefix, start in prefixes for item in self.store.list(prefix, start)]:
            folder, _, name = item.key.rpartition("/")
            checkpoint = parse_checkpoint_folder(folder)
            if checkpoint is None or folder in retained:
                continue  # somebody else's, perhaps: nothing that we do not know is deleted
            step, attempt = checkpoint
            # One save is under way at a time, so a folder of a later step than its attempt's last commit has
            # not become one.
            is_committed = step <= summary.last_steps.get(attempt, -1)
            if is_committed and name in RETAINED_NAMES:
                continue
            if is_committed or attempt < self.attempt:
                self.store.delete(item.key)

    def sweep_pending(self, step: int) -> None:
        """Delete pending data of steps up to `step`, which a commit now includes."""
        for prefix in PENDING_PREFIXES:
            for item in [*self.store.list(prefix)]:
                pending = re.match(rf"{prefix}(\d{{8,}})/", item.key)
                if pending and int(pending[1]) <= step:
                    self.store.delete(item.key)

    def sweep_abandoned(self) -> None:
        """Delete leftovers of earlier attempts: `sweep` from the step of the last commit, and unfinished writes of
        fenced attempts or older than `ABANDONED_S`."""
        commits = self.commits()
        from_step = commits[-1].step if commits else 0
        self.sweep(from_step=from_step)
        self.sweep_pending(from_step)

        def is_dead(folder: str, age_s: float) -> bool:
            _, attempt = parse_checkpoint_folder(folder) or (0, self.attempt)
            return age_s > ABANDONED_S or attempt < self.attempt

        def is_swept(folder: str) -> bool:
            return CHECKPOINT_PREFIX <= folder < checkpoints_from(from_step)

        self.store.sweep_unfinished(is_dead, is_swept)

    def problems_of_summaries(self) -> Iterator[str]:
        """Yield a message for each summary that disagrees with the entries; reads all entries."""
        self.entries()
        stored = {item.key: self.store.get(item.key) for item in self.store.list(SUMMARY_PREFIX)}
        summary = LogSummary()
        for known in self._known:
            summary = summary.after(known.entry, known.sha256)
            data = stored.pop(key := _summary_key(summary.num_entries), None)
            if data is not None and _summary_in(data, key) != summary:
                yield (
                    f"{key} is not what the first {summary.num_entries} entries come to: it was changed. "
                    "Delete it; the entries say it all"
                )
        for key in sorted(filter(is_summary, stored)):
            yield f"{key} tells of entries that are not there: the log has {summary.num_entries}"

    def _newest_summary(self) -> LogSummary:
        """Return the newest valid summary of this log, or the empty summary."""
        for key in sorted((item.key for item in self.store.list(SUMMARY_PREFIX)), reverse=True):
            summary = _summary_in(self.store.get(key), key) if is_summary(key) else None
            if summary is None:
                continue  # damaged: the entries say it all
            last = _entry_key(summary.num_entries - 1)
            if not self.store.exists(last):
                raise DataError(
                    f"{last} is missing, and {key} tells of it: somebody deleted from the run's store. Restore "
                    "the file, or start a new run."
                )
            read = _parse(self.store.get(last), last)
            if read.sha256 == summary.entry_sha256:
                return summary
        return LogSummary()

    def _read_behind(self, base: LogSummary) -> None:
        """Read all entries after `base`."""
        self._is_read, self._base, self._summary, self._known = False, base, base, []
        after = _entry_key(base.num_entries - 1) if base.num_entries else ""
        for key in sorted(item.key for item in self.store.list(LOG_PREFIX, after) if is_entry(item.key)):
            if key != self._next_key():
                raise DataError(
                    f"{LOG_PREFIX}: entry {self._summary.num_entries:08d} is missing, {key} is there. The log "
                    "has a hole: somebody deleted from the run's store. Restore the file, or start a new run."
                )
            self._accept(_parse(self.store.get(key), key), key)
        self._is_read = True
        self._num_summarized = max(self._num_summarized, base.num_entries)

    def _accept(self, read: Known[LogEntry], key: str) -> None:
        """Append an entry to the state in memory."""
        if read.previous_sha256 != self._summary.entry_sha256:
            raise changed(key, "it does not follow the entry before it, so one of the two was replaced")
        self._known.append(read)
        self._summary = self._summary.after(read.entry, read.sha256)

    def _fenced_by(self, newest: int) -> FencedError:
        return FencedError(
            f"attempt {self.attempt} was replaced by attempt {newest} and may not commit. "
            "No commit was lost: the newer attempt goes on from the last one, and makes later steps again."
        )

    def _put(self, entry: LogEntry) -> bool:
        key, previous = self._next_key(), self._summary.entry_sha256
        data, known = entry_text(entry, key, previous)
        if not self.store.put_if_absent(key, data):
            return False
        self._accept(known, key)
        return True

    def _summarize(self) -> None:
        """Write a summary every `SUMMARY_EVERY` entries. The log is complete without it."""
        summary = self._summary
        if summary.num_entries - self._num_summarized >= SUMMARY_EVERY:
            with suppress(StoreError):  # tried again behind the next entry
                self.store.put_if_absent(_summary_key(summary.num_entries), summary.to_sealed_json().encode())
                self._num_summarized = summary.num_entries

    def _next_key(self) -> str:
        return _entry_key(self._summary.num_entries)


def effective_commits(entries: Iterable[LogEntry]) -> list[Commit]:
    """Return the commits that the newest weights rest on: those that were rolled back are left out."""
    chain: list[Commit] = []
    for entry in entries:
        if isinstance(entry, CommitQuarantined):
            chain = [commit for commit in chain if commit.folder != entry.folder]
        elif isinstance(entry, Commit):
            chain = [commit for commit in chain if commit.step < entry.step]
            chain.append(entry)
    return chain


RECEIPTS_NAME = "receipts.npz"
ROLLOUT_LOG_NAME = "journal.parquet"
RETAINED_NAMES = (RECEIPTS_NAME, ROLLOUT_LOG_NAME)
"""Files that remain when a commit's weights are retired, because the audit needs them."""


def checkpoint_folder(step: int, attempt: int) -> str:
    """Return the checkpoint folder of a step and attempt."""
    return f"{CHECKPOINT_PREFIX}{step:08d}-{attempt:04d}"


def checkpoints_from(step: int) -> str:
    """Return a lower bound of the checkpoint folders of this step and later ones."""
    return f"{CHECKPOINT_PREFIX}{step:08d}"


def parse_checkpoint_folder(folder: str) -> tuple[int, int] | None:
    """Return step and attempt of a checkpoint folder; None for other names."""
    named = re.fullmatch(rf"{CHECKPOINT_PREFIX}(\d{{8,}})-(\d{{4,}})", folder)
    return (int(named[1]), int(named[2])) if named else None


def is_entry(key: str) -> bool:
    """Return whether a key is an entry of the log."""
    return re.fullmatch(rf"{LOG_PREFIX}\d{{8,}}\.json", key) is not None


def is_summary(key: str) -> bool:
    """Return whether a key is a summary."""
    return re.fullmatch(rf"{SUMMARY_PREFIX}\d{{8,}}\.json", key) is not None


def first_problem(store: ObjectStore, commit: Commit) -> str | None:
    """Return what is wrong with the first missing or corrupt file of a commit; None if all are intact."""
    if commit.adopted_from:
        return _adopted_problem(Path(commit.adopted_from), commit)
    present = {item.key: item.num_bytes for item in store.list(commit.folder + "/")}
    for file in commit.files:
        key = f"{commit.folder}/{file.path}"
        if key not in present:
            return f"{key} is missing"
        if present[key] != file.num_bytes:
            return f"{key} has {present[key]} bytes, the commit says {file.num_bytes}"
        if (digest := _sha256(store, key)) != file.sha256:
            return f"{key} has sha256 {digest[:12]}…, the commit says {file.sha256[:12]}…"
    return None


def _adopted_problem(folder: Path, commit: Commit) -> str | None:
    for file in commit.files:
        path = folder / file.path
        try:
            num_bytes = path.stat().st_size
            is_same = num_bytes == file.num_bytes and sha256_of_file(path) == file.sha256
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            raise StoreAwayError(f"{path}: cannot be read: {error.strerror}.") from error
        if not is_same:
            return f"{path} changed after it was recorded ({num_bytes:,} bytes, sha256 {file.sha256[:12]}… recorded)"
    return None


def _sha256(store: ObjectStore, key: str) -> str:
    digest = hashlib.sha256()
    for block in _blocks(store, key):
        digest.update(block)
    return digest.hexdigest()


def _blocks(store: ObjectStore, key: str) -> Iterator[bytes]:
    with store.open_reader(key) as reader:
        while block := bytes(reader.read(_READ_BYTES)):
            yield block


def _entry_key(number: int) -> str:
    return f"{LOG_PREFIX}{number:08d}.json"


def _summary_key(num_entries: int) -> str:
    return f"{SUMMARY_PREFIX}{num_entries:08d}.json"


def _summary_in(data: bytes, key: str) -> LogSummary | None:
    """Parse a summary; None if it is corrupt, of a newer version or under a wrong key."""
    try:
        summary = LogSummary.from_json(data, source=key)
    except DataError:
        return None
    return summary if summary.num_entries and key == _summary_key(summary.num_entries) else None


def _parse(data: bytes, key: str) -> Known[LogEntry]:
    return read_entry(data, key, ENTRY_CLASSES, of="commit log")
