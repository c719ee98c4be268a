"""What is counted as an interruption, and what one can cost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.records.commit import RunFinished
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.reporting.views.runs.run_list import Selection, run_lines
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger, open_ledger
from machine import MACHINE

WEEK_S = 7 * 86400.0


def run_of(run_id: str, *, name: str = "tiny", is_drill: bool = False) -> Run:
    return Run(
        run_id=run_id, created_s=0.0, recipe={"name": name}, recipe_sha256="", dataset_fingerprint="",
        code_version="", run_dir="", store_url="", num_steps=10,
        is_drill=is_drill,
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


def lived(ledger: Ledger, run: Run, *outcomes: str, gap_s: float = 1.0) -> None:
    """Ten seconds each on two ranks, one of them starting up, one lost where it was killed."""
    ledger.record_run(run)
    at_s = 0.0
    for number, outcome in enumerate(outcomes, start=1):
        ledger.record_attempt(
            Attempt(
                run_id=run.run_id, attempt=number, world_size=2, start_step=0, started_s=at_s,
                ended_s=at_s + 10.0, end_step=5, outcome=outcome, **MACHINE,
            )
        )  # fmt: skip
        lost_s = float(outcome == "killed")
        for rank in range(2):
            seconds = {"startup": 1.0, "compute": 9.0 - lost_s, "lost": lost_s}
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=run.run_id, attempt=number, rank=rank, held_s=10.0, seconds=seconds)
            )
        at_s += 10.0 + gap_s


def test_an_interruption_costs_no_more_than_was_held_however_long_nobody_went_on(ledger):
    run = run_of("r")
    lived(ledger, run, "killed", "succeeded", gap_s=WEEK_S)
    found = goodput_of(ledger, [run])
    (interruption,) = found.interruptions
    assert interruption.cost_device_s() == 2.0 + 2.0
    assert interruption.waited_device_s == 2 * WEEK_S
    assert found.interruptions_device_s() <= found.held_device_s


def test_a_run_without_an_attempt_yet_is_counted_beside_the_others(ledger):
    unbegun, run = run_of("unbegun"), run_of("r")
    lived(ledger, unbegun)
    lived(ledger, run, "succeeded")
    assert goodput_of(ledger, [unbegun]).held_device_s == 0.0
    assert goodput_of(ledger, [unbegun, run]).held_device_s == 20.0


def test_what_ends_after_the_last_step_interrupted_nothing(ledger):
    """Killed while it was evaluated, and gone on with: nothing is left to train."""
    run = run_of("r")
    lived(ledger, run, "killed", "killed")
    end = RunFinished(attempt=2, step=5, weights_digest="w")
    ledger.record_log_entries(run.run_id, {0: end})
    assert [interruption.attempt for interruption in goodput_of(ledger, [run]).interruptions] == [1]


def test_a_list_of_runs_has_those_of_drills_only_where_they_are_asked_for(ledger):
    drilled = run_of("d", is_drill=True)
    own = run_of("drilling", name="drill-bits", is_drill=False)
    lived(ledger, own, "succeeded")
    lived(ledger, drilled, "killed", "succeeded")
    assert [line.run_id for line in run_lines(ledger)] == ["drilling"]
    assert {line.run_id for line in run_lines(ledger, Selection(drills=True))} == {"drilling", drilled.run_id}
