"""The rank processes of an attempt on one machine: start, watch, and find out why they ended.

Ranks are forked from a server that has already imported torch, so a restart takes a fraction of a second. The
outcome of a rank is its exit code, plus the report that it sends through its pipe.
"""

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from assay.elastic.failures import distance_from_cause, last_phase
from assay.elastic.rank import rank_main
from assay.elastic.task import AttemptEnd, Orders, RankReport, RankTask
from assay.records.failure import Failure, FailureKind
from assay.records.rank_device import RankDevice
from assay.records.run import Run
from assay.store.heartbeat import Beat, Heartbeats, heartbeat_path
from assay.triage.hang import (
    flight_path,
    has_main_stack,
    process_state,
    request_all_stacks,
    request_flight_dump,
    request_main_stack,
    send_signal,
    stacks_path,
)

_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT))
"""Signals that a process causes itself; others, such as SIGKILL, come from outside."""

FLIGHT_S = 2.0
"""Maximum seconds for ranks to write their flight recorder dumps."""
MAIN_STACK_S = 2.0
"""Maximum seconds for ranks to write the stacks of their main threads."""


class AttemptRanks(Protocol):
    """The ranks of one attempt, wherever they run."""

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the ranks on this machine."""
        ...

    def wait_for_news(self, timeout_s: float) -> None:
        """Return when a rank has ended or reported something, or after `timeout_s`."""
        ...

    def end(self) -> AttemptEnd | None:
        """Return how the attempt ended; None while it runs or the cause is not certain yet."""
        ...

    def beats(self) -> list[Beat]:
        """Return the last heartbeat of each rank, on this machine's monotonic clock."""
        ...

    def hosts(self) -> list[str]:
        """Return the host of each rank."""
        ...

    def devices(self) -> list[RankDevice]:
        """Return the device of each rank, as far as reported."""
        ...

    def take_stacks(self, rank: int) -> str:
        """Make all ranks write their stacks; return the kernel's process state of `rank`."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to every running rank."""
        ...

    def stop(self) -> None:
        """Kill the ranks that still run."""
        ...


class RankProcesses:
    """The processes of one attempt on this machine: all of its ranks, or a node's share."""

    def __init__(
        self,
        context: multiprocessing.context.ForkServerContext,
        run: Run,
        orders: Orders,
        ranks: range,
        rendezvous: str,
    ) -> None:
        """`rendezvous`: the URL where all ranks of the attempt meet, see `distributed.ranks`."""
        self._ranks = ranks
        self._attempt = orders.attempt
        self._run_dir = Path(run.run_dir)
        self._devices = [RankDevice()] * len(ranks)
        page = heartbeat_path(self._run_dir, self._attempt.attempt, ranks)
        self._heartbeats = Heartbeats.create(page, self._attempt.world_size)
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._reports: dict[int, RankReport] = {}
        for rank in ranks:
            parent_end, child_end = context.Pipe(duplex=False)
            task = RankTask(
                run=run,
                orders=orders,
                rank=rank,
                rendezvous=rendezvous,
                environment=dict(os.environ),
                heartbeats=str(page),
                supervisor_pid=os.getpid(),
            )
            process = context.Process(target=rank_main, args=(task, child_end), name=f"rank-{rank}", daemon=True)
            process.start()
            child_end.close()
            self._processes.append(process)
            self._pipes.append(parent_end)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    def beats(self) -> list[Beat]:
        return self._heartbeats.read()[self._ranks.start : self._ranks.stop]

    def hosts(self) -> list[str]:
        return [socket.gethostname()] * len(self._ranks)

    def devices(self) -> list[RankDevice]:
        return list(self._devices)

    def take_stacks(self, rank: int) -> str:
        """Make this machine's ranks write their stacks; return the process state of `rank` if it runs here."""
        state = process_state(self.pids[rank - self._ranks.start]) if rank in self._ranks else ""
        dumping = [rank for rank, pid in zip(self._ranks, self.pids, strict=True) if request_flight_dump(pid)]
        dumps = [flight_path(self._run_dir, self._attempt.attempt, number) for number in dumping]
        # Dump first: the stack signals wake a stopped rank, which would then enter the collective.
        _wait_for_all(dumps, Path.is_file, FLIGHT_S)
        for pid in self.pids:
            request_main_stack(pid)
        stacks = [stacks_path(self._run_dir, self._attempt.attempt, number) for number in self._ranks]
        # Main stacks first: reading the stacks of other threads can crash a rank.
        _wait_for_all(stacks, has_main_stack, MAIN_STACK_S)
        for pid in self.pids:
            request_all_stacks(pid)
        return state

    def wait_for_news(self, timeout_s: float) -> None:
        open_pipes = [pipe for pipe in self._pipes if not pipe.closed]
        running = [process.sentinel for process in self._processes if process.exitcode is None]
        wait([*running, *open_pipes], timeout_s)
        for rank, pipe in enumerate(self._pipes):
            while not pipe.closed and pipe.poll():
                try:
                    self._take_in(rank, pipe.recv())
                except EOFError:
                    pipe.close()

    def _take_in(self, index: int, message: RankDevice | RankReport) -> None:
        if isinstance(message, RankDevice):
            self._devices[index] = message
        else:
            self._reports[index] = message

    def end(self) -> AttemptEnd | None:
        codes = [process.exitcode for process in self._processes]
        dead = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        if dead:
            return self._failed(dead)
        if any(code is None for code in codes):
            return None
        self.wait_for_news(0)
        stopped = any(report.outcome == "stopped" for report in self._reports.values())
        if stopped:
            return AttemptEnd("preempted", len(codes), message="asked to stop; committed and stopped")
        return AttemptEnd("succeeded", len(codes), message="reached the last step")

    def _failed(self, dead: list[int]) -> AttemptEnd:
        self.wait_for_news(0)
        codes = {rank: self._processes[rank].exitcode or 0 for rank in dead}
        killed = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0}
        if killed:
            # A killed rank can make another rank's backend abort, so one killed from outside is the cause.
            rank = min(killed, key=lambda rank: killed[rank] in _CRASHES)
            name = killed[rank].name
            kind: FailureKind = "crashed" if killed[rank] in _CRASHES else "killed_by_signal"
            failure = self._failure(rank, kind, signature=name, text=name)
            return AttemptEnd("killed", len(self._processes) - len(killed), failure=failure)
        # When one rank fails, its peers lose their connections; the one with a specific error is the cause.
        reports = {rank: self._reports[rank] for rank in dead if rank in self._reports}
        cause = min(reports, key=lambda rank: distance_from_cause(reports[rank].failure), default=dead[0])
        num_alive = len(self._processes) - 1
        if cause not in reports:
            what = f"exit code {codes[cause]}"
            failure = self._failure(cause, "exited", signature=what, text=f"{what} without a report")
            return AttemptEnd("failed", num_alive, failure=failure)
        report = reports[cause]
        return AttemptEnd("failed", num_alive, failure=report.failure, error=report.error)

    def _failure(self, index: int, kind: FailureKind, *, signature: str, text: str) -> Failure:
        """Return the failure of a rank that sent no report; its last heartbeat gives phase and step."""
        phase, step = last_phase(self.beats()[index])
        return Failure(
            failure_kind=kind,
            run_id=self._attempt.run_id,
            attempt=self._attempt.attempt,
            host=socket.gethostname(),
            device=self._devices[index].name,
            rank=self._ranks[index],
            phase=phase,
            step=step,
            signature=signature,
            text=text,
        )

    def signal(self, number: int) -> None:
        for process in self._processes:
            if process.exitcode is None and process.pid is not None:
                send_signal(process.pid, number)

    def stop(self) -> None:
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._heartbeats.close()


def _wait_for_all(files: Sequence[Path], exists: Callable[[Path], bool], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not all(map(exists, files)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
