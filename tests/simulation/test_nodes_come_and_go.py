"""The real supervisor, lead, followers and links between them, while nodes leave, are lost, and come.

Followers are threads of this process and links are real connections; ranks only count: each step makes the
next link of a chain of digests, and only if all ranks of the attempt are there. So a step that was skipped,
repeated or made by too few has another digest at the end. One seed decides what happens; a failure prints it.
"""

import hashlib
import random
import socket
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import AssayError
from assay.elastic import supervisor as supervisor_module
from assay.elastic.nodes import group as nodes_module
from assay.elastic.nodes.group import Follower, NodeGroup
from assay.elastic.nodes.handover import Successor
from assay.elastic.nodes.server import leader_address
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

    def advance(self, part: "SimulatedRanks") -> None:
        with self.lock:
            life = part.life
            num_present = sum(len(item.ranks) for item in life.parts if not item.is_gone)
            if life.outcome or part.ranks.start or num_present < life.attempt.world_size:
                return
            if life.step == TARGET - 1 and not self.may_finish and not life.stop_requested:
                return
            life.step, life.digest = life.step + 1, chain(life.digest, life.step + 1)
            is_done = life.step == TARGET
            if is_done or life.stop_requested or life.step % COMMIT_EVERY == 0:
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


class Node:
    """A follower in a thread of its own."""

    def __init__(self, run: Run, node: int | None, host: str, port: int, leading: "Leading") -> None:
        self.follower = Follower(run, node=node, host=host, port=port, clock=CLOCK)
        self.error: AssayError | None = None
        self._leading = leading
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        try:
            if (successor := self.follower.follow()) is not None:
                self._leading.run_successor(successor, stops=self.follower.stop_requested)
        except AssayError as error:
            self.error = error

    def leave(self) -> None:
        """SIGTERM."""
        self.follower._request_stop()

    def kill(self) -> None:
        if self.follower._ranks is not None:
            self.follower._ranks.is_gone = True  # type: ignore[attr-defined]
        self.follower._link.close()


class Leading:
    """What the lead does, whichever node that is: it supervises until the run ends or is handed on."""

    def __init__(self, world: World, run: Run, num_nodes: int) -> None:
        self._world, self._run, self._num_nodes = world, run, num_nodes
        self.observer: ComeAndGo
        self.group: NodeGroup
        self.supervisor: Supervisor
        self.last: Attempt | None = None
        self.error: BaseException | None = None
        self.is_over = threading.Event()

    def run_successor(self, successor: Successor, *, stops: bool) -> None:
        port = successor.server.port
        group = NodeGroup(
            self._run, num_nodes=1, host=successor.host, port=port, ranks_per_node=1, clock=CLOCK, successor=successor
        )
        self.supervise(group, stops=stops)

    def supervise(self, group: NodeGroup, *, stops: bool = False) -> None:
        self.group = group
        log = CommitLog(self._world.store)
        self.supervisor = Supervisor(
            self._run, log, policy=RestartPolicy(), observers=[self.observer], clock=CLOCK, nodes=group
        )
        if stops:
            self.supervisor.request_stop()
        successor = None
        try:
            self.last = self.supervisor.run(self._num_nodes)
            successor = group.transfer_leadership() if self.last.outcome == "preempted" else None
        except BaseException as error:
            self.error = error
            raise
        finally:
            group.close()
            if successor is None:
                self.is_over.set()


class ComeAndGo:
    """Does what its seed says, one thing an attempt, each once that attempt has made a commit or waits for its
    last step."""

    def __init__(self, world: World, run: Run, leading: Leading, nodes_present: dict[int, Node], seed: int) -> None:
        self.world, self.run, self.leading, self.nodes_present = world, run, leading, nodes_present
        self.rng, self.did = random.Random(seed), list[str]()
        self.attempts: list[Attempt] = []
        self.left: list[Node] = []

    @property
    def group(self) -> NodeGroup:
        return self.leading.group

    def attempt_began(self, attempt: Attempt, pids: object) -> None:
        self.attempt, self.is_done = attempt, False

    def tick(self, attempt: Attempt) -> None:
        life = self.world.lives[attempt.attempt]
        may_act = life.committed > attempt.start_step or life.step == TARGET - 1
        if self.is_done or life.outcome or not may_act:
            return
        self.is_done = True
        if len(self.did) < NUM_EVENTS:
            self._do()
        self.world.may_finish = len(self.did) >= NUM_EVENTS

    def _do(self) -> None:
        peers = sorted((self.group._busy - {self.group._node}) & self.nodes_present.keys())
        what = self.rng.choice(["leave", "leave", "kill", "cut", "join", "kill a rank of the lead", "lead leaves"])
        if what == "lead leaves" and any(self.group._peers[peer].node is not None for peer in peers):
            self.did.append(what)
            # Those that are lent get other numbers from the next lead: nothing more is done to them.
            lent = {number for number, node in self.nodes_present.items() if node.follower._node is None}
            for number in {self.group._node, *lent} & self.nodes_present.keys():
                del self.nodes_present[number]
            self.leading.supervisor.request_stop()
            return
        if what == "join":
            leader = leader_address(Path(self.run.run_dir))
            before, node = (
                self.group.room(99),
                Node(self.run, None, leader.host, leader.port, self.leading),
            )
            until(lambda: self.group.room(99) > before)
            self.nodes_present[self.group._last_number + 1] = node  # its number, where nobody else comes before it
        if what in ("join", "kill a rank of the lead", "lead leaves") or not peers:
            self.did.append(what)
            parts = self.world.lives[self.attempt.attempt].parts
            next(part for part in parts if part.ranks.start == 0).kill()
            return
        number = self.rng.choice(peers)
        self.did.append(f"{what} {number}")
        node = self.nodes_present.pop(number)
        if what == "cut":
            self.group._peers[number].link.close()
        elif what == "leave":
            node.leave()
            self.left.append(node)
        else:
            node.kill()

    def attempt_ended(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)


def until(is_so) -> None:
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(nodes_module, "RankProcesses", partial(SimulatedRanks, world))
    monkeypatch.setattr(nodes_module, "fork_context", lambda: None)
    # Only the main thread may set handlers; a node is asked to stop by calling its own.
    nothing = dict.fromkeys(("signal", "getsignal", "pthread_sigmask"), lambda *_: None)
    signals = SimpleNamespace(**nothing, SIGTERM=15, SIGINT=2, SIG_IGN=1, SIG_BLOCK=0, SIG_UNBLOCK=1)
    for module in (nodes_module, supervisor_module):
        monkeypatch.setattr(module, "signal", signals)
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
    num_nodes = random.Random(seed).randint(3, 8)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    present: dict[int, Node] = {}
    leader = Leading(world, run, num_nodes)

    def come(node: int) -> None:
        present[node] = Node(run, node, "127.0.0.1", port, leader)

    for node in range(1, num_nodes):
        threading.Thread(target=come, args=(node,), daemon=True).start()
    group = NodeGroup(run, num_nodes=num_nodes, host="127.0.0.1", port=port, ranks_per_node=1, clock=CLOCK)
    until(lambda: len(present) == num_nodes - 1)
    leader.observer = life = ComeAndGo(world, run, leader, present, seed)
    leader.supervise(group)
    assert leader.is_over.wait(60), life.did
    assert leader.error is None and leader.last is not None, life.did
    assert leader.last.outcome == "succeeded" and len(life.did) == NUM_EVENTS, life.did
    finished = CommitLog(world.store).finished()
    assert finished is not None and finished.weights_digest == undisturbed(), life.did
    commits = CommitLog(world.store).commits()
    assert sum(commit.rows_trained for commit in commits) == TARGET, life.did
    for ended, following in zip(life.attempts, life.attempts[1:], strict=False):
        if ended.outcome == "preempted":
            assert following.start_step == ended.end_step, "who leaves costs no step"
    for gone in life.left:
        gone.thread.join(10)
        assert not gone.thread.is_alive() and gone.error is None
