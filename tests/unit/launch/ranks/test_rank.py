"""What a rank prints is shown, and obeyed in nothing, as what its command prints."""

import multiprocessing
import sys

import pytest

from assay.launch.ranks import wiring
from assay.launch.ranks.faults import FaultPlan
from assay.launch.ranks.rank import rank_main
from assay.launch.ranks.task import Orders, RankTask
from assay.records.run import Attempt, Run
from assay.store.patience import Patience

PLACE = "s3://\x1b]0;title\x07"


def prints(*_: object) -> str:
    Patience(0.0).say(f"waiting for {PLACE}")
    print(f"at {PLACE}", file=sys.stdout)
    return "finished"


def test_what_a_rank_prints_is_visible(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    attempt = Attempt(run_id="r", attempt=1, world_size=1, start_step=0, started_s=0.0)
    monkeypatch.setattr(wiring, "train_rank", prints)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
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
    process = context.Process(target=rank_main, args=(task, theirs))
    process.start()
    process.join(60)
    said = capfd.readouterr()
    assert process.exitcode == 0, (said, ours.recv())
    assert said.out == "at s3://\\u001b]0;title\\u0007\n"
    assert said.err == "waiting for s3://\\u001b]0;title\\u0007\n"
