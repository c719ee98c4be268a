"""Deletes a run: its rows in the ledger, its commits and its folder, in a restartable order.

The record goes last, so an interrupted deletion is still a run of that name, and deleting it again continues.
Other objects in the store, the dataset and the suite stay.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.base.shown_url import without_secrets
from assay.elastic.capsules import CAPSULE_PREFIX
from assay.evals.queue import PREFIX as BENCHMARKS
from assay.launchers.launches import last_launch, state_of
from assay.records.run import Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CHECKPOINT_PREFIX, LOG_PREFIX, PENDING_PREFIXES, SUMMARY_PREFIX
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.writer import clear_missed
from assay.store.objects import open_store
from assay.store.run_location import original_of

_OURS = (
    *PENDING_PREFIXES, CHECKPOINT_PREFIX, CAPSULE_PREFIX, BENCHMARKS, SUMMARY_PREFIX, LOG_PREFIX,
)  # fmt: skip
"""Prefixes of a run's objects in its store; the log, which names the others, goes last."""


class Deletion(NamedTuple):
    """What a deletion removes and breaks."""

    run: Run
    num_bytes: int
    """Bytes in its folder and its store."""
    num_files: int
    losses: tuple[str, ...]
    """Sentences about what will no longer be possible."""


def plan_deletion(home: Home, ledger: Ledger, run_id: str) -> Deletion:
    """Return what deleting a run means. Raises `ConfigError` if it is running, or may be."""
    run = home.run(run_id)
    if run.is_session():
        raise ConfigError(
            f"run '{run_id}' is a session of the Tinker API, whose cost stays on record. 'assay serve sessions "
            "--keep-days' removes what has no name after its client has closed it; the client deletes saved weights."
        )
    launch = last_launch(run)
    state = "ended" if launch is None else state_of(launch)
    attempts = saved_attempts(Path(run.run_dir))
    is_open = bool(attempts) and attempts[-1].ended_s is None
    if launch is not None and (state in ("queued", "running") or (state == "elsewhere" and is_open)):
        raise ConfigError(
            f"run '{run_id}': {launch.where()} {'may still train' if state == 'elsewhere' else 'trains'} it. "
            f"Stop it first: 'assay train stop {run_id}'."
        )
    is_outside = run.store_url != run.run_dir
    if is_outside and (original := original_of(run)) is not None:
        raise ConfigError(
            f"{run.run_dir} is a copy of the run in {original}, and both have their commits in "
            f"{without_secrets(run.store_url)}. Remove the copied folder by hand."
        )
    sizes = [path.stat().st_size for path in Path(run.run_dir).rglob("*") if path.is_file()]
    if is_outside:
        sizes += [item.num_bytes for prefix in _OURS for item in open_store(run.store_url).list(prefix)]
    return Deletion(run, sum(sizes), len(sizes), tuple(_losses(home, ledger, run)))


def delete_run(home: Home, ledger: Ledger, run: Run) -> None:
    """Delete a run; parts that are gone already are skipped."""
    ledger.forget(run.run_id)
    if run.store_url != run.run_dir:
        store = open_store(run.store_url)
        for prefix in _OURS:
            for item in sorted(store.list(prefix), key=lambda item: item.key, reverse=True):
                store.delete(item.key)
    folder = Path(run.run_dir)
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != RUN_FILE:
            path.unlink()
    (folder / RUN_FILE).unlink()
    folder.rmdir()
    clear_missed(home, run.run_id)


def _losses(home: Home, ledger: Ledger, run: Run) -> list[str]:
    children = [item.run_id for item in home.runs() if item.parent and item.parent.run_id == run.run_id]
    losses = [
        f"{child} was forked from it: its weights stay, and which rows they learned before cannot be proved any more"
        for child in children
    ]
    losses += [
        f"campaign '{campaign.name}' cannot be decided again without it"
        for campaign in ledger.campaigns()
        if any(run.run_id == arm.run_id for decision in ledger.decisions(campaign.name) for arm in decision.runs)
    ]
    losses += [
        f"{comparison.candidate_run_id} was compared with it, and cannot be compared again"
        for comparison in ledger.comparisons(run.run_id)
        if comparison.baseline_run_id == run.run_id
    ]
    return losses
