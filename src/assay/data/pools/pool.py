"""The interface of a pool: it runs jobs that do not depend on each other and returns their results in order.

A job is a function of a module and arguments that can be pickled, e.g. one span of rows, which becomes one shard.
A job that is run twice, because the first worker died, writes the same bytes under the same names.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, Self, TypeVar

Result = TypeVar("Result")
Job = tuple[Any, ...]
"""The arguments of one call."""
Work = Callable[..., Any]
Progress = Callable[[int, int], None]
"""Called with (jobs done, jobs in all)."""
JOBS_AHEAD = 4
"""Jobs per worker that are submitted before the first result is used. Bounds the results in memory."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


class Pool(Protocol):
    """Runs jobs, several at a time. Leaving its context cancels the jobs that have not begun."""

    def map(self, work: Callable[..., Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield the results in the order of the jobs. The first error ends the iteration."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None


class ThreadPool(Pool):
    """Runs jobs in threads. With `call`, each thread waits for a job that runs elsewhere."""

    def __init__(self, threads: int, call: Callable[[Work, Job], Any] = lambda work, job: work(*job)) -> None:
        self.threads = threads
        self._call = call
        self._executor = ThreadPoolExecutor(threads)

    def map(self, work: Callable[..., Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """See `Pool`."""
        return in_order(lambda job: self._executor.submit(self._call, work, job), jobs, JOBS_AHEAD * self.threads)

    def __exit__(self, *exc_info: object) -> None:
        self._executor.shutdown(cancel_futures=True)


class ThisThread(Pool):
    """Runs one job after the other in the calling thread."""

    def map(self, work: Callable[..., Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """See `Pool`."""
        return (work(*job) for job in jobs)


def in_order(submit: Callable[[Job], Future[Result]], jobs: Sequence[Job], ahead: int) -> Iterator[Result]:
    """Yield the results in the order of the jobs; at most `ahead` jobs are submitted whose results are not used."""
    waiting: deque[Future[Result]] = deque()
    for job in jobs:
        waiting.append(submit(job))
        if len(waiting) == ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def run_jobs(
    pool: Pool, work: Callable[..., Result], jobs: Sequence[Job], progress: Progress = no_progress
) -> Iterator[Result]:
    """Yield the results of jobs in order and report progress."""
    progress(0, len(jobs))
    for done, result in enumerate(pool.map(work, jobs), start=1):
        yield result
        progress(done, len(jobs))
