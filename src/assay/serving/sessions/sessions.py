"""Sessions in an object store: who they belong to, their models, samplers and saved weights.

    session/ID/log/00000000.json ...       created, models, checkpoints, finished
    session-data/ID/sampler/3              a sampler
    session-data/ID/train|sample/...       requests and results (`request_log`)
    session-data/ID/lease-0001.json ...    the worker that executes the session
    session-data/ID/heard                  when the client was heard, renewed every `HEARD_S`

    retained/session/ID                    a finished session that may hold what no client can name

A session's work marker (`ResourceRepository.open`) is written at its creation. The worker deletes it once the session
is finished and every request has a result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from assay.base.clock import Clock
from assay.records.session import (
    SESSION_ENTRIES,
    CheckpointType,
    SessionCharged,
    SessionCheckpoint,
    SessionCheckpointDeleted,
    SessionCreated,
    SessionEntry,
    SessionFinished,
    SessionModel,
    SessionSampler,
)
from assay.serving.admin.spend import mark_charged
from assay.serving.repository import ResourceRepository, ResourceState, resource_log
from assay.serving.sessions.request_log import (
    ChangedRequestError,
    RequestId,
    RequestLog,
    TargetId,
    data_folder,
    read_target_id,
)
from assay.store.leases import last_lease
from assay.store.objects import ObjectStore

SCHEME = "tinker://"
HEARD_S = 300.0
"""The SDK sends a heartbeat every ten seconds; a time is written at most this often."""
_RETAINED = "retained/session/"
_TYPES: dict[str, CheckpointType] = {"weights": "training", "sampler_weights": "sampler"}
_SEGMENTS = {checkpoint_type: segment for segment, checkpoint_type in _TYPES.items()}


class CheckpointPath(NamedTuple):
    """Name of saved weights: tinker://SESSION:train:0/weights/NAME, or .../sampler_weights/NAME."""

    model: TargetId
    checkpoint_type: CheckpointType
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.model}/{self.checkpoint_id}"

    @property
    def checkpoint_id(self) -> str:
        """The path within the model."""
        return f"{_SEGMENTS[self.checkpoint_type]}/{self.name}"


def read_checkpoint_path(text: str) -> CheckpointPath | None:
    """Parse a checkpoint's path; None if it is not one."""
    if not text.startswith(SCHEME):
        return None
    parts = text.removeprefix(SCHEME).split("/")
    model = read_target_id(parts[0])
    if len(parts) != 3 or model is None or model.role != "train" or parts[1] not in _TYPES:
        return None
    return CheckpointPath(model, _TYPES[parts[1]], parts[2])


@dataclass(frozen=True)
class SessionState(ResourceState[SessionCreated]):
    """State of a session, folded from its log."""

    models: Mapping[int, SessionModel] = field(default_factory=dict)
    """By index."""
    checkpoints: Mapping[tuple[int, CheckpointType, str], SessionCheckpoint] = field(default_factory=dict)
    """By model, type and name; deleted ones are left out."""
    finished: SessionFinished | None = None
    charged: Mapping[int, SessionCharged] = field(default_factory=dict)
    """By lease."""

    @property
    def charges(self) -> tuple[SessionCharged, ...]:
        """Device time of all workers so far."""
        return tuple(self.charged.values())

    @property
    def has_final_cost(self) -> bool:
        """False: requests may be executed after the session was finished."""
        return False

    def checkpoint(self, path: CheckpointPath) -> SessionCheckpoint | None:
        """Return the entry of saved weights of this session, or None if there are none."""
        return self.checkpoints.get((path.model.number, path.checkpoint_type, path.name))

    def changes(self, entry: SessionEntry) -> dict[str, Any]:
        match entry:
            case SessionModel():
                return {"models": {**self.models, entry.model_index: entry}}
            case SessionCheckpoint():
                key = (entry.model_index, entry.checkpoint_type, entry.name)
                return {"checkpoints": {**self.checkpoints, key: entry}}
            case SessionCheckpointDeleted():
                key = (entry.model_index, entry.checkpoint_type, entry.name)
                return {"checkpoints": {known: saved for known, saved in self.checkpoints.items() if known != key}}
            case SessionCharged():
                return {"charged": {**self.charged, entry.lease: entry}}
            case SessionFinished():
                return {"finished": self.finished or entry}
            case SessionCreated():
                raise AssertionError("a session begins once")


class SessionRepository(ResourceRepository[SessionEntry, SessionState]):
    """Sessions of all projects."""

    id_kind = "session"
    log_kind = resource_log("session's log", SESSION_ENTRIES, SessionState)
    title, param, id_field = "session", "session_id", "session_id"
    tracks_open = True

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._noted_s: dict[str, float] = {}
        """Session -> the time that `note_heard` wrote last."""

    def requests(self, target: TargetId) -> RequestLog:
        """Return the request log of a model or sampler."""
        return RequestLog(self.store, target)

    def add_model(self, session_id: str, model: SessionModel) -> None:
        """Add a model; idempotent. Raises `ChangedRequestError` if the index belongs to a different one."""

        def decide(state: SessionState) -> SessionEntry | None:
            known = state.models.get(model.model_index)
            if known is not None and known.model_copy(update={"at_s": model.at_s}) != model:
                raise ChangedRequestError(
                    f"Model {model.model_index} of {session_id} was created with other settings. Use the next number."
                )
            return model if known is None else None

        self.change(session_id, decide)

    def add_sampler(self, session_id: str, sampler: SessionSampler) -> None:
        """Add a sampler; idempotent. Raises `ChangedRequestError` if the index belongs to a different one."""
        key = _sampler_key(session_id, sampler.sampler_index)
        if not self.store.put_if_absent(key, sampler.to_sealed_json().encode()):
            known = self.sampler(session_id, sampler.sampler_index)
            if known is None or known.model_copy(update={"at_s": sampler.at_s}) != sampler:
                raise ChangedRequestError(
                    f"Sampler {sampler.sampler_index} of {session_id} was created from other weights. Use the next "
                    "number."
                )

    def sampler(self, session_id: str, index: int) -> SessionSampler | None:
        """Return a sampler, or None if there is none."""
        key = _sampler_key(session_id, index)
        return SessionSampler.from_json(self.store.get(key), source=key) if self.store.exists(key) else None

    def note_checkpoint(self, session_id: str, saved: SessionCheckpoint) -> SessionState:
        """Record that weights were saved; idempotent for one request. The weights must be durable."""

        def decide(state: SessionState) -> SessionEntry | None:
            known = state.checkpoints.get((saved.model_index, saved.checkpoint_type, saved.name))
            return None if known is not None and known.seq_id == saved.seq_id else saved

        return self.change(session_id, decide)

    def delete_checkpoint(self, path: CheckpointPath) -> None:
        """Make saved weights unavailable; idempotent."""
        model_index, checkpoint_type, name = path.model.number, path.checkpoint_type, path.name
        deleted = SessionCheckpointDeleted(
            at_s=self._clock.now_s(), model_index=model_index, checkpoint_type=checkpoint_type, name=name
        )
        state = self.change(path.model.session_id, lambda state: deleted if state.checkpoint(path) else None)
        if state.finished:
            self.retain(path.model.session_id)

    def waiting_reason(self, request: RequestId) -> str | None:
        """Return why a request is not executed, or None if a worker is about to."""
        held = last_lease(self.store, data_folder(request.target.session_id))
        if held is None or held.is_released or self._clock.now_s() - held.beat_s > held.term_s:
            gone = "No worker" if held is None else f"The worker {held.worker} is gone, and no other"
            return f"{gone} has taken the session yet."
        missing = self.requests(request.target).missing_before(request.seq_id)
        if missing is not None:
            return f"Request {missing} of {request.target} has not arrived, and later ones wait for it."
        return None

    def charge(self, session_id: str, charge: SessionCharged) -> None:
        """Record device time; the project is charged for it."""
        state = self.state(session_id)
        assert state is not None, f"{session_id} was executed"
        mark_charged(self.store, state.created.project, session_id, charge)
        self.change(session_id, lambda _: charge)

    def charge_killed(self, session_id: str, *, before: float = math.inf) -> bool:
        """Charge what the last worker, with a lease below `before`, had not charged by its last heartbeat.

        Returns whether there was anything: a worker that was not killed has charged all.
        """
        held, state = last_lease(self.store, data_folder(session_id), before=before), self.state(session_id)
        if held is None or state is None or not held.note:
            return False
        charge = SessionCharged.from_json(held.note, source=f"lease of {held.worker}")
        known = state.charged.get(charge.lease)
        is_new = charge.device_s > (0.0 if known is None else known.device_s)
        if is_new:
            self.charge(session_id, charge)
        return is_new

    def note_heard(self, session_id: str) -> None:
        """Record that the client of a session lives."""
        now_s = self._clock.now_s()
        if abs(now_s - self._noted_s.get(session_id, -math.inf)) >= HEARD_S:
            self.store.put(_heard_key(session_id), str(now_s).encode())
            self._noted_s[session_id] = now_s

    def heard_s(self, session_id: str) -> float | None:
        """Return when the client of a session was heard last, by the server's clock; None if that is not on record."""
        key = _heard_key(session_id)
        return float(self.store.get(key)) if self.store.exists(key) else None

    def finish(self, session_id: str, status: str) -> None:
        """Accept no further requests; idempotent, the first status stands."""
        finished = SessionFinished(at_s=self._clock.now_s(), status=status)
        self.change(session_id, lambda state: None if state.finished else finished)

    def close(self, resource_id: str) -> None:
        """Delete the work marker; the data stays until `release`."""
        self.retain(resource_id)
        super().close(resource_id)

    def retain(self, session_id: str) -> None:
        """Note that a session may hold what no client can name."""
        self.store.put(f"{_RETAINED}{session_id}", b"")

    def release(self, session_id: str) -> None:
        """Note that a session holds nothing of that kind."""
        self.store.delete(f"{_RETAINED}{session_id}")

    def retained_ids(self) -> list[str]:
        """Return the sessions that `retain` noted."""
        return [item.key.removeprefix(_RETAINED) for item in self.store.list(_RETAINED)]


def _heard_key(session_id: str) -> str:
    return f"{data_folder(session_id)}/heard"


def _sampler_key(session_id: str, index: int) -> str:
    return f"{data_folder(session_id)}/sampler/{index}"
