"""Sessions as units of leased work: each step executes the next request of each model, and some samples.

Training and sampling of all sessions take turns in one process. A session is held while its requests come, and for
`IDLE_S` afterwards; then its models are stored and freed.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from assay.base.errors import FencedError, NotInstalledError, StoreError
from assay.serving.sessions.request_log import TargetId, data_folder, waiting_samples
from assay.serving.sessions.sessions import SessionState
from assay.store.leased_worker import WorkUnit
from assay.store.leases import Lease
from assay.workers.sessions.model import ModelExecutor, SessionTools
from assay.workers.sessions.sampler import SamplerExecutor

IDLE_S = 300.0
"""How long the models of a session without requests stay in memory."""
DEFERRED_S = 60.0
"""How long a session is left alone after an error that is not one request's, such as a missing base model."""


@dataclass
class _Held:
    active_s: float
    """When it last executed a request."""
    models: dict[int, ModelExecutor] = field(default_factory=dict)
    """By number."""


class SessionHandler:
    """A `WorkHandler` of all open sessions."""

    def __init__(self, tools: SessionTools) -> None:
        self._tools = tools
        self._samplers = SamplerExecutor(tools)
        self._held: dict[str, _Held] = {}
        self._deferred_until_s: dict[str, float] = {}
        self.has_executed = False
        """Whether a request was executed since the last look for work."""
        self._unanswered: dict[TargetId, int] = {}
        """The first request of a model that had no result when it was looked up."""

    def due(self) -> Iterator[WorkUnit]:
        """Yield sessions with requests to execute, and those that had some lately."""
        sessions, self.has_executed = self._tools.sessions, False
        for session_id, state in sessions.states(sessions.open_ids()):
            held = self._held.get(session_id)
            if self._tools.clock.monotonic_s() < self._deferred_until_s.get(session_id, 0.0):
                continue
            is_active = held is not None and self._tools.clock.monotonic_s() - held.active_s < IDLE_S
            if self._has_request(session_id, state) or (is_active and not state.finished):
                yield WorkUnit(session_id, data_folder(session_id), state.created.project)
            elif state.finished and held is None:
                sessions.close(session_id)

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:  # noqa: ARG002
        """Accept a session: results are put once, so nothing else has to keep other workers away."""
        self._held[unit.unit_id] = _Held(self._tools.clock.monotonic_s())
        return True

    def step(self, unit: WorkUnit, lease: Lease) -> None:
        """Execute the next request of each model of a session, and some of its samples.

        An error that is not one request's leaves the session waiting, and the others as they are.
        """
        if not lease.is_newest():
            raise FencedError(f"{unit.unit_id} was taken over by another worker.")
        held, state = self._held[unit.unit_id], self._tools.sessions.state(unit.unit_id)
        assert state is not None, "it was due"
        try:
            executed = [self._model(held, unit.unit_id, number, state).execute_next() for number in state.models]
            executed.append(self._samplers.execute_waiting(unit.unit_id))
        except (StoreError, NotInstalledError):
            raise
        except Exception as error:
            logging.getLogger("assay.sessions").exception("%s waits", unit.unit_id)
            self._tools.notify(f"{unit.unit_id} waits for {DEFERRED_S:.0f} s: {error}")
            self._deferred_until_s[unit.unit_id] = self._tools.clock.monotonic_s() + DEFERRED_S
            held.models.clear()  # what was left half done is restored
            return
        if any(executed):
            held.active_s, self.has_executed = self._tools.clock.monotonic_s(), True

    def let_go(self, unit_id: str) -> bool:
        """Store the models of a session and free them."""
        for model in self._held[unit_id].models.values():
            model.commit()
        del self._held[unit_id]
        return True

    def _model(self, held: _Held, session_id: str, number: int, state: SessionState) -> ModelExecutor:
        if number not in held.models:
            held.models[number] = ModelExecutor(
                self._tools, TargetId(session_id, "train", number), state.models[number]
            )
        return held.models[number]

    def _has_request(self, session_id: str, state: SessionState) -> bool:
        """Return whether a model or a sampler has a request that can be executed."""
        held = self._held.get(session_id)
        for number in state.models:
            target = TargetId(session_id, "train", number)
            log = self._tools.sessions.requests(target)
            if held is not None and number in held.models:
                next_seq_id = held.models[number].next_seq_id
            else:
                next_seq_id = self._unanswered.get(target, 0)
                while log.has_result(next_seq_id):
                    next_seq_id += 1
                self._unanswered[target] = next_seq_id
            if log.has_request(next_seq_id):
                return True
        return any(True for _ in waiting_samples(self._tools.store, session_id))
