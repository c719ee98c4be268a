"""What a rank prints is shown, and obeyed in nothing, as what its command prints; it ends if left alone."""

import multiprocessing
import os
import select
import signal
import sys
from queue import SimpleQueue

import pytest

from assay.elastic import rank
from assay.elastic import rank_setup as wiring
from assay.elastic.faults import FaultPlan
from assay.elastic.rank import rank_main
from assay.elastic.task import Orders, RankTask
from assay.records.run import Attempt, Run
from assay.store.retry_policy import RetryPolicy
from machine import MACHINE

LOCATION = "s3://\x1b]0;title\x07"


def prints(*_: object) -> str:
    RetryPolicy(0.0).notify(f"waiting for {LOCATION}")
    print(f"at {LOCATION}", file=sys.stdout)
    return "finished"


def test_what_a_rank_prints_is_visible(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    attempt = Attempt(run_id="r", attempt=1, world_size=1, start_step=0, started_s=0.0, **MACHINE)
    monkeypatch.setattr(wiring, "train_rank", prints)
    context = multiprocessing.get_context("fork")
    ours, expected = context.Pipe(duplex=False)
    orders = Orders(attempt=attempt, commit=None, faults=FaultPlan(), parallel="ddp", failure_s=1.0)
    task = RankTask(
        run=run,
        orders=orders,
        rank=0,
        rendezvous="",
        environment={},
        heartbeats="",
        supervisor_pid=0,
    )
    process = context.Process(target=rank_main, args=(task, expected))
    process.start()
    process.join(60)
    output = capfd.readouterr()
    assert process.exitcode == 0, (output, ours.recv())
    assert output.out == "at s3://\\u001b]0;title\\u0007\n"
    assert output.err == "waiting for s3://\\u001b]0;title\\u0007\n"


class CountingPoller:
    """Polls, and says what came of it."""

    def __init__(self, came: SimpleQueue[list[tuple[int, int]]]) -> None:
        self._poller, self._came = REAL_POLL(), came

    def register(self, fd: int, events: int) -> None:
        self._poller.register(fd, events)

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        found = self._poller.poll(timeout_ms)
        self._came.put(found)
        return found


REAL_POLL = select.poll


def test_who_looks_for_its_supervisor_runs_now_and_then_and_ends_the_rank_once_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came: SimpleQueue[list[tuple[int, int]]] = SimpleQueue()
    killed: SimpleQueue[tuple[int, int]] = SimpleQueue()
    monkeypatch.setattr(rank, "NUDGE_S", 0.01)
    monkeypatch.setattr("select.poll", lambda: CountingPoller(came))
    monkeypatch.setattr("os.kill", lambda *call: killed.put(call))
    ours, expected = multiprocessing.get_context("fork").Pipe(duplex=False)
    rank.die_with_supervisor(expected)
    assert [came.get(timeout=10) for _ in range(3)] == [[], [], []]
    assert killed.empty()
    ours.close()
    assert killed.get(timeout=10) == (os.getpid(), signal.SIGKILL)
    expected.close()
