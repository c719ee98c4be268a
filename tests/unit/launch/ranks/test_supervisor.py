"""When the supervisor starts ranks and when it does not, with ranks that only pretend."""

import os
import signal

import pytest

from assay.base.errors import DataError, TrainingError
from assay.launch.ranks.supervisor import AttemptEnd, RestartPolicy, Supervisor
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store


class KilledRanks:
    """Ranks that are killed as soon as they run."""

    pids = ()

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def wait_for_news(self, timeout_s: float) -> None:
        pass

    def end(self) -> AttemptEnd:
        return AttemptEnd("killed", self._reason, 0)

    def stop(self) -> None:
        pass


class KillingNodes:
    """Counts how often ranks were started."""

    def __init__(self, reason: str = "rank 0 was killed by SIGKILL") -> None:
        """Each {} of the reason is another in each attempt."""
        self.num_starts = 0
        self._reason = reason

    def fitting(self, world_size: int) -> int:
        return world_size

    def start(self, orders) -> KilledRanks:
        self.num_starts += 1
        return KilledRanks(self._reason.replace("{}", str(self.num_starts)))


class ClockThatStops:
    """SIGTERM comes in the first call of `function`."""

    def __init__(self, function: str) -> None:
        self._function = function
        self.at_s = 0.0

    def _called(self, function: str) -> float:
        if function == self._function:
            self._function = ""
            os.kill(os.getpid(), signal.SIGTERM)
        return self.at_s

    def now_s(self) -> float:
        return self._called("now_s")

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self._called("sleep_s")
        self.at_s += seconds


@pytest.mark.parametrize(("sigterm_in", "num_starts"), [("now_s", 0), ("sleep_s", 2)])
def test_who_is_asked_to_stop_while_no_rank_runs_starts_none(sigterm_in, num_starts, run) -> None:
    nodes, clock, log = KillingNodes(), ClockThatStops(sigterm_in), CommitLog(open_store("memory:"))
    supervisor = Supervisor(run, log, policy=RestartPolicy(), watchers=[], clock=clock, nodes=nodes)
    last = supervisor.run(1)
    assert (last.outcome, nodes.num_starts) == ("preempted", num_starts)
    assert "before its ranks were started" in last.reason
    assert clock.at_s < 0.2


@pytest.mark.parametrize(
    ("reason", "num_starts"),
    [
        ("rank 0 was killed by SIGKILL", 4),
        ("rank 0 was killed by SIGSEGV", 2),
        ("rank 1 hung in 'compute' of step 7: no sign of life for {} s; stacks in {}.txt", 2),
    ],
)
def test_a_crash_or_a_hang_at_the_same_step_is_not_tried_a_third_time_but_a_kill_is(
    reason, num_starts, run, monkeypatch
) -> None:
    monkeypatch.setattr("assay.launch.ranks.supervisor.save_failing_step", refuse_to_save)
    nodes, log = KillingNodes(reason), CommitLog(open_store("memory:"))
    policy = RestartPolicy(max_restarts=3)
    supervisor = Supervisor(run, log, policy=policy, watchers=[], clock=ClockThatStops(""), nodes=nodes)
    with pytest.raises(TrainingError) as stopped:
        supervisor.run(1)
    assert nodes.num_starts == num_starts
    assert ("It failed twice in the same way" in str(stopped.value)) == (num_starts == 2)


@pytest.mark.parametrize(
    ("after_death", "reason", "num_starts"),
    [
        ("shrink", "rank {} was killed by SIGSEGV", 2),
        ("shrink", "rank {} hung in 'compute' of step 7: no sign of life for 9 s", 2),
        ("shrink", "rank {} was killed by SIGKILL", 4),
        ("same", "rank {} was killed by SIGSEGV", 4),
    ],
)
def test_the_same_failure_on_fewer_ranks_is_the_same_whatever_the_number_of_the_rank(
    after_death, reason, num_starts, run, monkeypatch
) -> None:
    monkeypatch.setattr("assay.launch.ranks.supervisor.save_failing_step", refuse_to_save)
    nodes, log = KillingNodes(reason), CommitLog(open_store("memory:"))
    policy = RestartPolicy(max_restarts=3, after_death=after_death)
    supervisor = Supervisor(run, log, policy=policy, watchers=[], clock=ClockThatStops(""), nodes=nodes)
    with pytest.raises(TrainingError):
        supervisor.run(2)
    assert nodes.num_starts == num_starts


def refuse_to_save(*_: object) -> None:
    raise DataError("there is no dataset here")
