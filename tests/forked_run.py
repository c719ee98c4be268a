"""A run whose attempts are forks of this process: killed and resized for real, in seconds, and with whatever a
test has put in the place of something."""

import faulthandler
import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch._dynamo  # noqa: F401  # DDP and FSDP2 import it: once here, and not in each fork

from assay.elastic.faults import NO_FAULTS, FaultPlan
from assay.elastic.rank_setup import train_rank
from assay.elastic.task import Orders, Parallel, RankTask
from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats
from assay.store.objects import open_store
from machine import MACHINE
from one_rank import UnusedConnection

RETRY_BUDGET_S = 120


def train_in_forks(
    run: Run, sizes: Sequence[int], parallel: Sequence[Parallel] = (), faults: FaultPlan = NO_FAULTS
) -> list[str]:
    """Attempts on so many ranks, one after the other, each from the last commit; how each ended:
    `finished`, the name of the signal that killed a rank, or the traceback of what one raised.
    """
    log, ended = CommitLog(open_store(run.store_url)), []
    for location, world_size in enumerate(sizes):
        number = log.begin_attempt(world_size=world_size, now_s=0.0)
        commit = log.last_intact_commit()
        folder = Path(run.run_dir) / f"attempt-{number}"
        folder.mkdir(parents=True)
        Heartbeats.create(folder / "heartbeats", world_size).close()
        orders = Orders(
            attempt=Attempt(
                run_id=run.run_id,
                attempt=number,
                world_size=world_size,
                start_step=commit.step if commit else 0,
                started_s=0.0,
                **MACHINE,
            ),
            commit=commit,
            faults=faults,
            parallel=parallel[location] if parallel else "ddp",
            failure_s=1e9,
        )
        save_attempt(Path(run.run_dir), orders.attempt)
        tasks = [
            RankTask(run, orders, rank, f"file://{folder}/rendezvous", {}, str(folder / "heartbeats"), 0)
            for rank in range(world_size)
        ]
        ended.append(_end_of(tasks))
    return ended


def _end_of(tasks: Sequence[RankTask]) -> str:
    """When one dies the others are killed, as a supervisor would; a signal explains what others raise."""
    alive = {child: task for task in tasks if (child := os.fork()) or _be_rank(task)}
    signals, raised, killed_here = list[str](), list[str](), set[int]()
    while alive:
        for child in list(alive):
            done, status = os.waitpid(child, os.WNOHANG if len(alive) > 1 else 0)
            if not done:
                continue
            task = alive.pop(child)
            if os.WIFEXITED(status) and status:
                raised.append(_traceback_of(task).read_text())
            if os.WIFSIGNALED(status) and child not in killed_here:
                signals.append(signal.Signals(os.WTERMSIG(status)).name)
            if status:
                killed_here |= alive.keys()
                for other in alive:
                    os.kill(other, signal.SIGKILL)
        if len(alive) > 1:
            signal.sigtimedwait([signal.SIGCHLD], 0.01)
    return next(iter([*signals, *raised]), "finished")


def _traceback_of(task: RankTask) -> Path:
    return Path(task.heartbeats).with_name(f"rank-{task.rank}.traceback")


def _be_rank(task: RankTask) -> NoReturn:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # this process's own, with which pytest would end the test
    with _traceback_of(task).open("w") as file:
        faulthandler.dump_traceback_later(RETRY_BUDGET_S, exit=True, file=file)
        try:
            train_rank(task, UnusedConnection())  # type: ignore[arg-type]
        except BaseException:
            traceback.print_exc(file=file)
            file.flush()
            os._exit(1)
    os._exit(0)
