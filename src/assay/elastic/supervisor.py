"""The supervisor of a run: it starts the ranks, watches them, and restarts them from the last commit.

    begin attempt (fences older attempts) -> verify commits -> fork the ranks -> watch
          ^                                                                       | a rank died or hangs
          +---- same or smaller world size, at most `max_restarts` times <--------+

Only the supervisor writes to the ledger, so a training step never waits for a database. The supervisor does not
import torch and does not know where ranks run: `ThisMachine` forks them on this host, `elastic.nodes.group` on
several nodes.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from assay.base.clock import Clock
from assay.base.code_version import code_version
from assay.base.errors import (
    AssayError,
    ConfigError,
    DamagedDataError,
    FencedError,
    Interrupted,
    StoreAwayError,
    StoreError,
    StoreFullError,
    TrainingError,
)
from assay.base.units import duration_text, number_of
from assay.elastic.capsules import save_failing_step
from assay.elastic.environment import environment_here, with_devices, with_hosts
from assay.elastic.failures import last_phase
from assay.elastic.faults import NO_FAULTS, FaultPlan, describe_fault, have_struck
from assay.elastic.fork_server import fork_context
from assay.elastic.lane_times import Share, loads_of
from assay.elastic.processes import AttemptRanks, RankProcesses
from assay.elastic.processor import processor_here, refuse_other_processor
from assay.elastic.regroup import RegroupWatch
from assay.elastic.task import AttemptEnd, Orders, Parallel
from assay.records.commit import Commit
from assay.records.failure import FROM_OUTSIDE, Failure, FailureKind
from assay.records.incident import Incident, IncidentKind
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor
from assay.records.run import Attempt, Run, slower_command
from assay.records.suspect import WrongArithmeticError
from assay.reporting.views.triage_statements import silence_text, straggler_text
from assay.store.attempts import close_abandoned_attempts, save_attempt, saved_attempts
from assay.store.commit_log import LOG_PREFIX, CommitLog
from assay.store.incidents import append_incident
from assay.store.known_runs import RUN_FILE
from assay.store.objects import ObjectStore
from assay.store.retry_policy import RETRY_BUDGET_S, RetryPolicy
from assay.training.model_folders import check_unchanged
from assay.training.recipe import recipe_of
from assay.triage.hang import HungRank, are_stacks_whole, find_hung_rank, stacks_path
from assay.triage.straggler import StragglerWatch

AfterDeath = Literal["same", "shrink"]
"""World size of the next attempt: `same` as before, or `shrink` to the ranks that survived."""

POLL_S = 0.1
STORE_PROBE_S = 1.0
"""Seconds between probes of the store while a stopping run makes its last commit."""
STACKS_S = 5.0
"""Maximum seconds that hung ranks get to write their stacks."""
PRIOR_FAILURE_S = 3600.0
"""Mean time between failures that is assumed until a run fails: preemptible nodes live for hours."""
STORE_TRIES = 4
"""Attempts without a new commit before a store error is final; the waits between them grow."""


class RunObserver(Protocol):
    """Receives the events of a run, e.g. a progress bar, the ledger, or a demo that kills a rank."""

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        """Called when the ranks have been started."""
        ...

    def tick(self, attempt: Attempt) -> None:
        """Called about every `POLL_S` seconds while the ranks run."""
        ...

    def attempt_ended(self, attempt: Attempt) -> None:
        """Called when no rank of the attempt is left."""
        ...


@dataclass(frozen=True)
class RestartPolicy:
    """What to do when a rank dies."""

    max_restarts: int = 10
    after_death: AfterDeath = "same"
    world_sizes: tuple[int, ...] = ()
    """World sizes of the first attempts; later attempts use the last one. For tests and drills."""
    hang_s: float = 60.0
    """Seconds without progress on any rank before a rank counts as hung; at least ten times the longest step."""
    grace_s: float = 600.0
    """Seconds after SIGTERM for ranks to commit and exit. Ranks still running then are killed, and work since
    the last commit is lost."""
    faults: FaultPlan = NO_FAULTS
    """Faults to inject."""
    parallel: tuple[Parallel, ...] = ("ddp",)
    """How ranks hold the weights in the first attempts; later attempts use the last entry."""
    share: Share = "equal"
    """How lanes are divided among ranks: `equal`, or by each rank's measured `speed`."""
    verify_commits: int = 20
    """Read back the first commit of an attempt and then every n-th commit; 0 turns verification off."""
    store_retry_s: float = RETRY_BUDGET_S
    """Seconds during which consecutive attempts may fail because the store is unreachable."""
    times_lanes: bool = False
    """Time each lane and the messages between ranks, as a throughput forecast requires."""
    other_device: bool = False
    """Allow resuming on another processor type. The weights then differ in their last bits."""
    least_ranks: int = 1
    """Minimum world size. If fewer ranks fit, the run waits for nodes."""
    wait_for_nodes_s: float = 0.0
    """Maximum seconds of that wait; then the run exits, which frees its nodes."""

    def __post_init__(self) -> None:
        if self.share == "speed" and "fsdp2" in self.parallel:
            raise ConfigError(
                "--share speed does not work with --parallel fsdp2: all workers gather the weights for every lane, "
                "so they wait for the slowest worker however few lanes it has. Use only one of the two options."
            )


RANK_SPECIFIC_KINDS: frozenset[FailureKind] = frozenset(("crashed", "hang", "exited"))
"""Failures that count as repeated only if the same rank fails, unless the world size changed."""
SAME_BY_KIND: frozenset[FailureKind] = frozenset(("store_unreachable", "wrong_arithmetic"))
"""Failures that count as repeated whatever their rank and signature."""


class _Death(NamedTuple):
    """A failed attempt: its failure, the step of its last commit, and its world size."""

    failure: Failure
    step: int
    world_size: int
    at_s: float
    is_of_store: bool
    """The attempt failed because the store was unreachable."""

    def is_like(self, other: "_Death") -> bool:
        """Return whether both are the same failure with no commit in between.

        The rank is ignored if the world size changed, because a failing lane then moves to another rank.
        """
        first, second = self.failure, other.failure
        if (first.failure_kind, self.step) != (second.failure_kind, other.step):
            return False
        if first.failure_kind in SAME_BY_KIND:
            return True
        moved = first.failure_kind in RANK_SPECIFIC_KINDS and first.rank != second.rank
        return first.signature == second.signature and not (moved and self.world_size == other.world_size)


class Nodes(Protocol):
    """The nodes that can run ranks."""

    processor: Processor
    """Processor type of all nodes."""

    def other_environments(self) -> Mapping[str, NodeEnvironment]:
        """Return the environment of every other node, by host."""
        ...

    def fitting(self, world_size: int) -> int:
        """Return `world_size`, or fewer if the nodes have fewer slots; 0 while more nodes are expected at once.

        Admits nodes that wait to join.
        """
        ...

    def room(self, world_size: int) -> int:
        """Return what `fitting` would return now, without admitting nodes."""
        ...

    def leaving(self) -> Sequence[str]:
        """Return the names of nodes that were asked to stop. The run continues on the others in a new attempt."""
        ...

    def hosts(self, world_size: int) -> list[str]:
        """Return the host of each rank if `world_size` ranks were started now."""
        ...

    def start(self, orders: Orders) -> AttemptRanks:
        """Start the ranks of an attempt."""
        ...

    def staying(self) -> Sequence[str]:
        """Return the names of the other nodes that may lead the run when this one has left."""
        ...


class ThisMachine:
    """All ranks run on this machine; their rendezvous is a file in the run's folder."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._context = fork_context()
        self.processor = processor_here()

    def other_environments(self) -> dict[str, NodeEnvironment]:
        return {}

    def fitting(self, world_size: int) -> int:
        """Return `world_size`: ranks share this machine's cores or GPUs."""
        return world_size

    def room(self, world_size: int) -> int:
        """Return `world_size`: no node can join."""
        return world_size

    def leaving(self) -> Sequence[str]:
        """Return nothing: a stop request goes to the supervisor itself."""
        return ()

    def hosts(self, world_size: int) -> list[str]:
        return [socket.gethostname()] * world_size

    def start(self, orders: Orders) -> AttemptRanks:
        rendezvous = Path(self._run.run_dir) / "rendezvous" / f"attempt-{orders.attempt.attempt:04d}"
        rendezvous.parent.mkdir(parents=True, exist_ok=True)
        rendezvous.unlink(missing_ok=True)  # a stale file of a killed attempt would break the rendezvous
        ranks = range(orders.attempt.world_size)
        return RankProcesses(self._context, self._run, orders, ranks, f"file://{rendezvous}")

    def staying(self) -> Sequence[str]:
        """Return nothing: there is no other node."""
        return ()


class Supervisor:
    """Runs attempts until the run finishes, is asked to stop, or cannot continue."""

    def __init__(
        self,
        run: Run,
        log: CommitLog,
        *,
        policy: RestartPolicy,
        observers: Sequence[RunObserver],
        clock: Clock,
        nodes: Nodes | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """`nodes`: where ranks run; this machine by default. `retry_policy`: that of the log's store."""
        self._run = run
        self._log = log
        self._policy = policy
        self._observers = observers
        self._clock = clock
        self.stop_requested = False
        self._regroups_for = ""
        """Reason to stop the current attempt and start another one: nodes leave, or nodes have joined."""
        self._is_interrupted = False
        self.waits_for = ""
        """What the run waits for, if it exited unfinished without a stop request."""
        self._num_attempts = self._requested_size = 0
        self._nodes = nodes or ThisMachine(run)
        self._retry_policy = retry_policy
        self._known_faults = [fault for fault, _ in have_struck(policy.faults, Path(run.run_dir))]
        self._has_record = (Path(run.run_dir) / RUN_FILE).is_file()

    def run(self, world_size: int) -> Attempt | None:
        """Run attempts until the run finishes or cannot continue; return the last one, None if none has begun.

        Raises the error of the ranks if it is final, `Interrupted` after Ctrl-C (first: commit and stop; second:
        kill), `FencedError` if another supervisor runs the run, and `ConfigError` if the last commit was made on
        another processor type and `policy.other_device` is off.
        """
        handlers = {signal.SIGTERM: self.request_stop, signal.SIGINT: self._interrupt}
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started with Ctrl-C ignored, e.g. by nohup
            del handlers[signal.SIGINT]
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # `RunNode` blocks it before it leads
        try:
            if not self._policy.other_device:
                refuse_other_processor(self._run, self._log, self._nodes.processor)
            last = self._attempts(world_size)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._is_interrupted and last is not None and last.outcome == "preempted":
            commit = f"Its last commit is of step {last.end_step}" if last.end_step else "It has no commit yet"
            raise Interrupted(
                f"run {self._run.run_id}: {last.reason}. {commit}; continue with:\n  {last.resume_command()}"
            )
        return last

    def _attempts(self, world_size: int) -> Attempt | None:
        deaths: list[_Death] = []
        sizes = list(self._policy.world_sizes)
        attempt: Attempt | None = None
        while True:
            if sizes:
                world_size = sizes.pop(0)
            self._requested_size, self._regroups_for = world_size, ""
            if (room := self._wait_for_room(world_size)) < self._policy.least_ranks:
                return attempt
            if attempt is not None:
                check_unchanged(self._run, recipe_of(self._run))
            attempt, end = self._one_attempt(room)
            if end.outcome == "preempted" and self._regroups_for and not self.stop_requested:
                continue
            if end.outcome in ("succeeded", "preempted"):
                return attempt
            if isinstance(end.error, TrainingError):
                raise TrainingError(f"{end.error}{self._keep_failing_step(attempt)}{self._slower(attempt)}")
            if isinstance(end.error, StoreFullError):  # the next attempt would find no more room
                resume = f"'assay train --resume {self._run.run_id}'"
                at = f"from step {attempt.end_step}" if attempt.end_step else "from the start: it has no commit yet"
                raise StoreFullError(f"{end.error} {resume} continues {at}.")
            if end.error is not None and not isinstance(end.error, StoreError | WrongArithmeticError):
                raise end.error
            assert end.failure is not None, "an attempt that failed has a failure"
            is_of_store = isinstance(end.error, StoreAwayError)
            at_s = self._clock.monotonic_s()
            deaths.append(_Death(end.failure, attempt.end_step or 0, attempt.world_size, at_s, is_of_store))
            self._refuse_hopeless(deaths, end, attempt)
            self._wait_unless_stopped(back_off_s([death.step for death in deaths]))
            if self._policy.after_death == "shrink":
                world_size = max(self._policy.least_ranks, end.num_alive)

    def _wait_for_room(self, world_size: int) -> int:
        """Return how many ranks fit, once that is the minimum; fewer when the time is up, or after a stop request."""
        least, began_s = self._policy.least_ranks, self._clock.monotonic_s()
        while (room := self._nodes.fitting(world_size)) < least and not self.stop_requested:
            if room and self._clock.monotonic_s() >= began_s + self._policy.wait_for_nodes_s:
                has = number_of(room, "rank")
                self.waits_for = f"waits for nodes: there is room for {has}, at least {least} required"
                break
            self._clock.sleep_s(POLL_S)
        return room

    def _refuse_hopeless(self, deaths: list[_Death], end: AttemptEnd, attempt: Attempt) -> None:
        """Raise if another attempt would fail as well.

        A rank killed from outside is restarted up to `max_restarts` times. The same failure at the same step twice
        is a fault of the code or the data, so it is final.
        """
        last = deaths[-1]
        alike = [death for death in deaths if death.is_like(last)]
        if last.is_of_store and last.at_s - alike[0].at_s <= self._policy.store_retry_s:
            return  # the next attempt waits for the store when it opens the log
        allowed = STORE_TRIES if isinstance(end.error, StoreError) else 1
        num_alike = len(alike)
        is_repeated = last.failure.failure_kind not in FROM_OUTSIDE and num_alike > allowed
        num_own = sum(not death.is_of_store for death in deaths)
        if not is_repeated and not last.is_of_store and num_own <= self._policy.max_restarts:
            return
        if is_repeated:
            text = (
                f"{num_alike} attempts ended with the same failure and no commit in between: {last.failure.signature}"
            )
            self._notice_failure("repeated_failure", text, last.failure)
        if end.error is not None:
            raise end.error
        note = self._keep_failing_step(attempt) if is_repeated else ""
        raise TrainingError(
            f"run {self._run.run_id}: {number_of(len(deaths), 'attempt')} failed, "
            f"the last with: {last.failure.headline()}. "
            + (f"The same failure came twice, so it was not retried.{note} " if is_repeated else "")
            + f"All commits up to step {last.step} are intact: 'assay train --resume {self._run.run_id}' continues "
            "from there."
        )

    def _slower(self, attempt: Attempt) -> str:
        """Return advice to lower the learning rate if the loss was not finite, else an empty string."""
        if attempt.failure is None or attempt.failure.failure_kind != "loss_not_finite":
            return ""
        command = slower_command(self._run.run_id, self._run.recipe, step=0)
        last = attempt.end_step
        note = f"; '@{last}' instead of '@0' starts from the commit of step {last}" if last else ""
        nothing = "" if last else "Nothing is committed yet. "
        return (
            f" If resumed, it would fail there again. {nothing}If the learning rate is too high, '{command}' "
            f"starts over with a lower one{note}."
        )

    def _keep_failing_step(self, attempt: Attempt) -> str:
        """Save a capsule of the step that failed; return a sentence with the command that replays it."""
        assert attempt.failure is not None
        try:
            capsule = save_failing_step(self._run, self._log, attempt, attempt.failure.headline())
        except AssayError as error:
            return f" The step could not be saved as a capsule: {error}"
        again, step = f"'assay runs replay {self._run.run_id} --step", capsule.step
        note = f" Step {step} is saved as a capsule: "
        if attempt.failure.failure_kind == "loss_not_finite":
            return f"{note}{again} {step} --explain' finds the cause: rows, arithmetic, or earlier updates."
        return f"{note}{again} {step} --watch' replays it and names the failing operator."

    def _one_attempt(self, world_size: int) -> tuple[Attempt, AttemptEnd]:
        now_s = self._clock.now_s()
        number = self._log.begin_attempt(world_size=world_size, now_s=now_s)
        self._quarantine_suspected()
        commit = self._log.last_intact_commit()
        if commit is None and self._run.parent is not None:
            raise DamagedDataError(
                f"run '{self._run.run_id}': no commit is intact, including the one copied when it was forked. "
                f"Fork it again: 'assay train --from {self._run.parent}'."
            )
        self._log.sweep_abandoned()
        attempt = Attempt(
            run_id=self._run.run_id,
            attempt=number,
            world_size=world_size,
            start_step=commit.step if commit else 0,
            started_s=now_s,
            folder=self._run.run_dir,
            code_version=code_version(),
            processor=self._nodes.processor,
            environment=environment_here(),
            loads=self._loads(world_size),
        )
        save_attempt(Path(self._run.run_dir), attempt)
        self._notice_other_code(attempt)
        close_abandoned_attempts(self._run, self._log, attempt)
        if self.stop_requested:
            end = AttemptEnd("preempted", world_size, message="asked to stop before its ranks were started")
        else:
            try:
                attempt, end = self._run_ranks(attempt, commit)
            except KeyboardInterrupt:
                end = AttemptEnd("preempted", 0, message="killed by Ctrl-C before it committed")
        self._refuse_moved()
        if isinstance(end.error, WrongArithmeticError):
            assert end.failure is not None
            self._notice_failure("wrong_arithmetic", str(end.error), end.failure)
        away = end.error if self.stop_requested and isinstance(end.error, StoreAwayError) else None
        try:
            if isinstance(end.error, WrongArithmeticError):
                self._log.quarantine_unverified(_not_verified(end.error), up_to=attempt.attempt)
            if away is None:
                self._log.summary()
        except StoreAwayError as error:  # record the end anyway, with the last commit that is known
            away = error
        # Without commits of a later attempt: another supervisor may have fenced this one.
        commits = [known for known in self._log.known_commits() if known.attempt <= attempt.attempt]
        ended = attempt.model_copy(
            update={
                "ended_s": self._clock.now_s(),
                "end_step": commits[-1].step if commits else 0,
                "outcome": end.outcome,
                "reason": end.reason(self._run.run_dir),
                "failure": end.failure,
                "suspects": end.error.suspects if isinstance(end.error, WrongArithmeticError) else (),
                "stalled_s": end.stalled_s,
            }
        )
        save_attempt(Path(self._run.run_dir), ended)
        for observer in self._observers:
            observer.attempt_ended(ended)
        if away is not None:
            raise away
        return ended, end

    def _quarantine_suspected(self) -> None:
        """Quarantine the commits of an attempt that computed wrongly, if the store was unreachable at its end."""
        for attempt in reversed(saved_attempts(Path(self._run.run_dir))):
            if attempt.failure is not None and attempt.failure.failure_kind == "wrong_arithmetic":
                self._log.quarantine_unverified(_not_verified(attempt.failure.text), up_to=attempt.attempt)
                return

    def _refuse_moved(self) -> None:
        """Raise `StoreError` if the run's folder is gone: writing on would split its records over two folders."""
        if self._has_record and not (Path(self._run.run_dir) / RUN_FILE).is_file():
            raise StoreError(
                f"{self._run.run_dir}: the run's folder is gone: it was moved, deleted or unmounted during "
                "training. If it was moved, its commits are intact: set ASSAY_HOME to the new folder of runs and "
                f"run 'assay train --resume {self._run.run_id}'. If it was deleted, they are lost."
            )

    def _run_ranks(self, attempt: Attempt, commit: Commit | None) -> tuple[Attempt, AttemptEnd]:
        """Run the ranks of an attempt; return it with their hosts and devices, and how it ended."""
        ranks = self._nodes.start(self._orders(attempt, commit))
        try:
            attempt = with_hosts(attempt, ranks.hosts(), self._nodes.other_environments())
            save_attempt(Path(self._run.run_dir), attempt)
            for observer in self._observers:
                observer.attempt_began(attempt, ranks.pids)
            try:
                end = self._watch(ranks, attempt)
            except FencedError as error:
                text = str(error)
                failure = Failure(
                    failure_kind="fenced", run_id=attempt.run_id, attempt=attempt.attempt, signature="fenced", text=text
                )
                end = AttemptEnd("failed", attempt.world_size, failure=failure, error=error)
            self._notice_faults(attempt)
            return with_devices(attempt, ranks.devices()), end
        finally:
            ranks.stop()

    @property
    def _parallel(self) -> Parallel:
        """How ranks hold the weights in the next attempt."""
        return self._policy.parallel[: self._num_attempts + 1][-1]

    def _loads(self, world_size: int) -> tuple[int, ...]:
        """Return the lanes of each rank; empty for FSDP2, which deals lanes round-robin."""
        if self._parallel == "fsdp2":
            return ()
        return loads_of(self._run, self._policy.share, self._nodes.hosts(world_size))

    def _orders(self, attempt: Attempt, commit: Commit | None) -> Orders:
        parallel = self._parallel
        self._num_attempts += 1
        return Orders(
            attempt=attempt,
            commit=commit,
            faults=self._policy.faults,
            parallel=parallel,
            verify_commits=self._policy.verify_commits,
            times_lanes=self._policy.times_lanes,
            failure_s=mean_time_between_failures_s(saved_attempts(Path(self._run.run_dir))),
        )

    def _watch(self, ranks: AttemptRanks, attempt: Attempt) -> AttemptEnd:
        leave_by_s: float | None = None
        sign: _StoreProbe | None = None
        began_s, least_s = self._clock.monotonic_s(), self._policy.hang_s
        stragglers = StragglerWatch(attempt.loads or (1,) * attempt.world_size)
        regroup = self._regroup_watch(attempt, began_s)
        while True:
            if leave_by_s is None and (self.stop_requested or self._regroups(regroup, attempt)):
                ranks.signal(signal.SIGTERM)
                leave_by_s = self._clock.monotonic_s() + self._policy.grace_s
            ranks.wait_for_news(POLL_S)
            self._refuse_moved()
            for observer in self._observers:
                observer.tick(attempt)
            if (end := ranks.end()) is not None:
                # After a stop request there is no other attempt, even if a rank died while stopping.
                is_away = isinstance(end.error, StoreAwayError)
                died = end.outcome in ("killed", "failed") and (end.error is None or is_away)
                if end.outcome == "preempted" and not self.stop_requested and self._regroups(regroup, attempt):
                    return replace(end, message=f"{self._regroups_for}: committed; the run continues")
                return replace(end, outcome="preempted") if self.stop_requested and died else end
            now_s, beats = self._clock.monotonic_s(), ranks.beats()
            regroup.look(beats, now_s)
            if leave_by_s is not None and now_s > leave_by_s:
                text = f"ranks still ran {self._policy.grace_s:g} s after SIGTERM and were killed"
                return self._end_stopped(attempt, "not_gone_after_sigterm", "not gone after SIGTERM", text)
            if leave_by_s is not None and (sign is None or not sign.is_alive()):
                if sign is not None and sign.missing is not None:
                    text = "asked to stop while the store was unreachable"
                    signature = "store away after SIGTERM"
                    return self._end_stopped(attempt, "store_unreachable", signature, text, sign.missing)
                sign = _StoreProbe(self._log.store)
                sign.start()
            self._notice_faults(attempt)
            if (slow := stragglers.look(beats)) is not None:
                host, text = attempt.hosts[slow.rank], straggler_text(slow)
                self._record_incident("straggler", text, attempt.attempt, rank=slow.rank, step=slow.step, host=host)
            hung = find_hung_rank(beats, now_s=now_s, least_s=least_s, began_s=began_s)
            if hung is not None:
                return self._end_hung(ranks, attempt, hung)

    def _regroup_watch(self, attempt: Attempt, began_s: float) -> RegroupWatch:
        num_lanes = recipe_of(self._run).loader.lanes
        return RegroupWatch(attempt, num_lanes=num_lanes, num_steps=self._run.num_steps, began_s=began_s)

    def _regroups(self, watch: RegroupWatch, attempt: Attempt) -> bool:
        """Return whether to end this attempt and start another one on a different set of nodes."""
        if not self._regroups_for and (names := self._nodes.leaving()):
            self._regroups_for = f"{', '.join(names)} {'leaves' if len(names) == 1 else 'leave'}"
        room = self._nodes.room(self._requested_size)
        if not self._regroups_for and room > attempt.world_size and watch.pays(room):
            self._regroups_for = f"nodes have joined, so there is room for {number_of(room, 'rank')}"
        return bool(self._regroups_for)

    def _end_stopped(
        self, attempt: Attempt, kind: FailureKind, signature: str, text: str, error: StoreAwayError | None = None
    ) -> AttemptEnd:
        """Return the end of an attempt that could not commit after a stop request."""
        failure = Failure(
            failure_kind=kind,
            run_id=attempt.run_id,
            attempt=attempt.attempt,
            signature=signature,
            text=f"{text}; back to the last commit" + (f": {error}" if error else ""),
        )
        return AttemptEnd("preempted", 0, failure=failure, error=error)

    def _wait_for_stacks(self, attempt: Attempt) -> None:
        """Wait until every rank has written its stacks: a rank killed too early leaves a partial file."""
        run_dir = Path(self._run.run_dir)
        paths = [stacks_path(run_dir, attempt.attempt, rank) for rank in range(attempt.world_size)]
        deadline_s = self._clock.monotonic_s() + STACKS_S
        while not all(map(are_stacks_whole, paths)) and self._clock.monotonic_s() < deadline_s:
            self._clock.sleep_s(0.1)

    def _end_hung(self, ranks: AttemptRanks, attempt: Attempt, hung: HungRank) -> AttemptEnd:
        state = ranks.take_stacks(hung.rank)
        self._wait_for_stacks(attempt)
        stacks = stacks_path(Path(self._run.run_dir), attempt.attempt, hung.rank)
        phase, step = last_phase(hung.beat)
        failure = Failure(
            failure_kind="hang",
            run_id=self._run.run_id,
            attempt=attempt.attempt,
            rank=hung.rank,
            phase=phase,
            step=step,
            host=attempt.hosts[hung.rank],
            device=ranks.devices()[hung.rank].name,
            signature=f"hang in {phase}",
            text=silence_text(hung, state),
            # A rank that hangs before it installs its signal handlers writes no stacks.
            file=stacks.relative_to(self._run.run_dir).as_posix() if stacks.is_file() else "",
        )
        self._notice_failure("hang", failure.sentence(self._run.run_dir), failure)
        return AttemptEnd("killed", attempt.world_size - 1, failure=failure, stalled_s=hung.silent_s)

    def _notice_other_code(self, attempt: Attempt) -> None:
        """Record an incident if the code version changed: the weights may differ from those of the older code."""
        saved = saved_attempts(Path(self._run.run_dir))
        earlier = [known.code_version for known in saved if known.attempt < attempt.attempt]
        was = earlier[-1] if earlier else self._run.code_version
        if was != attempt.code_version:
            text = (
                f"assay is {attempt.code_version} now and was {was}: the weights equal those of the older code "
                "only if no code that computes them changed in between"
            )
            self._record_incident("other_code", text, attempt.attempt, rank=None, step=attempt.start_step, host="")

    def _notice_failure(self, kind: IncidentKind, text: str, about: Failure) -> None:
        """Record an incident for a failure at once, before the attempt's end is saved."""
        self._record_incident(kind, text, about.attempt, rank=about.rank, step=about.step, host=about.host)

    def _notice_faults(self, attempt: Attempt) -> None:
        """Record planned faults that have struck, so that nobody searches for their cause."""
        for fault, rank in have_struck(self._policy.faults, Path(self._run.run_dir)):
            if fault not in self._known_faults:
                self._known_faults.append(fault)
                host, text = attempt.hosts[rank], describe_fault(fault)
                self._record_incident("fault", text, attempt.attempt, rank=rank, step=fault.step, host=host)

    def _record_incident(
        self, kind: IncidentKind, text: str, attempt: int, *, rank: int | None, step: int | None, host: str
    ) -> None:
        incident = Incident(
            incident=kind,
            run_id=self._run.run_id,
            attempt=attempt,
            at_s=self._clock.now_s(),
            rank=rank,
            step=step,
            host=host,
            text=text,
        )
        append_incident(Path(self._run.run_dir), incident)

    def _wait_unless_stopped(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        while not self.stop_requested and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep_s(min(left_s, POLL_S))

    def _interrupt(self, *_: object) -> None:
        """Handle Ctrl-C: the first one requests a stop, the second one kills."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        # Not `print`: the handler may interrupt another print, which is not reentrant.
        os.write(
            2,
            b"\nCtrl-C: committing, then stopping. Press it again to kill at once and fall back to the last commit.\n",
        )
        self.request_stop()

    def request_stop(self, *_: object) -> None:
        """Make the ranks commit and exit, and start no other attempt. Handles SIGTERM."""
        self.stop_requested = True
        if self._retry_policy is not None:
            self._retry_policy.hurry()


class _StoreProbe(threading.Thread):
    """Probes the store of a stopping run in a thread, so that it does not wait for a commit to an unreachable
    store."""

    missing: StoreAwayError | None = None
    """The error if the store did not answer in time."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(name="sign of life", daemon=True)
        self._store = store

    def run(self) -> None:
        """List one key; `missing` is None afterwards if the store answered."""
        try:
            next(self._store.list(LOG_PREFIX, limit=1), None)
        except StoreAwayError as error:
            self.missing = error
        except StoreError:
            pass  # the store answers; the ranks get the same error and report it
        else:
            time.sleep(STORE_PROBE_S)


def _not_verified(error: object) -> str:
    return f"not verified before this: {error}"


def back_off_s(steps: Sequence[int]) -> float:
    """Return the seconds to wait before the next attempt, given the last committed step at each failure.

    There is no wait after a failure that followed a new commit; without one the wait doubles, up to 30 s.
    """
    stuck = sum(step == steps[-1] for step in steps)
    return 0.0 if stuck < 2 else min(30.0, 0.5 * 2 ** (stuck - 2))


def mean_time_between_failures_s(attempts: Sequence[Attempt]) -> float:
    """Return the mean time between failures of a run; `PRIOR_FAILURE_S` before its first failure."""
    ended = [attempt for attempt in attempts if attempt.ended_s is not None]
    ran_s = sum((attempt.ended_s or 0.0) - attempt.started_s for attempt in ended)
    num_failures = sum(attempt.outcome in ("killed", "failed", "preempted") for attempt in ended)
    return ran_s / num_failures if num_failures else PRIOR_FAILURE_S


def describe(attempt: Attempt) -> str:
    """Return one line about a finished attempt."""
    lasted = duration_text((attempt.ended_s or attempt.started_s) - attempt.started_s)
    return (
        f"attempt {attempt.attempt} on {number_of(attempt.world_size, 'rank')}: "
        f"steps {attempt.start_step} to {attempt.end_step} in {lasted}; {attempt.reason}"
    )
