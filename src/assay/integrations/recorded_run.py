"""Opens a run of another training loop in the home: its record, and the next attempt of it.

    HOME/RUN/run.json             name, parameters and script of the run; replaced when they change
            /attempts/, /log/     one attempt for each start of the script; a killed one is closed by the next
            /metrics/             a segment for each device

The files are those of our own runs, so everything that reads these reads them. The ledger is not written here: the run
is marked as missed, and the next command that opens the ledger records it.
"""

import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.clock import SystemClock
from assay.base.code_version import code_version
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.elastic.environment import environment_here
from assay.elastic.processor import processor_here
from assay.records.processor import Processor
from assay.records.run import RECORD_AS_VARIABLE, Attempt, ImportedFrom, Run
from assay.store.attempts import close_abandoned_attempts, save_attempt, saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE
from assay.store.launches import process_began_s, process_key, process_state, save_launch, saved_launches
from assay.store.ledger.writer import mark_missed
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy
from assay.trackers.importers.foreign_run import plain_value

START_SLACK_S = 2.0
"""Processes of one start may begin this much after that of rank 0."""
MAX_NAMED_CHANGES = 8
UNKNOWN_ROWS = "which rows were read: only those of assay.torch.RowLoader are seen"


class RecordRequest(NamedTuple):
    """What a training loop says of itself when it begins."""

    name: str
    """`PROJECT/RUN`, or the run's name alone."""
    tool: str
    config: Mapping[str, Any]
    devices: int
    """Number of devices of all processes."""
    num_steps: int | None
    rank: int
    unknown: tuple[str, ...]
    """Sentences on what the loop does not show."""

    def run_id(self) -> str:
        """Return the run's id."""
        return os.environ.get(RECORD_AS_VARIABLE) or self.name.replace("/", "-")

    def project(self) -> str:
        """Return the group of runs that it belongs to; the run's name if there is none."""
        return self.name.partition("/")[0] or self.name


class OpenAttempt(NamedTuple):
    """The attempt that this process belongs to."""

    run: Run
    attempt: Attempt
    log: CommitLog
    changes: tuple[str, ...] = ()
    """Parameters that differ from the attempt before."""


def begin_attempt(home: Home, request: RecordRequest, *, start_step: int | None) -> OpenAttempt:
    """Create or open the run, close the attempts that died, and begin the next one. For rank 0 only.

    Raises `ConfigError` if the name is invalid, or is that of a run of another kind or of a live process.
    """
    run_id, clock = request.run_id(), SystemClock()
    existing = _existing_run(home, run_id)
    run = _run_record(home, request, existing, now_s=clock.now_s())
    home.run_dir(run_id).mkdir(parents=True, exist_ok=True)
    if run != existing:
        save_run(run)
    log = CommitLog(open_store(run.store_url, RetryPolicy(0.0)))
    number = log.begin_attempt(world_size=request.devices, now_s=clock.now_s())
    is_one_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == int(os.environ.get("WORLD_SIZE", "1"))
    attempt = Attempt(
        run_id=run_id,
        attempt=number,
        world_size=request.devices,
        start_step=start_step or 0,
        started_s=_held_from_s(),
        folder=run.run_dir,
        code_version=code_version(),
        processor=_processor(),
        environment=environment_here(),
        hosts=(socket.gethostname(),) * request.devices if is_one_node else (),
    )
    close_abandoned_attempts(run, log, attempt)
    for before in saved_attempts(Path(run.run_dir))[-1:]:
        print(
            f"assay: run '{run_id}' begins attempt {number}, after attempt {before.attempt}: {before.outcome} at step "
            f"{before.end_step}. A new run needs a name of its own.",
            file=sys.stderr,
        )
    save_attempt(Path(run.run_dir), attempt)
    if start_step is not None:
        roll_back(run, attempt)
    job = os.getpid()
    save_launch(run, launcher="here", job=str(job), process=process_key(job), world_size=request.devices)
    mark_missed(home, run_id)
    return OpenAttempt(run, attempt, log, () if existing is None else _changes(existing, run))


def join_attempt(home: Home, request: RecordRequest, *, after: int) -> OpenAttempt | None:
    """Return the attempt that rank 0 of this start began, later than number `after`; None until it has."""
    run_id = request.run_id()
    if not home.has_run(run_id):
        return None
    run = home.run(run_id)
    state = process_state(launches[-1]) if (launches := saved_launches(run)) else "elsewhere"
    # On another machine, whether rank 0 lives is not seen, but when it began. If it ended, torchrun restarts it.
    since_s = 0.0 if state == "running" else (process_began_s() or 0.0) - START_SLACK_S
    for attempt in reversed(saved_attempts(home.run_dir(run_id)) if state != "ended" else []):
        if attempt.attempt > after and attempt.started_s >= since_s and attempt.ended_s is None:
            return OpenAttempt(run, attempt, CommitLog(open_store(run.store_url), attempt=attempt.attempt))
    return None


def save_run(run: Run) -> Run:
    """Write the run's record, and return it."""
    open_store(run.run_dir).put(RUN_FILE, run.to_sealed_json().encode())
    return run


def roll_back(run: Run, attempt: Attempt) -> None:
    """Record that an attempt repeats the steps after its first one: earlier attempts kept what lies before."""
    for earlier in saved_attempts(Path(run.run_dir)):
        if earlier.attempt < attempt.attempt and (earlier.end_step or 0) > attempt.start_step:
            end_step = max(earlier.start_step, attempt.start_step)
            save_attempt(Path(run.run_dir), earlier.model_copy(update={"end_step": end_step}))


def _existing_run(home: Home, run_id: str) -> Run | None:
    if not home.has_run(run_id):
        return None
    run = home.run(run_id)
    if not run.is_recorded():
        raise ConfigError(
            f"run '{run_id}' exists in {home.folder}, and it was not recorded by assay.record. Choose another name."
        )
    launch = next(reversed(saved_launches(run)), None)
    if launch is not None and process_state(launch) == "running":
        raise ConfigError(
            f"run '{run_id}' is being recorded by {launch.where()}. Runs at the same time need names of their own; "
            "if that process is stuck, end it."
        )
    return run


def _run_record(home: Home, request: RecordRequest, existing: Run | None, *, now_s: float) -> Run:
    run_id, folder = request.run_id(), str(home.run_dir(request.run_id()))
    recipe = {"name": request.project(), "params": plain_value(request.config)}
    imported = ImportedFrom(
        tool=request.tool,
        source=_script(),
        tool_run_id=run_id,
        name=request.name.rpartition("/")[2],
        status="unknown",
        left_out=(UNKNOWN_ROWS, *request.unknown),
    )
    return Run(
        run_id=run_id,
        created_s=now_s if existing is None else existing.created_s,
        recipe=recipe,
        recipe_sha256=sha256_of_json(recipe),
        dataset_fingerprint="",
        code_version=code_version() if existing is None else existing.code_version,
        run_dir=folder,
        store_url=folder,
        num_steps=max(1, request.num_steps or (existing.num_steps if existing else 1)),
        imported=imported,
    )


def _script() -> str:
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(name).resolve()) if name else "an interactive session"


def _held_from_s() -> float:
    """Return since when the attempt holds its devices: the start of a script, or now in a notebook or the next fit."""
    now_s = SystemClock().now_s()
    global _is_later
    is_first, _is_later = not _is_later, True
    return process_began_s() or now_s if is_first and hasattr(sys.modules.get("__main__"), "__file__") else now_s


_is_later = False


def _processor() -> Processor:
    try:
        return processor_here()
    except PackageNotFoundError:  # a host without torch
        return Processor(model=platform.machine(), instructions=platform.machine(), torch="")


def _changes(before: Run, now: Run) -> tuple[str, ...]:
    from assay.base.config import dotted_leaves

    old, new = (dict(dotted_leaves(run.recipe.get("params", {}))) for run in (before, now))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    named = [f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys[:MAX_NAMED_CHANGES]]
    return (*named, f"and {len(keys) - len(named)} more") if len(keys) > len(named) else tuple(named)


def plain_name(text: str) -> str:
    """Return a text as the name of a run: what cannot be in a folder's name becomes `-`."""
    return re.sub(r"[^\w.@+=,-]+", "-", text).strip("-.") or "run"
