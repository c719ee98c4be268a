"""Where a worker does things of one kind beside training, chunk by chunk, under a lease.

    taken --> read (checked whole) --> chunk: put if absent --> noted in the log --> ... --> ended

A chunk that is there counts, whoever put it: what the log notes is made of what lies there. So each item has
one result, and one that is durable is not made again; whoever takes over goes on behind the last chunk, and who
was only slow adds nothing. What the things are, and what is done with one, a `DeskWork` says.

A chunk says for how long it held a device, and its entry charges the project with that, once. Of a project
whose limit is spent no further chunk is begun: what is at work waits, as a job that waits does.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, NotInstalledError, StoreError
from assay.serving.admin.spend import HeldTime, mark_charged
from assay.serving.chunks import Chunks, ChunkT
from assay.serving.job_repository import Shelf
from assay.store.logs.entry import EntryT
from assay.store.logs.fenced_log import FencedLog
from assay.workers.batch.models import LeavingError, ModelNotLoadedError


class _Created(Protocol):
    @property
    def project(self) -> str: ...


class ThingState(Protocol):
    """Something that is worked at, as its entries say."""

    @property
    def created(self) -> _Created: ...

    @property
    def lease(self) -> int: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def charges(self) -> Sequence[HeldTime]: ...

    @property
    def num_made(self) -> int:
        """Chunks that its log notes."""
        ...


ThingT = TypeVar("ThingT", bound=ThingState)


class DueThing(NamedTuple):
    """Something that is to be done."""

    thing_id: str
    project: str


class ThingProblem(NamedTuple):
    """Why nothing comes of something."""

    code: str
    message: str
    param: str | None = None


class CannotError(Exception):
    """It was found while a chunk was made that nothing comes of the whole."""

    def __init__(self, problem: ThingProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Hand(Generic[EntryT, ThingT]):
    """A thing under a worker's hand."""

    def __init__(self, thing: DueThing, shelf: Shelf[EntryT, ThingT], lease: int, clock: Clock) -> None:
        self.lease = lease
        self._thing = thing
        self._store = shelf.store
        self._log = FencedLog(shelf.log(thing.thing_id), lease, of=thing.thing_id)
        self._clock = clock

    def now_s(self) -> float:
        """Seconds since the Unix epoch, for an entry."""
        return self._clock.now_s()

    def take(self, taken: EntryT) -> bool:
        """Write down that the worker has it now; whether it has, or a later one."""
        return self._log.take(taken)

    def put(self, decide: Callable[[ThingT], EntryT | None]) -> ThingT:
        """Put an entry, unless the thing is over; `FencedError` where it is another's by now."""
        return self._log.append(lambda now: None if now.has_ended else decide(now))

    def put_chunk(
        self,
        chunks: Chunks[ChunkT],
        number: int,
        make: Callable[[], ChunkT],
        note: Callable[[ChunkT], EntryT],
    ) -> ThingT:
        """Have the next chunk there, made if it is not, and noted and charged once."""
        thing_id, project = self._thing
        chunk = chunks.find(thing_id, number)
        if chunk is None:
            chunk = chunks.put(thing_id, number, self._timed(make))
        mark_charged(self._store, project, thing_id, chunk)
        entry = note(chunk)
        return self.put(lambda now: entry if now.num_made == number else None)

    def _timed(self, make: Callable[[], ChunkT]) -> ChunkT:
        began_s, from_s = self._clock.now_s(), self._clock.monotonic_s()
        chunk = make()
        device_s = self._clock.monotonic_s() - from_s
        charge = {"began_s": began_s, "ended_s": began_s + device_s, "device_s": device_s}
        return chunk.model_copy(update=charge)


class DeskWork(Protocol[EntryT, ThingT]):
    """What is done with things of one kind."""

    @property
    def shelf(self) -> Shelf[EntryT, ThingT]:
        """Where they are."""
        ...

    @property
    def cannot(self) -> str:
        """The code of what fails for a reason that has none of its own."""
        ...

    def wanted(self, thing_id: str, state: ThingT) -> ThingT:
        """Its state, once it is over where nobody can ask for it any more."""
        ...

    def taken(self, hand: Hand[EntryT, ThingT], worker: str) -> EntryT:
        """The entry that a worker has it now."""
        ...

    def wants_chunk(self, state: ThingT) -> bool:
        """Whether the next step is to make a chunk."""
        ...

    def step(self, state: ThingT, hand: Hand[EntryT, ThingT]) -> None:
        """Bring it one chunk further."""
        ...

    def failed(self, hand: Hand[EntryT, ThingT], problem: ThingProblem) -> EntryT:
        """The entry that nothing comes of it."""
        ...

    def close(self, thing_id: str, state: ThingT) -> None:
        """What follows its end; done again where that was cut off."""
        ...

    def let_go(self, thing_id: str) -> None:
        """Close what is open for it."""
        ...


class Desk(Generic[EntryT, ThingT]):
    """Where the things of one kind are done."""

    def __init__(
        self,
        work: DeskWork[EntryT, ThingT],
        clock: Clock,
        *,
        is_spent: Callable[[str], bool] = lambda project: False,
        debit: Callable[[str, Sequence[HeldTime]], None] = lambda thing_id, charges: None,
    ) -> None:
        """`is_spent`: of a project, whether it may hold nothing more. `debit` is told of each thing that is
        over what it held, once or again."""
        self._work = work
        self._clock = clock
        self._is_spent = is_spent
        self._debit = debit

    @property
    def kind(self) -> str:
        """As ids begin."""
        return self._work.shelf.id_kind

    def due(self) -> Iterator[DueThing]:
        """What is to be done and may be, the oldest first; what is over is closed on the way."""
        shelf, is_spent = self._work.shelf, cache(self._is_spent)
        for thing_id, state in shelf.states(shelf.open_ids()):
            state = self._work.wanted(thing_id, state)
            if state.has_ended:
                self._close(thing_id, state)
            elif not (self._work.wants_chunk(state) and is_spent(state.created.project)):
                yield DueThing(thing_id, state.created.project)

    def take(self, thing: DueThing, lease: int, worker: str) -> bool:
        """Write down that a worker has it now; whether it has, or a later one."""
        hand = self._hand(thing, lease)
        return hand.take(self._work.taken(hand, worker))

    def step(self, thing: DueThing, lease: int) -> None:
        """Bring it one chunk further; `FencedError` where it is another's by now."""
        hand = self._hand(thing, lease)
        problem = self._stepped(thing.thing_id, hand)
        if problem is not None:
            failed = self._work.failed(hand, problem)
            hand.put(lambda _: failed)

    def let_go(self, thing_id: str) -> None:
        """Close what is open for it."""
        self._work.let_go(thing_id)

    def _close(self, thing_id: str, state: ThingT) -> None:
        self.let_go(thing_id)
        self._work.close(thing_id, state)
        self._debit(thing_id, state.charges)
        self._work.shelf.close(thing_id)

    def _stepped(self, thing_id: str, hand: Hand[EntryT, ThingT]) -> ThingProblem | None:
        """Why nothing comes of it; None where it is one step further."""
        state = self._work.shelf.state(thing_id)
        assert state is not None, "it was due"
        try:
            self._work.step(state, hand)
        except (FencedError, StoreError, LeavingError, NotInstalledError):
            raise
        except CannotError as error:
            return error.problem
        except ModelNotLoadedError as error:
            return ThingProblem(error.code, str(error), "body.model")
        except AssayError as error:
            return ThingProblem(self._work.cannot, str(error))
        except Exception as error:
            logging.getLogger("assay.workflows").error("%s", thing_id, exc_info=error)
            return ThingProblem("server_error", "Something went wrong here, which is our mistake.")
        return None

    def _hand(self, thing: DueThing, lease: int) -> Hand[EntryT, ThingT]:
        return Hand(thing, self._work.shelf, lease, self._clock)
