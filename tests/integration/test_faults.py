"""What a fault plan does to real runs: each fault is found and named, and none changes the weights."""

import math
import os
import re
import signal
import time
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import StoreFullError
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.records.commit import CommitQuarantined
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Heartbeats, heartbeat_path
from assay.store.home import Home
from assay.store.incidents import read_incidents
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.triage import straggler
from assay.triage.flight_recorder import find_hung_ranks, read_dumps
from assay.workflows.bookkeeping import Bookkeeper, writer_of
from variants import soaked


@pytest.fixture
def suffer(new_tiny_run):
    """Train through a fault plan: returns (run, log, last attempt of each supervisor)."""

    def train(*faults, world_size=2, observers=lambda run: [], until_done=True, overrides=None, **policy):
        run = new_tiny_run(**(overrides or {}))
        log = CommitLog(open_store(run.store_url))
        plan = FaultPlan.model_validate({"faults": faults})
        attempts = []
        while log.finished() is None and len(attempts) < 5:
            supervisor = Supervisor(
                run,
                CommitLog(open_store(run.store_url)),
                policy=RestartPolicy(faults=plan, **policy),
                observers=observers(run),
                clock=SystemClock(),
            )
            attempts.append(supervisor.run(world_size))
            if not until_done:
                break
        return run, log, attempts

    return train


def assert_as_if_nothing_had_happened(run, log, digest: str) -> None:
    assert log.finished().weights_digest == digest
    assert audit_run(run, log).verdict == "pass"


HANG = {"type": "hang", "rank": 1, "step": 7, "phase": "data"}
HANG_S = 4.0


class StopAfterSilence:
    """Asks the supervisor to stop when the ranks have not moved for so long."""

    def __init__(self, run, silence_s: float) -> None:
        self._run, self._silence_s = run, silence_s

    def attempt_began(self, attempt, pids) -> None:
        path = heartbeat_path(Path(self._run.run_dir), attempt.attempt, range(attempt.world_size))
        self._page = Heartbeats(path, attempt.world_size)

    def tick(self, attempt) -> None:
        beats = self._page.read()
        silent_s = time.monotonic() - max(beat.at_s for beat in beats)
        if beats[1].step >= HANG["step"] - 1 and silent_s > self._silence_s:
            os.kill(os.getpid(), signal.SIGTERM)

    def attempt_ended(self, attempt) -> None:
        self._page.close()


@pytest.mark.slow
def test_a_stopped_rank_is_named_with_its_stacks_and_replaced(suffer, undisturbed) -> None:
    ends_anyway = {"observers": lambda run: [StopAfterSilence(run, 5 * HANG_S)], "grace_s": 0.5}
    run, log, _ = suffer(HANG, hang_s=HANG_S, **ends_anyway)
    assert_as_if_nothing_had_happened(run, log, undisturbed)
    fault, incident = read_incidents(Path(run.run_dir))
    assert (fault.incident, fault.rank, fault.step) == ("fault", 1, 7)
    assert (incident.incident, incident.rank, incident.step) == ("hang", 1, 7)
    assert "stopped by a signal" in incident.text
    stacks = Path(run.run_dir) / "stacks" / "attempt-0001-rank-00001.txt"
    of_main_thread, *of_all = re.split(r"^(?:Current t|T)hread 0x", stacks.read_text(), flags=re.M)
    assert "trainer.py" in of_main_thread and of_all  # which nothing could cut
    # The real dump of the other rank: it waits in a collective for this one, which could not write any.
    found = find_hung_ranks(*read_dumps(stacks.with_name("attempt-0001-flight")))
    assert (found.ranks, [group.waiting for group in found.groups]) == ((1,), [(0,)]), found
    assert found.groups[0].without_dump == (1,)


class StopBeforeItsFirstWord:
    """Stops rank 1 of the first attempt as soon as it is forked; the start may take `limit_s` until then."""

    def __init__(self, monkeypatch, limit_s: float) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("assay.triage.hang.SLOW_PHASE_LIMIT_S", limit_s)

    def attempt_began(self, attempt, pids) -> None:
        if attempt.attempt == 1:
            os.kill(pids[1], signal.SIGSTOP)

    def tick(self, attempt) -> None:
        pass

    def attempt_ended(self, attempt) -> None:
        self._monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_rank_that_hangs_before_its_first_heartbeat_is_named_and_replaced(suffer, undisturbed) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stopper = StopBeforeItsFirstWord(patch, limit_s=4.0)
        run, log, attempts = suffer(hang_s=1.0, observers=lambda run: [stopper])
    assert [attempt.attempt for attempt in attempts] == [2]
    (incident,) = (incident for incident in read_incidents(Path(run.run_dir)) if incident.incident == "hang")
    assert (incident.rank, incident.attempt) == (1, 1)
    assert "before its first sign of life" in incident.text and "stopped by a signal" in incident.text
    assert_as_if_nothing_had_happened(run, log, undisturbed)


@pytest.mark.slow
def test_without_hang_detection_a_stopped_rank_is_waited_for_in_vain(suffer) -> None:
    run, log, (attempt,) = suffer(
        HANG,
        hang_s=1e9,
        grace_s=0.5,
        observers=lambda run: [StopAfterSilence(run, 1.5 * HANG_S)],
        until_done=False,
    )
    assert (attempt.outcome, attempt.stalled_s) == ("preempted", 0.0)
    assert log.finished() is None
    assert [incident.incident for incident in read_incidents(Path(run.run_dir))] == ["fault"]
    assert attempt.failure.failure_kind == "not_gone_after_sigterm"
    assert (Path(run.run_dir) / "stacks" / "attempt-0001-rank-00001.txt").read_text() == ""


SLOW = {"type": "slow", "rank": 1, "step": 3, "extra_s": 0.1}


@pytest.mark.slow
def test_a_slow_rank_is_named_while_the_run_goes_on(suffer) -> None:
    run, _log, attempts = suffer(SLOW, overrides={"trainer__epochs": 3})
    assert [attempt.outcome for attempt in attempts] == ["succeeded"]
    notes = read_incidents(Path(run.run_dir))
    assert [(incident.incident, incident.rank) for incident in notes] == [("fault", 1), ("straggler", 1)]
    assert notes[1].at_s < attempts[0].ended_s


@pytest.mark.slow
def test_a_slow_rank_gets_fewer_lanes_in_the_next_attempt_and_no_bit_changes(suffer, undisturbed) -> None:
    slow, kill = {**SLOW, "step": 1}, {"type": "kill", "rank": 0, "step": 12}
    run, log, _ = suffer(slow, kill, share="speed")
    first, second = saved_attempts(Path(run.run_dir))
    assert first.loads == (4, 4)
    assert second.loads[0] > 4 > second.loads[1] and sum(second.loads) == 8
    assert_as_if_nothing_had_happened(run, log, undisturbed)


@pytest.mark.soak
def test_without_straggler_detection_nobody_knows_of_a_slow_rank(suffer, monkeypatch) -> None:
    monkeypatch.setattr(straggler, "SLOW_FACTOR", math.inf)
    run, _log, attempts = suffer(SLOW, overrides={"trainer__epochs": 3})
    assert [attempt.outcome for attempt in attempts] == ["succeeded"]
    assert [incident.incident for incident in read_incidents(Path(run.run_dir))] == ["fault"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torn", *soaked("flipped", "missing")])
def test_a_damaged_commit_is_quarantined_and_the_one_before_it_used(how: str, suffer, undisturbed) -> None:
    run, log, _ = suffer({"type": "damage", "how": how, "step": 10}, world_size=1)
    quarantined = [entry for entry in log.entries() if isinstance(entry, CommitQuarantined)]
    assert [entry.step for entry in quarantined] == [10]
    assert_as_if_nothing_had_happened(run, log, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("how", [*soaked("error", "drop"), "stall"])
def test_a_store_in_trouble_costs_an_attempt_at_most(how: str, suffer, undisturbed) -> None:
    run, log, _ = suffer({"type": "store", "how": how, "step": 6, "num_writes": 2}, world_size=1)
    assert_as_if_nothing_had_happened(run, log, undisturbed)


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_run_with_its_name(suffer) -> None:
    full = [
        {"type": "store", "how": "full_disk", "attempt": attempt, "step": 1, "num_writes": 100}
        for attempt in range(1, 9)
    ]
    attempts = []

    def counted(run):
        attempts.append(run)
        return []

    with pytest.raises(StoreFullError, match=r"no space left.*--resume") as raised:
        suffer(*full, world_size=1, observers=counted)
    assert raised.value.exit_code == 75
    assert [saved_attempt.failure.failure_kind for saved_attempt in saved_attempts(Path(attempts[0].run_dir))] == [
        "disk_full"
    ]


@pytest.mark.slow
def test_a_wrong_clock_changes_nothing_that_is_learned(suffer, undisturbed) -> None:
    run, log, _ = suffer({"type": "clock_jump", "step": 4, "jump_s": -86_400.0})
    assert_as_if_nothing_had_happened(run, log, undisturbed)


@pytest.mark.slow
def test_a_lost_ledger_is_written_anew_from_the_facts(suffer, undisturbed) -> None:
    writers = []

    def bookkeepers(run):
        writers.append(writer_of(Home.from_environment(), run))
        return [Bookkeeper(run, writers[-1], SystemClock())]

    losses = [
        {"type": "ledger_loss", "rank": 0, "step": 6},
        {"type": "kill", "rank": 1, "step": 9},
    ]
    run, log, _ = suffer(*losses, observers=bookkeepers, overrides={"trainer__epochs": 2})
    for writer in writers:
        writer.close()
    assert (Home.from_environment().folder / "ledger.lost").exists()
    with Home.from_environment().open_ledger() as ledger:
        assert [attempt.outcome for attempt in ledger.attempts(run.run_id)] == ["killed", "succeeded"]
        assert ledger.log_entries(run.run_id) == log.entries()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "step"),
    [
        ("startup", 1),
        *(pytest.param(*other, marks=pytest.mark.soak) for other in [("data", 4), ("compute", 7), ("evaluation", 10)]),
        ("communication", 8),
        ("checkpoint", 10),
    ],
)
def test_sigterm_in_any_phase_ends_in_a_commit_or_a_clean_rollback(phase, step, suffer, undisturbed) -> None:
    evaluates = {"trainer__evaluate_every": 5}
    stop = {"type": "terminate", "rank": 1, "step": step, "phase": phase}
    run, log, (first, *_) = suffer(stop, until_done=False, grace_s=20.0, overrides=evaluates)
    assert first.outcome in ("preempted", "succeeded")
    commits = log.commits()
    assert all(log.store.exists(f"{commit.folder}/{file.path}") for commit in commits for file in commit.files)
    supervisor = Supervisor(
        run, CommitLog(open_store(run.store_url)), policy=RestartPolicy(), observers=[], clock=SystemClock()
    )
    supervisor.run(4)
    assert_as_if_nothing_had_happened(run, log, undisturbed)


@pytest.mark.slow
def test_who_does_not_leave_within_the_grace_time_is_killed(suffer, undisturbed) -> None:
    faults = [
        {"type": "slow", "rank": 0, "step": 6, "extra_s": 60.0, "num_steps": 1},
        {"type": "terminate", "rank": 1, "step": 6, "phase": "compute"},
    ]
    _, log, (first,) = suffer(*faults, until_done=False, grace_s=1.0)
    assert (first.outcome, first.failure.failure_kind) == ("preempted", "not_gone_after_sigterm")
    assert first.ended_s - first.started_s < 40
    assert log.commits()[-1].step == 5
