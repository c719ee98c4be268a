"""Samples a rollout of a past step again, alone, and compares its bits with the ones the run trained on.

nearest commit --replay--> sampling weights --sample--> the rollout: alone, and with all of its step
                                                            |
                                                            +-- equal? and is the step's digest as recorded?
"""

from pathlib import Path

from assay.base.code_version import code_version
from assay.base.errors import ConfigError, TrainingError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.loader import Loader
from assay.elastic.capsules import nearest_commit
from assay.records.commit import Commit
from assay.records.replay import Compared, RolloutReport
from assay.records.rollout_log import RolloutRecord
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.metrics.recorded import recorded_steps
from assay.training.checkpoint.rollout_log import read_rollout_log
from assay.training.methods.registry import method_of
from assay.training.model_folders import check_unchanged
from assay.training.numerics import combined_digest
from assay.training.recipe import recipe_of
from assay.training.replay.replayer import Replayer
from assay.training.replay.request import RolloutRequest
from assay.training.rollouts.source import ReplayedRollout
from assay.workflows.replay import Progress, compared_number

NUM_NAMED = 40
"""Maximum number of rows that an error lists."""


def rollout_again(
    run: Run, log: CommitLog, request: RolloutRequest, *, progress: Progress = lambda *_: None
) -> RolloutReport:
    """Sample the rollout again and compare."""
    recipe, step = recipe_of(run), request.step
    check_unchanged(run, recipe)
    dataset = Dataset.open(Path(recipe.data.dataset))
    method = method_of(recipe.method)
    loader = Loader(split_view(dataset, recipe.data.split, "train"), recipe.loader, recipe.method.columns)
    steps, last_step = recorded_steps(Path(run.run_dir)), recipe.trainer.num_steps(loader.steps_per_epoch)
    request.check(run, recipe.trainer, recipe.method, num_lanes=recipe.loader.lanes, last_step=last_step, steps=steps)
    with Replayer.opened(method, loader, log, recipe.trainer, seed=recipe.seed) as replayer:
        first = run.parent.step if run.parent else 0
        policy_step = max(first, step - 1 - replayer.source.lookahead)
        commit = nearest_commit(log, policy_step + 1)
        [share] = replayer.shares(step, step)
        lane = _lane_of(request.row, share, step=step)
        if commit is not None:
            replayer.restore(commit)
        _go_to(replayer, policy_step, progress)
        replayed = replayer.rollout(lane, step=step, row_id=request.row, sample=request.sample)
        digest = combined_digest(number.digest for number in replayer.training_samples(share, step=step))
    compared = [_alone(replayed, step)]
    if (logged := _logged_rollout(log, request)) is not None:
        compared.append(_of_digests(step, "journaled digest", logged.digest, replayed.digest))
    recorded = steps[step].values.get("rollout_digest") if step in steps else None
    if recorded is not None:
        compared.append(compared_number(step, "rollout_digest", recorded, float(digest)))
    is_wrong = not all(number.is_equal for number in compared)
    return RolloutReport(
        run_id=run.run_id,
        step=step,
        row_id=request.row,
        row_location=dataset.row_location(request.row),
        sample=request.sample,
        lane=lane.lane,
        policy_step=policy_step,
        from_step=commit.step if commit else 0,
        recorded_code_version=run.code_version,
        code_version=code_version(),
        verdict="differs" if is_wrong else "not recorded" if recorded is None else "equal",
        compared=tuple(compared),
        **{name: value for name, value in replayed._asdict().items() if name in RolloutReport.model_fields},
    )


def _lane_of(row: int, share: StepShare, *, step: int) -> LaneShare:
    rows = {int(id_): lane for lane in share.lanes for batch in lane.micro_batches for id_ in batch.row_ids}
    if row not in rows:
        named = ", ".join(map(str, sorted(rows)[:NUM_NAMED]))
        more = f" and {len(rows) - NUM_NAMED} more" if len(rows) > NUM_NAMED else ""
        raise ConfigError(f"--row {row}: not a row of step {step}, whose rows are {named}{more}.")
    return rows[row]


def _go_to(replayer: Replayer, step: int, progress: Progress) -> None:
    first = replayer.step + 1
    for share in replayer.shares(first, step) if first <= step else ():
        progress(replayer.step + 1, first, step)
        if not replayer.make(share).is_applied:
            raise TrainingError(
                f"step {replayer.step + 1}, an earlier step, cannot be replayed: its loss or gradient is "
                f"not finite. 'assay runs replay --step {replayer.step + 1} --watch' finds the cause."
            )


def _alone(replayed: ReplayedRollout, step: int) -> Compared:
    return _of_digests(step, "rollout alone", replayed.batched_digest, replayed.digest)


def _of_digests(step: int, quantity: str, recorded: int, replayed: int) -> Compared:
    then, now = f"{recorded:016x}", f"{replayed:016x}"
    return Compared(step=step, quantity=quantity, recorded=then, replayed=now, is_equal=then == now)


def _logged_rollout(log: CommitLog, request: RolloutRequest) -> RolloutRecord | None:
    """Return the completion's entry in the rollout log; None if no commit has it."""
    commits = [entry for entry in log.entries() if isinstance(entry, Commit) and not entry.is_inherited]
    holding = [commit for commit in commits if commit.receipts_from_step < request.step <= commit.step]
    for group in read_rollout_log(log.store, holding[-1]) if holding else ():
        if (group.step, group.row_id) == (request.step, request.row):
            return group.completions[request.sample]
    return None
