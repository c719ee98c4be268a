"""Retries calls to an unavailable store, reports what it waits for, and gives up after a time budget.

    call --> a result
         --> StoreAwayError, or no response: wait 0.25, 0.5, ... 15 s and retry, until the budget is used up

Each try runs in a thread with a deadline, because calls in a driver or on a hanging network file system cannot be
interrupted. On timeout the thread is abandoned. The caller's thread stays free to receive signals.

A response may be lost although the write succeeded. Writes of whole objects can be repeated. A repeated
`put_if_absent` returns False, so callers that must know compare the stored bytes, as the commit log does.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Protocol, Self, TypeVar

from assay.base.clock import Clock, SystemClock
from assay.base.errors import ConfigError, StoreAwayError
from assay.base.units import duration_text

RETRY_BUDGET_S = 900.0
TRY_S = 300.0
"""Deadline of one try; a driver's own limits are below it."""
HURRIED_S = 5.0
"""Budget of a call after the process was asked to stop."""
PAUSES_S = (0.25, 15.0)
NOTIFY_AFTER_S = 5.0
NOTIFY_EVERY_S = 60.0
_POLL_S = 0.1

ResultT = TypeVar("ResultT")


class CallMaker(Protocol):
    """Makes a call; meanwhile calls `look` regularly, which raises at the deadline."""

    def __call__(self, call: Callable[[], ResultT], look: Callable[[], None]) -> ResultT:
        """Return the call's result."""
        ...


class RetryPolicy:
    """Retries calls to a store within a time budget and reports waiting."""

    def __init__(
        self,
        budget_s: float = RETRY_BUDGET_S,
        *,
        clock: Clock | None = None,
        notify: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        make_call: CallMaker | None = None,
    ) -> None:
        """`make_call`: runs one try; by default in a separate thread."""
        self.budget_s = budget_s
        self._clock = clock or SystemClock()
        self.notify = notify
        self._make_call: CallMaker = make_call or _in_thread

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the policy with the budget of $ASSAY_STORE_RETRY_S, in seconds."""
        value = environment.get("ASSAY_STORE_RETRY_S", "")
        try:
            budget_s = float(value or RETRY_BUDGET_S)
            if budget_s >= 0:
                return cls(budget_s)
        except ValueError:
            pass
        raise ConfigError(f"ASSAY_STORE_RETRY_S={value!r}: give seconds, e.g. {RETRY_BUDGET_S:g}.")

    def hurry(self) -> None:
        """Limit the budget to `HURRIED_S`, because this process was asked to stop."""
        self.budget_s = min(self.budget_s, HURRIED_S)

    def call_with_retries(self, what: str, call: Callable[[], ResultT]) -> ResultT:
        """Return the result of `call`, named `what` in messages. Raises `StoreAwayError` when the budget is used up."""
        wait = _Wait(self, what, self._clock, self.notify)
        while True:
            try:
                result = self._make_call(call, wait.begin_try())
            except StoreAwayError as error:
                wait.pause(error)
            else:
                wait.report_recovery()
                return result


class _Wait:
    """The retries of one call."""

    def __init__(self, retry_policy: RetryPolicy, what: str, clock: Clock, notify: Callable[[str], None]) -> None:
        self._retry_policy = retry_policy
        self._what = what
        self._clock = clock
        self._notify = notify
        self._began_s = clock.monotonic_s()
        self._notify_at_s = self._began_s + NOTIFY_AFTER_S
        self._has_notified = False
        self._pause_s = PAUSES_S[0]
        self._reason = "no answer yet"

    def begin_try(self) -> Callable[[], None]:
        """Start a try; return the function that checks its deadline."""
        until_s = self._clock.monotonic_s() + TRY_S

        def look() -> None:
            now_s = self._clock.monotonic_s()
            if now_s > min(until_s, self._began_s + max(self._retry_policy.budget_s, HURRIED_S)):
                raise StoreAwayError(f"{self._what}: no answer in time")
            self._notify_if_due(now_s)

        return look

    def pause(self, error: StoreAwayError) -> None:
        """Back off before the next try; raise the error if that exceeds the budget."""
        self._reason = str(error)
        until_s = self._clock.monotonic_s() + self._pause_s
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            if until_s > self._began_s + self._retry_policy.budget_s:
                raise StoreAwayError(
                    f"{error} It was retried for {duration_text(self._clock.monotonic_s() - self._began_s)} "
                    "(--store-retry). Everything committed is intact: run the same command again to continue."
                ) from error
            self._notify_if_due(self._clock.monotonic_s())
            self._clock.sleep_s(min(left_s, _POLL_S))
        self._pause_s = min(2 * self._pause_s, PAUSES_S[1])

    def report_recovery(self) -> None:
        """Report that the store responds again."""
        if self._has_notified:
            waited = duration_text(self._clock.monotonic_s() - self._began_s)
            self._notify(f"{self._what}: answered after {waited}.")

    def _notify_if_due(self, now_s: float) -> None:
        if now_s < self._notify_at_s:
            return
        self._has_notified, self._notify_at_s = True, now_s + NOTIFY_EVERY_S
        waited, most = duration_text(now_s - self._began_s), duration_text(self._retry_policy.budget_s)
        self._notify(f"waiting for {self._what}, {waited} of at most {most}: {self._reason}")


def at_once(call: Callable[[], ResultT], look: Callable[[], None]) -> ResultT:  # noqa: ARG001
    """Make the call in the caller's thread, which may block up to the driver's limits. For servers, whose request
    threads receive no signals; a further thread may cost more than the call."""
    return call()


def _in_thread(call: Callable[[], ResultT], look: Callable[[], None]) -> ResultT:
    results: list[ResultT] = []
    errors: list[BaseException] = []
    is_done = threading.Event()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # handed to who asked
            errors.append(error)

    _idle_caller().take(work, is_done.set)
    while not is_done.wait(_POLL_S):
        look()
    if errors:
        raise errors[0]
    return results[0]


class _Caller:
    """A reusable thread for calls: starting one costs more than reading a row group.

    A thread with a hanging call becomes idle when the call returns.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], None], Callable[[], None]]] = SimpleQueue()
        threading.Thread(target=self._work, name="store", daemon=True).start()

    def take(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        """Run `work`, which must not raise, then `on_done`."""
        self._calls.put((work, on_done))

    def _work(self) -> None:
        while True:
            work, on_done = self._calls.get()
            work()
            _IDLE.append(self)
            on_done()
            del work, on_done  # and what was read with them


_IDLE: list[_Caller] = []
os.register_at_fork(after_in_child=_IDLE.clear)  # where their threads are not


def _idle_caller() -> _Caller:
    try:
        return _IDLE.pop()
    except IndexError:
        return _Caller()
