"""When the supervisor starts ranks and when it does not, with ranks that only pretend."""

import itertools
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from assay.base.errors import AssayError, DataError, Interrupted, StoreFullError, TrainingError
from assay.elastic.processor import processor_here
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.elastic.task import AttemptEnd
from assay.records.failure import Failure, FailureKind
from assay.records.node_environment import NodeEnvironment
from assay.records.rank_device import RankDevice
from assay.records.run import Attempt
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Beat
from assay.store.incidents import read_incidents
from assay.store.objects import open_store


def failure(failure_kind: FailureKind, text: str, **more: Any) -> Failure:
    """By default of rank 0, with a signature that says what its text says."""
    whole = {"rank": 0, "signature": text, **more}
    return Failure(failure_kind=failure_kind, run_id="r", attempt=1, text=text, **whole)


KILL = failure("killed_by_signal", "SIGKILL")
CRASH = failure("crashed", "SIGSEGV")
HANG = failure("hang", "silent", signature="hang in compute")


class KilledRanks:
    """Ranks that are killed as soon as they run."""

    pids = ()
    error: AssayError | None = None
    num_alive = 0

    def __init__(self, failure: Failure) -> None:
        self._failure = failure

    def hosts(self) -> list[str]:
        return ["host-0"]

    def devices(self) -> list[RankDevice]:
        return [RankDevice("cpu")]

    def wait_for_news(self, timeout_s: float) -> None:
        pass

    def end(self) -> AttemptEnd:
        return AttemptEnd("killed", self.num_alive, failure=self._failure, error=self.error)

    def stop(self) -> None:
        pass


class KillingNodes:
    """Counts how often ranks were started."""

    def __init__(self, failure: Failure = KILL, *, moves: bool = False) -> None:
        """`moves`: to another rank in each attempt. The words for it are other ones each time."""
        self.num_starts = 0
        self.processor = processor_here({})
        self._failure = failure
        self._moves = moves

    def other_environments(self) -> dict[str, NodeEnvironment]:
        return {}

    def fitting(self, world_size: int) -> int:
        return world_size

    def room(self, world_size: int) -> int:
        return world_size

    def leaving(self) -> list[str]:
        return []

    def hosts(self, world_size: int) -> list[str]:
        return ["host-0"] * world_size

    def start(self, orders) -> KilledRanks:
        self.num_starts += 1
        changes = {
            "text": f"{self._failure.text} {self.num_starts}",
            "rank": self.num_starts * self._moves,
            "attempt": orders.attempt.attempt,
        }
        return KilledRanks(self._failure.model_copy(update=changes))


class FullNodes(KillingNodes):
    """Their disk has no room."""

    def start(self, orders) -> KilledRanks:
        self.num_starts += 1
        ranks = KilledRanks(failure("disk_full", "No space left on device"))
        ranks.error = StoreFullError("folder/commit: cannot write it: No space left on device.")
        return ranks


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
    supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=clock, nodes=nodes)
    last = supervisor.run(1)
    assert (last.outcome, nodes.num_starts) == ("preempted", num_starts)
    assert "before its ranks were started" in last.reason
    assert clock.at_s < 0.2


def test_a_full_disk_costs_one_attempt_and_says_how_to_go_on(run) -> None:
    nodes, clock, log = FullNodes(), ClockThatStops("nothing"), CommitLog(open_store("memory:"))
    supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=clock, nodes=nodes)
    with pytest.raises(StoreFullError, match=r"No space left.*'assay train --resume .*' continues") as raised:
        supervisor.run(1)
    assert (raised.value.exit_code, nodes.num_starts, clock.at_s) == (75, 1, 0.0)


class InterruptedRanks(KilledRanks):
    """While they run, Ctrl-C is pressed so many times; asked to stop, they commit and leave."""

    is_done = False

    def __init__(self, times: int) -> None:
        self._times = times
        self.sent: list[int] = []

    def wait_for_news(self, timeout_s: float) -> None:
        while self._times:
            self._times -= 1
            signal.raise_signal(signal.SIGINT)

    def signal(self, number: int) -> None:
        self.sent.append(number)

    def beats(self) -> list[Beat]:
        return [Beat(0, "compute", 0.0, 0.0, 0.0)]

    def end(self) -> AttemptEnd | None:
        if self.is_done:
            return AttemptEnd("succeeded", 1, message="reached the last step")
        return AttemptEnd("preempted", 1, message="asked to stop; committed and stopped") if self.sent else None


class InterruptedNodes(KillingNodes):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.ranks = InterruptedRanks(times)

    def start(self, orders) -> InterruptedRanks:
        return self.ranks


@pytest.mark.parametrize(("times", "reason", "sent"), [(1, "committed and stopped", 1), (2, "killed by Ctrl-C", 0)])
def test_ctrl_c_commits_and_leaves_and_a_second_one_kills(times, reason, sent, run, capfd) -> None:
    nodes, log = InterruptedNodes(times), CommitLog(open_store("memory:"))
    handled = signal.getsignal(signal.SIGINT)
    supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=ClockThatStops(""), nodes=nodes)
    with pytest.raises(Interrupted, match=rf"(?s){reason}.*no commit yet.*assay train --resume r"):
        supervisor.run(1)
    assert nodes.ranks.sent == [signal.SIGTERM] * sent
    assert [attempt.outcome for attempt in saved_attempts(Path(run.run_dir))] == ["preempted"]
    assert "Press it again to kill at once" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is handled


def test_who_was_started_not_to_hear_ctrl_c_does_not(run) -> None:
    nodes, log = InterruptedNodes(2), CommitLog(open_store("memory:"))
    nodes.ranks.sent = [0]
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=ClockThatStops(""), nodes=nodes)
        assert supervisor.run(1).reason == "asked to stop; committed and stopped"
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize(
    ("failure", "num_starts"),
    [
        (KILL, 4),
        (failure("lost_node", "node 1 was lost"), 4),
        (failure("peer_lost", "RuntimeError: closed", signature="RuntimeError in f"), 4),
        (CRASH, 2),
        (HANG, 2),
        (failure("exception", "ValueError: 0x7f", signature="ValueError in f"), 2),
        (failure("exited", "exit code 3 without a report", signature="exit code 3"), 2),
    ],
    ids=lambda value: value.failure_kind if isinstance(value, Failure) else "",
)
def test_what_the_code_did_is_not_tried_a_third_time_but_what_came_from_outside_is(
    failure, num_starts, run, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr("assay.elastic.supervisor.save_failing_step", refuse_to_save)
    nodes, log = KillingNodes(failure), CommitLog(open_store("memory:"))
    policy = RestartPolicy(max_restarts=3)
    supervisor = Supervisor(run, log, policy=policy, observers=[], clock=ClockThatStops(""), nodes=nodes)
    with pytest.raises(TrainingError) as stopped:
        supervisor.run(1)
    assert nodes.num_starts == num_starts
    assert ("The same failure came twice" in str(stopped.value)) == (num_starts == 2)
    repeated = [(incident.incident, incident.attempt) for incident in read_incidents(Path(run.run_dir))]
    assert repeated == ([("repeated_failure", 2)] if num_starts == 2 else [])
    first, *_ = saved_attempts(Path(run.run_dir))
    assert (first.hosts, first.devices, first.failure.failure_kind) == (
        ("host-0",), ("cpu",), failure.failure_kind,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("after_death", "failure", "num_starts"),
    [
        ("shrink", CRASH, 2),
        ("shrink", HANG, 2),
        ("shrink", KILL, 4),
        ("same", CRASH, 4),
        ("same", HANG, 4),
        ("same", failure("exception", "ValueError: x", signature="ValueError in f"), 2),
    ],
    ids=lambda value: value.failure_kind if isinstance(value, Failure) else str(value),
)
def test_the_same_failure_on_fewer_ranks_is_the_same_whatever_the_number_of_the_rank(
    after_death, failure, num_starts, run, monkeypatch
) -> None:
    monkeypatch.setattr("assay.elastic.supervisor.save_failing_step", refuse_to_save)
    nodes, log = KillingNodes(failure, moves=True), CommitLog(open_store("memory:"))
    policy = RestartPolicy(max_restarts=3, after_death=after_death)
    supervisor = Supervisor(run, log, policy=policy, observers=[], clock=ClockThatStops(""), nodes=nodes)
    with pytest.raises(TrainingError):
        supervisor.run(2)
    assert nodes.num_starts == num_starts


@pytest.mark.parametrize(("after_death", "sizes"), [("shrink", [4, 3, 2, 1, 1]), ("same", [4] * 5)])
def test_who_shrinks_goes_on_with_as_many_ranks_as_survived(after_death, sizes, run, monkeypatch) -> None:
    started: list[int] = []

    class Losing(KillingNodes):
        """One rank of each attempt."""

        def start(self, orders) -> KilledRanks:
            started.append(orders.attempt.world_size)
            ranks = super().start(orders)
            ranks.num_alive = orders.attempt.world_size - 1
            return ranks

    policy = RestartPolicy(max_restarts=4, after_death=after_death)
    log, clock = CommitLog(open_store("memory:")), ClockThatStops("")
    supervisor = Supervisor(run, log, policy=policy, observers=[], clock=clock, nodes=Losing())
    with pytest.raises(TrainingError, match="5 attempts failed"):
        supervisor.run(4)
    assert started == sizes


def test_another_mistake_at_the_same_step_is_tried_again(run, monkeypatch) -> None:
    monkeypatch.setattr("assay.elastic.supervisor.save_failing_step", refuse_to_save)
    mistakes = [failure("exception", "x", signature=f"ValueError in {name}") for name in ("f", "g", "h", "f")]
    nodes, log = KillingNodes(), CommitLog(open_store("memory:"))
    monkeypatch.setattr(nodes, "start", lambda orders: KilledRanks(mistakes[orders.attempt.attempt - 1]))
    supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=ClockThatStops(""), nodes=nodes)
    with pytest.raises(TrainingError, match="4 attempts failed"):
        supervisor.run(1)


def refuse_to_save(*_: object) -> None:
    raise DataError("there is no dataset here")


def test_another_version_of_assay_is_noticed_once_and_on_record(run, monkeypatch) -> None:
    nodes, log = KillingNodes(KILL), CommitLog(open_store("memory:"))
    versions = iter(["0.1.0+gold", "0.1.0+gnew", "0.1.0+gnew"])
    monkeypatch.setattr("assay.elastic.supervisor.code_version", lambda: next(versions))
    run = run.model_copy(update={"code_version": "0.1.0+gold"})
    policy = RestartPolicy(max_restarts=2)
    supervisor = Supervisor(run, log, policy=policy, observers=[], clock=ClockThatStops(""), nodes=nodes)
    with pytest.raises(TrainingError):
        supervisor.run(1)
    folder = Path(run.run_dir)
    assert [attempt.code_version[6:] for attempt in saved_attempts(folder)] == ["gold", "gnew", "gnew"]
    (incident,) = read_incidents(folder)
    assert (incident.incident, incident.attempt) == ("other_code", 2)
    assert "0.1.0+gnew now and was 0.1.0+gold" in incident.text


class LeavingNodes(InterruptedNodes):
    """Two nodes of a rank each, then one: the other is asked to stop in the first attempt, and comes back after
    the second, whose rank is killed."""

    def __init__(self) -> None:
        super().__init__(0)
        self.sizes: list[int] = []
        self.names = ["node 1 (b)"]

    def fitting(self, world_size: int) -> int:
        assert world_size == 2, "as many as were asked for at first"
        self.sizes.append(1 if len(self.sizes) == 1 else 2)
        return self.sizes[-1]

    def leaving(self) -> list[str]:
        return self.names if len(self.sizes) == 1 else []

    def start(self, orders) -> KilledRanks:
        if len(self.sizes) == 2:
            return KilledRanks(KILL)
        self.ranks.sent.clear()
        self.ranks.is_done = len(self.sizes) == 3
        return self.ranks


def test_a_node_that_leaves_ends_the_attempt_and_not_the_run_and_one_that_is_back_is_used(run) -> None:
    nodes, log = LeavingNodes(), CommitLog(open_store("memory:"))
    supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=ClockThatStops(""), nodes=nodes)
    last = supervisor.run(2)
    assert (nodes.sizes, last.outcome) == ([2, 1, 2], "succeeded")
    first, killed, _ = saved_attempts(Path(run.run_dir))
    assert (first.outcome, killed.outcome) == ("preempted", "killed")
    assert first.reason == "node 1 (b) leaves: committed; the run continues"


def test_who_is_asked_to_stop_while_a_node_leaves_begins_no_other_attempt(run) -> None:
    nodes, log = LeavingNodes(), CommitLog(open_store("memory:"))
    supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=ClockThatStops(""), nodes=nodes)
    nodes.ranks.wait_for_news = lambda timeout_s: supervisor.request_stop()
    assert supervisor.run(2).outcome == "preempted"
    assert nodes.sizes == [2]


class ShrinkingNodes(KillingNodes):
    """Of four nodes one is lost in each attempt."""

    def fitting(self, world_size: int) -> int:
        return min(world_size, 4 - self.num_starts)


@pytest.mark.parametrize(("least", "num_starts"), [(1, 4), (3, 2), (4, 1)])
def test_with_fewer_ranks_than_will_do_a_run_waits_for_nodes(least, num_starts, run, monkeypatch) -> None:
    nodes, log = ShrinkingNodes(), CommitLog(open_store("memory:"))
    policy = RestartPolicy(max_restarts=3, least_ranks=least)
    supervisor = Supervisor(run, log, policy=policy, observers=[], clock=ClockThatStops(""), nodes=nodes)
    if least == 1:
        with pytest.raises(TrainingError, match="4 attempts failed"):
            supervisor.run(4)
    else:
        assert supervisor.run(4).outcome == "killed"
        has = f"{least - 1} rank" + "s" * (least > 2)
        assert supervisor.waits_for == f"waits for nodes: there is room for {has}, at least {least} required"
    assert nodes.num_starts == num_starts


class ComingNodes(InterruptedNodes):
    """One waits for others, which come after some looks."""

    def __init__(self, looks: int) -> None:
        super().__init__(0)
        self.looks = looks

    def fitting(self, world_size: int) -> int:
        self.looks -= 1
        return 2 if self.looks > 0 else 3


class RunningClock(ClockThatStops):
    """Time goes by while the supervisor sleeps."""

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds
        super().sleep_s(seconds)


def waiting(run, looks: int, limit_s: float, function: str = "") -> tuple[Attempt | None, Supervisor]:
    nodes, log = ComingNodes(looks), CommitLog(open_store("memory:"))
    nodes.ranks.is_done = True
    policy = RestartPolicy(least_ranks=3, wait_for_nodes_s=limit_s)
    supervisor = Supervisor(run, log, policy=policy, observers=[], clock=RunningClock(function), nodes=nodes)
    attempt = supervisor.run(4)
    assert (attempt is None) == (log.entries() == [])
    return attempt, supervisor


def test_a_run_waits_for_the_nodes_that_it_needs_as_long_as_it_may(run) -> None:
    attempt, supervisor = waiting(run, looks=50, limit_s=10.0)
    assert attempt is not None and (attempt.outcome, attempt.world_size) == ("succeeded", 3)
    attempt, supervisor = waiting(run, looks=50, limit_s=3.0)
    assert attempt is None
    assert supervisor.waits_for == "waits for nodes: there is room for 2 ranks, at least 3 required"


def test_a_run_that_waits_for_nodes_leaves_when_it_is_told_to(run) -> None:
    attempt, supervisor = waiting(run, looks=50, limit_s=math.inf, function="sleep_s")
    assert (attempt, supervisor.waits_for) == (None, "")


class RoomierNodes(InterruptedNodes):
    """One node; another waits outside from the first step of the first attempt on."""

    def __init__(self) -> None:
        super().__init__(0)
        self.sizes: list[int] = []

    def fitting(self, world_size: int) -> int:
        self.sizes.append(2 if self.sizes else 1)
        return self.sizes[-1]

    def room(self, world_size: int) -> int:
        return 2

    def start(self, orders) -> InterruptedRanks:
        self.ranks.sent.clear()
        self.ranks.is_done = len(self.sizes) == 2
        return self.ranks


def test_a_run_restarts_for_a_node_that_has_come_once_it_is_known_to_pay(run) -> None:
    nodes, log, clock = RoomierNodes(), CommitLog(open_store("memory:")), ClockThatStops("")
    steps = itertools.count()

    def beats() -> list[Beat]:
        clock.at_s += 1.0
        return [Beat(next(steps), "compute", clock.at_s, 0.0, 1.0)]

    nodes.ranks.beats = beats
    run = run.model_copy(update={"num_steps": 1000})
    supervisor = Supervisor(run, log, policy=RestartPolicy(), observers=[], clock=clock, nodes=nodes)
    assert supervisor.run(2).outcome == "succeeded"
    assert nodes.sizes == [1, 2] and 5 < next(steps) < 12
    first, _ = saved_attempts(Path(run.run_dir))
    assert first.reason == "nodes have joined, so there is room for 2 ranks: committed; the run continues"
