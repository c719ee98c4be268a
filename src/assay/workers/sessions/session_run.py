"""The run of a session: a worker records in the home what it does with the session, so all that reads runs reads it.

    HOME/SESSION/run.json                       base models, adapters, steps so far
                /attempts/attempt-0003.json     the worker that had lease 3, and why it let the session go
                /metrics/attempt-0003/...       loss and gradient norm of each update
                /incidents.jsonl                failed requests, losses that are not finite, reasons for waiting

The session's own log is what restarts follow. If the home's disk is full, a point of a curve is lost and no request.
"""

import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from assay.base.clock import Clock
from assay.base.code_version import code_version
from assay.base.digest import sha256_of_json
from assay.base.errors import StoreError
from assay.elastic.environment import environment_here
from assay.elastic.processor import processor_here
from assay.records.failure import Failure
from assay.records.incident import Incident, IncidentKind
from assay.records.run import Attempt, ImportedFrom, Run
from assay.serving.sessions.request_log import data_folder
from assay.serving.sessions.sessions import SessionRepository, SessionState
from assay.store.attempts import save_attempt, saved_attempts
from assay.store.home import Home
from assay.store.incidents import append_incident
from assay.store.known_runs import RUN_FILE
from assay.store.leases import Lease, leases
from assay.store.ledger.writer import LedgerWriter, marking
from assay.store.metrics.segment import SegmentWriter, read_segment, segment_path
from assay.store.objects import open_store
from assay.workflows.rebuild import fold_in

FOLD_S = 10.0
"""Time after which new points are written to the ledger."""
_OUTCOMES: dict[str, Literal["succeeded", "failed"]] = {"success": "succeeded", "errored": "failed"}
"""By how the client finished the session; others are interruptions."""
MAX_INCIDENTS = 100
"""Incidents of an attempt on record: a client may send any number of requests that fail."""


class SessionRun:
    """The run of a session that this worker executes."""

    def __init__(
        self, home: Home, sessions: SessionRepository, session_id: str, lease: Lease, *, world_size: int, clock: Clock
    ) -> None:
        self._folder = home.run_dir(session_id)
        self._sessions = sessions
        self._session_id = session_id
        self._clock = clock
        self._num_incidents = 0
        self._has_news = False
        earlier = [self._ended(attempt) for attempt in saved_attempts(self._folder)]
        self._num_steps = max((attempt.end_step or 0 for attempt in earlier), default=0)
        now_s = clock.now_s()
        self._attempt = Attempt(
            run_id=session_id,
            attempt=lease.number,
            world_size=world_size,
            start_step=self._num_steps,
            started_s=now_s,
            # It holds its devices only while it executes requests, so the time so far is that of the last charge.
            ended_s=now_s,
            end_step=self._num_steps,
            folder=str(self._folder),
            code_version=code_version(),
            processor=processor_here(),
            environment=environment_here(),
        )
        self._segment = SegmentWriter(
            segment_path(self._folder, lease.number, 0), run_id=session_id, attempt=lease.number, rank=0, clock=clock
        )
        self._fold = partial(fold_in, home, session_id)
        self._folded_s = clock.monotonic_s()
        _save_run(self._folder, self._sessions, self._attempt)
        self._writer = LedgerWriter(home, session_id, again=self._fold)
        self._writer.put(self._fold)

    def log_step(self, model_index: int, step: int, values: dict[str, float]) -> None:
        """Record numbers of an update. Those of model 0 have plain names, others begin with `train:NUMBER/`."""
        prefix = f"train:{model_index}/" if model_index else ""
        self._num_steps = max(self._num_steps, step)
        if step <= self._attempt.start_step:  # executed again: the curve goes on with these points
            self._attempt = self._attempt.model_copy(update={"start_step": step - 1})
        with suppress(StoreError):
            self._segment.log(step, {f"{prefix}{name}": value for name, value in values.items()})
        if not math.isfinite(loss := values["loss"]):
            self.note("loss_not_finite", f"the loss of step {step:,} of model {model_index} is {loss}", step)
        self._has_news = True

    def tick(self) -> None:
        """Record new steps once in `FOLD_S`."""
        if self._has_news and self._clock.monotonic_s() - self._folded_s > FOLD_S:
            self.save()

    def note(self, kind: IncidentKind, text: str, step: int | None = None) -> None:
        """Record an incident, unless the attempt has `MAX_INCIDENTS`."""
        self._num_incidents, self._has_news = self._num_incidents + 1, True
        if self._num_incidents > MAX_INCIDENTS:
            return
        incident = Incident(
            incident=kind,
            run_id=self._session_id,
            attempt=self._attempt.attempt,
            at_s=self._clock.now_s(),
            step=step,
            text=text,
        )
        with suppress(OSError):
            append_incident(self._folder, incident)

    def save(self) -> None:
        """Record the time and the steps so far, in the ledger, too."""
        self._folded_s, self._has_news = self._clock.monotonic_s(), False
        self._attempt = self._attempt.model_copy(
            update={"ended_s": max(self._attempt.started_s, self._clock.now_s()), "end_step": self._num_steps}
        )
        with suppress(StoreError):
            _save_run(self._folder, self._sessions, self._attempt)
        if not self._writer.is_behind:
            self._writer.put(self._fold)

    def close(self, reason: str, *, is_interrupted: bool) -> None:
        """Record why the session is let go, and whether it has requests that wait now."""
        outcome = "preempted" if is_interrupted else "running"
        self._attempt = self._attempt.model_copy(update={"outcome": outcome, "reason": reason})
        self._segment.close()
        self.save()
        self._writer.put(self._fold)  # of all of it, even if it was behind
        self._writer.close()

    def _ended(self, attempt: Attempt) -> Attempt:
        """Return an earlier attempt; record its end if its worker was killed."""
        if attempt.outcome != "running" or attempt.reason:
            return attempt
        path = segment_path(self._folder, attempt.attempt, 0)
        known = dict(enumerate(leases(self._sessions.store, data_folder(self._session_id)), 1))
        lease = known.get(attempt.attempt)
        steps = read_segment(path).step_ends.steps.tolist() if path.exists() else []
        failure = Failure(
            failure_kind="supervisor_gone",
            run_id=attempt.run_id,
            attempt=attempt.attempt,
            signature="session worker gone",
            text="its worker was gone without a word; another one went on from the newest stored state",
        )
        ended = attempt.model_copy(
            update={
                "ended_s": max(attempt.started_s, 0.0 if lease is None else lease.beat_s),
                "end_step": max([attempt.start_step, *steps]),
                "outcome": "killed",
                "reason": failure.sentence(str(self._folder)),
                "failure": failure,
            }
        )
        save_attempt(self._folder, ended)
        return ended


def end_run(home: Home, sessions: SessionRepository, session_id: str) -> None:
    """Record that a client finished its session."""
    state, attempts = sessions.state(session_id), saved_attempts(home.run_dir(session_id))
    if state is None or state.finished is None or not attempts:
        return
    last = attempts[-1].model_copy(update={"outcome": _OUTCOMES.get(state.finished.status, "preempted")})
    _save_run(home.run_dir(session_id), sessions, last)
    with suppress(StoreError), marking(home, session_id), home.open_ledger() as ledger:
        fold_in(home, session_id, ledger)


def _save_run(folder: Path, sessions: SessionRepository, last: Attempt) -> None:
    state = sessions.state(last.run_id)
    assert state is not None, f"{last.run_id} was executed"
    run = _run_of(state, last, folder, source=sessions.store.url)
    save_attempt(folder, last)
    open_store(str(folder)).put(RUN_FILE, run.to_sealed_json().encode())


def _run_of(state: SessionState, last: Attempt, folder: Path, *, source: str) -> Run:
    """Return the record of a session. Its recipe holds what the client chose."""
    models = {
        f"train:{number}": model.model_dump(mode="json", exclude={"at_s", "base", "model_index"})
        for number, model in sorted(state.models.items())
    }
    bases = ", ".join(dict.fromkeys(model.base_model for model in state.models.values()))
    recipe = {
        "name": bases or "samples",
        "params": {"models": models, "tags": list(state.created.tags), "sdk_version": state.created.sdk_version},
    }
    return Run(
        run_id=state.created.session_id,
        created_s=state.created.at_s,
        recipe=recipe,
        recipe_sha256=sha256_of_json(recipe),
        dataset_fingerprint="",
        code_version=code_version(),
        run_dir=str(folder),
        store_url=str(folder),
        num_steps=max(1, last.end_step or 0),
        imported=ImportedFrom(
            tool="tinker",
            source=source,
            tool_run_id=state.created.session_id,
            name=bases or "samples",
            status=last.outcome if state.finished and last.outcome != "killed" else "running",
            tool_status="" if state.finished is None else state.finished.status,
            started_s=state.created.at_s,
            ended_s=None if state.finished is None else state.finished.at_s,
        ),
    )
