"""One run on several nodes: a supervisor on each, of which that of node 0 leads.

    node 0: Supervisor --- Allotment ---+--- node 0's ranks
            (attempts, ledger)          +--- link --- node 1: Follower --- node 1's ranks
                                        +--- link --- node 2: Follower --- node 2's ranks

The lead alone begins attempts, verifies commits and writes to the ledger, exactly as on one machine; a follower
forks the ranks it is told to, and says how they ended. So there is one decision about each attempt, and what a
supervisor does for its own ranks it does on every node. A node whose link breaks has lost its ranks: the next
attempt runs on those that are left. A node that is asked to stop says so: its ranks, and with them all others,
commit; then it leaves and the others go on. A node that comes, or comes back, waits outside until an attempt
begins (`node_door`). A follower whose lead is gone kills its ranks and leaves; a lead that is asked to stop has
another node lead on (`handover`), and where all are asked, the run ends on all.
"""

import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from assay.base.clock import Clock, SystemClock
from assay.base.code_version import code_version
from assay.base.errors import ConfigError, TrainingError
from assay.base.units import number_of
from assay.data.loader.lane_shares import LaneShares
from assay.elastic.environment import environment_here
from assay.elastic.failures import distance_from_cause
from assay.elastic.fork_server import fork_context
from assay.elastic.nodes.connection import (
    Beats,
    BecomeLeader,
    Dismiss,
    Ended,
    Finished,
    Follow,
    Hello,
    LeaderReady,
    Leave,
    LinkLost,
    Message,
    ProcessState,
    Signal,
    Start,
    Stop,
    Stopped,
    TakeStacks,
    connect_link,
    link_key,
)
from assay.elastic.nodes.handover import Successor, transfer_leadership
from assay.elastic.nodes.server import (
    LEADER_FILE,
    MESSAGES_AT_ONCE,
    LeaderAddress,
    NodeServer,
    Outside,
    Peer,
    dismiss,
    gather,
    leader_address,
    stays,
)
from assay.elastic.processes import AttemptRanks, RankProcesses
from assay.elastic.processor import processor_here, refuse_mixed
from assay.elastic.supervisor import POLL_S
from assay.elastic.task import AttemptEnd, Orders
from assay.records.failure import Failure
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor
from assay.records.rank_device import RankDevice
from assay.records.run import Run
from assay.store.heartbeat import Beat
from assay.store.objects import open_store
from assay.training.recipe import recipe_of

GATHER_S = 300.0
"""How long the lead and the followers wait for each other at the start."""

JOIN_S = 60.0
"""How long a node that is lent waits for the lead to answer."""

CAUSE_S = 1.0
"""When ranks of one node fail, those of others soon fail for want of them: so long the cause is waited for."""

STOP_S = 60.0
"""A follower that has not killed its ranks by then counts as lost."""

BEATS_S = 1.0
"""How often a follower passes its ranks' signs of life on."""

STATE_S = 2.0
"""How long a follower may take to say what a rank's process does."""

_NO_BEAT = Beat(0, "startup", 0.0, 0.0, 0.0)


class NodeGroup:
    """The lead's side: where ranks can be started, as the supervisor's `Nodes`."""

    def __init__(
        self,
        run: Run,
        *,
        num_nodes: int,
        host: str,
        port: int,
        ranks_per_node: int,
        clock: Clock,
        successor: Successor | None = None,
    ) -> None:
        """Wait until every follower has come; `ConfigError` where one computes on another kind of processor, or
        by other code. `host` is this node as the others reach it; `port`: 0 for any that is free. `heir`: it
        takes over from a lead that left, and the first attempt lets in those who followed that one."""
        self._run = run
        self._node = successor.node if successor else 0
        """This one's number."""
        self._is_handed_over = False
        self._clock = clock
        self._context = fork_context()
        self._host = host
        self._ranks_per_node = ranks_per_node
        self.processor = processor_here()
        self._leaving: set[int] = set()
        """Nodes that were asked to stop."""
        self._drained: frozenset[int] = frozenset()
        """Nodes that the cluster wants back; another thread says so."""
        self._busy: set[int] = set()
        """Nodes that have ranks in the attempt under way, which listens to them."""
        self._server = successor.server if successor else NodeServer(port, link_key(Path(run.run_dir)))
        try:
            self._peers, others = gather(self._server, num_nodes - 1, clock, GATHER_S)
            self._reject_unsuitable()
        except BaseException:
            self._server.close()
            raise
        others += successor.come_over(clock) if successor else []
        self._last_number = max(self._node, *self._peers, *(successor.others if successor else ()), 0)
        self._outside = Outside(self._server, partial(_refusal, self.processor, self._name), others)
        address = LeaderAddress(host=host, port=self._server.port, ranks_per_node=ranks_per_node)
        open_store(run.run_dir).put(LEADER_FILE, address.model_dump_json().encode())

    @property
    def _name(self) -> str:
        return f"node {self._node} ({socket.gethostname()})"

    def _reject_unsuitable(self) -> None:
        """Raise `ConfigError` about followers whose bits would not be this node's."""
        names = {f"node {node} ({peer.host})": peer for node, peer in sorted(self._peers.items())}
        refuse_mixed({self._name: self.processor, **{name: peer.processor for name, peer in names.items()}})
        for name, peer in names.items():
            _refuse_other_code(name, peer, self._name)

    def other_environments(self) -> dict[str, NodeEnvironment]:
        """What the nodes that are left have around their ranks, by host."""
        return {peer.host: peer.environment for _, peer in sorted(self._peers.items())}

    def fitting(self, world_size: int) -> int:
        """`world_size`, or the most ranks that find room; those who leave are let go, those outside let in."""
        self._busy.clear()
        self._hear_idle()
        for peer in self._outside.let_in():
            number = peer.node or self._last_number + 1
            self._last_number = max(number, self._last_number)
            self.lose(number)  # who comes back is there twice until its first link is known to be broken
            self._peers[number] = peer
        return min(world_size, (1 + len(self._peers)) * self._ranks_per_node)

    def _hear_idle(self) -> None:
        """Let nodes without ranks go that were asked to stop."""
        for node in sorted(self._peers.keys() - self._busy):
            if node in self._leaving:
                self._leaving.remove(node)
                dismiss(self._peers.pop(node))
            elif not stays(self._peers[node]):
                self.lose(node)

    def room(self, world_size: int) -> int:
        """`world_size`, or the most ranks that would find room if those outside were let in."""
        self._hear_idle()
        waiting = self._outside.waiting()
        numbers = {peer.node for peer in waiting if peer.node is not None}
        lent = sum(peer.node is None for peer in waiting)
        active_nodes = len((self._peers.keys() - self._leaving) | numbers) + lent
        return min(world_size, (1 + active_nodes) * self._ranks_per_node)

    def mark_drained(self, nodes: frozenset[int]) -> None:
        """The cluster wants these nodes: as if they had been asked to stop. Any thread may call it."""
        self._drained = nodes

    def active_nodes(self) -> frozenset[int]:
        """Numbers of the allocation's nodes that are at work, or may be. Likewise."""
        return frozenset({self._node, *(peer.node for peer in [*self._peers.values()] if peer.node is not None)})

    def leaving(self) -> list[str]:
        """Names of the nodes that were asked to stop."""
        self._leaving |= {node for node, peer in self._peers.items() if peer.node in self._drained}
        return [f"node {node} ({self._peers[node].host})" for node in sorted(self._leaving & self._peers.keys())]

    def hosts(self, world_size: int) -> list[str]:
        """By the share of each node."""
        names = [socket.gethostname(), *(peer.host for _, peer in sorted(self._peers.items()))]
        shares = share_out(world_size, len(names))
        return [name for name, ranks in zip(names, shares, strict=True) for _ in ranks]

    def start(self, orders: Orders) -> AttemptRanks:
        """Start each node's share of the ranks; they meet at a fresh port of this node."""
        nodes = [self._node, *sorted(self._peers)]
        shares = dict(zip(nodes, share_out(orders.attempt.world_size, len(nodes)), strict=True))
        self._busy = {node for node, ranks in shares.items() if ranks}
        sizes = tuple(len(ranks) for ranks in shares.values() if ranks)
        orders = orders.model_copy(update={"nodes": sizes})
        rendezvous = f"tcp://{self._host}:{_free_port()}"
        remote = [
            _RemoteRanks(orders, rendezvous, node, self._peers[node], shares[node], self, self._clock)
            for node in nodes[1:]
            if shares[node]
        ]
        local = RankProcesses(self._context, self._run, orders, shares[self._node], rendezvous)
        return _GroupRanks(local, remote, self._clock)

    def lose(self, node: int) -> None:
        """A node is gone."""
        self._leaving.discard(node)
        if node in self._peers:
            self._peers.pop(node).link.close()

    def leaves(self, node: int) -> None:
        """A node was asked to stop."""
        self._leaving.add(node)

    def transfer_leadership(self) -> str | None:
        """Have another node lead; those who are to stop as well are not asked."""
        self.leaving()
        staying = {node: peer for node, peer in self._peers.items() if node not in self._leaving and stays(peer)}
        outside = self._outside.let_in()
        successor = transfer_leadership(staying, outside, self._clock)
        self._is_handed_over = successor is not None
        for peer in [*outside, *(self._peers.values() if self._is_handed_over else ())]:
            dismiss(peer)  # of those who follow another, the link is over
        if self._is_handed_over:
            self._peers.clear()
        return successor

    def close(self) -> None:
        """Send the followers home, unless another node leads them."""
        if not self._is_handed_over:
            (Path(self._run.run_dir) / LEADER_FILE).unlink(missing_ok=True)
        self._server.close()
        for peer in self._outside.let_in():
            dismiss(peer)
        for node, peer in list(self._peers.items()):
            try:
                peer.link.send(Finished())
            except LinkLost:
                self.lose(node)


def share_out(world_size: int, num_nodes: int) -> list[range]:
    """Neighbouring ranks for each node, as evenly as may be, the first nodes first; some get none."""
    attempt, more = divmod(world_size, num_nodes)
    shares, first = [], 0
    for node in range(num_nodes):
        size = attempt + (node < more)
        shares.append(range(first, first + size))
        first += size
    return shares


class _Group(Protocol):
    """Who is told that a node is gone, or goes."""

    def lose(self, node: int) -> None:
        """It is gone."""
        ...

    def leaves(self, node: int) -> None:
        """It was asked to stop."""
        ...


class _RemoteRanks:
    """The lead's view of one follower's ranks."""

    def __init__(
        self,
        orders: Orders,
        rendezvous: str,
        node: int,
        peer: Peer,
        ranks: range,
        group: "_Group",
        clock: Clock,
    ) -> None:
        """Have the follower start them. A node that is gone is an end of its ranks, as it is later."""
        self._attempt = orders.attempt
        self._clock = clock
        self._node = node
        self._link = peer.link
        self.host = peer.host
        self.beats = [_NO_BEAT] * len(ranks)
        self.devices = [RankDevice()] * len(ranks)
        self.process_state: str | None = None
        self._group = group
        self.ranks = ranks
        self.ended: AttemptEnd | None = None
        self.is_stopped = False
        self.send(Start(orders=orders, first_rank=ranks.start, num_ranks=len(ranks), rendezvous=rendezvous))

    def send(self, message: Message) -> None:
        """Tell the follower, if it is still there."""
        if not self.is_stopped:
            try:
                self._link.send(message)
            except LinkLost as error:
                self._is_lost(error)

    def listen(self, timeout_s: float) -> None:
        """Take in what the follower has to say; not for ever, should it never stop."""
        try:
            for _ in range(MESSAGES_AT_ONCE):
                if self.is_stopped or (message := self._link.receive(timeout_s)) is None:
                    return
                self._take_in(message)
                timeout_s = 0.0
        except LinkLost as error:
            self._is_lost(error)

    def _take_in(self, message: Message) -> None:
        if (violation := self._protocol_violation(message)) is not None:
            raise LinkLost(f"it spoke of {violation}")
        if isinstance(message, Ended):
            self.ended = message.end
        elif isinstance(message, Stopped):
            self.is_stopped = True
        elif isinstance(message, ProcessState):
            self.process_state = message.state
        elif isinstance(message, Leave):
            self._group.leaves(self._node)
        elif isinstance(message, Beats):
            now_s = self._clock.monotonic_s()
            self.beats = [beat._replace(at_s=now_s - beat.at_s) if beat else _NO_BEAT for beat in message.beats]
            self.devices = list(message.devices)

    def _protocol_violation(self, message: Message) -> str | None:
        """What is none of this follower's business."""
        if isinstance(message, Beats) and not len(message.beats) == len(message.devices) == len(self.ranks):
            return f"{number_of(len(message.beats), 'rank')}, it has {len(self.ranks)}"
        if isinstance(message, Ended) and not 0 <= message.end.num_alive <= len(self.ranks):
            return f"{message.end.num_alive} ranks, it has {len(self.ranks)}"
        failure, own_version = message.end.failure if isinstance(message, Ended) else None, self._attempt
        if failure is not None and (failure.run_id, failure.attempt) != (own_version.run_id, own_version.attempt):
            return f"attempt {failure.attempt} of run '{failure.run_id}'"
        return None

    def stop(self) -> None:
        """Wait until the follower, told to stop, has killed its ranks."""
        deadline_s = self._clock.monotonic_s() + STOP_S
        while not self.is_stopped:
            self.listen(POLL_S)
            if self._clock.monotonic_s() > deadline_s:
                self._is_lost(LinkLost(f"no answer in {STOP_S:.0f} s"))

    def _is_lost(self, error: LinkLost) -> None:
        self._group.lose(self._node)
        self.is_stopped = True
        if self.ended is None or self.ended.outcome != "succeeded":
            first, last = self.ranks.start, self.ranks.stop - 1
            named = f"rank {first}" if first == last else f"ranks {first} to {last}"
            failure = Failure(
                failure_kind="lost_node",
                run_id=self._attempt.run_id,
                attempt=self._attempt.attempt,
                rank=first if first == last else None,
                host=self.host,
                signature="lost node",
                text=f"node {self._node} was lost with {named}: its supervisor is gone ({error})",
            )
            self.ended = AttemptEnd("killed", 0, failure=failure)


class _GroupRanks:
    """The ranks of one attempt on all nodes."""

    def __init__(self, local: RankProcesses, remote: Sequence[_RemoteRanks], clock: Clock) -> None:
        self._clock = clock
        self._local = local
        self._remote = remote
        self._first_failure_s: float | None = None

    @property
    def pids(self) -> list[int]:
        """The process ids of node 0's ranks."""
        return self._local.pids

    def wait_for_news(self, timeout_s: float) -> None:
        """Wait for the local ranks; what the followers said is taken in at the end of it."""
        self._local.wait_for_news(timeout_s)
        for ranks in self._remote:
            ranks.listen(0.0)

    def end(self) -> AttemptEnd | None:
        """What all nodes' ends come to; of several failures, the one that caused the others."""
        ends = [self._local.end(), *(ranks.ended for ranks in self._remote)]
        failures = [end for end in ends if end is not None and end.outcome in ("failed", "killed")]
        if failures:
            return self._cause(failures, is_complete=None not in ends)
        if None in ends:
            return None
        known = [end for end in ends if end is not None]
        last = next((end for end in known if end.outcome == "preempted"), known[0])
        return replace(last, num_alive=sum(end.num_alive for end in known))

    def _cause(self, failures: Sequence[AttemptEnd], *, is_complete: bool) -> AttemptEnd | None:
        if self._first_failure_s is None:
            self._first_failure_s = self._clock.monotonic_s()
        cause = min(failures, key=lambda end: (end.outcome != "killed", distance_from_cause(end.failure)))
        is_certain = cause.outcome == "killed" or distance_from_cause(cause.failure) == 0 or is_complete
        if not is_certain and self._clock.monotonic_s() < self._first_failure_s + CAUSE_S:
            return None
        return replace(cause, num_alive=self._num_alive())

    def _num_alive(self) -> int:
        """A rank that failed for want of another could have gone on; one that was killed could not."""
        local = self._local.end()
        alive = local.num_alive if local else self._local.num_ranks
        return alive + sum(ranks.ended.num_alive if ranks.ended else len(ranks.ranks) for ranks in self._remote)

    def beats(self) -> list[Beat]:
        """Those of the other nodes are up to `BEATS_S` old."""
        return self._local.beats() + [beat for ranks in self._remote for beat in ranks.beats]

    def hosts(self) -> list[str]:
        """The machine of each node's ranks."""
        return self._local.hosts() + [ranks.host for ranks in self._remote for _ in ranks.ranks]

    def devices(self) -> list[RankDevice]:
        """Those of the other nodes came with their signs of life."""
        return self._local.devices() + [device for ranks in self._remote for device in ranks.devices]

    def take_stacks(self, rank: int) -> str:
        """On every node; the node that has `rank` says what its process does."""
        for ranks in self._remote:
            ranks.send(TakeStacks(rank=rank))
        state = self._local.take_stacks(rank)
        deadline_s = self._clock.monotonic_s() + STATE_S
        for ranks in self._remote:
            while rank in ranks.ranks and ranks.process_state is None and self._clock.monotonic_s() < deadline_s:
                ranks.listen(POLL_S)
            state = state or ranks.process_state or ""
        return state

    def signal(self, number: int) -> None:
        """On every node."""
        for ranks in self._remote:
            ranks.send(Signal(number=number))
        self._local.signal(number)

    def stop(self) -> None:
        """On every node, at the same time."""
        for ranks in self._remote:
            ranks.send(Stop())
        self._local.stop()
        for ranks in self._remote:
            ranks.stop()


class Follower:
    """The supervisor of a node other than 0: starts the ranks it is told to, until it is sent home."""

    def __init__(
        self, run: Run, *, node: int | None, host: str, port: int, clock: Clock, timeout_s: float = GATHER_S
    ) -> None:
        """Come to the lead, at `host`. `node`: its number in the allocation; None of one that is lent."""
        self._run = run
        self._node = node
        self._successor: Successor | None = None
        """What it was told when it was asked to lead."""
        self._leader_host = host.lower()
        self._clock = clock
        self._next_beats_s = 0.0
        self._reported_devices: tuple[RankDevice, ...] = ()
        self._context = fork_context()
        self._link = connect_link(host, port, link_key(Path(run.run_dir)), clock, timeout_s=timeout_s)
        self._ranks: RankProcesses | None = None
        self._has_ended = False
        self.stop_requested = False
        """SIGTERM has come."""
        self._has_announced = False

    def follow(self, waits: Callable[[], None] = lambda: None) -> Successor | None:
        """Return when the lead has left too, or let this node go, which was asked to stop; or with what this
        node was told that is to lead from now on. SIGTERM is held back then, until a supervisor takes it.
        `waits` is called when the lead has been told of this node.

        Raises `TrainingError` if the lead left without a word, `ConfigError` if it does not take this node in.
        """
        signal.signal(signal.SIGTERM, self._request_stop)
        try:
            self._introduce()
            waits()
            while not isinstance(message := self._next_message(), Finished | Dismiss):
                if isinstance(message, Follow) and self._successor is not None:
                    return self._successor
                self._obey(message)
            if isinstance(message, Finished):
                self._wait_for_leader()
            elif message.refused:
                raise ConfigError(f"run '{self._run.run_id}': {message.refused}")
            return None
        except LinkLost as error:
            here = "this node" if self._node is None else f"node {self._node}"
            raise TrainingError(
                f"run {self._run.run_id}, {here}: the supervisor of node 0 is gone ({error}); the "
                "ranks here were stopped. All commits are intact: the next attempt goes on from the last."
            ) from error
        finally:
            self._stop_ranks()
            self._link.close()

    def _introduce(self) -> None:
        self._link.send(
            Hello(
                node=self._node,
                host=socket.gethostname(),
                processor=processor_here(),
                code_version=code_version(),
                environment=environment_here(),
            )
        )

    def _next_message(self) -> Message:
        while True:
            self._announce_departure()
            is_busy = self._ranks is not None and not self._has_ended
            if (message := self._link.receive(0.0 if is_busy else POLL_S)) is not None:
                return message
            if is_busy:
                self._watch_ranks()

    def _announce_departure(self) -> None:
        """Not where the signal is handled, which may be in the midst of another message."""
        if self.stop_requested and not self._has_announced:
            self._has_announced = True
            self._link.send(Leave())

    def _watch_ranks(self) -> None:
        assert self._ranks is not None
        self._ranks.wait_for_news(POLL_S)
        now_s, devices = self._clock.monotonic_s(), tuple(self._ranks.devices())
        # A rank that dies young has its device told before its end.
        if now_s >= self._next_beats_s or devices != self._reported_devices:
            self._next_beats_s, self._reported_devices = now_s + BEATS_S, devices
            beats = tuple(beat._replace(at_s=now_s - beat.at_s) if beat.at_s else None for beat in self._ranks.beats())
            self._link.send(Beats(beats=beats, devices=devices))
        if (end := self._ranks.end()) is not None:
            self._has_ended = True
            self._announce_departure()  # before what comes of it
            self._link.send(Ended(end=end))

    def _obey(self, message: Message) -> None:
        if isinstance(message, Start):
            self._start(message)
        elif isinstance(message, Signal):
            if self._ranks is not None:
                self._ranks.signal(message.number)
        elif isinstance(message, TakeStacks):
            state = self._ranks.take_stacks(message.rank) if self._ranks else ""
            self._link.send(ProcessState(state=state))
        elif isinstance(message, Stop):
            self._stop_ranks()
            self._link.send(Stopped())
        elif isinstance(message, BecomeLeader):
            self._become_leader(message)
        elif isinstance(message, Follow):
            self._follow_another(message)

    def _become_leader(self, message: BecomeLeader) -> None:
        if self._node is None:
            raise LinkLost("it asked a node that was lent to lead")
        # Before there is a thread that would take it: it is the supervisor's, which has yet to begin.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if self.stop_requested:
            self._announce_departure()
            return
        server = NodeServer(0, link_key(Path(self._run.run_dir)))
        self._successor = Successor(self._node, message.host, server, message.others, message.num_lent)
        self._link.send(LeaderReady(port=server.port))

    def _follow_another(self, message: Follow) -> None:
        self._link.close()
        self._has_announced = False
        self._leader_host = message.host.lower()
        key = link_key(Path(self._run.run_dir))
        self._link = connect_link(message.host, message.port, key, self._clock, timeout_s=GATHER_S)
        self._introduce()

    def _start(self, message: Start) -> None:
        ranks = range(message.first_rank, message.first_rank + message.num_ranks)
        attempt, meets_at = message.orders.attempt, urlsplit(message.rendezvous)
        LaneShares(recipe_of(self._run).loader.lanes, attempt.world_size)  # or a `ConfigError`
        is_ours = attempt.run_id == self._run.run_id and ranks.stop <= attempt.world_size
        is_ours &= sum(message.orders.nodes or (attempt.world_size,)) == attempt.world_size
        if not is_ours or (meets_at.scheme, meets_at.hostname) != ("tcp", self._leader_host):
            raise LinkLost(f"it asked for {ranks} of run '{attempt.run_id}', to meet at {message.rendezvous}")
        self._ranks = RankProcesses(self._context, self._run, message.orders, ranks, message.rendezvous)
        self._has_ended, self._reported_devices = False, ()
        if self.stop_requested:
            self._ranks.signal(signal.SIGTERM)

    def _stop_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.stop()
            self._ranks = None

    def _wait_for_leader(self) -> None:
        """Stay until the lead is done as well: a cluster may end a job soon after the first of its tasks."""
        try:
            while True:
                self._link.receive(POLL_S)
        except LinkLost:
            return

    def _request_stop(self, *_: object) -> None:
        self.stop_requested = True
        if self._ranks is not None:
            self._ranks.signal(signal.SIGTERM)


def join_leader(run: Run, waits: Callable[[], None]) -> bool:
    """Lend this machine to a run that is led on another, until it is done or this process is asked to stop;
    whether it was.

    `waits` is called when the lead knows of it.
    """
    leader = leader_address(Path(run.run_dir))
    node = Follower(run, node=None, host=leader.host, port=leader.port, clock=SystemClock(), timeout_s=JOIN_S)
    node.follow(waits)
    return node.stop_requested


def _refusal(kind: Processor, own_version: str, peer: Peer) -> str | None:
    """Why a node cannot be taken in by this one, of a kind and a name; None where it can."""
    name = f"this node ({peer.host})"
    try:
        refuse_mixed({own_version: kind, name: peer.processor})
        _refuse_other_code(name, peer, own_version)
    except ConfigError as error:
        return str(error)
    return None


def _refuse_other_code(name: str, peer: Peer, leader: str) -> None:
    if is_other_code(peer.code_version, own_version := code_version()):
        raise ConfigError(
            f"{name} has assay {peer.code_version}, and {leader} has {own_version}, which may round otherwise: no two "
            "runs would agree. Install the same on all nodes."
        )


def is_other_code(peer_version: str, own_version: str) -> bool:
    """Whether two versions differ; by release only where one node does not know its commit, for want of git."""
    if "+" in peer_version and "+" in own_version:
        return peer_version != own_version
    return peer_version.partition("+")[0] != own_version.partition("+")[0]


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port
