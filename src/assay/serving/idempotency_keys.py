"""Idempotent creation: a retried create request returns the resource that the first one created.

The SDK retries a POST up to twice and sends the retry count, but no key. A retry is therefore matched by the
digest
of its request with resources created in the last 15 minutes that no equal retry has claimed. Each resource is
claimed once by a first and once by a second retry, because the first retry's response may be lost as well. A
retry
that overtakes the original request waits for it.

    POST (0) --> created, response lost    POST (1) --> claims it (1), response lost    POST (2) --> claims it (2)

Without a key, a retry looks like an equal request of another client. An `Idempotency-Key` avoids this: one key
creates one resource, for ever.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.serving.api_error import ApiError
from assay.serving.log_repository import LogRepository
from assay.store.logs.entry import EntryT

REMEMBERED_S = 900.0
WAIT_S = 60.0


class _Created(Protocol):
    @property
    def project(self) -> str: ...

    @property
    def at_s(self) -> float: ...

    @property
    def request_sha256(self) -> str: ...


class _State(Protocol):
    """A created resource."""

    @property
    def created(self) -> _Created: ...

    @property
    def claim(self) -> int: ...


StateT = TypeVar("StateT", bound=_State)
ClaimedT = TypeVar("ClaimedT", covariant=True)


class _Claims(Protocol[ClaimedT]):
    def __call__(self, *, at_s: float, retry_count: int) -> ClaimedT: ...


class IdempotentRequest(NamedTuple):
    """A create request."""

    project: str
    sha256: str
    """Digest of its contents."""
    retry_count: int = 0
    """0 for the original request."""
    key: str | None = None
    """Its `Idempotency-Key` header."""


class IdempotencyKeys(Generic[EntryT, StateT]):
    """Creates resources of one kind, once per request."""

    def __init__(self, logs: LogRepository[EntryT, StateT], claimed: _Claims[EntryT], clock: Clock) -> None:
        """`claimed`: class of the log entry that records a claim."""
        self._logs = logs
        self._claimed = claimed
        self._clock = clock
        self._under_way: Counter[tuple[str, int]] = Counter()
        self._changed = threading.Condition()

    def create_once(self, request: IdempotentRequest, resource_id: str, make: Callable[[str], StateT]) -> StateT:
        """Return the resource that this request, or the one it retries, created. `make` creates it with the id
        that it gets."""
        if request.key is not None:
            return make(self._id_of_key(request, request.key, resource_id))
        with self._as_under_way(request):
            if request.retry_count and (found := self._claim(request)) is not None:
                return found
            return make(resource_id)

    def _id_of_key(self, request: IdempotentRequest, key: str, resource_id: str) -> str:
        """Return the id of the first request with this key."""
        where = f"keyed/{self._logs.id_kind}/{sha256_of_json([request.project, key])}"
        entry = {"id": resource_id, "request_sha256": request.sha256}
        if self._logs.store.put_if_absent(where, json.dumps(entry).encode()):
            return resource_id
        first = json.loads(self._logs.store.get(where))
        if first["request_sha256"] != request.sha256:
            raise ApiError(
                "This Idempotency-Key was used with a different request. Use a new key for each request.",
                code="idempotency_key_reused",
            )
        return str(first["id"])

    @contextmanager
    def _as_under_way(self, request: IdempotentRequest) -> Iterator[None]:
        """Mark the request as running; a retry first waits for earlier attempts to finish."""
        entry = (request.sha256, request.retry_count)
        with self._changed:
            self._changed.wait_for(
                lambda: not any(self._under_way[request.sha256, n] for n in range(request.retry_count)), WAIT_S
            )
            self._under_way[entry] += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way[entry] -= 1
                self._under_way += Counter()  # drops zero counts
                self._changed.notify_all()

    def _claim(self, request: IdempotentRequest) -> StateT | None:
        """Claim a recent resource of an equal request, if there is one."""
        found = [
            (resource_id, state) for resource_id, state in self._recent(request.project) if self._fits(request, state)
        ]
        # A resource claimed by the previous retry is more likely ours than an unclaimed one.
        found.sort(key=lambda candidate: candidate[1].claim, reverse=True)
        for resource_id, _ in found:
            claimed = self._claimed(at_s=self._clock.now_s(), retry_count=request.retry_count)
            was_put: list[bool] = []

            def decide(now: StateT | None, claimed: EntryT = claimed, put: list[bool] = was_put) -> EntryT | None:
                put[:] = [now is not None and self._fits(request, now)]
                return claimed if put[0] else None

            state = self._logs.log(resource_id).append(decide)
            if was_put == [True]:
                return state
        return None

    def _recent(self, project: str) -> Iterator[tuple[str, StateT]]:
        since_s = self._clock.now_s() - REMEMBERED_S
        for resource_id, state in self._logs.states(self._logs.newest(project)):
            if state.created.at_s < since_s:
                return
            yield resource_id, state

    def _fits(self, request: IdempotentRequest, state: StateT) -> bool:
        created = state.created
        is_same = (created.project, created.request_sha256) == (request.project, request.sha256)
        return is_same and state.claim < request.retry_count
