from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.ledger.ledger import open_ledger
from assay.store.ledger.summary import run_status, run_summaries
from machine import MACHINE


def attempt(number: int, outcome: str) -> Attempt:
    fields = {"run_id": "a", "attempt": number, "world_size": 2, "start_step": 0, "started_s": 0.0}
    return Attempt.model_validate({**fields, **MACHINE, "outcome": outcome})


@pytest.mark.parametrize(
    ("outcomes", "is_finished", "status"),
    [
        ([], False, "unknown"),
        (["killed", "running"], False, "unknown"),
        (["running", "killed"], False, "failed"),
        (["failed"], False, "failed"),
        (["killed", "preempted"], False, "preempted"),
        (["killed", "succeeded"], True, "succeeded"),
        (["killed"], True, "succeeded"),
    ],
)
def test_a_run_stands_as_its_last_attempt_does_until_its_log_says_finished(
    outcomes: list[str], is_finished: bool, status: str
) -> None:
    attempts = [attempt(number, outcome) for number, outcome in enumerate(outcomes, start=1)]
    found = run_status(attempts, created_s=1.0, is_finished=is_finished, launch=None, last_seen_s=None)
    assert found == status


@pytest.mark.parametrize("started", ["the run", "an attempt"])
def test_a_run_in_its_first_second_is_running_before_any_rank_was_heard_of(started: str) -> None:
    now_s = SystemClock().now_s()
    again = attempt(1, "running").model_copy(update={"started_s": now_s})
    created_s, attempts = (now_s, []) if started == "the run" else (1.0, [again])
    assert run_status(attempts, created_s=created_s, is_finished=False, launch=None, last_seen_s=None) == "running"


def test_device_time_adds_up_over_ranks_and_attempts_of_each_run(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path}/l.db") as ledger:
        for run_id in ("a", "b"):
            ledger.record_run(
                Run(
                    run_id=run_id,
                    created_s=1.0,
                    recipe={},
                    recipe_sha256="r",
                    dataset_fingerprint="d",
                    code_version="0",
                    run_dir=str(tmp_path),
                    store_url="s",
                    num_steps=10,
                )
            )
        for number, rank in ((1, 0), (1, 1), (2, 0)):
            ledger.record_phase_seconds(
                PhaseSeconds(run_id="a", attempt=number, rank=rank, held_s=10.0, seconds={"compute": 10.0})
            )
        assert {summary.run.run_id: summary.device_s for summary in run_summaries(ledger)} == {
            "a": 30.0,
            "b": 0.0,
        }
