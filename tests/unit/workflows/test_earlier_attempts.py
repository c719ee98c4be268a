"""What the beginning of an attempt says about those before it: the account must hold every second once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.goodput import Goodput, goodput_key
from assay.records.run import Attempt, ClusterOf, Run
from assay.store.attempts import close_abandoned_attempts, save_attempt, saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.metrics.segment import SegmentWriter, segment_path
from assay.store.objects import open_store
from assay.store.settings import Settings
from assay.workflows.bookkeeping import Bookkeeper, rebuild_run, writer_of
from clocks import ManualClock
from machine import MACHINE


def attempt(number: int, *, start_step: int, started_s: float, **ended: object) -> Attempt:
    fields = {"run_id": "r", "attempt": number, "world_size": 1, "start_step": start_step}
    return Attempt.model_validate({**fields, **MACHINE, "started_s": started_s, **ended})


def lived(run: Run, began: Attempt, *, num_steps: int) -> None:
    """One second until the first word, then a second for each step."""
    clock = ManualClock(began.started_s + 1)
    path = segment_path(Path(run.run_dir), began.attempt, 0)
    writer = SegmentWriter(path, run_id="r", attempt=began.attempt, rank=0, clock=clock)
    for step in range(began.start_step + 1, began.start_step + num_steps + 1):
        writer.phase("compute")
        clock.sleep_s(1)
        writer.log(step, {"loss": 1.0})
    writer.close()


@pytest.fixture
def ledger(run: Run, tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{tmp_path}/l.db") as ledger:
        ledger.record_run(run)
        yield ledger


def home_of(run: Run) -> Home:
    folder = Path(run.run_dir).parent
    return Home.at(folder, f"sqlite:///{folder}/l.db")


def began(run: Run, successor: Attempt) -> None:
    """What a supervisor and its bookkeeper do when an attempt begins."""
    save_attempt(Path(run.run_dir), successor)
    close_abandoned_attempts(run, CommitLog(open_store(run.store_url)), successor)
    with writer_of(home_of(run), run) as writer:
        Bookkeeper(run, writer, ManualClock(0.0)).attempt_began(successor, [])


def test_an_attempt_whose_supervisor_died_is_held_to_its_last_sign_of_life(run: Run, ledger: Ledger) -> None:
    abandoned = attempt(1, start_step=0, started_s=100.0)
    save_attempt(Path(run.run_dir), abandoned)
    ledger.record_attempt(abandoned)
    lived(run, abandoned, num_steps=4)
    began(run, attempt(2, start_step=0, started_s=200.0, ended_s=201.0, outcome="succeeded"))
    found = goodput_of(ledger, [run])
    assert found.by_phase == {"startup": 1.0, "lost": 4.0}
    [interruption] = found.interruptions
    assert (interruption.at_s, interruption.waited_device_s) == (105.0, 95.0)
    assert interruption.failure.failure_kind == "supervisor_gone"
    assert "supervisor, which starts its ranks, died" in interruption.reason


def test_an_attempt_that_has_ended_or_comes_later_is_not_closed(run: Run) -> None:
    ended = attempt(1, start_step=0, started_s=1.0, ended_s=9.0, end_step=0, outcome="killed", reason="why")
    later = attempt(3, start_step=0, started_s=20.0)
    for item in (ended, later):
        save_attempt(Path(run.run_dir), item)
    close_abandoned_attempts(run, CommitLog(open_store(run.store_url)), attempt(2, start_step=0, started_s=10))
    assert saved_attempts(Path(run.run_dir)) == [ended, later]


def test_steps_behind_a_commit_that_was_found_damaged_are_lost(run: Run, ledger: Ledger) -> None:
    first = attempt(1, start_step=0, started_s=0.0, ended_s=11.0, end_step=10, outcome="killed")
    save_attempt(Path(run.run_dir), first)
    lived(run, first, num_steps=10)
    with writer_of(home_of(run), run) as writer:
        Bookkeeper(run, writer, ManualClock(0.0)).attempt_ended(first)
    assert goodput_of(ledger, [run]).by_phase["compute"] == 10.0
    began(run, attempt(2, start_step=5, started_s=20.0))
    assert goodput_of(ledger, [run]).by_phase == {"startup": 1.0, "compute": 5.0, "lost": 5.0}


def test_a_rebuilt_ledger_gives_the_same_account(run: Run, ledger: Ledger, tmp_path: Path) -> None:
    test_steps_behind_a_commit_that_was_found_damaged_are_lost(run, ledger)
    with open_ledger(f"sqlite:///{tmp_path}/new.db") as new:
        rebuild_run(new, run)
        assert goodput_of(new, [run]).by_phase == goodput_of(ledger, [run]).by_phase


def test_commits_of_an_attempt_that_still_runs_do_not_make_commits_look_free(run: Run, ledger: Ledger) -> None:
    killed = attempt(1, start_step=0, started_s=0.0, ended_s=4.0, end_step=0, outcome="killed")
    for item in (killed, attempt(2, start_step=0, started_s=5.0)):
        ledger.record_attempt(item)
    commit = Commit(
        attempt=2,
        world_size=1,
        step=1,
        cursor=Cursor(epoch=0, step_in_epoch=1),
        committed_s=7.0,
        folder="checkpoints/00000001-0002",
        files=(),
        weights_digest="",
        receipts_from_step=0,
        rows_trained=1,
    )
    ledger.record_log_entries("r", {0: commit})
    found = goodput_of(ledger, [run])
    assert (found.num_commits, found.commit_s, found.optimal_commit_s) == (0, None, None)


def test_an_attempt_finds_out_that_an_earlier_one_was_too_late_and_the_other_clusters_are_told(
    run: Run, ledger: Ledger, tmp_path: Path
) -> None:
    meeting = open_store(str(tmp_path / "meet"))
    of_cluster = {"cluster_of": ClusterOf(cluster="a", meeting_url=meeting.url), "recipe": {"outer": {"every": 4}}}
    run = run.model_copy(update=of_cluster)
    prices = Settings(currency="EUR", device_hour_prices={"cpu": 360.0})

    def end(ended: Attempt) -> Goodput:
        save_attempt(Path(run.run_dir), ended)
        with writer_of(home_of(run), run) as writer:
            Bookkeeper(run, writer, ManualClock(0.0), prices).attempt_ended(ended)
        return Goodput.from_json(meeting.get(goodput_key("a")), source="the meeting place")

    first = attempt(1, start_step=0, started_s=0.0, ended_s=5.0, end_step=4, outcome="killed")
    lived(run, first, num_steps=4)
    assert end(first).by_phase == {"startup": 1.0, "compute": 4.0}
    second = attempt(2, start_step=4, started_s=20.0, ended_s=22.0, end_step=5, outcome="succeeded")
    path, clock = segment_path(Path(run.run_dir), 2, 0), ManualClock(21.0)
    writer = SegmentWriter(path, run_id="r", attempt=2, rank=0, clock=clock)
    writer.phase("communication")
    clock.sleep_s(1)
    writer.log(5, {"outer_step": 1, "late_steps": 4})
    writer.close()
    found = end(second)
    assert found.by_phase == {"startup": 2.0, "late": 4.0, "communication": 1.0}
    assert (found.cost, found.currency) == (pytest.approx(0.7), "EUR")
    with open_ledger(f"sqlite:///{tmp_path}/new.db") as new:
        rebuild_run(new, run)
        assert goodput_of(new, [run]).by_phase == found.by_phase


def test_a_meeting_place_that_is_away_keeps_nothing_from_the_ledger(run: Run, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "meet").write_text("no folder")
    of_cluster = {"cluster_of": ClusterOf(cluster="a", meeting_url=str(tmp_path / "meet"))}
    run = run.model_copy(update={**of_cluster, "recipe": {"outer": {"every": 4}}})
    first = attempt(1, start_step=0, started_s=0.0, ended_s=5.0, end_step=4, outcome="killed")
    save_attempt(Path(run.run_dir), first)
    lived(run, first, num_steps=4)
    with writer_of(home_of(run), run) as writer:
        Bookkeeper(run, writer, ManualClock(0.0)).attempt_ended(first)
    assert goodput_of(ledger, [run]).by_phase == {"startup": 1.0, "compute": 4.0}
    assert not list(tmp_path.rglob("ledger.missed/*"))
