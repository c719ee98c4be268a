"""The run's log of commits: what is durable, who may add to it, and what can be trusted.

Entries are `log/00000000.json`, `log/00000001.json`, ... each put only if absent (see `records.commit`). So
two writers cannot both append, and an attempt that was replaced learns it from the number that it lost.

Knows nothing of tensors: a checkpoint is a folder of files with digests.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Protocol

from assay.base.digest import canonical_json, sha256_of_json
from assay.base.errors import DamagedDataError, DataError, FencedError
from assay.records.commit import (
    ENTRY_CLASSES,
    AttemptBegan,
    Commit,
    CommitQuarantined,
    LogEntry,
    RunFinished,
)
from assay.store.objects import ObjectStore

LOG_PREFIX = "log/"
CHECKPOINT_PREFIX = "checkpoints/"
ABANDONED_S = 3600.0
"""Nobody writes one file for so long."""
_READ_BYTES = 32 << 20


class CommitLog:
    """Reads and appends the log of one run."""

    def __init__(self, store: ObjectStore, *, attempt: int = 0) -> None:
        """`attempt` is the writer's own number; 0 until `begin_attempt` gave it one."""
        self.store = store
        self.attempt = attempt
        self._entries: list[LogEntry] = []

    def entries(self) -> list[LogEntry]:
        """Every entry so far, oldest first."""
        if self._entries:  # the next numbers only: a listing grows with the log
            while self.store.exists(key := _entry_key(len(self._entries))):
                self._entries.append(_parse(self.store.get(key), key))
            return list(self._entries)
        keys = sorted(item.key for item in self.store.list(LOG_PREFIX) if is_entry(item.key))
        for number, key in enumerate(keys):
            if key != _entry_key(number):
                raise DataError(
                    f"{LOG_PREFIX}: entry {number:08d} is missing, {key} is there. The log has a hole: "
                    "somebody deleted from the run's store. Restore the file, or start a new run."
                )
            self._entries.append(_parse(self.store.get(key), key))
        return list(self._entries)

    def begin_attempt(self, *, world_size: int, now_s: float) -> int:
        """Take the log over; every earlier attempt is fenced from this moment. Returns the attempt's number.

        Raises `FencedError` where this log had begun an attempt and another writer has begun a newer one: who
        was thought dead and replaced must not take the run back.
        """
        while True:
            newest = max((entry.attempt for entry in self.entries()), default=0)
            if 0 < self.attempt < newest:
                raise self._fenced_by(newest)
            entry = AttemptBegan(attempt=newest + 1, world_size=world_size, began_s=now_s)
            if self._put(entry):
                self.attempt = entry.attempt
                return entry.attempt
            if (
                self.attempt and self.entries()[-1] == entry
            ):  # our own put, whose answer got lost, fences nobody
                self.attempt = entry.attempt

    def append(self, entry: Commit | CommitQuarantined | RunFinished) -> None:
        """Make an entry visible, or raise `FencedError` if a newer attempt has begun."""
        assert entry.attempt == self.attempt, f"attempt {self.attempt} appends an entry of {entry.attempt}"
        while True:
            # What is known may already hold a newer attempt, and then the next number is still free.
            newest = max((known.attempt for known in self._entries), default=0)
            if newest > self.attempt:
                raise self._fenced_by(newest)
            if self._put(entry) or entry in self.entries():  # there, but the answer to our own put got lost
                return

    def commits(self) -> list[Commit]:
        """Commits that may be resumed from, oldest first: neither quarantined nor retired."""
        self.entries()
        return self.known_commits()

    def known_commits(self) -> list[Commit]:
        """Likewise, as far as the log was read; asks nobody."""
        entries = self._entries
        gone = {entry.folder for entry in entries if isinstance(entry, CommitQuarantined)}
        for entry in entries:
            if isinstance(entry, Commit):
                gone.update(entry.retires)
        return [entry for entry in entries if isinstance(entry, Commit) and entry.folder not in gone]

    def last_intact_commit(self) -> Commit | None:
        """The newest commit whose every file has its digest; the damaged ones on the way are quarantined."""
        for commit in reversed(self.commits()):
            problem = first_problem(self.store, commit)
            if problem is None:
                return commit
            self.append(
                CommitQuarantined(attempt=self.attempt, folder=commit.folder, step=commit.step, reason=problem)
            )
        return None

    def quarantine_unverified(self, reason: str, *, up_to: int) -> None:
        """Trust no commit of attempt `up_to` or an older one behind the last verified one, or the inherited
        one."""
        while (
            (commits := self.commits())
            and not (commits[-1].is_verified or commits[-1].is_inherited)
            and commits[-1].attempt <= up_to
        ):
            newest = commits[-1]
            self.append(
                CommitQuarantined(attempt=self.attempt, folder=newest.folder, step=newest.step, reason=reason)
            )

    def finished(self) -> RunFinished | None:
        """The entry that says that the run reached its last step, if it has."""
        entries = self.entries()
        return entries[-1] if entries and isinstance(entries[-1], RunFinished) else None

    def sweep_retired(self, commit: Commit) -> None:
        """Delete the files of what a commit retires, as `sweep` would; the cost does not grow with the log."""
        quarantined = {entry.folder for entry in self._entries if isinstance(entry, CommitQuarantined)}
        gone = set(commit.retires) - quarantined
        for entry in self._entries:
            if isinstance(entry, Commit) and entry.folder in gone:
                for file in entry.files:
                    if file.path != RECEIPTS_NAME:
                        self.store.delete(f"{entry.folder}/{file.path}")

    def sweep(self) -> None:
        """Delete the files of retired commits, and of checkpoints that never became a commit.

        Spares `receipts.npz` of retired commits (the audit needs them), whatever is quarantined, and the
        folders of this attempt or later ones, which may be in the making.
        """
        entries = self.entries()
        kept = {commit.folder for commit in self.commits()}
        kept |= {entry.folder for entry in entries if isinstance(entry, CommitQuarantined)}
        committed = {entry.folder for entry in entries if isinstance(entry, Commit)}
        for item in list(self.store.list(CHECKPOINT_PREFIX)):
            folder, _, name = item.key.rpartition("/")
            wrote = attempt_of(folder)
            if wrote is None:
                continue  # somebody else's: nothing that we do not know is deleted
            in_the_making = folder not in committed and wrote >= self.attempt
            if folder in kept or in_the_making or (folder in committed and name == RECEIPTS_NAME):
                continue
            self.store.delete(item.key)

    def sweep_abandoned(self) -> None:
        """`sweep`, and what writers left half-written: of attempts that are fenced, or long ago."""
        self.sweep()

        def is_dead(folder: str, age_s: float) -> bool:
            wrote = attempt_of(folder)
            is_fenced = wrote is not None and wrote < self.attempt
            return age_s > ABANDONED_S or is_fenced

        self.store.sweep_unfinished(is_dead)

    def _fenced_by(self, newest: int) -> FencedError:
        return FencedError(
            f"attempt {self.attempt} was replaced by attempt {newest} and may not commit. "
            "Nothing was lost: the newer attempt goes on from the last commit."
        )

    def _put(self, entry: LogEntry) -> bool:
        key, tree = _entry_key(len(self._entries)), {**entry.to_tree(), "type": entry.type}
        text = canonical_json({**tree, "entry_sha256": _entry_sha256(tree, key)})
        if not self.store.put_if_absent(key, text.encode()):
            return False
        self._entries.append(entry)
        return True


RECEIPTS_NAME = "receipts.npz"


class _Reader(Protocol):
    def read(self, size: int, /) -> object: ...


def checkpoint_folder(step: int, attempt: int) -> str:
    """Where an attempt writes the checkpoint of a step: no two attempts share a folder."""
    return f"{CHECKPOINT_PREFIX}{step:08d}-{attempt:04d}"


def attempt_of(folder: str) -> int | None:
    """The attempt that wrote a checkpoint folder; None where the name is none that assay gives."""
    named = re.fullmatch(rf"{CHECKPOINT_PREFIX}\d{{8,}}-(\d{{4,}})", folder)
    return int(named[1]) if named else None


def is_entry(key: str) -> bool:
    """Whether an object is an entry of the log; others that somebody put there are passed over."""
    return re.fullmatch(rf"{LOG_PREFIX}\d{{8,}}\.json", key) is not None


def first_problem(store: ObjectStore, commit: Commit) -> str | None:
    """What is wrong with the first file of a commit that is not as committed; None if all are."""
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


def _parse(data: bytes, key: str) -> LogEntry:
    import json

    try:
        tree = json.loads(data)
        entry_class = ENTRY_CLASSES[tree["type"]]
        digest = tree.pop("entry_sha256", None)  # none in a log of an older assay
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _changed(key, f"not an entry of a commit log ({error})") from error
    if digest is not None and digest != _entry_sha256(tree, key):
        raise _changed(key, "it has not the digest that it was put with")
    return entry_class.from_tree(tree, source=key)


def _entry_sha256(tree: dict[str, object], key: str) -> str:
    """The digest of an entry and its place: another entry in its place shows, too."""
    return sha256_of_json({"entry": tree, "key": key})


def _changed(key: str, what: str) -> DamagedDataError:
    return DamagedDataError(
        f"{key}: {what}. The file was changed after it was put; restore it from a backup of the run's store."
    )
