"""A run that one kind of processor began is gone on with by another only where somebody says so."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.cli.main import main
from assay.elastic.processor import other_processor, processor_here
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store

HERE = processor_here(os.environ)


class StopAtFirstCommit:
    """Asks this process to stop."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        pass

    def tick(self, attempt: Attempt) -> None:
        if self._log.commits():
            os.kill(os.getpid(), signal.SIGTERM)

    def attempt_ended(self, attempt: Attempt) -> None:
        pass


@pytest.mark.skipif("ATen" not in HERE.instructions, reason="the variable limits x86 only")
@pytest.mark.slow
def test_resuming_on_another_kind_is_refused_before_training_and_goes_on_when_told_to(
    new_tiny_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_tiny_run(trainer__commit_every=1)
    log = CommitLog(open_store(run.store_url))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    stop = StopAtFirstCommit(CommitLog(open_store(run.store_url)))
    Supervisor(run, log, policy=RestartPolicy(), observers=[stop], clock=SystemClock()).run(1)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    before = log.entries()

    with pytest.raises(SystemExit) as refused:
        main(["train", "--resume", run.run_id])
    assert refused.value.code == 2
    assert "ATen DEFAULT" in (output := capfd.readouterr().err) and "--other-device" in output
    assert log.entries() == before

    with pytest.raises(SystemExit) as done:
        main(["train", "--resume", run.run_id, "--other-device"])
    assert not done.value.code
    kinds = [attempt.processor for attempt in saved_attempts(Path(run.run_dir))]
    assert [kind.sums_like(HERE) for kind in kinds if kind] == [False, True]
    capfd.readouterr()
    assert "ATen DEFAULT" in str(other_processor(run, 1, attempt=None))
    assert other_processor(run, 20, attempt=None) is None
    with pytest.raises(SystemExit):
        main(["runs", "replay", run.run_id, "--step", "1"])
    assert capfd.readouterr().err.startswith("step 1 was computed on ")
