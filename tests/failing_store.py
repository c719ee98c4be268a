"""A store that fails at chosen calls, and the patience of who asks it, in simulated time.

    error      nothing happens, and the server says that it is overloaded
    lost       it happens, but nobody hears
    hang       nothing happens, and nobody says so
    late       nobody hears; it happens after the next call
    twice      it happens twice
    truncated  what is read ends too early, and the connection with it
    slow       the answer takes a minute

What is no key is refused at once, as by every store: nothing is asked for that.

Errors and silence last for `OUTAGE_S` of simulated time, in which every call fails so; the others strike one
call.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import IO, Literal, TypeVar, get_args

from assay.base.errors import StoreAwayError
from assay.store.keys import ObjectInfo, require_key, require_prefix
from assay.store.objects import ObjectStore, RetryingStore
from assay.store.retry_policy import CallMaker, RetryPolicy
from clocks import ManualClock

Trouble = Literal["error", "lost", "hang", "late", "twice", "truncated", "slow"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
OUTAGE_S = 20.0
Response = TypeVar("Response")


class FailingStore:
    """Passes everything to `inner`, but call number n fails as `troubles[n]` says."""

    def __init__(
        self,
        inner: ObjectStore,
        troubles: Mapping[int, Trouble],
        clock: ManualClock,
        *,
        outage_s: float = OUTAGE_S,
    ) -> None:
        self.url = "s3://simulated"
        self.num_calls = 0
        self._inner = inner
        self._troubles = troubles
        self._clock = clock
        self._outage_s = outage_s
        self._outage: tuple[Trouble, float] | None = None
        self._late: list[Callable[[], object]] = []

    def go_away(self) -> None:
        """For good."""
        self._outage = "hang", inf

    def get(self, key: str) -> bytes:
        """See `ObjectStore`; so for all that follows."""
        require_key(self.url, key)
        return self._call(lambda: self._inner.get(key))

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        require_key(self.url, key)
        return self._call(lambda: self._inner.get_ranges(key, starts, ends))

    def put(self, key: str, data: bytes | memoryview) -> None:
        require_key(self.url, key)
        whole = bytes(data)
        self._call(lambda: self._inner.put(key, whole))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        require_key(self.url, key)
        whole = bytes(data)
        return self._call(lambda: self._inner.put_if_absent(key, whole))

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        require_prefix(self.url, prefix)
        return iter(self._call(lambda: [*self._inner.list(prefix, after, limit)]))

    def exists(self, key: str) -> bool:
        require_key(self.url, key)
        return self._call(lambda: self._inner.exists(key))

    def num_bytes(self, key: str) -> int:
        require_key(self.url, key)
        return self._call(lambda: self._inner.num_bytes(key))

    def delete(self, key: str) -> None:
        require_key(self.url, key)
        self._call(lambda: self._inner.delete(key))

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        self._call(lambda: self._inner.sweep_unfinished(is_dead, is_swept))

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        yield io.BytesIO(self.get(key))

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        buffer = io.BytesIO()
        yield buffer
        try:
            self.put(key, buffer.getvalue())
        except Silence:  # nobody asks again: the driver has a limit of its own
            self._clock.sleep_s(60.0)
            raise StoreAwayError(f"{self.url}/{key}: no answer.") from None

    def _call(self, call: Callable[[], Response]) -> Response:
        trouble = self._trouble_now()
        late, self._late = self._late, []
        try:
            return self._in_trouble(trouble, call)
        finally:
            for item in late:
                item()

    def _trouble_now(self) -> Trouble | None:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        trouble = self._troubles.get(number)
        if trouble not in ("error", "hang", None):
            return trouble
        if trouble is not None:
            self._outage = trouble, self._clock.at_s + self._outage_s
        if self._outage is None or self._clock.at_s > self._outage[1]:
            return None
        return self._outage[0]

    def _in_trouble(self, trouble: Trouble | None, call: Callable[[], Response]) -> Response:
        if trouble is None:
            return call()
        if trouble == "slow":
            self._clock.sleep_s(60.0)
            return call()
        if trouble == "twice":
            call()
            return call()
        if trouble == "hang":
            raise Silence
        if trouble == "late":
            self._late.append(call)
        elif trouble in ("lost", "truncated"):
            call()
        raise StoreAwayError(f"{self.url}: {trouble}.")


class Silence(BaseException):
    """There will be no answer."""


def patient(store: ObjectStore, clock: ManualClock, *, budget_s: float = 900.0) -> RetryingStore:
    """As `open_store` wraps a store, but in simulated time and one thread."""
    return RetryingStore(store, RetryPolicy(budget_s, clock=clock, notify=messages.append, make_call=_simulated(clock)))


messages: list[str] = []
"""What was told to people."""


def _simulated(clock: ManualClock) -> CallMaker:
    def make_call(call: Callable[[], Response], look: Callable[[], None]) -> Response:
        try:
            return call()
        except Silence:
            while True:
                clock.sleep_s(1.0)
                look()

    return make_call
