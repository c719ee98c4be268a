"""A pool of local processes. If one is killed, its jobs run again, one at a time."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait

from assay.base.errors import AssayError
from assay.data.pools.pool import JOBS_AHEAD, Job, Pool, Result, in_order

MAX_PROCESSES = 3
"""Attempts at one job whose process is killed."""


class ProcessPool(Pool):
    """Runs jobs in processes of this machine."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._executor = _executor(processes)

    def map(self, work: Callable[..., Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """See `Pool`."""
        num_done = 0
        try:
            results = in_order(lambda job: self._executor.submit(work, *job), jobs, JOBS_AHEAD * self._processes)
            for result in results:
                num_done += 1
                yield result
        except BrokenProcessPool:
            logging.getLogger("assay.data").warning(
                "a process of the build was killed; what it had not done is done again, one part at a time"
            )
            yield from one_by_one(work, jobs[num_done:])

    def __exit__(self, *exc_info: object) -> None:
        self._executor.shutdown(cancel_futures=True)


def one_by_one(work: Callable[..., Result], jobs: Sequence[Job]) -> Iterator[Result]:
    """Run jobs in one worker process, restarted when it is killed."""
    num_done = num_killed = 0
    while num_done < len(jobs):
        try:
            with _executor(1) as pool:
                for job in jobs[num_done:]:
                    yield pool.submit(work, *job).result()
                    num_done, num_killed = num_done + 1, 0
        except BrokenProcessPool as error:
            num_killed += 1
            if num_killed == MAX_PROCESSES:
                raise AssayError(
                    f"{MAX_PROCESSES} processes were killed at the same part of the build, as the kernel does "
                    "when memory runs out. Give it more memory; the same command goes on with what is not done."
                ) from error


def _executor(processes: int) -> ProcessPoolExecutor:
    # Forking a process with threads is unsafe, and a process has only one fork server, which the ranks need with
    # their own preloaded imports. So spawn.
    return ProcessPoolExecutor(processes, get_context("spawn"), _begin_worker)


def _begin_worker() -> None:
    """Disable the tokenizer's threads (one per core), and exit together with the parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent dies; otherwise a worker would wait for jobs forever."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
