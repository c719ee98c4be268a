"""Keeps a run alive: starts its ranks, watches them, and starts them again from the last commit.

    begin attempt (fences the older ones) -> verify commits -> fork the ranks -> watch
          ^                                                                       | a rank died or hangs
          +---- on as many ranks as asked for, at most `max_restarts` times <-----+

The supervisor alone writes to the ledger, so that no training step ever waits for a database. It knows no
torch, and not where the ranks run: `ThisMachine` starts them here, `launch.nodes` on those of an allocation.
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
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor
from assay.records.run import Attempt, Run, slower_command
from assay.records.run_event import RunEvent, RunEventKind
from assay.records.suspect import WrongArithmeticError
from assay.store.attempts import close_abandoned_attempts, save_attempt, saved_attempts
from assay.store.commit_log import LOG_PREFIX, CommitLog
from assay.store.known_runs import RUN_FILE
from assay.store.objects import ObjectStore
from assay.store.retry_policy import RETRY_BUDGET_S, RetryPolicy
from assay.store.run_events import append_event
from assay.training.model_folders import check_unchanged
from assay.training.recipe import recipe_of
from assay.triage.hang import HungRank, are_stacks_whole, describe_silence, find_hung_rank, stacks_path
from assay.triage.straggler import StragglerWatch, describe_straggler

AfterDeath = Literal["same", "shrink"]
"""Ranks of the next attempt: as many as before, or as many as have survived."""

POLL_S = 0.1
SIGN_OF_LIFE_S = 1.0
"""From one of the store to the next, while a run that was asked to stop makes its last commit."""
STACKS_S = 5.0
"""How long hung ranks have to write their stacks, at most."""
PRIOR_FAILURE_S = 3600.0
"""What is assumed of a run that has not died yet: a preemptible node lives for hours."""
STORE_TRIES = 4
"""A store that refuses may yet accept: so many attempts without a commit in between, after growing waits."""


class RunObserver(Protocol):
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
    parallel: tuple[Parallel, ...] = ("ddp",)
    """How the ranks hold the weights: of the first attempts in turn, then the last one."""
    share: Share = "equal"
    """How many lanes each rank gets: as equally as may be, or by the speed that it had."""
    verify_commits: int = 20
    """The first commit of an attempt, and then one in so many, is read back; 0 for none."""
    store_patience: float = RETRY_BUDGET_S
    """Seconds in which attempts may die of a store that does not answer, one after the other."""
    times_lanes: bool = False
    """Measure what a forecast of other world sizes needs: each lane, and the messages between ranks."""
    other_device: bool = False
    """Go on with a run that another kind of processor began: to other bits."""
    least_ranks: int = 1
    """With fewer the run is not gone on with: it leaves, for others to have the nodes that are left."""

    def __post_init__(self) -> None:
        if self.share == "speed" and "fsdp2" in self.parallel:
            raise ConfigError(
                "--share speed: with --parallel fsdp2 all workers gather the weights together for every lane, "
                "so the others wait for a slow one however few lanes it has. Leave out one of the two."
            )


OF_THEIR_RANK: frozenset[FailureKind] = frozenset(("crashed", "hang", "exited"))
"""Failures that are alike only on the same rank, as long as the ranks are as many."""
ALIKE_BY_KIND: frozenset[FailureKind] = frozenset(("store_unreachable", "wrong_arithmetic"))
"""Wherever they arise, they say the same."""


class _Death(NamedTuple):
    """An attempt that died: of what, with the last commit at which step, and on how many ranks."""

    failure: Failure
    step: int
    world_size: int
    at_s: float
    is_of_store: bool
    """The store was away, which is nobody's fault here."""

    def is_like(self, other: "_Death") -> bool:
        """Whether it is the same failure again, with no commit in between.

        A lane that fails moves to another rank when the number of ranks changes.
        """
        first, second = self.failure, other.failure
        if (first.failure_kind, self.step) != (second.failure_kind, other.step):
            return False
        if first.failure_kind in ALIKE_BY_KIND:
            return True
        moved = first.failure_kind in OF_THEIR_RANK and first.rank != second.rank
        return first.signature == second.signature and not (moved and self.world_size == other.world_size)


class Nodes(Protocol):
    """Where ranks can be started."""

    processor: Processor
    """What they compute on, all alike."""

    def elsewhere(self) -> Mapping[str, NodeEnvironment]:
        """What the other nodes have around their ranks, by host."""
        ...

    def fitting(self, world_size: int) -> int:
        """`world_size`, or the most ranks that the nodes still have room for."""
        ...

    def room(self, world_size: int) -> int:
        """Likewise, if the nodes that wait outside were let in, as `fitting` does."""
        ...

    def leaving(self) -> Sequence[str]:
        """Names of the nodes that were asked to stop: an attempt that ends for it is followed by another."""
        ...

    def hosts(self, world_size: int) -> list[str]:
        """The machine of each rank, were so many started now."""
        ...

    def start(self, orders: Orders) -> AttemptRanks:
        """Start the ranks of an attempt."""
        ...

    def transfer_leadership(self) -> str | None:
        """Have another node lead, where the supervisor's alone was asked to stop; its name. No attempt is under
        way."""
        ...


class ThisMachine:
    """All ranks on this machine; they meet by a file in the run's folder."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._context = fork_context()
        self.processor = processor_here()

    def elsewhere(self) -> dict[str, NodeEnvironment]:
        """There are no others."""
        return {}

    def fitting(self, world_size: int) -> int:
        """Any number of ranks; they share what there is."""
        return world_size

    def room(self, world_size: int) -> int:
        """Nobody waits outside."""
        return world_size

    def leaving(self) -> Sequence[str]:
        """None: who is asked to stop here is the supervisor."""
        return ()

    def hosts(self, world_size: int) -> list[str]:
        """This one's name, for each."""
        return [socket.gethostname()] * world_size

    def start(self, orders: Orders) -> AttemptRanks:
        """Fork the ranks."""
        rendezvous = Path(self._run.run_dir) / "rendezvous" / f"attempt-{orders.attempt.attempt:04d}"
        rendezvous.parent.mkdir(parents=True, exist_ok=True)
        rendezvous.unlink(missing_ok=True)  # where ranks are to meet is nobody's to have written before
        ranks = range(orders.attempt.world_size)
        return RankProcesses(self._context, self._run, orders, ranks, f"file://{rendezvous}")

    def transfer_leadership(self) -> str | None:
        """There is no other."""
        return None


class Supervisor:
    """Runs attempts until the run is done, is asked to stop, or cannot go on."""

    def __init__(
        self,
        run: Run,
        log: CommitLog,
        *,
        policy: RestartPolicy,
        observers: Sequence[RunObserver],
        clock: Clock,
        nodes: Nodes | None = None,
        patience: RetryPolicy | None = None,
    ) -> None:
        """`nodes`: where the ranks run; by default, here. `patience`: of the log's store."""
        self._run = run
        self._log = log
        self._policy = policy
        self._watchers = observers
        self._clock = clock
        self._stop_requested = False
        self._regroups_for = ""
        """Why the attempt under way was stopped, where another follows: nodes leave, or have come."""
        self._is_interrupted = False
        self.waits_for = ""
        """What it left for though nobody asked it to, and was not yet done."""
        self._num_attempts = self._requested_size = 0
        self._nodes = nodes or ThisMachine(run)
        self._patience = patience
        self._known_faults = [fault for fault, _ in have_struck(policy.faults, Path(run.run_dir))]
        self._has_record = (Path(run.run_dir) / RUN_FILE).is_file()

    def run(self, world_size: int) -> Attempt:
        """The last attempt. Raises what the ranks raised if they cannot go on; `Interrupted` after Ctrl-C,
        once they have committed or, at the second one, were killed; and, before it begins one, where the last
        commit is of another kind of processor and the policy does not say that this is well."""
        handlers = {signal.SIGTERM: self.request_stop, signal.SIGINT: self._interrupt}
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of who was started not to hear it
            del handlers[signal.SIGINT]
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # a node that was told to lead held it back
        try:
            if not self._policy.other_device:
                refuse_other_processor(self._run, self._log, self._nodes.processor)
            last = self._attempts(world_size)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._is_interrupted and last.outcome == "preempted":
            commit = f"Its last commit is of step {last.end_step}" if last.end_step else "It has no commit yet"
            raise Interrupted(
                f"run {self._run.run_id}: {last.reason}. {commit}; go on with:\n  {last.resume_command()}"
            )
        return last

    def _attempts(self, world_size: int) -> Attempt:
        deaths: list[_Death] = []
        sizes, attempt = list(self._policy.world_sizes), None
        while True:
            if sizes:
                world_size = sizes.pop(0)
            self._requested_size, self._regroups_for = world_size, ""
            if (room := self._nodes.fitting(world_size)) < self._policy.least_ranks:
                self._wait_for_more(room)
                if attempt is None:
                    raise ConfigError(
                        f"run {self._run.run_id} {self.waits_for}. Give it more nodes, or less to wait for."
                    )
                return attempt
            if attempt is not None:
                check_unchanged(self._run, recipe_of(self._run))
            attempt, end = self._one_attempt(room)
            if end.outcome == "preempted" and self._regroups_for and not self._stop_requested:
                continue
            if end.outcome in ("succeeded", "preempted"):
                return attempt
            if isinstance(end.error, TrainingError):
                raise TrainingError(f"{end.error}{self._keep_failing_step(attempt)}{self._slower(attempt)}")
            if isinstance(end.error, StoreFullError):  # the next attempt would find no more room
                resume = f"'assay train --resume {self._run.run_id}'"
                at = f"from step {attempt.end_step}" if attempt.end_step else "from the start: it has no commit yet"
                raise StoreFullError(f"{end.error} {resume} goes on {at}.")
            if end.error is not None and not isinstance(end.error, StoreError | WrongArithmeticError):
                raise end.error
            assert end.failure is not None, "what dies dies of something"
            is_of_store = isinstance(end.error, StoreAwayError)
            at_s = self._clock.monotonic_s()
            deaths.append(_Death(end.failure, attempt.end_step or 0, attempt.world_size, at_s, is_of_store))
            self._refuse_hopeless(deaths, end, attempt)
            self._wait_unless_stopped(back_off_s([death.step for death in deaths]))
            if self._policy.after_death == "shrink":
                world_size = max(self._policy.least_ranks, end.num_alive)

    def _wait_for_more(self, room: int) -> None:
        has = number_of(room, "rank")
        self.waits_for = f"waits for nodes: there is room for {has}, of at least {self._policy.least_ranks}"

    def _refuse_hopeless(self, deaths: list[_Death], end: AttemptEnd, attempt: Attempt) -> None:
        """A kill is the node's fault and is tried again; the same failure at the same step is the code's."""
        last = deaths[-1]
        alike = [death for death in deaths if death.is_like(last)]
        if last.is_of_store and last.at_s - alike[0].at_s <= self._policy.store_patience:
            return  # the next attempt begins when the store lets it
        allowed = STORE_TRIES if isinstance(end.error, StoreError) else 1
        num_alike = len(alike)
        is_repeated = last.failure.failure_kind not in FROM_OUTSIDE and num_alike > allowed
        num_own = sum(not death.is_of_store for death in deaths)
        if not is_repeated and not last.is_of_store and num_own <= self._policy.max_restarts:
            return
        if is_repeated:
            text = f"{num_alike} attempts ended alike, without a commit in between: {last.failure.signature}"
            self._notice_failure("repeated_failure", text, last.failure)
        if end.error is not None:
            raise end.error
        note = self._keep_failing_step(attempt) if is_repeated else ""
        raise TrainingError(
            f"run {self._run.run_id}: {number_of(len(deaths), 'attempt')} died, "
            f"the last with: {last.failure.headline()}. "
            + (f"It failed twice in the same way, so it was not tried again.{note} " if is_repeated else "")
            + f"All commits up to step {last.step} are intact: 'assay train --resume {self._run.run_id}' goes "
            "on from there."
        )

    def _slower(self, attempt: Attempt) -> str:
        """What may work where the same step would fail again: a sentence."""
        if attempt.failure is None or attempt.failure.failure_kind != "loss_not_finite":
            return ""
        command = slower_command(self._run.run_id, self._run.recipe, step=0)
        last = attempt.end_step
        note = f"; '@{last}' in place of '@0' keeps the commit of step {last}" if last else ""
        nothing = "" if last else "Nothing is committed yet. "
        return (
            f" Resumed, it would fail there again. {nothing}If the learning rate made it so, '{command}' "
            f"begins anew at a lower one{note}."
        )

    def _keep_failing_step(self, attempt: Attempt) -> str:
        """Make a capsule of the step that failed; a sentence that says how to look at it."""
        assert attempt.failure is not None
        try:
            capsule = save_failing_step(self._run, self._log, attempt, attempt.failure.headline())
        except AssayError as error:
            return f" No capsule of the step could be kept: {error}"
        again, step = f"'assay replay {self._run.run_id} --step", capsule.step
        note = f" All that step {step} needs is kept as a capsule: "
        if attempt.failure.failure_kind == "loss_not_finite":
            return f"{note}{again} {step} --explain' says what made it so: rows, arithmetic, the updates before."
        return f"{note}{again} {step} --watch' runs it again and names the operator."

    def _one_attempt(self, world_size: int) -> tuple[Attempt, AttemptEnd]:
        now_s = self._clock.now_s()
        number = self._log.begin_attempt(world_size=world_size, now_s=now_s)
        self._quarantine_suspected()
        commit = self._log.last_intact_commit()
        if commit is None and self._run.parent is not None:
            raise DamagedDataError(
                f"run '{self._run.run_id}': no commit is intact, not even the one that it was forked with. "
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
            surroundings=environment_here(),
            loads=self._loads(world_size),
        )
        save_attempt(Path(self._run.run_dir), attempt)
        self._notice_other_code(attempt)
        close_abandoned_attempts(self._run, self._log, attempt)
        if self._stop_requested:
            end = AttemptEnd("preempted", world_size, message="asked to stop before its ranks were started")
        else:
            try:
                attempt, end = self._run_ranks(attempt, commit)
            except KeyboardInterrupt:
                end = AttemptEnd("preempted", 0, message="killed by Ctrl-C, before it had committed")
        self._refuse_moved()
        if isinstance(end.error, WrongArithmeticError):
            assert end.failure is not None
            self._notice_failure("wrong_arithmetic", str(end.error), end.failure)
        away = end.error if self._stop_requested and isinstance(end.error, StoreAwayError) else None
        try:
            if isinstance(end.error, WrongArithmeticError):
                self._log.quarantine_unverified(_not_verified(end.error), up_to=attempt.attempt)
            if away is None:
                self._log.summary()
        except StoreAwayError as error:  # it has ended nevertheless, with the last commit that is known
            away = error
        # Those of a successor are none of its own: this supervisor may have been thought dead.
        commits = [
            known_commit for known_commit in self._log.known_commits() if known_commit.attempt <= attempt.attempt
        ]
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
        for observer in self._watchers:
            observer.attempt_ended(ended)
        if away is not None:
            raise away
        return ended, end

    def _quarantine_suspected(self) -> None:
        """What should have been when an attempt ended, and the store was away."""
        for attempt in reversed(saved_attempts(Path(self._run.run_dir))):
            if attempt.failure is not None and attempt.failure.failure_kind == "wrong_arithmetic":
                self._log.quarantine_unverified(_not_verified(attempt.failure.text), up_to=attempt.attempt)
                return

    def _refuse_moved(self) -> None:
        """An account that is written on would come to lie in two places."""
        if self._has_record and not (Path(self._run.run_dir) / RUN_FILE).is_file():
            raise StoreError(
                f"{self._run.run_dir}: the run's folder was here and is not any more: it was moved, deleted or "
                "unmounted while it trained. Where it still lies, its commits are intact: go on there with "
                f"'assay train --resume {self._run.run_id}' (ASSAY_HOME names the folder of runs). "
                "If it was deleted, they are gone."
            )

    def _run_ranks(self, attempt: Attempt, commit: Commit | None) -> tuple[Attempt, AttemptEnd]:
        """The attempt, with where its ranks were, and how it ended."""
        ranks = self._nodes.start(self._orders(attempt, commit))
        try:
            attempt = with_hosts(attempt, ranks.hosts(), self._nodes.elsewhere())
            save_attempt(Path(self._run.run_dir), attempt)
            for observer in self._watchers:
                observer.attempt_began(attempt, ranks.pids)
            end = self._watch(ranks, attempt)
            self._notice_faults(attempt)
            return with_devices(attempt, ranks.devices()), end
        finally:
            ranks.stop()

    @property
    def _parallel(self) -> Parallel:
        """How the ranks of the attempt that begins next hold the weights."""
        return self._policy.parallel[: self._num_attempts + 1][-1]

    def _loads(self, world_size: int) -> tuple[int, ...]:
        """Nothing where lanes are dealt in rounds."""
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
        sign: _SignOfLife | None = None
        began_s, least_s = self._clock.monotonic_s(), self._policy.hang_s
        stragglers = StragglerWatch(attempt.loads or (1,) * attempt.world_size)
        regroup = self._regroup_watch(attempt, began_s)
        while True:
            if leave_by_s is None and (self._stop_requested or self._regroups(regroup, attempt)):
                ranks.signal(signal.SIGTERM)
                leave_by_s = self._clock.monotonic_s() + self._policy.grace_s
            ranks.wait_for_news(POLL_S)
            self._refuse_moved()
            for observer in self._watchers:
                observer.tick(attempt)
            if (end := ranks.end()) is not None:
                # Who asked to stop wants no other attempt, even if a rank did not survive the asking.
                is_away = isinstance(end.error, StoreAwayError)
                died = end.outcome in ("killed", "failed") and (end.error is None or is_away)
                if end.outcome == "preempted" and not self._stop_requested and self._regroups(regroup, attempt):
                    return replace(end, message=f"{self._regroups_for}: committed, and the others go on")
                return replace(end, outcome="preempted") if self._stop_requested and died else end
            now_s, beats = self._clock.monotonic_s(), ranks.beats()
            regroup.look(beats, now_s)
            if leave_by_s is not None and now_s > leave_by_s:
                return self._end_late(attempt)
            if leave_by_s is not None and (sign is None or not sign.is_alive()):
                if sign is not None and sign.missing is not None:
                    return self._end_without_store(attempt, sign.missing)
                sign = _SignOfLife(self._log.store)
                sign.start()
            self._notice_faults(attempt)
            if (slow := stragglers.look(beats)) is not None:
                host, text = attempt.hosts[slow.rank], describe_straggler(slow)
                self._notice("straggler", text, attempt.attempt, rank=slow.rank, step=slow.step, host=host)
            hung = find_hung_rank(beats, now_s=now_s, least_s=least_s, began_s=began_s)
            if hung is not None:
                return self._end_hung(ranks, attempt, hung)

    def _regroup_watch(self, attempt: Attempt, began_s: float) -> RegroupWatch:
        num_lanes = recipe_of(self._run).loader.lanes
        return RegroupWatch(attempt, num_lanes=num_lanes, num_steps=self._run.num_steps, began_s=began_s)

    def _regroups(self, watch: RegroupWatch, attempt: Attempt) -> bool:
        """Whether the attempt is to end for another on other nodes."""
        if not self._regroups_for and (names := self._nodes.leaving()):
            self._regroups_for = f"{', '.join(names)} {'leaves' if len(names) == 1 else 'leave'}"
        room = self._nodes.room(self._requested_size)
        if not self._regroups_for and room > attempt.world_size and watch.pays(room):
            self._regroups_for = f"{number_of(room, 'rank')} find room now that nodes have come"
        return bool(self._regroups_for)

    def _end_late(self, attempt: Attempt) -> AttemptEnd:
        failure = Failure(
            failure_kind="not_gone_after_sigterm",
            run_id=self._run.run_id,
            attempt=attempt.attempt,
            signature="not gone after SIGTERM",
            text=f"not gone {self._policy.grace_s:g} s after SIGTERM; back to the last commit",
        )
        return AttemptEnd("preempted", 0, failure=failure)

    def _end_without_store(self, attempt: Attempt, error: StoreAwayError) -> AttemptEnd:
        failure = Failure(
            failure_kind="store_unreachable",
            run_id=self._run.run_id,
            attempt=attempt.attempt,
            signature="store away after SIGTERM",
            text=f"asked to stop while the store was away; back to the last commit: {error}",
        )
        return AttemptEnd("preempted", 0, failure=failure, error=error)

    def _wait_for_stacks(self, attempt: Attempt) -> None:
        """Let every rank write its own to the end: a busy machine cuts what is killed too soon."""
        run_dir = Path(self._run.run_dir)
        paths = [stacks_path(run_dir, attempt.attempt, rank) for rank in range(attempt.world_size)]
        deadline_s = self._clock.monotonic_s() + STACKS_S
        while not all(map(are_stacks_whole, paths)) and self._clock.monotonic_s() < deadline_s:
            self._clock.sleep_s(0.1)

    def _end_hung(self, ranks: AttemptRanks, attempt: Attempt, hung: HungRank) -> AttemptEnd:
        state = ranks.take_stacks(hung.rank)
        self._wait_for_stacks(attempt)
        stacks = stacks_path(Path(self._run.run_dir), attempt.attempt, hung.rank)
        last = last_phase(hung.beat)
        failure = Failure(
            failure_kind="hang",
            run_id=self._run.run_id,
            attempt=attempt.attempt,
            rank=hung.rank,
            phase=last.phase,
            step=last.step,
            host=attempt.hosts[hung.rank],
            device=ranks.devices()[hung.rank].name,
            signature=f"hang in {last.phase}",
            text=describe_silence(hung, state),
            # A rank that hangs in its first moments cannot write any.
            file=stacks.relative_to(self._run.run_dir).as_posix() if stacks.is_file() else "",
        )
        self._notice_failure("hang", failure.sentence(self._run.run_dir), failure)
        return AttemptEnd("killed", attempt.world_size - 1, failure=failure, stalled_s=hung.silent_s)

    def _notice_other_code(self, attempt: Attempt) -> None:
        """Training goes on, but perhaps to other weights than the older code would have made."""
        earlier = [
            saved_attempt
            for saved_attempt in saved_attempts(Path(self._run.run_dir))
            if saved_attempt.attempt < attempt.attempt
        ]
        versions = [self._run.code_version, *(saved_attempt.code_version for saved_attempt in earlier)]
        was = versions[-1]
        if was != attempt.code_version:
            text = (
                f"assay is {attempt.code_version} now and was {was}: the weights will be those of the older "
                "code only if nothing that computes them changed in between"
            )
            self._notice("other_code", text, attempt.attempt, rank=None, step=attempt.start_step, host="")

    def _notice_failure(self, kind: RunEventKind, text: str, about: Failure) -> None:
        """Say at once what a failure will say at the end of its attempt."""
        self._notice(kind, text, about.attempt, rank=about.rank, step=about.step, host=about.host)

    def _notice_faults(self, attempt: Attempt) -> None:
        """Notices those of the planned faults that have struck: nobody needs to look for their cause."""
        for fault, rank in have_struck(self._policy.faults, Path(self._run.run_dir)):
            if fault not in self._known_faults:
                self._known_faults.append(fault)
                host, text = attempt.hosts[rank], describe_fault(fault)
                self._notice("fault", text, attempt.attempt, rank=rank, step=fault.step, host=host)

    def _notice(
        self, kind: RunEventKind, text: str, attempt: int, *, rank: int | None, step: int | None, host: str
    ) -> None:
        notice = RunEvent(
            notice=kind,
            run_id=self._run.run_id,
            attempt=attempt,
            at_s=self._clock.now_s(),
            rank=rank,
            step=step,
            host=host,
            text=text,
        )
        append_event(Path(self._run.run_dir), notice)

    def _wait_unless_stopped(self, seconds: float) -> None:
        until_s = self._clock.monotonic_s() + seconds
        while not self._stop_requested and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep_s(min(left_s, POLL_S))

    def _interrupt(self, *_: object) -> None:
        """Ctrl-C: the first asks to stop, the second kills."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        # Not `print`: a handler may run in the midst of another one.
        os.write(2, b"\nCtrl-C: committing, then leaving. Once more kills at once, back to the last commit.\n")
        self.request_stop()

    def request_stop(self, *_: object) -> None:
        """SIGTERM: the ranks commit and leave, and no other attempt is begun."""
        self._stop_requested = True
        if self._patience is not None:
            self._patience.hurry()


class _SignOfLife(threading.Thread):
    """Asks a store for one, once a run is to stop: no commit is waited for that nobody takes."""

    missing: StoreAwayError | None = None
    """It did not answer in time."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(name="sign of life", daemon=True)
        self._store = store

    def run(self) -> None:
        """It was one if nothing is missing when the thread has ended."""
        try:
            next(self._store.list(LOG_PREFIX, limit=1), None)
        except StoreAwayError as error:
            self.missing = error
        except StoreError:
            pass  # it answers; the ranks meet the same
        else:
            time.sleep(SIGN_OF_LIFE_S)


def _not_verified(error: object) -> str:
    return f"not verified before this: {error}"


def back_off_s(steps: Sequence[int]) -> float:
    """Seconds until the next attempt, by the last commit's step at each death: none at first, then longer while
    no commit is made between deaths."""
    stuck = sum(step == steps[-1] for step in steps)
    return 0.0 if stuck < 2 else min(30.0, 0.5 * 2 ** (stuck - 2))


def mean_time_between_failures_s(attempts: Sequence[Attempt]) -> float:
    """The mean time between failures of a run so far; `PRIOR_FAILURE_S` while it has not died."""
    ended = [attempt for attempt in attempts if attempt.ended_s is not None]
    ran_s = sum((attempt.ended_s or 0.0) - attempt.started_s for attempt in ended)
    num_failures = sum(attempt.outcome in ("killed", "failed", "preempted") for attempt in ended)
    return ran_s / num_failures if num_failures else PRIOR_FAILURE_S


def describe(attempt: Attempt) -> str:
    """One line about a finished attempt."""
    lasted = duration_text((attempt.ended_s or attempt.started_s) - attempt.started_s)
    return (
        f"attempt {attempt.attempt} on {number_of(attempt.world_size, 'rank')}: "
        f"steps {attempt.start_step} to {attempt.end_step} in {lasted}; {attempt.reason}"
    )
