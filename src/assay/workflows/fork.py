"""Forks: a new run that starts from a commit of another run, with a recipe that may differ in some keys.

    run A   commit 100 | commit 200 | commit 300 ...
                            |  its files are copied, and are entry 0 of the new run's log (attempt 0)
    run B              commit 200 | attempt 1 | commit 300 ...

The fork continues at A's cursor, so keys that decide the rows of a step, or the shape or meaning of the weights,
must be A's. Afterwards A is needed only to audit its rows.
"""

from typing import Any

from assay.base.config import OVERRIDE, LoadedConfig, changed_leaves, parse_override, set_dotted
from assay.base.errors import ConfigError, DamagedDataError
from assay.records.run import ForkedFrom, Run
from assay.store.commit_log import RETAINED_NAMES, CommitLog, checkpoint_folder, first_problem
from assay.store.home import Home
from assay.store.objects import copy_object, open_store
from assay.training.model_folders import check_unchanged
from assay.training.recipe import recipe_of
from assay.workflows.run import find_commit, load_run, plan_run

_OF_NO_NUMBER = ("loader.threads", "loader.prefetch_steps", "loader.on_damage", "method.sampler.")


def plan_fork(
    home: Home,
    parent_id: str,
    step: int | None,
    overrides: tuple[str, ...],
    *,
    world_size: int,
    run_id: str | None,
    store_url: str | None,
) -> Run:
    """Return the validated record of a fork of a commit (by default the last); nothing is written.

    From step 0, or of a run without commits, this is a new run with the recipe and the overrides.
    """
    parent = load_run(home, parent_id)
    check_unchanged(parent, recipe_of(parent))
    log = CommitLog(open_store(parent.store_url))
    is_anew = step == 0 or (step is None and not log.commits())
    if parent.cluster_of is not None and not is_anew:
        raise ConfigError(
            f"run '{parent_id}' trained a share of the lanes, as one of several clusters (outer): one run has no step "
            "to go on from. Train a new run (step 0), or export the weights and start from them."
        )
    commit = None if is_anew else find_commit(parent, log, step)
    if commit and (problem := first_problem(log.store, commit)) is not None:
        raise DamagedDataError(f"commit at step {commit.step} of '{parent_id}': {problem}. Fork another commit.")
    was = recipe_of(parent).model_dump(mode="json")
    tree, changed_values = (
        recipe_of(parent).model_dump(mode="json"),
        [parse_override(override) for override in overrides],
    )
    for key, value in changed_values:
        set_dotted(tree, key, value, where="in the recipe")
    fork = plan_run(
        home,
        LoadedConfig(tree, {key: OVERRIDE for key, _ in changed_values}),
        world_size=world_size,
        run_id=run_id,
        store_url=store_url,
    )
    if commit is None:
        return fork
    changes = changed_leaves(was, recipe_of(fork).model_dump(mode="json"))
    for key, (before, now) in changes.items():
        if (why := _forbidden(key, before, now)) is not None:
            raise ConfigError(
                f"{key}={now}: a fork of '{parent_id}' keeps {key}={before}: {why}. Train a new run with it."
            )
    if fork.num_steps <= commit.step:
        raise ConfigError(
            f"run '{parent_id}' at step {commit.step} has nothing left to train: the recipe ends at step "
            f"{fork.num_steps}. Raise trainer.epochs or trainer.max_steps, or fork an earlier commit "
            f"({', '.join(str(commit.step) for commit in log.commits())})."
        )
    lineage = ForkedFrom(run_id=parent.run_id, step=commit.step, weights_digest=commit.weights_digest, changes=changes)
    return fork.model_copy(update={"parent": lineage})


def bring_commit(home: Home, run: Run) -> None:
    """Copy the commit that a fork starts from, unless it exists; do nothing for other runs."""
    if run.parent is None:
        return
    log = CommitLog(open_store(run.store_url))
    if log.entries():
        return
    parent = home.run(run.parent.run_id)
    parent_log = CommitLog(open_store(parent.store_url))
    commit = find_commit(parent, parent_log, run.parent.step)
    if commit.weights_digest != run.parent.weights_digest:
        raise DamagedDataError(
            f"run '{run.run_id}' was forked from {run.parent} with the weights "
            f"{run.parent.weights_digest[:12]}…, and there they are {commit.weights_digest[:12]}… now. Fork "
            "it again."
        )
    folder = checkpoint_folder(commit.step, 0)
    # Receipts and the rollout log belong to the run that wrote them.
    files = tuple(file for file in commit.files if file.path not in RETAINED_NAMES)
    for file in files:
        copy_object(parent_log.store, f"{commit.folder}/{file.path}", log.store, f"{folder}/{file.path}")
    inherited = commit.model_copy(
        update={
            "attempt": 0,
            "folder": folder,
            "files": files,
            "receipts_from_step": commit.step,
            "rows_trained": 0,
            "prompts": None,
            "quarantined": (),
            "retires": (),
        }
    )
    if (problem := first_problem(log.store, inherited)) is not None:
        raise DamagedDataError(f"run '{run.run_id}', copied from {run.parent}: {problem}. Try again.")
    log.append(inherited)


def _forbidden(key: str, before: Any, now: Any) -> str | None:
    """Return why the key must not change; None if it may."""
    part = key.partition(".")[0]
    if part == "data":
        return "the cursor counts the rows of that dataset and split, so others would be skipped or repeated"
    if key.startswith(_OF_NO_NUMBER):
        return None
    if part == "loader":
        return "it decides the rows of a step, so rows would be skipped or repeated"
    # Floats (dropout, loss weights) do not change what the weights mean; anything else may.
    if part == "method" and not all(value is None or isinstance(value, float) for value in (before, now)):
        return "it decides the shape or the meaning of the weights"
    return None
