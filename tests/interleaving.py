"""Programs that take turns at a store, on machines whose clocks differ: deterministic, by a seed.

Every call of a store is a turn's end. Which program goes on, and how much time passes meanwhile, the seed says;
a program may be put to sleep between any two calls. So all that two machines can do to each other by means of a
store is tried, in one order at a time.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from assay.store.keys import ObjectInfo
from assay.store.objects import ObjectStore


class Stopped(BaseException):
    """The program's machine is gone, or the simulation is over."""


class Stage:
    """Where programs take turns. Time passes by `tick_s` at most with every turn; before one call in ten a
    program sleeps for up to `nap_s`."""

    def __init__(self, seed: int, *, tick_s: float, num_steps: int, nap_s: float) -> None:
        self.at_s = 0.0
        self.steps_left = num_steps
        self.rng = random.Random(seed)
        self.errors: list[BaseException] = []
        self.nap_s = nap_s
        self._tick_s = tick_s
        self._programs: list[_Program] = []
        self._done = threading.Semaphore(0)

    def add(self, body: Callable[["OffClock", ObjectStore], None], store: ObjectStore, clock: "OffClock") -> None:
        """A program with its machine's clock; it reaches the store through its turns."""
        self._programs.append(_Program(self, body, store, clock))

    def play(self) -> None:
        """Until all programs have ended, or the turns are used up."""
        for program in self._programs:
            program.thread.start()
            self._done.acquire()
        while self.steps_left > 0 and (awake := self._awake()):
            self.steps_left -= 1
            self.at_s += self.rng.random() * self._tick_s
            self.rng.choice(awake).run_a_turn(self._done)
        for program in self._programs:
            program.is_stopped = True
            while program.thread.is_alive():
                program.turn.release()
                program.thread.join(0.01)
        if self.errors:
            raise self.errors[0]

    def _awake(self) -> "list[_Program]":
        alive = [program for program in self._programs if program.thread.is_alive() and not program.is_over]
        awake = [item for item in alive if item.wakes_s <= self.at_s]
        if alive and not awake:
            self.at_s = min(item.wakes_s for item in alive)
            awake = [item for item in alive if item.wakes_s <= self.at_s]
        return awake


class OffClock:
    """A machine's clock: ahead, behind, set anew in between; its monotonic clock runs a little fast or slow."""

    def __init__(self, stage: Stage, *, ahead_s: float, rate: float = 1.0, jumps_s: float = 0.0) -> None:
        self.program: _Program | None = None
        self._stage, self._ahead_s, self._rate, self._jumps_s = stage, ahead_s, rate, jumps_s

    def now_s(self) -> float:
        jump_s = self._stage.rng.uniform(-self._jumps_s, self._jumps_s)
        return 1e9 + self._stage.at_s + self._ahead_s + jump_s

    def monotonic_s(self) -> float:
        return self._stage.at_s * self._rate

    def sleep_s(self, seconds: float) -> None:
        assert self.program is not None
        self.program.sleep(seconds / self._rate)


class _Program:
    def __init__(
        self, stage: Stage, body: Callable[[OffClock, ObjectStore], None], store: ObjectStore, clock: OffClock
    ) -> None:
        self.wakes_s, self.is_over, self.is_stopped = 0.0, False, False
        self.turn = threading.Semaphore(0)
        self._stage = stage
        clock.program = self
        self.thread = threading.Thread(target=self._run, args=(body, clock, TurnStore(store, self)), daemon=True)

    def run_a_turn(self, done: threading.Semaphore) -> None:
        self.turn.release()
        done.acquire()

    def sleep(self, seconds: float) -> None:
        self.wakes_s = self._stage.at_s + seconds
        self.end_turn()

    def end_turn(self) -> None:
        if self._stage.nap_s and self._stage.rng.random() < 0.1:
            self.wakes_s = max(self.wakes_s, self._stage.at_s + self._stage.rng.uniform(0, self._stage.nap_s))
        self._stage._done.release()
        self.turn.acquire()
        if self.is_stopped:
            raise Stopped

    def _run(self, body: Callable[[OffClock, ObjectStore], None], clock: OffClock, store: ObjectStore) -> None:
        try:
            self.end_turn()
            body(clock, store)
        except Stopped:
            pass
        except BaseException as error:
            self._stage.errors.append(error)
        self.is_over = True
        self._stage._done.release()


class TurnStore:
    """Passes everything to `inner`, each call in a turn of its own."""

    def __init__(self, inner: ObjectStore, program: _Program) -> None:
        self.url = inner.url
        self._inner, self._program = inner, program

    def get(self, key: str) -> bytes:
        """See `ObjectStore`; so for all that follows."""
        self._program.end_turn()
        return self._inner.get(key)

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        self._program.end_turn()
        return self._inner.get_ranges(key, starts, ends)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._program.end_turn()
        self._inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        self._program.end_turn()
        return self._inner.put_if_absent(key, data)

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        self._program.end_turn()
        return self._inner.list(prefix, after, limit)

    def exists(self, key: str) -> bool:
        self._program.end_turn()
        return self._inner.exists(key)

    def num_bytes(self, key: str) -> int:
        self._program.end_turn()
        return self._inner.num_bytes(key)

    def delete(self, key: str) -> None:
        self._program.end_turn()
        self._inner.delete(key)

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        self._program.end_turn()
        self._inner.sweep_unfinished(is_dead, is_swept)

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        self._program.end_turn()
        with self._inner.open_reader(key) as reader:
            yield reader

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        self._program.end_turn()
        with self._inner.open_writer(key) as writer:
            yield writer
