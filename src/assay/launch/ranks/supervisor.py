"""Keeps a run alive: starts its ranks, watches them, and starts them again from the last commit.

    begin attempt (fences the older ones) -> verify commits -> fork the ranks -> watch
          ^                                                                       | a rank died or hangs
          +---- on as many ranks as asked for, at most `max_restarts` times <-----+

The supervisor alone writes to the ledger, so that no training step ever waits for a database. It knows no
torch, and not where the ranks run: `ThisMachine` starts them here, `launch.nodes` on those of an allocation.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from assay.base.clock import Clock
from assay.base.errors import AssayError, StoreError, TrainingError
from assay.base.units import duration_text
from assay.launch.capsules import save_failing_step
from assay.launch.ranks.faults import NO_FAULTS, FaultPlan
from assay.launch.ranks.processes import CRASHES, AttemptEnd, AttemptRanks, Orders, RankProcesses, fork_context
from assay.launch.ranks.task import TRACEBACK, Parallel
from assay.records.commit import Commit
from assay.records.notice import Notice, NoticeKind
from assay.records.run import Attempt, Run
from assay.records.suspect import WrongArithmeticError
from assay.store.attempts import close_abandoned_attempts, save_attempt, saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.notices import append_notice
from assay.triage.hang import HungRank, describe_hung_rank, find_hung_rank, stacks_path
from assay.triage.straggler import StragglerWatch, describe_straggler

AfterDeath = Literal["same", "shrink"]
"""Ranks of the next attempt: as many as before, or the largest power of two that the survivors make up."""

POLL_S = 0.1
STACKS_S = 0.5
"""How long hung ranks have to write their stacks."""
PRIOR_FAILURE_S = 3600.0
"""What is assumed of a run that has not died yet: a preemptible node lives for hours."""
SILENCE = ": no sign of life for "
"""Between where a rank hung and what differs between two hangs that are alike."""
_RANK = re.compile(r"^rank \d+")
STORE_TRIES = 4
"""A store that fails may come back: so many attempts without a commit in between, after growing waits."""


class Watcher(Protocol):
    """Who is told what happens, e.g. a progress bar, the ledger, or a demo that kills a rank."""

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        """The ranks were started."""
        ...

    def tick(self, attempt: Attempt) -> None:
        """Some time has passed; called about every `POLL_S` seconds."""
        ...

    def attempt_ended(self, attempt: Attempt) -> None:
        """All ranks are gone."""
        ...


@dataclass(frozen=True)
class RestartPolicy:
    """What to do when a rank dies."""

    max_restarts: int = 10
    after_death: AfterDeath = "same"
    world_sizes: tuple[int, ...] = ()
    """World sizes of the first attempts, in turn; for tests and drills. Then the last one."""
    hang_s: float = 60.0
    """Silence of all ranks after which one may be called hung; at least ten of the run's longest steps."""
    grace_s: float = 600.0
    """After SIGTERM: who has not committed and left by then is killed, back to the last commit."""
    faults: FaultPlan = NO_FAULTS
    """What shall go wrong."""
    parallel: Parallel | tuple[Parallel, ...] = "ddp"
    """How the ranks hold the weights; several: of the first attempts in turn, then the last one."""

    def parallel_of(self, attempt: int) -> Parallel:
        """Of an attempt of this supervisor, from 0."""
        if isinstance(self.parallel, str):
            return self.parallel
        return self.parallel[min(attempt, len(self.parallel) - 1)]


class _Failure(NamedTuple):
    """Why an attempt died, and the step of the last commit then."""

    outcome: str
    reason: str
    step: int
    world_size: int

    def is_like(self, other: "_Failure") -> bool:
        """Whether it is the same failure: on another number of ranks, whichever of them it befell.

        A lane that fails moves to another rank when the number of ranks changes.
        """
        reason, others_reason = self.reason, other.reason
        if self.world_size != other.world_size:
            reason, others_reason = (_RANK.sub("rank", text) for text in (reason, others_reason))
        return (self.outcome, reason, self.step) == (other.outcome, others_reason, other.step)

    def may_be_the_codes_fault(self) -> bool:
        """Whether it would come again wherever the step is made; a kill from outside is the node's fault."""
        return self.outcome == "failed" or " hung in " in self.reason or self.reason.endswith(tuple(CRASHES))


class Nodes(Protocol):
    """Where ranks can be started."""

    def fitting(self, world_size: int) -> int:
        """`world_size`, or the largest power of two below that the nodes still have room for."""
        ...

    def start(self, orders: Orders) -> AttemptRanks:
        """Start the ranks of an attempt."""
        ...


class ThisMachine:
    """All ranks on this machine; they meet by a file in the run's folder."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._context = fork_context()

    def fitting(self, world_size: int) -> int:
        """Any number of ranks; they share what there is."""
        return world_size

    def start(self, orders: Orders) -> AttemptRanks:
        """Fork the ranks."""
        place = Path(self._run.run_dir) / "rendezvous" / f"attempt-{orders.attempt.attempt:04d}"
        place.parent.mkdir(parents=True, exist_ok=True)
        ranks = range(orders.attempt.world_size)
        return RankProcesses(self._context, self._run, orders, ranks, f"file://{place}")


class Supervisor:
    """Runs attempts until the run is done, is asked to stop, or can not go on."""

    def __init__(
        self,
        run: Run,
        log: CommitLog,
        *,
        policy: RestartPolicy,
        watchers: Sequence[Watcher],
        clock: Clock,
        nodes: Nodes | None = None,
    ) -> None:
        """`nodes`: where the ranks run; by default, here."""
        self._run = run
        self._log = log
        self._policy = policy
        self._watchers = watchers
        self._clock = clock
        self._stop_asked = False
        self._num_attempts = 0
        self._nodes = nodes or ThisMachine(run)

    def run(self, world_size: int) -> Attempt:
        """The last attempt. Raises what the ranks raised if they can not go on."""
        previous = signal.signal(signal.SIGTERM, self._ask_to_stop)
        try:
            return self._attempts(world_size)
        finally:
            signal.signal(signal.SIGTERM, previous)

    def _attempts(self, world_size: int) -> Attempt:
        failures: list[_Failure] = []
        sizes = list(self._policy.world_sizes)
        while True:
            if sizes:
                world_size = sizes.pop(0)
            world_size = self._nodes.fitting(world_size)
            attempt, end = self._one_attempt(world_size)
            if end.outcome in ("succeeded", "preempted"):
                return attempt
            if isinstance(end.error, TrainingError):
                raise TrainingError(f"{end.error}{self._keep_failing_step(attempt, end.reason)}")
            if end.error is not None and not isinstance(end.error, StoreError | WrongArithmeticError):
                raise end.error
            # Where the traceback lies differs between two failures that are alike.
            alike = end.reason.partition(TRACEBACK)[0].partition(SILENCE)[0]
            reason = alike if end.error is None else type(end.error).__name__
            failures.append(_Failure(end.outcome, reason, attempt.end_step or 0, attempt.world_size))
            self._refuse_hopeless(failures, end, attempt)
            self._wait_unless_asked_to_stop(back_off_s(failures))
            if self._policy.after_death == "shrink":
                world_size = 1 << (max(1, end.num_alive).bit_length() - 1)

    def _refuse_hopeless(self, failures: list[_Failure], end: AttemptEnd, attempt: Attempt) -> None:
        """A kill is the node's fault and is tried again; the same failure at the same step is the code's."""
        last = failures[-1]
        allowed = STORE_TRIES if isinstance(end.error, StoreError) else 1
        num_alike = sum(failure.is_like(last) for failure in failures)
        repeats = last.may_be_the_codes_fault() and num_alike > allowed
        if not repeats and len(failures) <= self._policy.max_restarts:
            return
        if end.error is not None:
            raise end.error
        kept = self._keep_failing_step(attempt, last.reason) if repeats else ""
        raise TrainingError(
            f"run {self._run.run_id}: {len(failures)} attempts died, the last with: {last.reason}. "
            + (f"It failed twice in the same way, so it was not tried again.{kept} " if repeats else "")
            + f"All commits up to step {last.step} are intact: 'assay train --resume {self._run.run_id}' goes "
            "on from there."
        )

    def _keep_failing_step(self, attempt: Attempt, reason: str) -> str:
        """Make a capsule of the step that failed; a sentence that says how to look at it."""
        try:
            capsule = save_failing_step(self._run, self._log, attempt, reason)
        except AssayError as error:
            return f" No capsule of the step could be kept: {error}"
        return (
            f" All that step {capsule.step} needs is kept as a capsule: 'assay replay {self._run.run_id} "
            f"--step {capsule.step} --watch' runs it again and names the operator."
        )

    def _one_attempt(self, world_size: int) -> tuple[Attempt, AttemptEnd]:
        now_s = self._clock.now_s()
        number = self._log.begin_attempt(world_size=world_size, now_s=now_s)
        commit = self._log.last_intact_commit()
        self._log.sweep()
        attempt = Attempt(
            run_id=self._run.run_id,
            attempt=number,
            world_size=world_size,
            start_step=commit.step if commit else 0,
            started_s=now_s,
        )
        save_attempt(Path(self._run.run_dir), attempt)
        close_abandoned_attempts(self._run, self._log, attempt)
        if self._stop_asked:
            end = AttemptEnd("preempted", "asked to stop before its ranks were started", world_size)
        else:
            end = self._run_ranks(attempt, commit)
        if isinstance(end.error, WrongArithmeticError):
            self._log.quarantine_unverified(f"not verified before this: {end.error}")
        commits = self._log.commits()
        ended = attempt.model_copy(
            update={
                "ended_s": self._clock.now_s(),
                "end_step": commits[-1].step if commits else 0,
                "outcome": end.outcome,
                "reason": end.reason,
                "suspects": end.error.suspects if isinstance(end.error, WrongArithmeticError) else (),
                "stalled_s": end.stalled_s,
            }
        )
        save_attempt(Path(self._run.run_dir), ended)
        for watcher in self._watchers:
            watcher.attempt_ended(ended)
        return ended, end

    def _run_ranks(self, attempt: Attempt, commit: Commit | None) -> AttemptEnd:
        ranks = self._nodes.start(self._orders(attempt, commit))
        try:
            for watcher in self._watchers:
                watcher.attempt_began(attempt, ranks.pids)
            return self._watch(ranks, attempt)
        finally:
            ranks.stop()

    def _orders(self, attempt: Attempt, commit: Commit | None) -> Orders:
        parallel = self._policy.parallel_of(self._num_attempts)
        self._num_attempts += 1
        return Orders(
            attempt=attempt,
            commit=commit,
            faults=self._policy.faults,
            parallel=parallel,
            failure_s=mean_time_between_failures_s(saved_attempts(Path(self._run.run_dir))),
        )

    def _watch(self, ranks: AttemptRanks, attempt: Attempt) -> AttemptEnd:
        leave_by_s: float | None = None
        began_s, least_s = self._clock.monotonic_s(), self._policy.hang_s
        stragglers = StragglerWatch(attempt.world_size)
        while True:
            if self._stop_asked and leave_by_s is None:
                ranks.signal(signal.SIGTERM)
                leave_by_s = self._clock.monotonic_s() + self._policy.grace_s
            ranks.wait_for_news(POLL_S)
            for watcher in self._watchers:
                watcher.tick(attempt)
            if (end := ranks.end()) is not None:
                # Who asked to stop wants no other attempt, even if a rank did not survive the asking.
                died = end.outcome in ("killed", "failed") and end.error is None
                return end._replace(outcome="preempted") if self._stop_asked and died else end
            now_s, beats = self._clock.monotonic_s(), ranks.beats()
            if leave_by_s is not None and now_s > leave_by_s:
                reason = f"not gone {self._policy.grace_s:g} s after SIGTERM; back to the last commit"
                return AttemptEnd("preempted", reason, 0)
            if (slow := stragglers.look(beats)) is not None:
                self._notice(attempt, ranks, "straggler", slow.rank, slow.step, describe_straggler(slow))
            hung = find_hung_rank(beats, now_s=now_s, least_s=least_s, began_s=began_s)
            if hung is not None:
                return self._end_hung(ranks, attempt, hung)

    def _end_hung(self, ranks: AttemptRanks, attempt: Attempt, hung: HungRank) -> AttemptEnd:
        state = ranks.take_stacks(hung.rank)
        self._clock.sleep_s(STACKS_S)
        stacks = stacks_path(Path(self._run.run_dir), attempt.attempt, hung.rank)
        reason = (
            f"{describe_hung_rank(hung)}{SILENCE}{hung.silent_s:.0f} s, process "
            f"{state or 'in an unknown state'}; "
            # A rank that hangs in its first moments can not write any.
            + (f"stacks in {stacks}" if stacks.is_file() else "it wrote no stacks")
        )
        step = hung.beat.step if hung.beat else attempt.start_step
        self._notice(attempt, ranks, "hang", hung.rank, step + 1, reason)
        return AttemptEnd("killed", reason, attempt.world_size - 1, stalled_s=hung.silent_s)

    def _notice(
        self, attempt: Attempt, ranks: AttemptRanks, kind: NoticeKind, rank: int, step: int, text: str
    ) -> None:
        notice = Notice(
            notice=kind,
            run_id=self._run.run_id,
            attempt=attempt.attempt,
            at_s=self._clock.now_s(),
            rank=rank,
            step=step,
            host=ranks.host_of(rank),
            text=text,
        )
        append_notice(Path(self._run.run_dir), notice)

    def _wait_unless_asked_to_stop(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        while not self._stop_asked and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep_s(min(left_s, POLL_S))

    def _ask_to_stop(self, *_: object) -> None:
        self._stop_asked = True


def back_off_s(failures: Sequence[_Failure]) -> float:
    """Seconds until the next attempt: none at first, then longer while no commit is made between failures."""
    stuck = sum(failure.step == failures[-1].step for failure in failures)
    return 0.0 if stuck < 2 else min(30.0, 0.5 * 2 ** (stuck - 2))


def mean_time_between_failures_s(attempts: Sequence[Attempt]) -> float:
    """Of a run so far; `PRIOR_FAILURE_S` while it has not died."""
    ended = [attempt for attempt in attempts if attempt.ended_s is not None]
    ran_s = sum((attempt.ended_s or 0.0) - attempt.started_s for attempt in ended)
    num_failures = sum(attempt.outcome in ("killed", "failed", "preempted") for attempt in ended)
    return ran_s / num_failures if num_failures else PRIOR_FAILURE_S


def describe(attempt: Attempt) -> str:
    """One line about a finished attempt."""
    lasted = duration_text((attempt.ended_s or attempt.started_s) - attempt.started_s)
    return (
        f"attempt {attempt.attempt} on {attempt.world_size} ranks: steps {attempt.start_step} to "
        f"{attempt.end_step} in {lasted}; {attempt.reason}"
    )
