"""Arms that assay does not train: a command trains them and records itself, or their runs are on record.

    command --> process, with its run's id in ASSAY_RECORD_AS --> the run that assay.record or a callback writes
    runs    --> recorded runs; sessions whose model was exported
                                --> its last checkpoint, a model that a suite evaluates

A command runs in the folder of the campaign's file. It runs again until its run has finished, and goes on by its own
means, e.g. from a checkpoint in `{out}`. If the campaign is killed, the command goes on, and the campaign waits for it
when it is run again.
"""

import os
import subprocess
from pathlib import Path

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.errors import ConfigError, TrainingError
from assay.records.commit import Commit
from assay.records.run import RECORD_AS_VARIABLE, ImportedFrom, Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.campaign.folder import OpenCampaign


def is_trained(run: Run) -> bool:
    """Return whether a run has finished; a session has once its model was exported."""
    log = CommitLog(open_store(run.store_url))
    return bool(log.commits()) if run.is_session() else log.finished() is not None


def last_checkpoint(run: Run) -> Commit:
    """Return the last checkpoint of a run that assay did not train. Raises `ConfigError` if there is none."""
    commits = CommitLog(open_store(run.store_url)).commits()
    if commits and Path(commits[-1].adopted_from).exists():
        return commits[-1]
    if commits:
        what = f"its last checkpoint, {commits[-1].adopted_from}, is not there any more. Restore it"
    elif run.is_session():
        what = f"no model of it was exported: 'assay runs export {run.run_id} --adapters merged' writes the last one"
    else:
        what = (
            "its script recorded no checkpoint (run.checkpoint(FOLDER) of assay.record, docs/record.md). Correct the "
            f"script and remove the run, 'assay runs delete {run.run_id}'"
        )
    raise ConfigError(f"run '{run.run_id}' has no model for a suite: {what}.")


def recorded_run(home: Home, run_id: str, *, of: str) -> Run:
    """Return a run that arm `of` names. Raises `ConfigError` if it is unknown, unfinished or without a checkpoint."""
    if not home.has_run(run_id):
        raise ConfigError(
            f"{of}: there is no run '{run_id}' in {home.folder}. 'assay runs list' lists those there are."
        )
    run = home.run(run_id)
    if not run.is_recorded():
        raise ConfigError(
            f"{of}: run '{run_id}' is no session of the Tinker API and was not recorded by assay.record. An arm of "
            "assay's own trainer has a recipe, or a patch of it."
        )
    if not run.is_session() and not is_trained(run):
        raise ConfigError(f"{of}: run '{run_id}' has not finished. Let its script end, and run the campaign again.")
    last_checkpoint(run)
    return run


def run_of_command(campaign: OpenCampaign, arm: str, seed: int) -> Run:
    """Return the run of a command's arm; an outline, of which nothing is written, if it has not begun."""
    home, run_id = campaign.home, campaign.config.run_id(arm, seed)
    if home.has_run(run_id):
        run = home.run(run_id)
        if not run.is_recorded():
            raise ConfigError(f"run '{run_id}' exists, and no command trained it. Rename the campaign.")
        return run
    folder = str(home.run_dir(run_id))
    return Run(
        run_id=run_id,
        created_s=SystemClock().now_s(),
        recipe={},
        recipe_sha256="",
        dataset_fingerprint="",
        code_version=code_version(),
        run_dir=folder,
        store_url=folder,
        num_steps=1,
        imported=ImportedFrom(tool="python", source="", tool_run_id=run_id, name=arm, status="unknown"),
    )


def run_command(campaign: OpenCampaign, arm: str, seed: int) -> Run:
    """Train an arm by its command; return the run that it recorded. Raises `TrainingError` if it has not finished."""
    home, run_id, command = campaign.home, campaign.config.run_id(arm, seed), campaign.config.arm(arm).command
    assert command is not None, "only for arms with a command"
    out = home.run_dir(run_id).resolve() / "out"
    out.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        command.replace("{seed}", str(seed)).replace("{out}", str(out)),
        shell=True,
        check=False,
        cwd=campaign.record.base_dir,
        env={**os.environ, "ASSAY_HOME": str(home.folder.resolve()), RECORD_AS_VARIABLE: run_id},
        stdout=2,  # the campaign's own output may be JSON
    )
    if not home.has_run(run_id) or not is_trained(home.run(run_id)):
        what = "has not finished" if home.has_run(run_id) else "was not recorded (docs/record.md)"
        raise TrainingError(
            f"arm '{arm}', seed {seed}: the command ended with exit code {ended.returncode}, and run '{run_id}' "
            f"{what}: {command}. Correct it and run the campaign again: it goes on here."
        )
    return recorded_run(home, run_id, of=f"arm '{arm}'")
