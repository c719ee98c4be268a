"""A request whose answer was lost is asked again: its repeat is answered with what the first one made.

The SDK repeats a POST up to twice and says which repeat it is, but sends no key. So a repeat is matched by
what it asks for, with what was made of the same within a quarter of an hour and is not claimed yet; each is
claimed once by a first repeat, and once by a second, since the answer to the first may have been lost as
well. A repeat that overtakes its first request waits until that is done.

    POST (0) --> made, answer lost          POST (1) --> claims it (1), answer lost          POST (2) -->
    claims it (2)

Without a key, a repeat cannot be told from another client's equal request: whoever must not share gives an
`Idempotency-Key`, which decides exactly: one thing for each key, for ever.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.serving.job_repository import Shelf
from assay.serving.refusal import RefusedError
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
    """Something that a request made."""

    @property
    def created(self) -> _Created: ...

    @property
    def claim(self) -> int: ...


StateT = TypeVar("StateT", bound=_State)
ClaimedT = TypeVar("ClaimedT", covariant=True)


class _Claims(Protocol[ClaimedT]):
    def __call__(self, *, at_s: float, retry_count: int) -> ClaimedT: ...


class AskedFor(NamedTuple):
    """A request to make something."""

    project: str
    sha256: str
    """Digest of what it asks for."""
    retry_count: int = 0
    """Which repeat it is; 0 for a first request."""
    key: str | None = None
    """Its `Idempotency-Key`."""


class Repeats(Generic[EntryT, StateT]):
    """Makes things of one kind, once for each request."""

    def __init__(self, shelf: Shelf[EntryT, StateT], claimed: _Claims[EntryT], clock: Clock) -> None:
        """`claimed`: the entry that says that a repeat was answered."""
        self._shelf = shelf
        self._claimed = claimed
        self._clock = clock
        self._under_way: Counter[tuple[str, int]] = Counter()
        self._changed = threading.Condition()

    def made(self, asked: AskedFor, an_id: str, make: Callable[[str], StateT]) -> StateT:
        """What this request, or the one that it repeats, made; `make` is given the id to make it under."""
        if asked.key is not None:
            return make(self._id_of_key(asked, asked.key, an_id))
        with self._as_under_way(asked):
            if asked.retry_count and (found := self._claim(asked)) is not None:
                return found
            return make(an_id)

    def _id_of_key(self, asked: AskedFor, key: str, an_id: str) -> str:
        """The id that the first request with this key was given."""
        where = f"keyed/{self._shelf.id_kind}/{sha256_of_json([asked.project, key])}"
        mine = {"id": an_id, "request_sha256": asked.sha256}
        if self._shelf.store.put_if_absent(where, json.dumps(mine).encode()):
            return an_id
        first = json.loads(self._shelf.store.get(where))
        if first["request_sha256"] != asked.sha256:
            raise RefusedError(
                "This Idempotency-Key was given with another request. Use a new key for a new request.",
                code="idempotency_key_reused",
            )
        return str(first["id"])

    @contextmanager
    def _as_under_way(self, asked: AskedFor) -> Iterator[None]:
        """While it is answered; a repeat begins when those before it are done."""
        mine = (asked.sha256, asked.retry_count)
        with self._changed:
            self._changed.wait_for(
                lambda: not any(self._under_way[asked.sha256, n] for n in range(asked.retry_count)), WAIT_S
            )
            self._under_way[mine] += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way[mine] -= 1
                self._under_way += Counter()  # forgets what is done
                self._changed.notify_all()

    def _claim(self, asked: AskedFor) -> StateT | None:
        """What an earlier request for the same made, if no such repeat was answered with it."""
        found = [(an_id, state) for an_id, state in self._recent(asked.project) if self._fits(asked, state)]
        # That which the repeat before claimed is likelier ours than what nobody claimed.
        found.sort(key=lambda each: each[1].claim, reverse=True)
        for an_id, _ in found:
            claimed = self._claimed(at_s=self._clock.now_s(), retry_count=asked.retry_count)
            was_put: list[bool] = []

            def decide(
                now: StateT | None, claimed: EntryT = claimed, put: list[bool] = was_put
            ) -> EntryT | None:
                put[:] = [now is not None and self._fits(asked, now)]
                return claimed if put[0] else None

            state = self._shelf.log(an_id).append(decide)
            if was_put == [True]:
                return state
        return None

    def _recent(self, project: str) -> Iterator[tuple[str, StateT]]:
        since_s = self._clock.now_s() - REMEMBERED_S
        for an_id, state in self._shelf.states(self._shelf.newest(project)):
            if state.created.at_s < since_s:
                return
            yield an_id, state

    def _fits(self, asked: AskedFor, state: StateT) -> bool:
        created = state.created
        is_same = (created.project, created.request_sha256) == (asked.project, asked.sha256)
        return is_same and state.claim < asked.retry_count
