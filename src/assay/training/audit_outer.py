"""Proves that each row was trained once by several clusters, or names the lanes and steps that differ.

    log of outer steps -> parts (cluster, lane, steps, receipt)  \
                                                                  compare, lane by lane -> verdict
    manifest -> order(fingerprint, seed, epoch)                  /

Of what clusters say about themselves, only the parts that an entry names are used. A part counts whoever trained it:
the lanes of an absent cluster pass to others.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.base.errors import AssayError, DataError, StoreAwayError
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.data.loader.receipts import NO_ROWS, Receipt, receipt
from assay.records.audit import AuditReport, WeightsDepth
from assay.records.commit import Commit
from assay.records.outer import LaneSteps, OuterPart
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.audit_files import check_files
from assay.training.outer.meeting import Meeting, damages, named_parts
from assay.training.outer.receipts import steps_of_lanes
from assay.training.outer.state import OuterState
from assay.training.recipe import Recipe, recipe_of


def audit_cluster(run: Run, log: CommitLog, commits: Sequence[Commit], weights: WeightsDepth) -> AuditReport:
    """Check the log of outer steps against the dataset, and a cluster's own commits against both. Writes nothing."""
    of, recipe = run.cluster_of, recipe_of(run)
    assert of is not None and recipe.outer is not None
    problems, not_checked, strays = check_files(run, log, commits, weights)
    meeting = Meeting(open_store(of.meeting_url), of.cluster, recipe.outer)
    entries = meeting.entries()
    parts = named_parts(entries)
    state = None
    try:
        state = OuterState.after_entries(entries) if entries else None
        problems += _problems_of_chain(parts)
        own = [part for part in parts if part.cluster == of.cluster]
        problems += _problems_of_own_steps(log, own, recipe.outer.every + 1)
        read = {"none": [], "last": entries[-1:], "all": entries}[weights]
        problems += [str(error) for _, error in damages(meeting, named_parts(read))]
    except StoreAwayError:
        raise
    except AssayError as error:
        problems.append(str(error))
    rows_expected = 0
    try:
        for problem, num_rows in compared_lanes(_loader(run, recipe), parts):
            problems += [problem] if problem else []
            rows_expected += num_rows
    except (AssayError, OSError) as error:
        not_checked.append(f"which rows were trained: {error}")
        state = None
    is_done = state is not None and state.is_done and log.finished() is not None
    if state is not None and not is_done:
        not_checked.insert(0, f"what comes next: {state.outer_step} outer steps are taken, and more follow")
    return AuditReport(
        run_id=run.run_id,
        verdict="fail" if problems else "pass" if is_done else "incomplete",
        step=commits[-1].step if commits else 0,
        weights=weights,
        epochs=0 if state is None else recipe.trainer.epochs,
        rows_expected=rows_expected,
        rows_trained=sum(steps.num_rows for part in parts for steps in part.lanes),
        rows_quarantined=0,
        problems=tuple(problems),
        not_checked=tuple(not_checked),
        strays=tuple(strays),
    )


def _loader(run: Run, recipe: Recipe) -> Loader:
    dataset = Dataset.open(Path(recipe.data.dataset))
    if dataset.fingerprint != run.dataset_fingerprint:
        raise DataError(
            f"{dataset.folder}: the dataset there is {dataset.fingerprint[:12]}…, the clusters trained "
            f"{run.dataset_fingerprint[:12]}…. Restore that one; no row was compared."
        )
    view = split_view(dataset, recipe.data.split, "train")
    return Loader(view, recipe.loader, sequences_of(recipe.method.columns))


def compared_lanes(loader: Loader, parts: Sequence[OuterPart]) -> Iterator[tuple[str, int]]:
    """Yield a problem, or an empty string, and the number of expected rows for each lane's steps in a part."""
    for lane in range(loader.config.lanes):
        found = [(part, steps) for part in parts for steps in part.lanes if steps.lane == lane]
        last = found[-1][1].to_step if found else 0
        shares = loader.shares(loader.cursor_at(0), [lane], last)
        for part, steps in found:
            expected = NO_ROWS
            for _ in range(steps.to_step - steps.from_step):
                for batch in next(shares).lanes[0].micro_batches:
                    expected = expected.plus(receipt(batch.row_ids))
            yield ("" if _receipt(steps) == expected else _difference(part, steps, expected)), expected.num_rows


def _receipt(steps: LaneSteps) -> Receipt:
    return Receipt(steps.num_rows, int(steps.rows_digest, 16))


def _difference(part: OuterPart, steps: LaneSteps, expected: Receipt) -> str:
    return (
        f"outer step {part.outer_step}: cluster '{part.cluster}' trained other rows in steps {steps.from_step + 1} to "
        f"{steps.to_step} of lane {steps.lane} than the order says: {steps.num_rows} rows, expected "
        f"{expected.num_rows}"
    )


def _problems_of_chain(parts: Sequence[OuterPart]) -> Iterator[str]:
    """Each part of a cluster begins with the moments that its last named part ended with, or with those of a new
    optimizer, which are the same in all clusters."""
    last: dict[str, OuterPart] = {}
    weights: dict[int, OuterPart] = {}
    for part in parts:
        before = last.get(part.cluster)
        expected = parts[0].moments_digest if before is None else before.last_moments_digest
        if part.moments_digest != expected:
            of = "a new optimizer" if before is None else f"outer step {before.outer_step}, its last part"
            yield (
                f"outer step {part.outer_step}: cluster '{part.cluster}' did not begin with the moments of {of}: it "
                "kept those of a part that came too late, or is another program"
            )
        first = weights.setdefault(part.outer_step, part)
        if first.weights_digest != part.weights_digest:
            yield (
                f"outer step {part.outer_step}: clusters '{first.cluster}' and '{part.cluster}' began with different "
                "weights"
            )
        last[part.cluster] = part


def _problems_of_own_steps(log: CommitLog, parts: Sequence[OuterPart], round_steps: int) -> Iterator[str]:
    """The parts of this cluster are what its own commits say."""
    for part in parts:
        first = (part.outer_step - 1) * round_steps
        trained = steps_of_lanes(log, after=first, last=first + round_steps - 1)
        for steps in part.lanes:
            if trained[steps.lane] != _receipt(steps):
                yield (
                    f"outer step {part.outer_step}: this cluster's commits have other rows of lane {steps.lane} than "
                    "the part that it put"
                )
