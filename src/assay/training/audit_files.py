"""Checks that the files of a run are what was committed: the part of an audit that needs no data.

    log          all attempts that left something are in it; its end names the last commit's weights
    weights      of the newest commit, or of all that can be resumed from: each file by its digest
    records      of attempts can be read

Metrics, notices, stacks and predictions are for people. They prove nothing and are not checked.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.base.errors import AssayError, StoreAwayError
from assay.records.audit import AuditReport, WeightsDepth
from assay.records.commit import Commit
from assay.records.row_receipts import AttemptReceipts, LoaderFacts, RowReceipt, count_rows
from assay.records.run import Run
from assay.store.attempts import attempt_path, saved_attempts, unreadable_attempts
from assay.store.commit_log import (
    CHECKPOINT_PREFIX,
    LOG_PREFIX,
    SUMMARY_PREFIX,
    CommitLog,
    first_problem,
    is_entry,
    is_summary,
    parse_checkpoint_folder,
)
from assay.store.metrics.segment import attempt_and_rank, read_segment, segment_paths
from assay.store.missing_log import missing_log

ACCOUNTS = "metrics, incidents, launches, stacks, predictions: for people only; no row or weight depends on them"
MAX_NAMED_ROWS = 100
"""Largest number of rows that a report names; all are counted."""


def check_files(
    run: Run, log: CommitLog, commits: Sequence[Commit], weights: WeightsDepth
) -> tuple[list[str], list[str], list[str]]:
    """Check a run's files and the weights of `commits`, but no receipts; return problems, what was not checked, and
    files that no commit names, as sentences."""
    problems = [*_problems_of_log(run, log, commits), *_problems_of_attempts(Path(run.run_dir), commits)]
    retained = log.commits()
    read = {"none": [], "last": retained[-1:], "all": retained}[weights]
    for commit in read:
        try:
            problem = first_problem(log.store, commit)
        except StoreAwayError:
            raise  # the files may be fine
        except AssayError as error:
            problem = str(error)
        if problem is not None:
            problems.append(f"the commit of step {commit.step} has changed: {problem}")
    not_checked = [ACCOUNTS]
    if left := [str(commit.step) for commit in retained if commit not in read]:
        commits_of = "commit of step" if len(left) == 1 else "commits of steps"
        not_checked.append(f"the weights of the {commits_of} {', '.join(left)} (--deep reads them)")
    return problems, not_checked, list(_strays(log))


def audit_recorded(run: Run, log: CommitLog, weights: WeightsDepth) -> AuditReport:
    """Check the checkpoints that another tool's run recorded, and the rows if its loader was a `RowLoader`."""
    recorded = log.commits()
    here = [commit for commit in recorded if Path(commit.adopted_from).exists()]
    read = {"none": [], "last": here[-1:], "all": here}[weights]
    found = {commit.step: first_problem(log.store, commit) for commit in read}
    problems = [f"the checkpoint of step {step} has changed: {problem}" for step, problem in found.items() if problem]
    not_checked, rows = [], count_rows(_receipts_of(Path(run.run_dir)))
    if rows is None:
        not_checked.append(
            f"which rows were trained: {run.imported and run.imported.tool} does not show its loader's rows"
        )
    else:
        not_checked += [f"which rows were trained: {reason}" for reason in rows.unknown]
        not_checked.append("whether the loop trained on each batch that it was handed, and once")
    is_wrong = problems or (rows is not None and (rows.missing or rows.repeated))
    is_proved = rows is not None and not rows.unknown and log.finished() is not None
    for title, left in (
        ("was not read (--deep reads all)", [commit for commit in here if commit not in read]),
        ("is not there any more, which its script may have wanted", [item for item in recorded if item not in here]),
    ):
        not_checked += [f"the checkpoint of step {commit.step} {title}: {commit.adopted_from}" for commit in left]
    return AuditReport(
        run_id=run.run_id,
        verdict="fail" if is_wrong else "pass" if is_proved else "incomplete",
        step=recorded[-1].step if recorded else 0,
        weights=weights,
        epochs=rows.epochs if rows else 0,
        rows_expected=rows.expected if rows else 0,
        rows_trained=rows.trained if rows else sum(commit.rows_trained for commit in recorded),
        rows_quarantined=0,
        missing=shortened(rows.missing if rows else ()),
        repeated=shortened(rows.repeated if rows else ()),
        problems=(*problems, *unreadable_attempts(Path(run.run_dir))),
        not_checked=tuple(not_checked),
        whole_checkpoints=sum(problem is None for problem in found.values()),
    )


def _receipts_of(run_dir: Path) -> Iterator[AttemptReceipts]:
    """Yield the row receipts of a recorded run's attempts; a damaged segment is left out, which is a gap."""
    for attempt in saved_attempts(run_dir):
        ranks, facts = {}, None
        for path in segment_paths(run_dir, of="rows"):
            number, rank = attempt_and_rank(path)
            if number == attempt.attempt and not (segment := read_segment(path)).corrupt_bytes:
                values = [json.loads(event.text) for event in segment.events]
                facts = next((LoaderFacts(*value) for value in values[:1]), facts)
                ranks[rank] = [RowReceipt(*value) for value in values[1:]]
        steps = [receipt.step for receipts in ranks.values() for receipt in receipts]
        end_step = max(steps, default=0) if attempt.end_step is None else attempt.end_step
        yield AttemptReceipts(attempt.attempt, attempt.start_step, end_step, facts, ranks)


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the first lines, and how many more there are."""
    if len(lines) <= MAX_NAMED_ROWS:
        return tuple(lines)
    return (*lines[:MAX_NAMED_ROWS], f"... and {len(lines) - MAX_NAMED_ROWS} more")


def _problems_of_log(run: Run, log: CommitLog, commits: Sequence[Commit]) -> Iterator[str]:
    if (problem := missing_log(run, log)) is not None:
        yield problem
    finished, last = log.finished(), commits[-1] if commits else None
    if finished is not None and (
        last is None or (finished.step, finished.weights_digest) != (last.step, last.weights_digest)
    ):
        yield f"the log says that the run ended at step {finished.step}, and its last commit is another"
    yield from log.problems_of_summaries()


def _problems_of_attempts(run_dir: Path, commits: Sequence[Commit]) -> Iterator[str]:
    """Yield attempts without a record: it is written before ranks start, so each attempt that committed has one."""
    yield from unreadable_attempts(run_dir)
    for number in sorted({commit.attempt for commit in commits if not commit.is_inherited}):
        if not (path := attempt_path(run_dir, number)).is_file():
            yield f"{path} is missing, and commits of that attempt are in the log"


def _strays(log: CommitLog) -> Iterator[str]:
    yield from (item.key for item in log.store.list(LOG_PREFIX) if not is_entry(item.key))
    yield from (item.key for item in log.store.list(SUMMARY_PREFIX) if not is_summary(item.key))
    ever = [entry for entry in log.entries() if isinstance(entry, Commit)]
    named = {f"{commit.folder}/{file.path}" for commit in ever for file in commit.files}
    folders = {key.rpartition("/")[0] for key in named}
    for item in log.store.list(CHECKPOINT_PREFIX):
        folder = item.key.rpartition("/")[0]
        # A folder of ours without a commit is one in the making, or swept by the next attempt.
        if item.key not in named and (folder in folders or parse_checkpoint_folder(folder) is None):
            yield item.key
