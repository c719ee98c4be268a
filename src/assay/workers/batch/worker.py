"""Takes what is to be answered and graded under leases, and brings it on chunk by chunk.

A worker has one thing at a time. When others wait, it goes on to the next after a slice of time: projects
take turns, and of one project the oldest goes first. So a long run keeps no other project's waiting, and
several workers share what there is.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from assay.base.clock import Clock
from assay.base.errors import FencedError, NotInstalledError, StoreError
from assay.store.leases import Lease, LeaseWatch, holding
from assay.store.objects import ObjectStore
from assay.workers.batch.chunk_processor import Desk, DueThing
from assay.workers.batch.models import LeavingError
from assay.workers.fine_tuning.left_work import LeftWork

TERM_S = 20.0
SLICE_S = 20.0
"""How long a thing is worked at while others wait."""


class AnsweringWorker:
    """One process that answers and grades."""

    def __init__(
        self,
        store: ObjectStore,
        desks: Sequence[Desk[Any, Any]],
        *,
        name: str,
        clock: Clock,
        term_s: float = TERM_S,
        slice_s: float = SLICE_S,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`name`: for people. `term_s`: how long it may be silent before another takes its thing over."""
        self._desks = desks
        self._name = name
        self._say = say
        self._clock = clock
        self._term_s = term_s
        self._slice_s = slice_s
        self._watch = LeaseWatch(store, clock)
        self._held: _HeldThing | None = None
        self._left_to_others = LeftWork(clock, say)
        self._turns: dict[str, float] = {}
        """Project -> when it had its last turn here."""

    def run(self, is_over: threading.Event, every_s: float) -> None:
        """Until told to stop."""
        while not is_over.is_set():
            try:
                if not self.look():
                    is_over.wait(every_s)
            except LeavingError:
                break
            except StoreError as error:
                self._say(f"evals and batches: {error} It is asked again.")
                is_over.wait(every_s)
        with suppress(StoreError):  # else the lease runs out
            self.leave()

    def has_something_due(self) -> bool:
        """Whether something is to be done, by whomever."""
        return any(True for desk in self._desks for _ in desk.due())

    def look(self) -> bool:
        """Bring one thing one step further; whether there was one."""
        due = [
            (desk, thing)
            for desk in self._desks
            for thing in desk.due()
            if thing.thing_id not in self._left_to_others
        ]
        if self._held is not None and not self._goes_on(self._held, due):
            self._let_go()
        if self._held is None:
            self._take_next(due)
        if (held := self._held) is None:
            return False
        try:
            held.desk.step(held.thing, held.lease.number)
        except FencedError:
            self._let_go()
        except NotInstalledError as error:
            self._let_go()
            self._left_to_others.leave(held.thing.thing_id, error)
        return True

    def leave(self) -> None:
        """Give the lease back."""
        self._let_go()

    def _goes_on(self, held: "_HeldThing", due: Sequence[tuple[Desk[Any, Any], DueThing]]) -> bool:
        things = {thing for _, thing in due}
        if held.thing not in things:
            return False
        return len(things) == 1 or self._clock.monotonic_s() - held.since_s < self._slice_s

    def _take_next(self, due: Sequence[tuple[Desk[Any, Any], DueThing]]) -> None:
        def turn(each: tuple[Desk[Any, Any], DueThing]) -> tuple[float, str]:
            _, thing = each
            return self._turns.get(thing.project, 0.0), thing.thing_id.rpartition("-")[2]

        for desk, thing in sorted(due, key=turn):
            lease = self._watch.take(f"{desk.kind}/{thing.thing_id}", worker=self._name, term_s=self._term_s)
            if lease is None:
                continue
            now_s = self._clock.monotonic_s()
            self._held = _HeldThing(desk, thing, lease, now_s)
            if desk.take(thing, lease.number, self._name):
                self._turns[thing.project] = now_s
                return
            self._let_go()  # a later one is at work: this lease was lost already

    def _let_go(self) -> None:
        if (held := self._held) is None:
            return
        self._held = None
        held.desk.let_go(held.thing.thing_id)
        held.release()


class _HeldThing:
    """A thing under a lease of this worker; its beats go on in the background."""

    def __init__(self, desk: Desk[Any, Any], thing: DueThing, lease: Lease, since_s: float) -> None:
        self.desk = desk
        self.thing = thing
        self.lease = lease
        self.since_s = since_s
        self._beating = ExitStack()
        self._beating.enter_context(holding(lease))

    def release(self) -> None:
        """Stop beating; anybody may take it."""
        self._beating.close()
