"""The processes of an attempt: started, listened to, and judged when they end.

Ranks are forked from a server that has already imported torch, so a restart takes a fraction of a second. A
rank's death is an exit code; what it had to say comes through its pipe.
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
from assay.elastic.task import AttemptEnd, Orders, RankBegan, RankReport, RankTask
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
"""Signals that a process brings upon itself; SIGKILL and the like come from outside."""

FLIGHT_S = 2.0
"""How long ranks have to write what their flight recorders keep, at most."""
MAIN_STACK_S = 2.0
"""How long their main threads have for their own stacks, at most."""


class AttemptRanks(Protocol):
    """The ranks of one attempt, wherever they run."""

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of the ranks on this machine."""
        ...

    def wait_for_news(self, timeout_s: float) -> None:
        """Return when something has happened, at the latest after `timeout_s`."""
        ...

    def end(self) -> AttemptEnd | None:
        """How the attempt ended, once it is clear; None while it goes on."""
        ...

    def beats(self) -> list[Beat]:
        """The last sign of life of each rank, on this machine's monotonic clock."""
        ...

    def hosts(self) -> list[str]:
        """Name of each rank's machine."""
        ...

    def devices(self) -> list[RankDevice]:
        """What each rank computes on, as far as it has said."""
        ...

    def take_stacks(self, rank: int) -> str:
        """Have all ranks write their stacks; what the kernel says of the process of `rank`."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to every rank that runs."""
        ...

    def stop(self) -> None:
        """Make sure that no rank is left."""
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
        """`rendezvous`: the URL where all ranks of the attempt meet, see `training.parallel.ranks`."""
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
        """Ranks on this machine."""
        return len(self._ranks)

    def beats(self) -> list[Beat]:
        """The last sign of life of this machine's ranks."""
        return self._heartbeats.read()[self._ranks.start : self._ranks.stop]

    def hosts(self) -> list[str]:
        """This machine's name, for each of its ranks."""
        return [socket.gethostname()] * len(self._ranks)

    def devices(self) -> list[RankDevice]:
        """What this machine's ranks compute on."""
        return list(self._devices)

    def take_stacks(self, rank: int) -> str:
        """Have this machine's ranks write their stacks; the state of `rank`, empty where it is elsewhere."""
        state = process_state(self.pids[rank - self._ranks.start]) if rank in self._ranks else ""
        dumping = [rank for rank, pid in zip(self._ranks, self.pids, strict=True) if request_flight_dump(pid)]
        dumps = [flight_path(self._run_dir, self._attempt.attempt, number) for number in dumping]
        # Before a stopped one is woken, which would enter what the others wait in.
        _wait_for_all(dumps, Path.is_file, FLIGHT_S)
        for pid in self.pids:
            request_main_stack(pid)
        stacks = [stacks_path(self._run_dir, self._attempt.attempt, number) for number in self._ranks]
        # Before the others' are read, which a rank may not survive.
        _wait_for_all(stacks, has_main_stack, MAIN_STACK_S)
        for pid in self.pids:
            request_all_stacks(pid)
        return state

    def wait_for_news(self, timeout_s: float) -> None:
        """Return when a rank has ended or said something, at the latest after `timeout_s`."""
        open_pipes = [pipe for pipe in self._pipes if not pipe.closed]
        running = [process.sentinel for process in self._processes if process.exitcode is None]
        wait([*running, *open_pipes], timeout_s)
        for rank, pipe in enumerate(self._pipes):
            while not pipe.closed and pipe.poll():
                try:
                    self._take_in(rank, pipe.recv())
                except EOFError:
                    pipe.close()

    def _take_in(self, index: int, message: RankBegan | RankReport) -> None:
        if isinstance(message, RankBegan):
            self._devices[index] = message.device
        else:
            self._reports[index] = message

    def end(self) -> AttemptEnd | None:
        """How the attempt ended, once it is clear; None while it goes on."""
        codes = [process.exitcode for process in self._processes]
        dead = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        if dead:
            return self._failed(dead)
        if any(code is None for code in codes):
            return None
        self.wait_for_news(0)
        stopped = any(report.outcome == "stopped" for report in self._reports.values())
        if stopped:
            return AttemptEnd("preempted", len(codes), message="asked to stop; committed and left")
        return AttemptEnd("succeeded", len(codes), message="reached the last step")

    def _failed(self, dead: list[int]) -> AttemptEnd:
        self.wait_for_news(0)
        codes = {rank: self._processes[rank].exitcode or 0 for rank in dead}
        killed = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0}
        if killed:
            # A rank that was killed can make another's backend abort; the one killed from outside is the cause.
            rank = min(killed, key=lambda rank: killed[rank] in _CRASHES)
            name = killed[rank].name
            kind: FailureKind = "crashed" if killed[rank] in _CRASHES else "killed_by_signal"
            failure = self._failure(rank, kind, signature=name, text=name)
            return AttemptEnd("killed", len(self._processes) - len(killed), failure=failure)
        # When one rank fails, its peers fail for want of it; the one with a named error is the cause.
        reports = {rank: self._reports[rank] for rank in dead if rank in self._reports}
        cause = min(reports, key=lambda rank: distance_from_cause(reports[rank].failure), default=dead[0])
        num_alive = len(self._processes) - 1
        if cause not in reports:
            what = f"exit code {codes[cause]}"
            failure = self._failure(cause, "exited", signature=what, text=f"{what} and no word")
            return AttemptEnd("failed", num_alive, failure=failure)
        report = reports[cause]
        return AttemptEnd("failed", num_alive, failure=report.failure, error=report.error)

    def _failure(self, index: int, kind: FailureKind, *, signature: str, text: str) -> Failure:
        """The failure of a rank that could not speak for itself: where it was, by its last sign of life."""
        last = last_phase(self.beats()[index])
        return Failure(
            failure_kind=kind,
            run_id=self._attempt.run_id,
            attempt=self._attempt.attempt,
            host=socket.gethostname(),
            device=self._devices[index].name,
            rank=self._ranks[index],
            phase=last.phase,
            step=last.step,
            signature=signature,
            text=text,
        )

    def signal(self, number: int) -> None:
        """Send a signal to every rank that runs."""
        for process in self._processes:
            if process.exitcode is None and process.pid is not None:
                send_signal(process.pid, number)

    def stop(self) -> None:
        """Make sure that no rank is left."""
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
