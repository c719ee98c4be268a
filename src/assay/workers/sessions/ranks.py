"""The rank processes of a worker, which hold the models of all of its sessions.

    worker: leases, requests, results   --each call-->   rank 0, rank 1, ...   (collectives among them)
                                        <--result of rank 0--

What a rank holds is a function of stored states and requests. If a rank ends, the worker ends the others, starts new
ones, and restores the models.
"""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from assay.base.clock import SystemClock
from assay.base.errors import AssayError, TrainingError
from assay.base.json_log import use_log_format
from assay.elastic.rank import die_with_supervisor
from assay.serving.sessions.sessions import SessionRepository
from assay.store.objects import open_store
from assay.workers.sessions.forks import rank_context
from assay.workers.sessions.rank_models import RankModels, Returned

EXIT_S = 1.0
"""How long a rank that has closed its pipe may take to exit."""
MAX_STARTS = 3
"""The worker ends if so many starts in a row ended before all ranks had joined each other."""


class RanksLostError(AssayError):
    """A rank has ended, and with it the models in memory."""


class SessionRanks:
    """The ranks of one worker."""

    def __init__(self, store_url: str, world_size: int) -> None:
        self._context = rank_context()
        self._store_url = store_url
        self._world_size = world_size
        self._folder = TemporaryDirectory(prefix="assay-sessions-")
        self._num_starts = 0
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def start(self) -> None:
        """Start ranks in place of earlier ones. Raises `TrainingError` if they cannot join each other."""
        lost: RanksLostError | None = None
        for _ in range(MAX_STARTS):
            try:
                self._start()
            except RanksLostError as error:
                lost = error
            else:
                return
        self._folder.cleanup()
        raise TrainingError(f"sessions cannot be executed here: {lost}") from lost

    def _start(self) -> None:
        self.stop()
        self._num_starts += 1
        rendezvous = f"file://{Path(self._folder.name)}/{self._num_starts}"
        for rank in range(self._world_size):
            parent_end, child_end = self._context.Pipe()
            of_rank = (rank, self._world_size, rendezvous, self._store_url, child_end)
            process = self._context.Process(target=_run_rank, args=of_rank, name=f"rank {rank}", daemon=True)
            process.start()
            child_end.close()
            self._processes.append(process)
            self._pipes.append(parent_end)
        self._receive(self._pipes)

    def stop(self) -> None:
        """Kill the ranks: what they hold can be restored."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def call(self, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        """Raises `RanksLostError` if a rank ends: then all have ended, and `start` is due."""
        returned: Returned = self._call(self._pipes, method, args, kwargs)
        return returned

    def call_first(self, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        returned: Returned = self._call(self._pipes[:1], method, args, kwargs)
        return returned

    def _call(self, pipes: Sequence[Connection], *call: Any) -> Any:
        if not pipes:
            raise RanksLostError("The ranks have ended.")
        try:
            for pipe in pipes:
                pipe.send(call)
        except OSError as error:
            raise self._lost() from error
        replies = self._receive(pipes)
        if errors := [reply for reply in replies if isinstance(reply, Exception)]:
            raise errors[0]
        return replies[0]

    def _receive(self, pipes: Sequence[Connection]) -> list[Any]:
        """Return the next message of each of these ranks, while all ranks live."""
        replies, sentinels = [], [process.sentinel for process in self._processes]
        for pipe in pipes:
            if pipe not in wait([pipe, *sentinels]):
                raise self._lost()
            try:
                replies.append(pipe.recv())
            except (OSError, EOFError) as error:
                raise self._lost() from error
        return replies

    def _lost(self) -> RanksLostError:
        """End all ranks; return the error that says which of them had ended before."""
        # The pipe of a killed process closes before it has an exit code.
        wait([process.sentinel for process in self._processes], EXIT_S)
        codes = {process.name: process.exitcode for process in self._processes if process.exitcode is not None}
        self.stop()
        ended = [
            f"{name} was ended by {signal.Signals(-code).name}" if code < 0 else f"{name} ended with exit code {code}"
            for name, code in codes.items()
        ]
        return RanksLostError(f"{' and '.join(ended) or 'a rank ended'}.")


def _run_rank(rank: int, world_size: int, rendezvous: str, store_url: str, pipe: Connection) -> None:
    """Make the calls of the worker, and end with it."""
    use_log_format("assay.rank", rank=rank)
    die_with_supervisor(pipe)
    from assay.distributed.ranks import Ranks

    ranks = Ranks.join(rank=rank, world_size=world_size, rendezvous=rendezvous, num_threads=1)
    models = RankModels(SessionRepository(open_store(store_url), SystemClock()), ranks)
    pipe.send(None)
    while True:
        method, args, kwargs = pipe.recv()
        reply: Any = None
        try:
            reply = method(models, *args, **kwargs)
        except AssayError as error:  # raised by all ranks alike, before any collective
            reply = error
        except Exception as error:
            logging.getLogger("assay.sessions").exception("error in rank %d", rank)
            if world_size > 1:  # others may wait for this rank in a collective
                os._exit(1)
            reply = RuntimeError(f"{type(error).__name__}: {error}")
        pipe.send(reply if rank == 0 or isinstance(reply, Exception) else None)
