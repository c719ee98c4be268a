"""Saves what a step needs to be replayed before retention deletes it.

    run's store:  capsules/00000037/capsule.json    recipe, row ids of each lane, reason
                  capsules/00000037/checkpoint/...  copies of the files of the commit to start from

The supervisor saves a capsule of a step that failed for good. A user can save any other step.
"""

from pathlib import Path

from assay.base.clock import SystemClock
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.records.capsule import Capsule
from assay.records.commit import Commit
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog, first_problem
from assay.store.metrics.recorded import last_step_of
from assay.store.objects import ObjectStore, copy_object
from assay.training.recipe import Recipe, recipe_of

CAPSULE_PREFIX = "capsules/"
CAPSULE_FILE = "capsule.json"


def save_failing_step(run: Run, log: CommitLog, attempt: Attempt, reason: str) -> Capsule:
    """Save the step that an attempt failed in: the one after its last recorded step."""
    last = last_step_of(Path(run.run_dir), attempt.attempt)
    return save_capsule(
        run, log, step=(attempt.start_step if last is None else last) + 1, attempt=attempt, reason=reason
    )


def save_capsule(
    run: Run,
    log: CommitLog,
    *,
    step: int,
    reason: str,
    attempt: Attempt | None = None,
) -> Capsule:
    """Copy the nearest commit before `step` and write the capsule, which replaces an earlier one of the step."""
    recipe = recipe_of(run)
    folder = f"{CAPSULE_PREFIX}{step:08d}"
    commit = nearest_commit(log, step)
    if commit is not None:
        copy = f"{folder}/checkpoint"
        if commit.folder != copy:
            for file in commit.files:
                copy_object(log.store, f"{commit.folder}/{file.path}", log.store, f"{copy}/{file.path}")
        commit = commit.model_copy(update={"folder": copy})
    capsule = Capsule(
        run_id=run.run_id,
        step=step,
        attempt=attempt.attempt if attempt else 0,
        world_size=attempt.world_size if attempt else 0,
        reason=reason,
        created_s=SystemClock().now_s(),
        recipe=run.recipe,
        recipe_sha256=run.recipe_sha256,
        dataset_fingerprint=run.dataset_fingerprint,
        code_version=run.code_version,
        commit=commit,
        rows=_rows_of_step(recipe, step),
    )
    log.store.put(f"{folder}/{CAPSULE_FILE}", capsule.to_json().encode())
    return capsule


def capsules(store: ObjectStore) -> list[Capsule]:
    """Return all capsules of a run, ordered by step."""
    keys = sorted(item.key for item in store.list(CAPSULE_PREFIX) if item.key.endswith("/" + CAPSULE_FILE))
    return [Capsule.from_json(store.get(key), source=key) for key in keys]


def nearest_commit(log: CommitLog, step: int) -> Commit | None:
    """Return the last intact commit before `step`, in the log or in a capsule; None if there is none."""
    retained = [capsule.commit for capsule in capsules(log.store) if capsule.commit is not None]
    candidates = [commit for commit in [*retained, *log.commits()] if commit.step < step]
    for commit in sorted(candidates, key=lambda commit: commit.step, reverse=True):
        if first_problem(log.store, commit) is None:
            return commit
    return None


def _rows_of_step(recipe: Recipe, step: int) -> tuple[tuple[int, ...], ...]:
    """Return the row ids of a step by lane. Reads row lengths from the dataset, which costs time."""
    dataset = Dataset.open(Path(recipe.data.dataset))
    loader = Loader(split_view(dataset, recipe.data.split, "train"), recipe.loader, sequences_of(recipe.method.columns))
    shares = loader.shares(loader.cursor_at(step - 1), range(recipe.loader.lanes), 1)
    share = next(iter(shares))
    return tuple(tuple(int(row) for batch in lane.micro_batches for row in batch.row_ids) for lane in share.lanes)
