"""The proof that each row was learned exactly once, or the list of the rows that were not.

    commits -> receipts (step, lane, rows, digest)  \\
                                                     compare, window by window -> verdict
    manifest -> order(fingerprint, seed, epoch)     /

The order is computed anew from the manifest. Nothing that the run says about itself is believed but its
receipts, and those only where their file has the digest that the commit names.
"""

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from assay.base.digest import sha256_of_bytes
from assay.base.errors import AssayError, DamagedDataError, DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.data.loader.receipts import Receipt, explain, receipt
from assay.records.audit import AuditReport
from assay.records.commit import Commit, CommitQuarantined
from assay.records.cursor import Cursor
from assay.records.run import Run
from assay.store.commit_log import RECEIPTS_NAME, CommitLog
from assay.store.missing_log import missing_log
from assay.training.recipe import recipe_of

MAX_NAMED_ROWS = 100
"""Rows that a report names at most; it counts them all."""


class _Receipts(NamedTuple):
    """Of all committed steps, one entry per step and lane."""

    step: Int64[np.ndarray, "receipt"]
    lane: Int32[np.ndarray, "receipt"]
    num_rows: Int32[np.ndarray, "receipt"]
    digest: UInt64[np.ndarray, "receipt"]


class _Window(NamedTuple):
    """A stretch of one lane that is checked as a whole: the committed steps of one window."""

    epoch: int
    lane: int
    place: int
    """Of the window in its lane."""
    steps_before: int
    """Of the run."""
    num_steps: int
    """Committed."""
    is_whole: bool
    """False where the run has not got further: the window has more steps."""


def audit_run(run: Run, log: CommitLog, *, check_shards: bool = True) -> AuditReport:
    """Check every committed step; with `check_shards` also that the shards are still what was indexed."""
    recipe = recipe_of(run)
    dataset = Dataset.open(Path(recipe.data.dataset))
    loader = Loader(split_view(dataset, recipe.data.split, "train"), recipe.loader, ("input_ids",))
    commits = effective_commits(log)
    auditor = _Auditor(dataset, loader, commits)
    if dataset.fingerprint != run.dataset_fingerprint:
        auditor.problems.append(
            f"the dataset is {dataset.fingerprint[:12]}…, the run began on {run.dataset_fingerprint[:12]}…"
        )
    if (problem := missing_log(run, log)) is not None:
        auditor.problems.append(problem)
    auditor.check_receipts(log)
    if check_shards:
        auditor.check_shards()
    return auditor.report(run, is_finished=log.finished() is not None)


def effective_commits(log: CommitLog) -> list[Commit]:
    """The chain of commits that the newest weights stand on: those that were rolled back are left out."""
    chain: list[Commit] = []
    for entry in log.entries():
        if isinstance(entry, CommitQuarantined):
            chain = [commit for commit in chain if commit.folder != entry.folder]
        elif isinstance(entry, Commit):
            chain = [commit for commit in chain if commit.step < entry.step]
            chain.append(entry)
    return chain


class _Auditor:
    """Gathers what is wrong."""

    def __init__(self, dataset: Dataset, loader: Loader, commits: list[Commit]) -> None:
        self._dataset = dataset
        self._loader = loader
        self._commits = commits
        self._damaged = sorted({item.row_group for commit in commits for item in commit.quarantined})
        self._rows_expected = 0
        self._rows_learned = 0
        self._rows_quarantined = 0
        self._missing: list[str] = []
        self._repeated: list[str] = []
        self.problems: list[str] = []

    def check_receipts(self, log: CommitLog) -> None:
        """Compare what was learned with the order."""
        receipts = self._read_receipts(log)
        last_step = self._commits[-1].step if self._commits else 0
        self._rows_learned = int(receipts.num_rows.sum())
        for window in self._windows(last_step):
            inside = (receipts.lane == window.lane) & (receipts.step > window.steps_before)
            inside &= receipts.step <= window.steps_before + window.num_steps
            self._check_window(window, _Receipts(*(column[inside] for column in receipts)))

    def check_shards(self) -> None:
        """Read every shard again; one that changed is a problem unless its damage was quarantined."""
        quarantined = {self._dataset.shard_path(group) for group in self._damaged}
        for path, what in self._dataset.changed_shards().items():
            if path not in quarantined:
                self.problems.append(f"shard {path} {what}: it changed after it was indexed")

    def report(self, run: Run, *, is_finished: bool) -> AuditReport:
        """The verdict."""
        is_wrong = self._missing or self._repeated or self.problems
        last_step = self._commits[-1].step if self._commits else 0
        return AuditReport(
            run_id=run.run_id,
            verdict="fail" if is_wrong else "pass" if is_finished else "incomplete",
            epochs=-(-last_step // self._loader.steps_per_epoch),
            rows_expected=self._rows_expected,
            rows_learned=self._rows_learned,
            rows_quarantined=self._rows_quarantined,
            missing=_shortened(self._missing),
            repeated=_shortened(self._repeated),
            problems=_shortened(self.problems),
        )

    def _read_receipts(self, log: CommitLog) -> _Receipts:
        nothing = (np.zeros(0, kind) for kind in (np.int64, np.int32, np.int32, np.uint64))
        parts, expected_from = [_Receipts(*nothing)], 0
        for commit in self._commits:
            if commit.receipts_from_step != expected_from:
                self.problems.append(
                    f"no commit covers the steps {expected_from + 1} to {commit.receipts_from_step}"
                )
            expected_from = commit.step
            try:
                data = log.store.get(f"{commit.folder}/{RECEIPTS_NAME}")
                self._check_receipts_file(commit, data)
                parts.append(_parse_receipts(data))
            except (AssayError, OSError, ValueError, KeyError) as error:
                self.problems.append(f"the steps up to {commit.step} are not proved: {error}")
        return _Receipts(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _check_receipts_file(self, commit: Commit, data: bytes) -> None:
        """A changed file is a problem, but is still compared: it may tell which row somebody took out."""
        digest = next((file.sha256 for file in commit.files if file.path == RECEIPTS_NAME), None)
        if sha256_of_bytes(data) != digest:
            self.problems.append(
                f"{commit.folder}/{RECEIPTS_NAME} is not what was committed (its sha256 differs): the file was "
                f"changed. The steps {commit.receipts_from_step + 1} to {commit.step} are not proved"
            )

    def _windows(self, last_step: int) -> Iterator[_Window]:
        geometry = self._loader.geometry
        places = ((epoch, place) for epoch in itertools.count() for place in range(geometry.num_windows))
        before = 0
        while before < last_step:
            epoch, place = next(places)
            whole = geometry.steps_in_window(place)
            num_steps = min(whole, last_step - before)
            for lane in range(geometry.lanes):
                yield _Window(epoch, lane, place, before, num_steps, is_whole=num_steps == whole)
            before += num_steps

    def _check_window(self, window: _Window, receipts: _Receipts) -> None:
        first, last = window.steps_before + 1, window.steps_before + window.num_steps
        if not np.array_equal(np.sort(receipts.step), np.arange(first, last + 1)):
            self.problems.append(
                f"lane {window.lane}: there is not one receipt for each of the steps {first} to {last}"
            )
        if window.is_whole:
            rows = self._loader.rows_of_window(window.epoch, window.lane, window.place)
            present = self._without_damaged(rows)
            learned = Receipt(int(receipts.num_rows.sum()), int(receipts.digest.sum(dtype=np.uint64)))
            if learned == receipt(present):
                self._rows_expected += len(rows)
                self._rows_quarantined += len(rows) - len(present)
                return
        self._check_steps(window, receipts)

    def _check_steps(self, window: _Window, receipts: _Receipts) -> None:
        """Step by step, which takes reading the rows' lengths: to name rows, and where a window is not done."""
        at = Cursor(epoch=window.epoch, step_in_epoch=window.place * self._loader.geometry.window_steps)
        learned: dict[int, Receipt] = {}
        for step, num_rows, digest in zip(
            receipts.step.tolist(), receipts.num_rows.tolist(), receipts.digest.tolist(), strict=True
        ):
            learned[step] = learned.get(step, Receipt(0, 0)).plus(Receipt(num_rows, digest))
        try:
            lanes = range(window.lane, window.lane + 1)
            shares = self._loader.shares(at, lanes, window.num_steps)
            for step, share in enumerate(shares, start=window.steps_before + 1):
                batches = share.lanes[0].micro_batches
                rows = np.concatenate([np.zeros(0, np.uint64), *(batch.row_ids for batch in batches)])
                self._rows_expected += len(rows)
                self._explain(window, step, rows, learned.get(step, Receipt(0, 0)))
        except (DamagedDataError, DataError) as error:
            self.problems.append(f"the rows of lane {window.lane} can not be named: {error}")

    def _explain(self, window: _Window, step: int, rows: UInt64[np.ndarray, "row"], learned: Receipt) -> None:
        difference = explain(rows, learned)
        place = f"step {step}, lane {window.lane}, epoch {window.epoch}"
        doubt = "" if difference.is_certain else ", in doubt"
        self._missing += [f"{self._row_name(row)} ({place}{doubt})" for row in difference.missing]
        self._repeated += [f"{self._row_name(row)} ({place})" for row in difference.repeated]

    def _without_damaged(self, rows: UInt64[np.ndarray, "row"]) -> UInt64[np.ndarray, "kept"]:
        if not self._damaged:
            return rows
        first_rows = self._dataset.groups.first_row
        groups = np.searchsorted(first_rows, rows.astype(np.int64), side="right") - 1
        return rows[~np.isin(groups, self._damaged)]

    def _row_name(self, row: int) -> str:
        return f"row {row}: {self._dataset.row_place(row)}"


def _parse_receipts(data: bytes) -> _Receipts:
    with np.load(io.BytesIO(data)) as columns:
        return _Receipts(columns["step"], columns["lane"], columns["num_rows"], columns["digest"])


def _shortened(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= MAX_NAMED_ROWS:
        return tuple(lines)
    return (*lines[:MAX_NAMED_ROWS], f"... and {len(lines) - MAX_NAMED_ROWS} more")
