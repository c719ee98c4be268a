"""Fault injection: a plan says what goes wrong, on which rank or node, and when.

    faults:
      - {type: kill, rank: 1, step: 7, phase: compute}
      - {type: damage, how: flipped, step: 10}
      - {type: leave, node: 1, step: 7}

A rank injects its own faults at the given (attempt, step, phase), so a plan means the same on every machine. The
first rank of a node, or all of its ranks, inject the node's faults. A rank writes a note to the run's folder just
before it injects a fault; a fault without a note did not happen, so it tested nothing.
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
from typing import Annotated, Literal

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
    "meeting",
]
"""A phase in which a fault can strike."""
DamageKind = Literal["torn", "flipped", "missing"]
WAITS_OUTSIDE = "waits for the run's next attempt"
"""What `assay train join` prints once the leader knows of the node."""
JOIN_S = 120.0
"""Seconds that a node joined by a fault plan may take until then."""
STOP_WAIT_S = 10.0
"""Maximum seconds that a rank waits for the stop signal after a fault sent SIGTERM to its supervisor."""


class _Moment(FrozenConfig):
    """The moment of a fault."""

    attempt: PositiveInt = 1
    step: PositiveInt
    """Optimizer step in progress; ignored in phase `startup`, which occurs once per attempt."""
    phase: PhaseOfLoop = "compute"
    """The fault strikes when this phase begins."""
    entry: PositiveInt = 1
    """Strikes at the n-th time that the step enters the phase. A step enters `compute` before the passes and again
    after each exchange of gradients."""


class _At(_Moment):
    """A moment on a rank."""

    rank: NonNegativeInt = 0

    def target(self) -> str:
        """Return the target in words."""
        return f"rank {self.rank}"


class _AtNode(_Moment):
    """A moment on the ranks of a node. Nodes count from 0, the leader, in the order of their ranks."""

    node: NonNegativeInt

    def target(self) -> str:
        """Return the target in words."""
        return f"node {self.node}"


class SignalFault(_At):
    """Sends a signal: `kill` is SIGKILL to the rank, as if its node failed; `hang` is SIGSTOP, so the process exists
    but makes no progress; `terminate` is SIGTERM to the supervisor, as a scheduler sends it before a preemption.

    After `terminate` without `after_s`, the phase continues once the rank has received the stop signal.
    """

    type: Literal["kill", "terminate", "hang"]
    after_s: NonNegativeFloat = 0.0
    """Seconds after the phase began, e.g. while a commit is being written."""


class Slow(_At):
    """Slows a rank down, from `step` on."""

    type: Literal["slow"]
    extra_s: PositiveFloat
    """Extra seconds per step."""
    num_steps: PositiveInt = 1_000_000


class ClockJump(_At):
    """Shifts the rank's wall clock by `jump_s`, from `step` on."""

    type: Literal["clock_jump"]
    jump_s: float


class Store(_At):
    """Makes the next writes of a rank to the object store fail, from `step` on."""

    type: Literal["store"]
    how: StoreFault
    num_writes: PositiveInt = 1
    """Number of writes that fail."""


class Damage(_At):
    """Damages a file of the commit of `step` on disk, then kills the rank."""

    type: Literal["damage"]
    how: DamageKind


class LedgerLoss(_At):
    """Moves the ledger's SQLite file away."""

    type: Literal["ledger_loss"]


class NodeChange(_AtNode):
    """A node leaves or joins.

    `leave`: SIGTERM to its supervisor; the phase continues once the rank has received the stop signal. `join`: starts
    'assay train join' on its machine; the phase continues once the new node waits for the next attempt.
    """

    type: Literal["leave", "join"]


class SlowNode(_AtNode):
    """Slows the lanes of a node down: each step sleeps in proportion to the work of the previous step."""

    type: Literal["slow_node"]
    factor: float = Field(gt=1.0)
    """Lane time as a multiple of the normal time."""
    num_steps: PositiveInt = 1_000_000


OfNode = NodeChange | SlowNode
OfRank = SignalFault | Slow | ClockJump | Store | Damage | LedgerLoss
Fault = Annotated[OfRank | OfNode, Field(discriminator="type")]


class FaultPlan(FrozenConfig):
    """The faults of a run; each strikes once, in its attempt."""

    faults: tuple[Fault, ...] = ()


NO_FAULTS = FaultPlan()


def check_plan(plan: FaultPlan, *, world_size: int, num_steps: int, num_nodes: int = 1) -> None:
    """Raise `ConfigError` for faults that cannot happen: a drill that tests nothing must not pass.

    `num_nodes`: nodes of the first attempt.
    """
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
            f"{name}: this run has one node, so no node can join or leave. Train on several nodes "
            "(--on slurm --nodes 2, or --on nodes), or use 'terminate' for SIGTERM to a run on one node."
        )
    # Later attempts may have more nodes, each with at least one rank.
    if fault.node >= (most := num_nodes if fault.attempt == 1 else world_size):
        raise ConfigError(
            f"{name}: there is no node {fault.node} in attempt {fault.attempt}: it has at most {most}, which "
            f"count from 0. Use a node of at most {most - 1}."
        )


def never_came(plan: FaultPlan, run_dir: Path, *, last_attempt: int) -> list[str]:
    """Return a sentence for each fault that did not strike."""
    return [
        f"faults.{index} ({fault.type}) did not happen: {_why_not(fault, last_attempt)}"
        for index, fault in enumerate(plan.faults)
        if not _note_path(run_dir, fault).exists()
    ]


def have_struck(plan: FaultPlan, run_dir: Path) -> list[tuple[Fault, int]]:
    """Return the faults of a plan that have struck, each with the rank that noted it first."""
    found = list[tuple[Fault, int]]()
    for fault in plan.faults:
        try:
            noted = json.loads(_note_path(run_dir, fault).read_bytes())
        except (OSError, ValueError):  # no note, or a note that is being written
            continue
        found.append((fault, noted["rank"]))
    return found


def describe_fault(fault: Fault) -> str:
    """Return one sentence that says which planned fault struck, and where."""
    return f"'{fault.type}' struck {fault.target()} in {_moment(fault)}, as its fault plan says"


def _why_not(fault: Fault, last_attempt: int) -> str:
    if fault.attempt > last_attempt:
        return f"it is planned for attempt {fault.attempt}, but the last one was attempt {last_attempt}."
    what = " with a target for the fault" if isinstance(fault, Store | Damage) else ""
    return f"attempt {fault.attempt} never reached {_moment(fault)} on {fault.target()}{what}."


def _moment(fault: Fault) -> str:
    entry = "" if fault.entry == 1 else f"entry {fault.entry} of "
    return f"{entry}phase '{fault.phase}'" + ("" if fault.phase == "startup" else f" of step {fault.step}")


def _note_path(run_dir: Path, fault: Fault) -> Path:
    return run_dir / "faults" / f"{sha256_of_json(fault.model_dump(mode='json'))[:16]}.json"


class RankFaults:
    """Injects the faults of one rank in one attempt; the rank reports each moment to `at_moment`."""

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
        """`store` and `clock` are the real ones. `is_stopping`: whether the rank has received the stop signal.
        `nodes`: number of ranks of each node; empty if all ranks are on one."""
        self._run_dir = run_dir
        self._is_stopping = is_stopping
        self._rank = rank
        local_rank = _rank_on_node(rank, nodes)
        self._waiting = [
            fault for fault in plan.faults if fault.attempt == attempt and _strikes_at(fault, rank, *local_rank)
        ]
        self._work = _OwnWork(clock)
        self._entered = Counter[tuple[int, Phase]]()
        """How often each step has entered each phase, counted while faults are pending."""
        self._supervisor_pid = supervisor_pid
        self._ledger_path = ledger_path
        self._log = CommitLog(store)
        self._flaky, self._jumping = FlakyStore(store), JumpingClock(clock)
        kinds = {fault.type for fault in self._waiting}
        self.store: ObjectStore = self._flaky if "store" in kinds else store
        """The store that the rank must use; it fails if the plan says so. Likewise `clock`."""
        self.clock: Clock = self._jumping if "clock_jump" in kinds else clock

    def at_moment(self, step: int, phase: Phase) -> None:
        """Inject the faults that are due as the rank enters `phase` of `step`."""
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
        """Inject a fault; return whether it is finished, so that it does not strike again."""
        note = partial(self._note, fault)
        match fault:
            case SignalFault(type="terminate", after_s=0.0) | NodeChange(type="leave"):
                _signal(self._supervisor_pid, signal.SIGTERM, 0.0, note)
                self._wait_for_stop()
            case SignalFault(type="terminate"):
                _signal(self._supervisor_pid, signal.SIGTERM, fault.after_s, note)
            case SignalFault():
                number = signal.SIGKILL if fault.type == "kill" else signal.SIGSTOP
                _signal(os.getpid(), number, fault.after_s, note)
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
            case NodeChange():
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
        """Wait for the stop signal: a run with short steps could end before its supervisor reacts."""
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
    """Return the node of a rank, and the rank's index on that node."""
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
    """Start 'assay train join' on this machine; return once the leader knows of it. It outlives this rank."""
    log = run_dir / "faults" / f"join-{os.getpid()}-{time.monotonic_ns()}.log"
    start_detached(join_command(run_dir.name), {"ASSAY_HOME": str(run_dir.parent)}, log=log)
    deadline_s = time.monotonic() + JOIN_S
    while WAITS_OUTSIDE not in (output := log.read_text(errors="replace")):
        if time.monotonic() > deadline_s or "error:" in output:
            raise TrainingError(f"a fault plan's node did not join within {JOIN_S:.0f} s: {output.strip()}")
        time.sleep(0.05)


def join_command(run_id: str) -> list[str]:
    """Return the command that lends this machine to a run."""
    return [sys.executable, "-m", "assay", "train", "join", run_id]


class _OwnWork:
    """Measures the lane time of a rank's last step, without the injected delay."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self.of_last_step_s = 0.0

    def enters(self, phase: Phase) -> None:
        """Note a phase change. Lanes are computed from the first `compute` to the next `communication`."""
        now_s = self._clock.monotonic_s()
        if phase == "communication" and self._began_s is not None:
            self.of_last_step_s, self._began_s = now_s - self._began_s, None
        elif phase == "data":
            self._began_s = None
        elif phase == "compute" and self._began_s is None:
            self._began_s = now_s

    def waits(self, seconds: float) -> None:
        """Sleep without counting it as lane time."""
        self._clock.sleep_s(seconds)
        if self._began_s is not None:
            self._began_s += seconds


def damage_commit(store: ObjectStore, commit: Commit, how: DamageKind) -> None:
    """Damage the largest file of a commit."""
    victim = max(commit.files, key=lambda file: file.num_bytes)
    damage_file(store, f"{commit.folder}/{victim.path}", how)


def damage_file(store: ObjectStore, key: str, how: DamageKind) -> None:
    """Delete a file, truncate it to half, or flip one bit."""
    data = bytearray(store.get(key))
    if how == "missing":
        store.delete(key)
    elif how == "torn":
        store.put(key, bytes(data[: len(data) // 2]))
    else:
        data[len(data) // 3] ^= 1
        store.put(key, bytes(data))


class JumpingClock:
    """A clock whose wall time is off by `jump_s`; its monotonic time is right, as on a real machine."""

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
