"""Idempotent creation: a retried create request returns the resource that the first one created.

The SDK retries a POST up to twice and sends the retry count, but no key. A retry is therefore matched by the digest
of its request with resources created in the last 15 minutes that no equal retry has claimed. Each resource is
claimed once by a first and once by a second retry, because the first retry's response may be lost as well. A retry
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
from typing import Any, NamedTuple, cast

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.records.log_entry import Claimed
from assay.serving.api_error import ApiError
from assay.serving.repository import ResourceRepository, StateT
from assay.store.logs.entry import EntryT
from assay.store.objects import ObjectStore

REMEMBERED_S = 900.0
WAIT_S = 60.0


class Retry(NamedTuple):
    """What a create request says about earlier attempts."""

    number: int = 0
    """0 for the original request."""
    key: str | None = None
    """Its `Idempotency-Key` header."""


class IdempotentRepository(ResourceRepository[EntryT, StateT]):
    """Resources that are created once per request."""

    claimed: type[Claimed]
    """Class of the log entry that records a claim."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._under_way: Counter[tuple[str, int]] = Counter()
        self._changed = threading.Condition()

    def create_once(self, created: EntryT, retry: Retry, put: Callable[[EntryT], StateT] | None = None) -> StateT:
        """Return the resource that this request, or the one it retries, created.

        `created`: the first log entry, with project, request digest and a new id. `put` replaces `self.put`; it gets
        the entry with the id of the first request.
        """
        put, request = put or self.put, cast(Any, created)
        if retry.key is not None:
            resource_id = self._id_of_key(request, retry.key)
            return put(request.model_copy(update={self.id_field: resource_id}))
        with self._as_under_way(request.request_sha256, retry.number):
            if retry.number and (found := self._claim(request, retry.number)) is not None:
                return found
            return put(created)

    def _id_of_key(self, request: Any, key: str) -> str:
        """Return the id of the first request with this key."""
        where = f"keyed/{self.id_kind}/{sha256_of_json([request.project, key])}"
        resource_id: str = getattr(request, self.id_field)
        entry = {"id": resource_id, "request_sha256": request.request_sha256}
        if self.store.put_if_absent(where, json.dumps(entry).encode()):
            return resource_id
        first = json.loads(self.store.get(where))
        if first["request_sha256"] != request.request_sha256:
            raise ApiError(
                "This Idempotency-Key was used with a different request. Use a new key for each request.",
                code="idempotency_key_reused",
            )
        return str(first["id"])

    @contextmanager
    def _as_under_way(self, sha256: str, retry_count: int) -> Iterator[None]:
        """Mark the request as running; a retry first waits for earlier attempts to finish."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._under_way[sha256, n] for n in range(retry_count)), WAIT_S)
            self._under_way[sha256, retry_count] += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way[sha256, retry_count] -= 1
                self._under_way += Counter()  # drops zero counts
                self._changed.notify_all()

    def _claim(self, request: Any, retry_count: int) -> StateT | None:
        """Claim a recent resource of an equal request, if there is one."""

        def fits(state: StateT) -> bool:
            created = state.created
            is_same = (created.project, created.request_sha256) == (request.project, request.request_sha256)
            return is_same and state.claim < retry_count

        found = [(resource_id, state) for resource_id, state in self._recent(request.project) if fits(state)]
        # A resource claimed by the previous retry is more likely ours than an unclaimed one.
        found.sort(key=lambda candidate: candidate[1].claim, reverse=True)
        for resource_id, _ in found:
            claimed = cast(EntryT, self.claimed(at_s=self._clock.now_s(), retry_count=retry_count))
            was_put: list[bool] = []

            def decide(now: StateT, claimed: EntryT = claimed, put: list[bool] = was_put) -> EntryT | None:
                put[:] = [fits(now)]
                return claimed if put[0] else None

            state = self.change(resource_id, decide)
            if was_put == [True]:
                return state
        return None

    def _recent(self, project: str) -> Iterator[tuple[str, StateT]]:
        since_s = self._clock.now_s() - REMEMBERED_S
        for resource_id, state in self.states(self.newest(project)):
            if state.created.at_s < since_s:
                return
            yield resource_id, state
