"""Sessions as units of leased work: each step executes the next request of each model, and some samples.

Training and sampling of all sessions take turns:

    a round    project A: session 3    project B: session 1    project A: session 2 ...    until `ROUND_S` are over

Projects take turns, however many sessions each has, and within a project the session goes first that waited longest; so
do the models of a session. A session is held while its requests come, and for `IDLE_S` afterwards; then its models are
stored and freed.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest

from assay.base.errors import FencedError, NotInstalledError, StoreError
from assay.records.session import SessionCharged
from assay.serving.sessions.request_log import TargetId, data_folder, waiting_samples
from assay.serving.sessions.sessions import SessionState
from assay.store.home import Home
from assay.store.leased_worker import WorkUnit
from assay.store.leases import Lease
from assay.workers.sessions.model import MAX_LOSSES, ModelExecutor, SessionTools
from assay.workers.sessions.rank_models import RankModels
from assay.workers.sessions.ranks import RanksLostError
from assay.workers.sessions.session_run import SessionRun, end_run

CHARGE_S = 60.0
"""Device time after which it is charged, so that a project exceeds its limit by little more."""
IDLE_S = 300.0
"""How long the models of a session without requests stay in memory."""
ROUND_S = 0.25
"""A round ends after this, also if not all sessions had their turn: those that have requests by now get one."""
DEFERRED_S = 60.0
"""How long a session is left alone after an error that is not one request's, such as a missing base model."""


@dataclass
class _Held:
    active_s: float
    """When it last executed a request."""
    lease: int
    began_s: float
    """Unix time."""
    run: SessionRun
    device_s: float = 0.0
    """Device time in which it executed requests."""
    redone_s: float = 0.0
    """What of that is `SessionCharged.redone_s`."""
    charged_s: float = 0.0
    """What of that is charged."""
    step_began_s: float | None = None
    """None between two steps."""
    models: dict[int, ModelExecutor] = field(default_factory=dict)
    """By number; the one that executed a request last is the last."""


class SessionHandler:
    """A `WorkHandler` of all open sessions."""

    def __init__(
        self,
        tools: SessionTools,
        home: Home,
        *,
        num_devices: int = 1,
        is_spent: Callable[[str], bool] = lambda project: False,
    ) -> None:
        """`home`: of the sessions' runs. `num_devices`: of all ranks. `is_spent`: project -> whether it is over its
        limit; then its sessions wait."""
        self._tools = tools
        self._home = home
        self._is_spent = is_spent
        self._num_devices = num_devices
        self._held: dict[str, _Held] = {}
        self._deferred_until_s: dict[str, float] = {}
        self._losses = Counter[str]()
        """How often a rank ended since a step of a session was completed."""
        self.has_executed = False
        """Whether a request was executed since the last look for work, which began a round."""
        self._round_began_s = 0.0
        self._last_turn: dict[str, int] = {}
        """Session -> number of its last turn."""
        self._unanswered: dict[TargetId, int] = {}
        """The first request of a model that had no result when it was looked up."""

    def due(self) -> list[WorkUnit]:
        """Return sessions with requests to execute, and those that had some lately, in the order of their turns."""
        self.has_executed, self._round_began_s = False, self._tools.clock.monotonic_s()
        for held in self._held.values():
            held.run.tick()
        return in_turn(self._due(), self._last_turn)

    def _due(self) -> Iterator[WorkUnit]:
        sessions, is_spent = self._tools.sessions, cache(self._is_spent)
        for session_id, state in sessions.states(sessions.open_ids()):
            held = self._held.get(session_id)
            if self._tools.clock.monotonic_s() < self._deferred_until_s.get(session_id, 0.0):
                continue
            is_active = held is not None and self._tools.clock.monotonic_s() - held.active_s < IDLE_S
            has_request = self._has_request(session_id, state)
            if has_request and is_spent(state.created.project):
                continue
            if has_request or (is_active and not state.finished):
                yield WorkUnit(session_id, data_folder(session_id), state.created.project)
            elif state.finished and held is None:
                sessions.charge_killed(session_id)
                sessions.close(session_id)
                end_run(self._home, sessions, session_id)

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:  # noqa: ARG002
        """Accept a session: results are put once, so nothing else has to keep other workers away."""
        clock, sessions = self._tools.clock, self._tools.sessions
        sessions.charge_killed(unit.unit_id, before=lease.number)
        run = SessionRun(self._home, sessions, unit.unit_id, lease, world_size=self._num_devices, clock=clock)
        self._held[unit.unit_id] = held = _Held(clock.monotonic_s(), lease.number, clock.now_s(), run)
        lease.note = lambda: self._time_of(held).to_json()
        return True

    def step(self, unit: WorkUnit, lease: Lease) -> None:
        """Execute the next request of each model of a session, and some of its samples; nothing once the round is over.

        An error that is not one request's leaves the session waiting, and the others as they are.
        """
        held = self._held.get(unit.unit_id)
        if held is None or not lease.is_newest():  # None: the store failed when it was claimed
            raise FencedError(f"{unit.unit_id} was taken over by another worker.")
        if self._is_round_over():
            return
        self._last_turn[unit.unit_id] = max(self._last_turn.values(), default=0) + 1
        held.step_began_s = self._tools.clock.monotonic_s()
        try:
            self._execute(held, unit.unit_id)
        finally:
            held.step_began_s = None
        if held.device_s - held.charged_s >= CHARGE_S:
            self._charge(unit.unit_id, held)

    def _execute(self, held: _Held, session_id: str) -> None:
        state = self._tools.sessions.state(session_id)
        assert state is not None, "it was due"
        redone_s = held.redone_s
        try:
            has_executed = self._execute_models(held, session_id, state)
            has_executed |= self._tools.ranks.call_first(RankModels.sample, session_id)
        except (StoreError, NotInstalledError):
            raise
        except Exception as error:
            held.device_s, held.redone_s = held.device_s + self._step_s(held), redone_s + self._step_s(held)
            if isinstance(error, RanksLostError):
                self._restart_ranks(session_id, error)
                return
            logging.getLogger("assay.sessions").exception("%s waits", session_id)
            self._defer(session_id, str(error))
            held.models.clear()  # what was left half done is restored
            return
        self._losses.pop(session_id, None)
        if has_executed:
            held.active_s, self.has_executed = self._tools.clock.monotonic_s(), True
            held.device_s += self._step_s(held)

    def _step_s(self, held: _Held) -> float:
        """Return the device time of the current step so far."""
        began_s, now_s = held.step_began_s, self._tools.clock.monotonic_s()
        return 0.0 if began_s is None else (now_s - began_s) * self._num_devices

    def _time_of(self, held: _Held) -> SessionCharged:
        """Return the device time so far. A step that has not ended counts as redone: its worker may be killed."""
        now_s, step_s = self._tools.clock.now_s(), self._step_s(held)
        return SessionCharged(
            at_s=now_s,
            lease=held.lease,
            began_s=held.began_s,
            ended_s=now_s,
            device_s=(device_s := held.device_s + step_s),
            redone_s=min(device_s, held.redone_s + step_s),
        )

    def _charge(self, session_id: str, held: _Held) -> None:
        """Charge the project for the device time so far."""
        self._tools.sessions.charge(session_id, self._time_of(held))
        held.charged_s = held.device_s
        held.run.save()

    def let_go(self, unit_id: str) -> bool:
        """Store the models of a session and free them."""
        if (held := self._held.get(unit_id)) is None:
            return True
        try:
            for model in held.models.values():
                model.commit()
            self._tools.ranks.call(RankModels.free, unit_id)
        except RanksLostError as error:
            self._restart_ranks(unit_id, error)
        if held.device_s > held.charged_s:
            self._charge(unit_id, held)
        reason, is_interrupted = self._why_let_go(unit_id, held)
        held.run.close(reason, is_interrupted=is_interrupted)
        del self._held[unit_id]
        self._last_turn.pop(unit_id, None)
        return True

    def _why_let_go(self, session_id: str, held: _Held) -> tuple[str, bool]:
        """Return why a session is not executed here any more, and whether its client waits."""
        state = self._tools.sessions.state(session_id)
        assert state is not None, "it was held"
        if state.finished:
            return f"the client finished the session: {state.finished.status}", False
        if self._is_spent(state.created.project):
            return f"project '{state.created.project}' is over its limit; the models are stored", True
        if self._tools.clock.monotonic_s() - held.active_s >= IDLE_S:
            return f"no requests for {IDLE_S:.0f} s; the models are stored", False
        return "the worker left; the models are stored", True

    def _is_round_over(self) -> bool:
        return self.has_executed and self._tools.clock.monotonic_s() - self._round_began_s >= ROUND_S

    def _execute_models(self, held: _Held, session_id: str, state: SessionState) -> bool:
        """Execute the next request of each model, until the round is over; return whether there was one."""
        has_executed = False
        for number in [*(number for number in state.models if number not in held.models), *held.models]:
            if self._is_round_over():
                break
            began_s = self._tools.clock.monotonic_s()
            model = self._model(held, session_id, number, state)
            if model.execute_next():
                held.models[number] = held.models.pop(number)
                has_executed = self.has_executed = True
                if model.has_repeated:
                    held.redone_s += (self._tools.clock.monotonic_s() - began_s) * self._num_devices
        return has_executed

    def _restart_ranks(self, session_id: str, error: RanksLostError) -> None:
        """Start new ranks; the models of all sessions are restored when they are due. A session with which ranks end
        again and again waits, so that the others are executed."""
        self._tools.notify(f"{error} The models of all sessions are restored.")
        self._held[session_id].run.note("ranks_lost", str(error))
        for held in self._held.values():
            held.models.clear()
        self._tools.ranks.start()
        self._losses[session_id] += 1
        if self._losses[session_id] > MAX_LOSSES:
            self._defer(session_id, str(error))

    def _defer(self, session_id: str, why: str) -> None:
        self._tools.notify(text := f"{session_id} waits for {DEFERRED_S:.0f} s: {why}")
        self._held[session_id].run.note("waiting", text)
        self._deferred_until_s[session_id] = self._tools.clock.monotonic_s() + DEFERRED_S

    def _model(self, held: _Held, session_id: str, number: int, state: SessionState) -> ModelExecutor:
        if number not in held.models:
            target = TargetId(session_id, "train", number)
            held.models[number] = ModelExecutor(self._tools, target, state.models[number], held.run)
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


def in_turn(units: Iterable[WorkUnit], turns: Mapping[str, int]) -> list[WorkUnit]:
    """Order units so that projects take turns. `turns`: number of the last turn of each unit that had one."""
    of_projects = defaultdict[str, list[WorkUnit]](list)
    for unit in sorted(units, key=lambda unit: turns.get(unit.unit_id, 0)):
        of_projects[unit.project].append(unit)
    waiting_longest = sorted(of_projects.values(), key=lambda of_project: turns.get(of_project[-1].unit_id, 0))
    return [unit for row in zip_longest(*waiting_longest) for unit in row if unit is not None]
