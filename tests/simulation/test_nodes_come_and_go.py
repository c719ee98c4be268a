"""The real supervisors, nodes and links between them, while nodes leave, are lost, and come; the lead, too.

Nodes are threads of this process and links are real connections; ranks only count: each step makes the
next link of a chain of digests, and only if all ranks of the attempt are there. So a step that was skipped,
repeated or made by too few has another digest at the end. One seed decides what happens; a failure prints it.
"""

import hashlib
import random
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import AssayError, FencedError
from assay.elastic import supervisor as supervisor_module
from assay.elastic.nodes import follower as follower_module
from assay.elastic.nodes import group as group_module
from assay.elastic.nodes import node as node_module
from assay.elastic.nodes import server as server_module
from assay.elastic.nodes.group import NodeGroup
from assay.elastic.nodes.node import RunNode
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.elastic.task import AttemptEnd, Orders
from assay.records.commit import Commit, RunFinished
from assay.records.cursor import Cursor
from assay.records.failure import Failure
from assay.records.rank_device import RankDevice
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Beat
from assay.store.objects import open_store
from assay.training.recipe import recipe_sha256
from tiny_recipe import tiny_recipe
from variants import slow, soaked

TARGET, COMMIT_EVERY, STEP_S = 300, 20, 0.002
NUM_EVENTS = 4
OF_LEADER = ("lead leaves", "lead dies")
OF_NETWORK = ("lead is cut off", "network splits")
CLOCK = SystemClock()


def chain(digest: str, step: int) -> str:
    return hashlib.sha256(f"{digest} {step}".encode()).hexdigest()


def undisturbed() -> str:
    digest = ""
    for step in range(1, TARGET + 1):
        digest = chain(digest, step)
    return digest


class Life:
    """One attempt, over all of its nodes."""

    def __init__(self, orders: Orders) -> None:
        self.attempt, self.commit = orders.attempt, orders.commit
        self.step = orders.commit.step if orders.commit else 0
        self.digest = orders.commit.weights_digest if orders.commit else ""
        self.committed = self.step
        self.parts: list[SimulatedRanks] = []
        self.stop_requested = False
        self.outcome: str | None = None


class World:
    """What all ranks of all attempts do."""

    def __init__(self) -> None:
        self.store = open_store("memory:")
        self.lock = threading.RLock()
        self.lives: dict[int, Life] = {}
        self.may_finish = False

    def is_finished(self) -> bool:
        return CommitLog(self.store).finished() is not None

    def advance(self, part: "SimulatedRanks") -> None:
        with self.lock:
            life = part.life
            num_present = sum(len(item.ranks) for item in life.parts if not item.is_gone)
            if life.outcome or part.ranks.start or num_present < life.attempt.world_size:
                return
            if life.step == TARGET - 1 and not self.may_finish and not life.stop_requested:
                return
            if life.step < TARGET:  # a lead that was cut off may have finished before
                life.step, life.digest = life.step + 1, chain(life.digest, life.step + 1)
            is_done = life.step == TARGET
            if life.step > life.committed and (is_done or life.stop_requested or life.step % COMMIT_EVERY == 0):
                self._commit(life)
            if is_done:
                log = CommitLog(self.store, attempt=life.attempt.attempt)
                log.append(RunFinished(attempt=log.attempt, step=life.step, weights_digest=life.digest))
            life.outcome = "succeeded" if is_done else "preempted" if life.stop_requested else None

    def _commit(self, life: Life) -> None:
        number = life.attempt.attempt
        entry = Commit(
            attempt=number,
            world_size=life.attempt.world_size,
            step=life.step,
            cursor=Cursor(),
            committed_s=0.0,
            folder=f"checkpoints/{life.step:08d}-{number:04d}",
            files=(),
            weights_digest=life.digest,
            receipts_from_step=life.committed,
            rows_trained=life.step - life.committed,
        )
        CommitLog(self.store, attempt=number).append(entry)
        life.committed = life.step


class SimulatedRanks:
    """As `RankProcesses`: a node's share of an attempt."""

    pids = ()

    def __init__(self, world: World, _context: object, _run: Run, orders: Orders, ranks: range, _: str) -> None:
        self._world, self.ranks = world, ranks
        self.is_gone = self.is_killed = False
        with world.lock:
            self.life = world.lives.setdefault(orders.attempt.attempt, Life(orders))
            self.life.parts.append(self)

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    def hosts(self) -> list[str]:
        return ["here"] * len(self.ranks)

    def devices(self) -> list[RankDevice]:
        return [RankDevice("cpu")] * len(self.ranks)

    def beats(self) -> list[Beat]:
        return [Beat(self.life.step, "compute", CLOCK.monotonic_s(), 0.0, STEP_S)] * len(self.ranks)

    def wait_for_news(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, STEP_S))
        self._world.advance(self)

    def take_stacks(self, rank: int) -> str:
        return ""

    def signal(self, number: int) -> None:
        self.life.stop_requested = True

    def kill(self) -> None:
        self.is_gone = self.is_killed = True

    def end(self) -> AttemptEnd | None:
        if self.is_killed:
            number = self.life.attempt.attempt
            failure = Failure(
                failure_kind="killed_by_signal", run_id="r", attempt=number, rank=0, signature="SIGKILL",
                text="SIGKILL",
            )  # fmt: skip
            return AttemptEnd("killed", 0, failure=failure)
        outcome = self.life.outcome
        return AttemptEnd(outcome, len(self.ranks)) if outcome else None  # type: ignore[arg-type]

    def stop(self) -> None:
        self.is_gone = True


class Killed(BaseException):
    """The end of a node's process, which says nothing to anybody."""


class Node:
    """A node in a thread of its own: it does what `assay train --on nodes` does, or `join` without an index."""

    def __init__(self, run: Run, index: int | None, life: "ComeAndGo") -> None:
        self.run, self.index, self.life = run, index, life
        self.group: NodeGroup | None = None
        self.supervisor: Supervisor | None = None
        self.error: AssayError | None = None
        self.role = ""
        self.node = RunNode(run, index=index, address="127.0.0.1", is_finished=life.world.is_finished, clock=CLOCK)
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def _live(self) -> None:
        try:
            while (role := self.node.next_role()) == "leads":
                role = self._run_leader()
                if role:
                    break
            self.role = role
        except AssayError as error:
            self.error = error
        except Killed:
            self.role = "killed"
        finally:
            self.group = None

    def _run_leader(self) -> str:
        """How this node ends; empty if another one leads."""
        log = CommitLog(self.life.world.store)
        with self.node.leading(log, ranks_per_node=1, quiet_s=0.5) as group:
            self.group, observer = group, self.life.seen_by(self)
            self.supervisor = Supervisor(
                self.run, log, policy=RestartPolicy(), observers=[observer], clock=CLOCK, nodes=group
            )
            try:
                last = self.supervisor.run(self.life.num_nodes)
            except FencedError:
                if self.supervisor.stop_requested:
                    return "left"
                self.node.was_fenced()
                return ""
            if last is not None and last.outcome == "succeeded":
                group.end(0)
                return "finished"
            return "left"

    def leave(self) -> None:
        """SIGTERM."""
        self.node._request_stop()
        if self.supervisor is not None:
            self.supervisor.request_stop()

    def kill(self) -> None:
        """SIGKILL of a follower, or, in its own thread, of the lead."""
        if (group := self.group) is None:
            follower = self.node._follower
            assert follower is not None
            if follower._ranks is not None:
                follower._ranks.is_gone = True  # type: ignore[attr-defined]
            self.node._stop_requested = True  # so that the thread ends
            follower._link.close()
            return
        self.cut_off(lives=False)
        group.close = lambda: None  # type: ignore[method-assign]
        for part in self.life.world.lives[self.life.attempt.attempt].parts:
            part.is_gone |= part.ranks.start == 0
        raise Killed

    def cut_off(self, *, lives: bool) -> None:
        """Nobody reaches the lead any more, which goes on, and shows that in the run's folder if it `lives`."""
        assert self.group is not None
        if not lives:
            self.group._file._is_over.set()
        self.group._server.close()
        for peer in [*self.group._peers.values(), *self.group._waiting_peers()]:
            peer.link.close()


class Seen:
    """The observer of one node's supervisor."""

    def __init__(self, life: "ComeAndGo", node: Node) -> None:
        self._life, self._node = life, node

    def attempt_began(self, attempt: Attempt, pids: object) -> None:
        self._life.attempt_began(attempt, self._node)

    def tick(self, attempt: Attempt) -> None:
        self._life.tick(attempt)

    def attempt_ended(self, attempt: Attempt) -> None:
        self._life.attempts.append(attempt)


class ComeAndGo:
    """Does what its seed says, one thing an attempt, each once that attempt has made a commit or waits for its
    last step."""

    leader: Node

    def __init__(self, world: World, run: Run, seed: int) -> None:
        self.world, self.run = world, run
        self.rng, self.did = random.Random(seed), list[str]()
        self.num_nodes = self.rng.randint(3, 8)
        self.attempts: list[Attempt] = []
        self.left: list[Node] = []
        self.is_split = False
        """Whether the lead lives, and nobody reaches it."""
        self.takeovers: list[int] = []
        """Attempts with which another node took the run away from such a lead."""
        self.present = [Node(run, index, self) for index in range(self.num_nodes)]

    def seen_by(self, node: Node) -> Seen:
        return Seen(self, node)

    def attempt_began(self, attempt: Attempt, leader: Node) -> None:
        if self.is_split and leader is not self.leader:
            self.takeovers.append(attempt.attempt)
        self.attempt, self.leader, self.is_done = attempt, leader, False

    def tick(self, attempt: Attempt) -> None:
        life = self.world.lives[attempt.attempt]
        may_act = life.committed > attempt.start_step or life.step == TARGET - 1
        if self.is_done or life.outcome or not may_act:
            return
        self.is_done = True
        if len(self.did) < NUM_EVENTS:
            self._do()
        self.world.may_finish = len(self.did) >= NUM_EVENTS

    @property
    def group(self) -> NodeGroup:
        assert self.leader.group is not None
        return self.leader.group

    def _do(self) -> None:
        busy = {self.group._peers[number].node for number in self.group._busy & self.group._peers.keys()}
        followers = [node for node in self.present if node.index in busy and node is not self.leader]
        candidates = [node for node in followers if node.index is not None]
        what = self.rng.choice(["leave", "leave", "kill", "cut", "join", "kill a rank", *OF_LEADER, *OF_NETWORK])
        if what in OF_NETWORK and candidates:
            self.did.append(what)
            self.is_split = what == "network splits"
            self.leader.cut_off(lives=self.is_split)
            return
        if what in OF_LEADER and candidates:
            self.did.append(what)
            self.world.may_finish = len(self.did) >= NUM_EVENTS
            self.present.remove(self.leader)
            if what == "lead dies":
                self.leader.kill()
            self.left.append(self.leader)
            self.leader.leave()
            return
        if what == "join" and not self.is_split:
            before = self.group.room(99)
            self.present.append(Node(self.run, None, self))
            until(lambda: self.group.room(99) > before)
        if what in ("join", "kill a rank", *OF_LEADER, *OF_NETWORK) or not candidates:
            self.did.append(what)
            parts = self.world.lives[self.attempt.attempt].parts
            next(part for part in parts if part.ranks.start == 0).kill()
            return
        node = self.rng.choice(candidates)
        self.did.append(f"{what} {node.index}")
        if what == "cut":
            self.group._peers[node.index].link.close()  # type: ignore[index]
            return
        self.present.remove(node)
        if what == "leave":
            node.leave()
            self.left.append(node)
        else:
            node.kill()


def until(is_so, limit_s: float = 20.0, life: ComeAndGo | None = None) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, life and life.did
        time.sleep(0.01)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    # Only the main thread may set handlers; a node is asked to stop by calling its own.
    nothing = dict.fromkeys(("signal", "getsignal", "pthread_sigmask"), lambda *_: None)
    signals = SimpleNamespace(**nothing, SIGTERM=15, SIGINT=2, SIG_IGN=1, SIG_BLOCK=0, SIG_UNBLOCK=1)
    for module in (node_module, follower_module, supervisor_module):
        monkeypatch.setattr(module, "signal", signals)
    for module in (group_module, follower_module):
        monkeypatch.setattr(module, "RankProcesses", partial(SimulatedRanks, world))
    for module in (group_module, node_module):
        monkeypatch.setattr(module, "fork_context", lambda: None)
    for name, value in {"RETRY_S": 0.02, "TURN_S": 0.1, "FENCED_S": 0.5, "STILL_S": 1.0}.items():
        monkeypatch.setattr(node_module, name, value)
    monkeypatch.setattr(group_module, "LOOK_S", 0.1)
    monkeypatch.setattr(server_module, "ALIVE_S", 0.05)
    return world


@pytest.fixture
def run(tmp_path: Path) -> Run:
    recipe = tiny_recipe()
    return Run(
        run_id="r", created_s=0.0, recipe=recipe, recipe_sha256=recipe_sha256(recipe, ""),
        dataset_fingerprint="", code_version="", run_dir=str(tmp_path), store_url="memory:", num_steps=TARGET,
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, *slow(*range(1, 10)), *soaked(*range(10, 50))])
def test_whatever_nodes_come_and_go_each_step_is_made_once_and_by_all(seed: int, run: Run, world: World) -> None:
    life = ComeAndGo(world, run, seed)
    until(world.is_finished, 60.0, life)
    for node in life.present:
        node.thread.join(10)
    # A node whose link was cut while the last attempt began may come back when the run is over.
    assert {node.role for node in life.present} <= {"finished"}, life.did
    assert not any(node.error for node in life.present) and len(life.did) == NUM_EVENTS, life.did
    assert not life.takeovers, life.did
    finished = CommitLog(world.store).finished()
    assert finished is not None and finished.weights_digest == undisturbed(), life.did
    commits = CommitLog(world.store).commits()
    assert sum(commit.rows_trained for commit in commits) == TARGET, life.did
    for ended, following in zip(life.attempts, life.attempts[1:], strict=False):
        if ended.outcome == "preempted" and following.attempt == ended.attempt + 1:
            assert following.start_step == ended.end_step, "who leaves costs no step"
    for gone in life.left:
        gone.thread.join(10)
        assert gone.role == "left" and gone.error is None
