"""Asks a store again while it does not answer, says what it waits for, and gives up after a budget.

    call --> an answer
         --> StoreAwayError, or silence: wait 0.25, 0.5, ... 15 s and ask again, until the budget is used up

Every try has a deadline, also where the call itself cannot be interrupted (a request in a driver, a network
file system that hangs): it is made in a thread, which is left behind then. So signals are heard meanwhile.

An answer may be lost although the write was made. Writes of whole objects can be repeated; of `put_if_absent`
the second try says False, and who must know looks at what is there, as the log of commits does.
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
"""What is left to a call when a process has been asked to stop."""
PAUSES_S = (0.25, 15.0)
NOTIFY_AFTER_S = 5.0
NOTIFY_EVERY_S = 60.0
_POLL_S = 0.1

ResultT = TypeVar("ResultT")


class CallMaker(Protocol):
    """Answers a call; meanwhile asks `look` now and then, which raises when there was no answer in time."""

    def __call__(self, call: Callable[[], ResultT], look: Callable[[], None]) -> ResultT:
        """The answer."""
        ...


class RetryPolicy:
    """How long a store may be away, and who hears of it."""

    def __init__(
        self,
        budget_s: float = RETRY_BUDGET_S,
        *,
        clock: Clock | None = None,
        notify: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        make_call: CallMaker | None = None,
    ) -> None:
        """`make_call`: by default, in a thread of its own."""
        self.budget_s = budget_s
        self._clock = clock or SystemClock()
        self.notify = notify
        self._make_call: CallMaker = make_call or _in_thread

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """By $ASSAY_STORE_RETRY_S, in seconds."""
        value = environment.get("ASSAY_STORE_RETRY_S", "")
        try:
            budget_s = float(value or RETRY_BUDGET_S)
            if budget_s >= 0:
                return cls(budget_s)
        except ValueError:
            pass
        raise ConfigError(f"ASSAY_STORE_RETRY_S={value!r}: give seconds, e.g. {RETRY_BUDGET_S:g}.")

    def hurry(self) -> None:
        """From now on, give up after `HURRIED_S`: this process was asked to stop."""
        self.budget_s = min(self.budget_s, HURRIED_S)

    def call_with_retries(self, what: str, call: Callable[[], ResultT]) -> ResultT:
        """The answer to a call; `what` names it. Raises `StoreAwayError` when the patience is at its end."""
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
    """One call that is made until it is answered."""

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
        """What to call while a try is under way: it raises when there was no answer in time."""
        until_s = self._clock.monotonic_s() + TRY_S

        def look() -> None:
            now_s = self._clock.monotonic_s()
            if now_s > min(until_s, self._began_s + max(self._retry_policy.budget_s, HURRIED_S)):
                raise StoreAwayError(f"{self._what}: no answer in time")
            self._notify_if_due(now_s)

        return look

    def pause(self, error: StoreAwayError) -> None:
        """Wait until the next try, longer each time; raises the error instead when that would be too long."""
        self._reason = str(error)
        until_s = self._clock.monotonic_s() + self._pause_s
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            if until_s > self._began_s + self._retry_policy.budget_s:
                raise StoreAwayError(
                    f"{error} It was asked for {duration_text(self._clock.monotonic_s() - self._began_s)} "
                    "(--store-retry-s). Everything committed is intact: the same command goes on from there."
                ) from error
            self._notify_if_due(self._clock.monotonic_s())
            self._clock.sleep_s(min(left_s, _POLL_S))
        self._pause_s = min(2 * self._pause_s, PAUSES_S[1])

    def report_recovery(self) -> None:
        """There is an answer."""
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
    """In the caller's own thread, which may stand still as long as the driver lets it: for a server, which has
    a thread for each request and hears signals in none. Another for a call may cost more than the call."""
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
    """A thread that makes calls and is idle between them: to start one costs more than to read a row group.

    One whose call hangs is idle when that has come back.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], None], Callable[[], None]]] = SimpleQueue()
        threading.Thread(target=self._work, name="store", daemon=True).start()

    def take(self, work: Callable[[], None], on_done: Callable[[], None]) -> None:
        """Do work that raises nothing, and say when it is done."""
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
