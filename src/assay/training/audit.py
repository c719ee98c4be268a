r"""Proves that each row was trained exactly once, or lists the rows that were not.

    commits -> receipts (step, lane, rows, digest)  \
                                                     compare, window by window -> verdict
    manifest -> order(fingerprint, seed, epoch)     /

The order is recomputed from the manifest. Of what the run says about itself, only receipts are used, and only if their
file has the digest in the commit. Weights, log and records of a run are checked by `audit_files`.
"""

import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay.base.digest import sha256_of_bytes
from assay.base.errors import AssayError, DamagedDataError, DataError, StoreAwayError, StoreError
from assay.base.shapes import Int32, Int64, UInt64
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.data.loader.receipts import Receipt, explain, receipt
from assay.records.audit import AuditReport, WeightsDepth
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.run import Run
from assay.store.commit_log import RECEIPTS_NAME, CommitLog, effective_commits
from assay.training.audit_files import audit_recorded, check_files, shortened
from assay.training.audit_outer import audit_cluster
from assay.training.audit_rollouts import audit_rollout_log
from assay.training.recipe import recipe_of


class _Receipts(NamedTuple):
    """Receipts of committed steps, one entry for each step and lane."""

    step: Int64[np.ndarray, "receipt"]
    lane: Int32[np.ndarray, "receipt"]
    num_rows: Int32[np.ndarray, "receipt"]
    digest: UInt64[np.ndarray, "receipt"]

    def ordered(self) -> "_Receipts":
        """Return the receipts ordered by lane and step."""
        order = np.lexsort((self.step, self.lane))
        return _Receipts(*(column[order] for column in self))

    def between(self, lane: int, after: int, last: int) -> "_Receipts":
        """Return the receipts of a lane's steps after `after`, up to `last`; `self` is ordered.

        They are a slice: there are thousands of windows and millions of receipts.
        """
        begin, end = np.searchsorted(self.lane, np.array([lane, lane + 1], self.lane.dtype))
        first, stop = begin + np.searchsorted(self.step[begin:end], [after, last], side="right")
        return _Receipts(*(column[first:stop] for column in self))


class _Window(NamedTuple):
    """The committed steps of one window of a lane, which are checked together."""

    epoch: int
    lane: int
    window_index: int
    """Index of the window in its lane."""
    steps_before: int
    """Steps of the run before the window."""
    num_steps: int
    """Committed steps."""
    is_whole: bool
    """False if the window has more steps: the run has not got further, or was forked within it."""


@dataclass
class _Rows:
    """Counts and names of rows."""

    epochs: int = 0
    expected: int = 0
    quarantined: int = 0
    missing: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


def audit_run(run: Run, log: CommitLog, *, check_shards: bool = True, weights: WeightsDepth = "last") -> AuditReport:
    """Check each committed step, and the weights of the commits that `weights` selects; with `check_shards`
    also that the shards are unchanged.

    Writes nothing but a missing split. If the dataset is missing, only the run's own files are checked, and the
    report says so.
    """
    if run.is_recorded():
        return audit_recorded(run, log, weights)
    recipe = recipe_of(run)
    commits = effective_commits(log.entries())
    if run.cluster_of is not None:
        return audit_cluster(run, log, commits, weights)
    problems, not_checked, strays = check_files(run, log, commits, weights)
    if run.parent is not None:
        parent_id, parent_exists = run.parent.run_id, Path(run.run_dir).with_name(run.parent.run_id).is_dir()
        where = (
            f"'assay runs audit {parent_id}'" if parent_exists else "it is not here any more, so nothing proves them"
        )
        not_checked.append(
            f"which rows were trained up to step {run.parent.step}: run '{parent_id}' trained them before "
            f"this one was forked from it ({where})"
        )
    problems += _problems_of_lineage(run, commits)
    receipts = _read_receipts(commits, log, problems)
    rows = _Rows()
    folder, dataset = Path(recipe.data.dataset), None
    try:
        dataset = _dataset_of(run, folder)
        loader = Loader(
            split_view(dataset, recipe.data.split, "train"), recipe.loader, sequences_of(recipe.method.columns)
        )
    except (AssayError, OSError) as error:
        is_damaged = dataset is None and (folder / MANIFEST_FILE).is_file()
        (problems if is_damaged else not_checked).append(f"which rows were trained: {error}")
        is_proved = False
    else:
        auditor = _Auditor(dataset, loader, commits, rows, problems)
        auditor.check_receipts(receipts)
        if check_shards:
            not_checked += auditor.check_shards()
        else:
            not_checked.append("whether the shards are still what was indexed")
        is_proved = log.finished() is not None
        if not is_proved:
            not_checked.insert(0, f"what comes next, for the run is not finished: {_goes_on(run, commits)}")
    has_rollout_log = any(commit.prompts is not None for commit in commits)
    trained = _by_lane(receipts) if has_rollout_log else {}
    prompts, rollout_problems = audit_rollout_log(log.store, commits, trained, recipe.method)
    problems += rollout_problems
    is_wrong = rows.missing or rows.repeated or problems
    return AuditReport(
        run_id=run.run_id,
        verdict="fail" if is_wrong else "pass" if is_proved else "incomplete",
        step=commits[-1].step if commits else 0,
        weights=weights,
        epochs=rows.epochs,
        rows_expected=rows.expected,
        rows_trained=int(receipts.num_rows.sum()),
        rows_quarantined=rows.quarantined,
        prompts=prompts,
        missing=shortened(rows.missing),
        repeated=shortened(rows.repeated),
        problems=shortened(problems),
        forked_from="" if run.parent is None else str(run.parent),
        not_checked=tuple(not_checked),
        strays=shortened(strays),
    )


def _goes_on(run: Run, commits: Sequence[Commit]) -> str:
    step = commits[-1].step if commits else 0
    return f"it stands at step {step:,} of {run.num_steps:,}, and 'assay train --resume {run.run_id}' goes on"


def _dataset_of(run: Run, folder: Path) -> Dataset:
    """Open the run's dataset; raises `DataError` if the folder holds another one."""
    dataset = Dataset.open(folder)
    if dataset.fingerprint != run.dataset_fingerprint:
        raise DataError(
            f"{folder}: the dataset there is {dataset.fingerprint[:12]}…, the run learned "
            f"{run.dataset_fingerprint[:12]}…. Restore that one; no row was compared."
        )
    return dataset


def _problems_of_lineage(run: Run, commits: list[Commit]) -> Iterator[str]:
    """A fork stands on the commit that its record names, and no other run on any."""
    inherited = [(commit.step, commit.weights_digest) for commit in commits if commit.is_inherited]
    recorded = [] if run.parent is None else [(run.parent.step, run.parent.weights_digest)]
    if inherited != recorded:
        inherited_steps = ", ".join(str(step) for step, _ in inherited) or "none"
        yield (
            f"steps at which the log begins with a commit of another run: {inherited_steps}; and run.json says that it "
            f"was forked from {run.parent or 'no run'}"
        )


class _Auditor:
    """Compares receipts with the order."""

    def __init__(
        self, dataset: Dataset, loader: Loader, commits: list[Commit], found: _Rows, problems: list[str]
    ) -> None:
        self._dataset = dataset
        self._loader = loader
        self._commits = commits
        self._with_damage = [commit for commit in commits if commit.quarantined]
        self._first_step = next((commit.step for commit in commits if commit.is_inherited), 0)
        self._found = found
        self._problems = problems

    def check_receipts(self, receipts: _Receipts) -> None:
        """Check each window of each lane, as far as the run got."""
        last_step = self._commits[-1].step if self._commits else 0
        per_epoch = self._loader.steps_per_epoch
        self._found.epochs = -(-last_step // per_epoch) - self._first_step // per_epoch
        for commit in self._commits:
            if commit.cursor != (window_index := self._loader.cursor_at(commit.step)):
                self._problems.append(
                    f"{commit.folder}: its cursor is epoch {commit.cursor.epoch}, step "
                    f"{commit.cursor.step_in_epoch}; {commit.step} steps end at epoch {window_index.epoch}, step "
                    f"{window_index.step_in_epoch}"
                )
        for window in self._windows(last_step):
            after = window.steps_before
            self._check_window(window, receipts.between(window.lane, after, after + window.num_steps))

    def check_shards(self) -> list[str]:
        """Read each shard again; a changed one is a problem unless its damage was quarantined.

        Returns what could not be checked: if no shard can be read, the data is elsewhere and not corrupt.
        """
        known = {
            self._dataset.shard_path(quarantined_group.row_group)
            for commit in self._commits
            for quarantined_group in commit.quarantined
        }
        try:
            changed = self._dataset.changed_shards()
        except StoreError as error:
            return [f"whether the shards are still what was indexed: {error}"]
        if [*changed.values()] == ["is missing"] * len(self._dataset.manifest.shards):
            return ["whether the shards are still what was indexed: none of them is there"]
        self._problems += [
            f"shard {path} {what}: it changed after it was indexed"
            for path, what in changed.items()
            if path not in known
        ]
        return []

    def _windows(self, last_step: int) -> Iterator[_Window]:
        geometry = self._loader.geometry
        windows = ((epoch, window_index) for epoch in itertools.count() for window_index in range(geometry.num_windows))
        before = 0
        while before < last_step:
            epoch, window_index = next(windows)
            whole = geometry.steps_in_window(window_index)
            num_steps = min(whole, last_step - before)
            is_whole = num_steps == whole and before >= self._first_step
            for lane in range(geometry.lanes if before + num_steps > self._first_step else 0):
                yield _Window(epoch, lane, window_index, before, num_steps, is_whole)
            before += num_steps

    def _check_window(self, window: _Window, receipts: _Receipts) -> None:
        first = max(window.steps_before, self._first_step) + 1
        last = window.steps_before + window.num_steps
        if not np.array_equal(np.sort(receipts.step), np.arange(first, last + 1)):
            self._problems.append(
                f"lane {window.lane}: there is not one receipt for each of the steps {first} to {last}"
            )
        if window.is_whole:
            rows = self._loader.rows_of_window(window.epoch, window.lane, window.window_index)
            trained = Receipt(int(receipts.num_rows.sum()), int(receipts.digest.sum(dtype=np.uint64)))
            if self._are_trained(rows, trained, first, last):
                return
        self._check_steps(window, receipts)

    def _check_steps(self, window: _Window, receipts: _Receipts) -> None:
        """Check step by step, to name rows, or if a window is not complete."""
        trained: dict[int, Receipt] = {}
        for step, num_rows, digest in zip(
            receipts.step.tolist(), receipts.num_rows.tolist(), receipts.digest.tolist(), strict=True
        ):
            trained[step] = trained.get(step, Receipt(0, 0)).plus(Receipt(num_rows, digest))
        try:
            for step, rows in enumerate(self._rows_of_steps(window), start=window.steps_before + 1):
                if step <= self._first_step:
                    continue
                found = trained.get(step, Receipt(0, 0))
                if not self._are_trained(rows, found, step, step):
                    self._found.expected += len(rows)
                    self._explain(window, step, self._without_quarantined(rows, step, step), found)
        except (DamagedDataError, DataError) as error:
            self._problems.append(f"the rows of lane {window.lane} cannot be named: {error}")

    def _rows_of_steps(self, window: _Window) -> Iterator[UInt64[np.ndarray, "row"]]:
        """Yield the rows of the window's committed steps; reads row lengths if the steps depend on them."""
        steps = self._loader.rows_of_steps(window.epoch, window.lane, window.window_index)
        if steps is not None:
            yield from steps[: window.num_steps]
            return
        at = Cursor(epoch=window.epoch, step_in_epoch=window.window_index * self._loader.geometry.window_steps)
        skipped = self._damaged(window.steps_before + 1, window.steps_before + window.num_steps)
        lane = range(window.lane, window.lane + 1)
        for share in self._loader.shares(at, lane, window.num_steps, skipped):
            batches = share.lanes[0].micro_batches
            yield np.concatenate([np.zeros(0, np.uint64), *(batch.row_ids for batch in batches)])

    def _are_trained(self, rows: UInt64[np.ndarray, "row"], trained: Receipt, first: int, last: int) -> bool:
        """Return whether the steps trained all of `rows`, apart from groups that were quarantined *then*.

        Damage found in a later attempt does not change what was trained before.
        """
        present = self._without_quarantined(rows, first, last)
        if trained not in (receipt(present), receipt(rows)):
            return False
        self._found.expected += len(rows)
        self._found.quarantined += len(rows) - trained.num_rows
        return True

    def _without_quarantined(
        self, rows: UInt64[np.ndarray, "row"], first: int, last: int
    ) -> UInt64[np.ndarray, "kept"]:
        """Return the ids of rows that the steps `first` to `last` trained, without quarantined groups."""
        damaged = self._damaged(first, last)
        if not damaged:
            return rows
        first_rows = self._dataset.groups.first_row
        groups = np.searchsorted(first_rows, rows.astype(np.int64), side="right") - 1
        return rows[~np.isin(groups, sorted(damaged))]

    def _damaged(self, first: int, last: int) -> set[int]:
        """Return the row groups that the commits of the steps `first` to `last` skipped."""
        return {
            quarantined_group.row_group
            for commit in self._with_damage
            if commit.receipts_from_step < last and first <= commit.step
            for quarantined_group in commit.quarantined
        }

    def _explain(self, window: _Window, step: int, rows: UInt64[np.ndarray, "row"], trained: Receipt) -> None:
        difference = explain(rows, trained)
        window_index = f"step {step}, lane {window.lane}, epoch {window.epoch}"
        doubt = "" if difference.is_certain else ", in doubt"
        self._found.missing += [f"{self._row_name(row)} ({window_index}{doubt})" for row in difference.missing]
        self._found.repeated += [f"{self._row_name(row)} ({window_index})" for row in difference.repeated]

    def _row_name(self, row: int) -> str:
        return f"row {row}: {self._dataset.row_location(row)}"


def _read_receipts(commits: list[Commit], log: CommitLog, problems: list[str]) -> _Receipts:
    nothing = (np.zeros(0, kind) for kind in (np.int64, np.int32, np.int32, np.uint64))
    parts, expected_from = [_Receipts(*nothing)], 0
    for commit in commits:
        if commit.is_inherited:
            expected_from = commit.step
            continue
        if commit.receipts_from_step != expected_from:
            problems.append(f"no commit covers the steps {expected_from + 1} to {commit.receipts_from_step}")
        expected_from = commit.step
        key = f"{commit.folder}/{RECEIPTS_NAME}"
        try:
            data = log.store.get(key)
            digest = next((file.sha256 for file in commit.files if file.path == RECEIPTS_NAME), None)
            if sha256_of_bytes(data) != digest:  # still compared: it may show which row was removed
                problems.append(
                    f"{key} is not what was committed (its sha256 differs): the file was changed. The steps "
                    f"{commit.receipts_from_step + 1} to {commit.step} are not proved"
                )
            parts.append(_parse_receipts(data))
        except StoreAwayError:
            raise  # the file may be fine
        except Exception as error:  # a changed file's bytes can fail in any way
            problems.append(f"the steps up to {commit.step} are not proved: {key}: {error}")
    return _Receipts(*(np.concatenate(columns) for columns in zip(*parts, strict=True))).ordered()


def _by_lane(receipts: _Receipts) -> dict[tuple[int, int], Receipt]:
    """Return receipts by step and lane."""
    found: dict[tuple[int, int], Receipt] = {}
    for step, lane, num_rows, digest in zip(*(column.tolist() for column in receipts), strict=True):
        found[step, lane] = found.get((step, lane), Receipt(0, 0)).plus(Receipt(num_rows, digest))
    return found


def _parse_receipts(data: bytes) -> _Receipts:
    with np.load(io.BytesIO(data)) as columns:
        names = zip(_Receipts._fields, (np.int64, np.int32, np.int32, np.uint64), strict=True)
        return _Receipts(*(columns[name].astype(kind, casting="same_kind").ravel() for name, kind in names))
