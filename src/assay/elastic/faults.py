"""Faults as an input: what goes wrong, where and when, written down so that it can go wrong again.

    faults:
      - {type: kill, rank: 1, step: 7, phase: compute}
      - {type: damage, how: flipped, step: 10}
      - {type: leave, node: 1, step: 7}

A rank that a fault concerns strikes itself at the named moment, (attempt, step, phase), so a plan means the
same on every machine; what concerns a node is done by its first rank, or by all of them. It notes the fault in
the run's folder just before: one without a note never came, and nothing was tested by it.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from assay.base.clock import Clock
from assay.base.config import FrozenConfig
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, TrainingError
from assay.elastic.detached import start_detached
from assay.records.commit import Commit
from assay.records.phase import Phase
from assay.store.commit_log import CommitLog
from assay.store.faulty import FlakyStore, StoreFault
from assay.store.objects import ObjectStore

PhaseOfLoop = Literal[
    "startup",
    "data",
    "synchronisation",
    "generation",
    "reward",
    "compute",
    "communication",
    "checkpoint",
    "evaluation",
]
"""A phase that a rank enters by itself."""
DamageKind = Literal["torn", "flipped", "missing"]
WAITS_OUTSIDE = "waits for the run's next attempt"
"""What a node that was lent says of itself."""
JOIN_S = 120.0
"""How long a fault plan's node may take until then."""
STOP_WAIT_S = 10.0
"""How long a rank waits at most to be told to stop, by a supervisor that a fault has asked to."""


class _Moment(FrozenConfig):
    """When."""

    attempt: PositiveInt = 1
    step: PositiveInt
    """The update under way; of no account in phase `startup`, which an attempt has once."""
    phase: PhaseOfLoop = "compute"
    """Strikes when this phase begins."""
    entry: PositiveInt = 1
    """The how-manieth time that the update under way enters it: `compute` once before the passes, and again
    after each exchange of gradients."""


class _At(_Moment):
    """A moment of a rank."""

    rank: NonNegativeInt = 0

    def who(self) -> str:
        """Whom it strikes, in words."""
        return f"rank {self.rank}"


class _AtNode(_Moment):
    """A moment of a node's ranks. Nodes count from 0, which leads, in the order of their ranks."""

    node: NonNegativeInt

    def who(self) -> str:
        """Whom it strikes, in words."""
        return f"node {self.node}"


class _Within(_At):
    """A moment of a rank, or somewhat later."""

    after_s: NonNegativeFloat = 0.0
    """Seconds after the phase began, e.g. while a commit is being written."""


class Kill(_Within):
    """SIGKILL: the process is gone at once, as when its node is."""

    type: Literal["kill"]


class Terminate(_Within):
    """SIGTERM to the supervisor, as a scheduler sends it before it takes the node back. The phase goes on once
    the rank has been told to stop, or it strikes later (`after_s`)."""

    type: Literal["terminate"]


class Hang(_Within):
    """SIGSTOP: the process is there and does nothing more."""

    type: Literal["hang"]


class Slow(_At):
    """A rank that takes longer, from `step` on."""

    type: Literal["slow"]
    extra_s: PositiveFloat
    """Per step."""
    num_steps: PositiveInt = 1_000_000


class ClockJump(_At):
    """The rank's wall clock is wrong by `jump_s` from `step` on."""

    type: Literal["clock_jump"]
    jump_s: float


class Store(_At):
    """The object store of a rank misbehaves for its next writes from `step` on."""

    type: Literal["store"]
    how: StoreFault
    num_writes: PositiveInt = 1
    """How many writes; then it is well again."""


class Damage(_At):
    """A file of the commit of `step` is damaged on the disk; then the rank is killed."""

    type: Literal["damage"]
    how: DamageKind


class LedgerLoss(_At):
    """The ledger's database is gone: an SQLite file is moved away."""

    type: Literal["ledger_loss"]


class LeaveNode(_AtNode):
    """SIGTERM to a node's supervisor, as before the node is taken back: the others go on. The phase, too, once
    the rank has been told to stop."""

    type: Literal["leave"]


class JoinNode(_AtNode):
    """A node is lent to the run: 'assay join' is started on the machine of this one, and the phase goes on once
    it waits outside."""

    type: Literal["join"]


class SlowNode(_AtNode):
    """The lanes of a node take longer: each step waits for as much of its last one's work as is missing."""

    type: Literal["slow_node"]
    factor: float = Field(gt=1.0)
    """How many times as long."""
    num_steps: PositiveInt = 1_000_000


OfNode = LeaveNode | JoinNode | SlowNode
OfRank = Kill | Terminate | Hang | Slow | ClockJump | Store | Damage | LedgerLoss
Fault = Annotated[OfRank | OfNode, Field(discriminator="type")]


class FaultPlan(FrozenConfig):
    """What goes wrong in a run; each fault once, in the attempt that it names."""

    faults: tuple[Fault, ...] = ()


NO_FAULTS = FaultPlan()


class Struck(NamedTuple):
    """A fault that really came."""

    fault: Fault
    rank: int
    """That noted it first."""


def check_plan(plan: FaultPlan, *, world_size: int, num_steps: int, num_nodes: int = 1) -> None:
    """Refuse faults that cannot happen: a drill that tests nothing must not pass. `num_nodes`: at first."""
    for index, fault in enumerate(plan.faults):
        name = f"faults.{index} ({fault.type})"
        if isinstance(fault, OfNode):
            _check_node(name, fault, world_size=world_size, num_nodes=num_nodes)
        elif fault.rank >= world_size:
            raise ConfigError(
                f"{name}: there is no rank {fault.rank} among {world_size} workers, which count from 0. "
                f"Use a rank of at most {world_size - 1}, or more --workers."
            )
        if fault.step > num_steps:
            raise ConfigError(f"{name}: step {fault.step} is never reached, the run ends at step {num_steps}.")


def _check_node(name: str, fault: OfNode, *, world_size: int, num_nodes: int) -> None:
    if num_nodes == 1 and not isinstance(fault, SlowNode):
        raise ConfigError(
            f"{name}: this run is on one node, which none joins and without which there is none. Train on "
            "several (--on slurm --nodes 2, or --on allocation); SIGTERM to a run on one is 'terminate'."
        )
    # Later attempts may have nodes that have come, each with a rank at least.
    if fault.node >= (most := num_nodes if fault.attempt == 1 else world_size):
        raise ConfigError(
            f"{name}: there is no node {fault.node} in attempt {fault.attempt}: it has at most {most}, which "
            f"count from 0. Use a node of at most {most - 1}."
        )


def never_came(plan: FaultPlan, run_dir: Path, *, last_attempt: int) -> list[str]:
    """A sentence on each fault that did not strike a run: nothing was tested by it."""
    return [
        f"faults.{index} ({fault.type}) did not happen: {_why_not(fault, last_attempt)}"
        for index, fault in enumerate(plan.faults)
        if not _note_path(run_dir, fault).exists()
    ]


def have_struck(plan: FaultPlan, run_dir: Path) -> list[Struck]:
    """The faults of a plan that struck a run."""
    found = []
    for fault in plan.faults:
        try:
            noted = json.loads(_note_path(run_dir, fault).read_bytes())
        except (OSError, ValueError):  # none, or one that is being written
            continue
        found.append(Struck(fault, noted["rank"]))
    return found


def describe_fault(fault: Fault) -> str:
    """One sentence for a person who wonders what happened."""
    return f"'{fault.type}' struck {fault.who()} in {_moment(fault)}, as its fault plan asked for"


def _why_not(fault: Fault, last_attempt: int) -> str:
    if fault.attempt > last_attempt:
        return f"it is for attempt {fault.attempt}, the last one was attempt {last_attempt}."
    what = ", with something to strike at" if isinstance(fault, Store | Damage) else ""
    return f"attempt {fault.attempt} never came to {_moment(fault)} on {fault.who()}{what}."


def _moment(fault: Fault) -> str:
    entry = "" if fault.entry == 1 else f"entry {fault.entry} of "
    return f"{entry}phase '{fault.phase}'" + ("" if fault.phase == "startup" else f" of step {fault.step}")


def _note_path(run_dir: Path, fault: Fault) -> Path:
    return run_dir / "faults" / f"{sha256_of_json(fault.model_dump(mode='json'))[:16]}.json"


class RankFaults:
    """The faults of one rank in one attempt; strikes when told which moment it is."""

    def __init__(
        self,
        plan: FaultPlan,
        *,
        attempt: int,
        rank: int,
        supervisor_pid: int,
        run_dir: Path,
        ledger_path: Path | None,
        store: ObjectStore,
        clock: Clock,
        is_stopping: Callable[[], bool],
        nodes: Sequence[int] = (),
    ) -> None:
        """`store` and `clock` are the right ones. `is_stopping`: whether the rank has been told to stop.
        `nodes`: ranks of each; by default, all are on one."""
        self._run_dir = run_dir
        self._is_stopping = is_stopping
        self._rank = rank
        local_rank = _rank_on_node(rank, nodes)
        self._waiting = [
            fault for fault in plan.faults if fault.attempt == attempt and _strikes_at(fault, rank, *local_rank)
        ]
        self._work = _OwnWork(clock)
        self._entered = Counter[tuple[int, Phase]]()
        """How often each update has entered each phase, while faults are waited for."""
        self._supervisor_pid = supervisor_pid
        self._ledger_path = ledger_path
        self._log = CommitLog(store)
        self._flaky, self._jumping = FlakyStore(store), JumpingClock(clock)
        kinds = {fault.type for fault in self._waiting}
        self.store: ObjectStore = self._flaky if "store" in kinds else store
        """As this rank sees it; so the clock."""
        self.clock: Clock = self._jumping if "clock_jump" in kinds else clock

    def at_moment(self, step: int, phase: Phase) -> None:
        """The rank is about to enter `phase` of the update `step`."""
        if not self._waiting:
            return
        self._work.enters(phase)
        entered = self._entered[step, phase] + 1
        self._entered[step, phase] = entered
        begins = [fault for fault in self._waiting if fault.phase == phase and entered >= fault.entry]
        for fault in [fault for fault in begins if phase == "startup" or step >= fault.step]:
            if self._strike(fault, step):
                self._waiting.remove(fault)

    def _strike(self, fault: Fault, step: int) -> bool:
        """Whether the fault is over with."""
        note = partial(self._note, fault)
        match fault:
            case Kill():
                _signal(os.getpid(), signal.SIGKILL, fault.after_s, note)
            case Hang():
                _signal(os.getpid(), signal.SIGSTOP, fault.after_s, note)
            case Terminate(after_s=0.0) | LeaveNode():
                _signal(self._supervisor_pid, signal.SIGTERM, 0.0, note)
                self._wait_for_stop()
            case Terminate():
                _signal(self._supervisor_pid, signal.SIGTERM, fault.after_s, note)
            case Slow():
                note()
                self.clock.sleep_s(fault.extra_s)
                return step >= fault.step + fault.num_steps - 1
            case SlowNode():
                if self._entered[step, fault.phase] > fault.entry:
                    return False
                note()
                self._work.waits((fault.factor - 1) * self._work.of_last_step_s)
                return step >= fault.step + fault.num_steps - 1
            case JoinNode():
                note()
                _lend_here(self._run_dir)
            case ClockJump():
                note()
                self._jumping.jump_s = fault.jump_s
            case Store():
                self._flaky.fail_next(fault.how, fault.num_writes, note)
            case Damage():
                return self._damage(fault)
            case LedgerLoss():
                if self._ledger_path is not None and self._ledger_path.exists():
                    note()
                    self._ledger_path.rename(self._ledger_path.with_suffix(".lost"))
        return True

    def _wait_for_stop(self) -> None:
        """Else a run of short steps is at its end before its supervisor has looked, and nothing is tested."""
        until_s = self.clock.monotonic_s() + STOP_WAIT_S
        while not self._is_stopping() and self.clock.monotonic_s() < until_s:
            self.clock.sleep_s(0.001)

    def _damage(self, fault: Damage) -> bool:
        commit = next((commit for commit in self._log.commits() if commit.step >= fault.step), None)
        if commit is None:
            return False
        damage_commit(self._log.store, commit, fault.how)
        self._note(fault)
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    def _note(self, fault: Fault) -> None:
        path = _note_path(self._run_dir, fault)
        path.parent.mkdir(parents=True, exist_ok=True)
        noted = {**fault.model_dump(mode="json"), "rank": self._rank}
        if not path.exists():
            path.write_text(json.dumps(noted), encoding="utf-8")


def _rank_on_node(rank: int, nodes: Sequence[int]) -> tuple[int, int]:
    """The rank's node, and which of its ranks it is."""
    for node, size in enumerate(nodes):
        if rank < size:
            return node, rank
        rank -= size
    return 0, rank


def _strikes_at(fault: Fault, rank: int, node: int, local_rank: int) -> bool:
    if isinstance(fault, OfNode):
        return fault.node == node and (local_rank == 0 or isinstance(fault, SlowNode))
    return fault.rank == rank


def _lend_here(run_dir: Path) -> None:
    """Start 'assay join' on this machine, which outlives this rank; return once it waits outside."""
    log = run_dir / "faults" / f"join-{os.getpid()}-{time.monotonic_ns()}.log"
    start_detached(join_command(run_dir.name), {"ASSAY_HOME": str(run_dir.parent)}, log=log)
    deadline_s = time.monotonic() + JOIN_S
    while WAITS_OUTSIDE not in (output := log.read_text(errors="replace")):
        if time.monotonic() > deadline_s or "error:" in output:
            raise TrainingError(f"a fault plan's node did not join within {JOIN_S:.0f} s: {output.strip()}")
        time.sleep(0.05)


def join_command(run_id: str) -> list[str]:
    """What lends this machine to a run."""
    return [sys.executable, "-m", "assay", "join", run_id]


class _OwnWork:
    """How long the lanes of a rank's last step took, without what was waited on purpose."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self.of_last_step_s = 0.0

    def enters(self, phase: Phase) -> None:
        """The lanes are computed between the first of these and the second."""
        now_s = self._clock.monotonic_s()
        if phase == "communication" and self._began_s is not None:
            self.of_last_step_s, self._began_s = now_s - self._began_s, None
        elif phase == "data":
            self._began_s = None
        elif phase == "compute" and self._began_s is None:
            self._began_s = now_s

    def waits(self, seconds: float) -> None:
        """As if the work took so much longer."""
        self._clock.sleep_s(seconds)
        if self._began_s is not None:
            self._began_s += seconds


def damage_commit(store: ObjectStore, commit: Commit, how: DamageKind) -> None:
    """Damage the largest file of a commit as a bad disk would."""
    victim = max(commit.files, key=lambda file: file.num_bytes)
    damage_file(store, f"{commit.folder}/{victim.path}", how)


def damage_file(store: ObjectStore, key: str, how: DamageKind) -> None:
    """Delete a file, cut it in half, or turn one bit of it."""
    data = bytearray(store.get(key))
    if how == "missing":
        store.delete(key)
    elif how == "torn":
        store.put(key, bytes(data[: len(data) // 2]))
    else:
        data[len(data) // 3] ^= 1
        store.put(key, bytes(data))


class JumpingClock:
    """A clock whose wall time is wrong by `jump_s`; durations stay right, as on a real machine."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self.jump_s = 0.0

    def now_s(self) -> float:
        return self._inner.now_s() + self.jump_s

    def monotonic_s(self) -> float:
        return self._inner.monotonic_s()

    def sleep_s(self, seconds: float) -> None:
        self._inner.sleep_s(seconds)


def _signal(pid: int, number: int, after_s: float, note: Callable[[], None]) -> None:
    def strike() -> None:
        note()
        os.kill(pid, number)

    if after_s == 0.0:
        strike()
        return
    timer = threading.Timer(after_s, strike)
    timer.daemon = True
    timer.start()
