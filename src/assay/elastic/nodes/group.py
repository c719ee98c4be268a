"""One run on several nodes: a supervisor process on each node, of which node 0 is the leader.

    node 0: Supervisor --- NodeGroup ---+--- node 0's ranks
            (attempts, ledger)          +--- link --- node 1: Follower --- node 1's ranks
                                        +--- link --- node 2: Follower --- node 2's ranks

Only the leader begins attempts, verifies commits and writes to the ledger, exactly as on one machine. A follower
forks the ranks that the leader assigns to it and reports how they ended.

    link breaks            the node's ranks count as lost; the next attempt runs on the remaining nodes
    follower gets SIGTERM  all ranks commit; the follower exits; the run continues on the others
    node joins or returns  it waits until the next attempt begins (`server`)
    leader is gone         each follower kills its ranks and exits
    leader gets SIGTERM    another node becomes the leader (`handover`)
    all get SIGTERM        the run commits and ends on all nodes
"""

import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
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
    Follow,
    Hello,
    LeaderReady,
    LinkLost,
    Message,
    Notice,
    ProcessState,
    Signal,
    Start,
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
    Peer,
    WaitingPeers,
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
"""Seconds that the leader and the followers wait for each other at the start."""

JOIN_S = 60.0
"""Seconds that a lent node waits for the leader to answer."""

CAUSE_S = 1.0
"""Seconds to wait for the original failure: when ranks of one node fail, their peers on other nodes soon fail
too."""

STOP_S = 60.0
"""A follower that has not killed its ranks after this many seconds counts as lost."""

BEATS_S = 1.0
"""Seconds between the heartbeats that a follower forwards."""

STATE_S = 2.0
"""Seconds to wait for a follower to report the state of a rank's process."""

_NO_BEAT = Beat(0, "startup", 0.0, 0.0, 0.0)


class NodeGroup:
    """The leader's side: implements the supervisor's `Nodes` over all nodes of a run."""

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
        """Wait until every follower has connected.

        Raises `ConfigError` if a follower has another processor type or another version of assay. `host`: this
        node's address for the others. `port`: 0 picks a free port. `successor`: this node takes over from a leader
        that left; the first attempt admits the nodes that followed that leader.
        """
        self._run = run
        self._node = successor.node if successor else 0
        """Number of this node."""
        self._is_handed_over = False
        self._clock = clock
        self._context = fork_context()
        self._host = host
        self._ranks_per_node = ranks_per_node
        self.processor = processor_here()
        self._leaving: set[int] = set()
        """Nodes that were asked to stop."""
        self._drained: frozenset[int] = frozenset()
        """Nodes that the cluster drains; set by another thread."""
        self._busy: set[int] = set()
        """Nodes with ranks in the current attempt. The attempt reads their messages, so `_poll_idle` must not."""
        self._server = successor.server if successor else NodeServer(port, link_key(Path(run.run_dir)))
        try:
            self._peers, others = gather(self._server, num_nodes - 1, clock, GATHER_S)
            self._reject_unsuitable()
        except BaseException:
            self._server.close()
            raise
        others += successor.gather_peers(clock) if successor else []
        self._last_number = max(self._node, *self._peers, *(successor.others if successor else ()), 0)
        self._waiting_peers = WaitingPeers(self._server, partial(_refusal, self.processor, self._name), others)
        address = LeaderAddress(host=host, port=self._server.port, ranks_per_node=ranks_per_node)
        open_store(run.run_dir).put(LEADER_FILE, address.model_dump_json().encode())

    @property
    def _name(self) -> str:
        return f"node {self._node} ({socket.gethostname()})"

    def _reject_unsuitable(self) -> None:
        """Raise `ConfigError` if a follower would compute other bits than this node."""
        names = {f"node {node} ({peer.host})": peer for node, peer in sorted(self._peers.items())}
        refuse_mixed({self._name: self.processor, **{name: peer.processor for name, peer in names.items()}})
        for name, peer in names.items():
            _refuse_other_code(name, peer, self._name)

    def other_environments(self) -> dict[str, NodeEnvironment]:
        return {peer.host: peer.environment for _, peer in sorted(self._peers.items())}

    def fitting(self, world_size: int) -> int:
        """Return `world_size`, or fewer if the nodes have fewer slots. Dismisses leaving nodes, admits waiting ones."""
        self._busy.clear()
        self._poll_idle()
        for peer in self._waiting_peers.admit():
            number = peer.node or self._last_number + 1
            self._last_number = max(number, self._last_number)
            self.lose(number)  # a node that returns may still have its old, broken link here
            self._peers[number] = peer
        return min(world_size, (1 + len(self._peers)) * self._ranks_per_node)

    def _poll_idle(self) -> None:
        """Dismiss nodes without ranks that were asked to stop, and drop those that are gone."""
        for node in sorted(self._peers.keys() - self._busy):
            if node in self._leaving:
                self._leaving.remove(node)
                dismiss(self._peers.pop(node))
            elif not stays(self._peers[node]):
                self.lose(node)

    def room(self, world_size: int) -> int:
        """Return `world_size`, or fewer if the nodes would have fewer slots with all waiting nodes admitted."""
        self._poll_idle()
        waiting = self._waiting_peers.waiting()
        numbers = {peer.node for peer in waiting if peer.node is not None}
        lent = sum(peer.node is None for peer in waiting)
        active_nodes = len((self._peers.keys() - self._leaving) | numbers) + lent
        return min(world_size, (1 + active_nodes) * self._ranks_per_node)

    def mark_drained(self, nodes: frozenset[int]) -> None:
        """Treat nodes that the cluster drains as if they had been asked to stop. Thread-safe."""
        self._drained = nodes

    def active_nodes(self) -> frozenset[int]:
        """Return the numbers of the allocation's nodes that are connected. Thread-safe."""
        return frozenset({self._node, *(peer.node for peer in [*self._peers.values()] if peer.node is not None)})

    def leaving(self) -> list[str]:
        self._leaving |= {node for node, peer in self._peers.items() if peer.node in self._drained}
        return [f"node {node} ({self._peers[node].host})" for node in sorted(self._leaving & self._peers.keys())]

    def hosts(self, world_size: int) -> list[str]:
        """Return the host of each rank: ranks are divided evenly over the nodes."""
        names = [socket.gethostname(), *(peer.host for _, peer in sorted(self._peers.items()))]
        shares = share_out(world_size, len(names))
        return [name for name, ranks in zip(names, shares, strict=True) for _ in ranks]

    def start(self, orders: Orders) -> AttemptRanks:
        """Start each node's share of the ranks, with a rendezvous on a free port of this node."""
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
        """Drop a node that is gone."""
        self._leaving.discard(node)
        if node in self._peers:
            self._peers.pop(node).link.close()

    def leaves(self, node: int) -> None:
        """Note that a node was asked to stop."""
        self._leaving.add(node)

    def transfer_leadership(self) -> str | None:
        """Make another node the leader, except those that are to stop as well; return its name, or None."""
        self.leaving()
        staying = {node: peer for node, peer in self._peers.items() if node not in self._leaving and stays(peer)}
        outside = self._waiting_peers.admit()
        successor = transfer_leadership(staying, outside, self._clock)
        self._is_handed_over = successor is not None
        for peer in [*outside, *(self._peers.values() if self._is_handed_over else ())]:
            dismiss(peer)  # they follow the new leader now, so this link is obsolete
        if self._is_handed_over:
            self._peers.clear()
        return successor

    def close(self) -> None:
        """Tell the followers that the run is finished, unless another node leads them."""
        if not self._is_handed_over:
            (Path(self._run.run_dir) / LEADER_FILE).unlink(missing_ok=True)
        self._server.close()
        for peer in self._waiting_peers.admit():
            dismiss(peer)
        for node, peer in list(self._peers.items()):
            try:
                peer.link.send(Notice(type="finished"))
            except LinkLost:
                self.lose(node)


def share_out(world_size: int, num_nodes: int) -> list[range]:
    """Divide the ranks into one contiguous range per node, as evenly as possible; a range may be empty."""
    base_size, remainder = divmod(world_size, num_nodes)
    shares, first = [], 0
    for node in range(num_nodes):
        size = base_size + (node < remainder)
        shares.append(range(first, first + size))
        first += size
    return shares


class _RemoteRanks:
    """The leader's view of one follower's ranks."""

    def __init__(
        self,
        orders: Orders,
        rendezvous: str,
        node: int,
        peer: Peer,
        ranks: range,
        group: NodeGroup,
        clock: Clock,
    ) -> None:
        """Make the follower start its ranks. If the node is gone, the ranks have ended with a lost node."""
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
        if not self.is_stopped:
            try:
                self._link.send(message)
            except LinkLost as error:
                self._is_lost(error)

    def listen(self, timeout_s: float) -> None:
        """Handle the follower's messages, at most `MESSAGES_AT_ONCE` so that a flood cannot block the leader."""
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
            raise LinkLost(f"protocol violation: it reported {violation}")
        if isinstance(message, Ended):
            self.ended = message.end
        elif message.type == "stopped":
            self.is_stopped = True
        elif isinstance(message, ProcessState):
            self.process_state = message.state
        elif message.type == "leave":
            self._group.leaves(self._node)
        elif isinstance(message, Beats):
            now_s = self._clock.monotonic_s()
            self.beats = [beat._replace(at_s=now_s - beat.at_s) if beat else _NO_BEAT for beat in message.beats]
            self.devices = list(message.devices)

    def _protocol_violation(self, message: Message) -> str | None:
        """Return what a message says about ranks that are not this follower's; None if it is valid."""
        if isinstance(message, Beats) and not len(message.beats) == len(message.devices) == len(self.ranks):
            return f"{number_of(len(message.beats), 'rank')}, but it has {len(self.ranks)}"
        if isinstance(message, Ended) and not 0 <= message.end.num_alive <= len(self.ranks):
            return f"{message.end.num_alive} ranks, but it has {len(self.ranks)}"
        failure, attempt = message.end.failure if isinstance(message, Ended) else None, self._attempt
        if failure is not None and (failure.run_id, failure.attempt) != (attempt.run_id, attempt.attempt):
            return f"attempt {failure.attempt} of run '{failure.run_id}'"
        return None

    def stop(self) -> None:
        """Wait until the follower, which was told to stop, has killed its ranks."""
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
                text=f"node {self._node} was lost with {named}: the link to its supervisor broke ({error})",
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
        return self._local.pids

    def wait_for_news(self, timeout_s: float) -> None:
        """Wait for the local ranks, then handle the messages of the followers."""
        self._local.wait_for_news(timeout_s)
        for ranks in self._remote:
            ranks.listen(0.0)

    def end(self) -> AttemptEnd | None:
        """Return how the attempt ended on all nodes; of several failures, the one that caused the others."""
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
        """Count the ranks that were not the cause: a rank that failed because its peer was lost is alive."""
        local = self._local.end()
        alive = local.num_alive if local else self._local.num_ranks
        return alive + sum(ranks.ended.num_alive if ranks.ended else len(ranks.ranks) for ranks in self._remote)

    def beats(self) -> list[Beat]:
        """Return the heartbeats of all ranks; those of other nodes are up to `BEATS_S` old."""
        return self._local.beats() + [beat for ranks in self._remote for beat in ranks.beats]

    def hosts(self) -> list[str]:
        return self._local.hosts() + [ranks.host for ranks in self._remote for _ in ranks.ranks]

    def devices(self) -> list[RankDevice]:
        """Return the device of each rank; other nodes send theirs with their heartbeats."""
        return self._local.devices() + [device for ranks in self._remote for device in ranks.devices]

    def take_stacks(self, rank: int) -> str:
        """Make all ranks write their stacks; return the process state of `rank`."""
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
        for ranks in self._remote:
            ranks.send(Signal(number=number))
        self._local.signal(number)

    def stop(self) -> None:
        for ranks in self._remote:
            ranks.send(Notice(type="stop"))
        self._local.stop()
        for ranks in self._remote:
            ranks.stop()


class Follower:
    """The supervisor of a node that does not lead: starts the ranks that the leader assigns to it."""

    def __init__(
        self, run: Run, *, node: int | None, host: str, port: int, clock: Clock, timeout_s: float = GATHER_S
    ) -> None:
        """Connect to the leader at `host`. `node`: this node's number in the allocation; None if it is lent."""
        self._run = run
        self._node = node
        self._successor: Successor | None = None
        """Set once this node was asked to lead."""
        self._leader_host = host.lower()
        self._clock = clock
        self._next_beats_s = 0.0
        self._reported_devices: tuple[RankDevice, ...] = ()
        self._context = fork_context()
        self._link = connect_link(host, port, link_key(Path(run.run_dir)), clock, timeout_s=timeout_s)
        self._ranks: RankProcesses | None = None
        self._has_ended = False
        self.stop_requested = False
        """Whether SIGTERM has arrived."""
        self._has_announced = False

    def follow(self, waits: Callable[[], None] = lambda: None) -> Successor | None:
        """Follow the leader until the run is over or this node is dismissed; return None then.

        Returns a `Successor` if this node becomes the leader; SIGTERM stays blocked until its supervisor runs.
        `waits` is called once the leader has been told of this node. Raises `TrainingError` if the link to the
        leader breaks and `ConfigError` if the leader rejects this node.
        """
        signal.signal(signal.SIGTERM, self._request_stop)
        try:
            self._introduce()
            waits()
            while not _ends(message := self._next_message()):
                if isinstance(message, Follow) and self._successor is not None:
                    return self._successor
                self._obey(message)
            if not isinstance(message, Dismiss):
                self._wait_for_leader()
            elif message.refused:
                raise ConfigError(f"run '{self._run.run_id}': {message.refused}")
            return None
        except LinkLost as error:
            here = "this node" if self._node is None else f"node {self._node}"
            raise TrainingError(
                f"run {self._run.run_id}, {here}: the link to the leading supervisor broke ({error}), so the "
                "ranks of this node were stopped. All commits are intact: the next attempt resumes from the last one."
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
        """Send `Leave` after SIGTERM. The signal handler must not: it may interrupt another message."""
        if self.stop_requested and not self._has_announced:
            self._has_announced = True
            self._link.send(Notice(type="leave"))

    def _watch_ranks(self) -> None:
        assert self._ranks is not None
        self._ranks.wait_for_news(POLL_S)
        now_s, devices = self._clock.monotonic_s(), tuple(self._ranks.devices())
        # Send new devices at once, so that the leader knows the device of a rank that dies early.
        if now_s >= self._next_beats_s or devices != self._reported_devices:
            self._next_beats_s, self._reported_devices = now_s + BEATS_S, devices
            beats = tuple(beat._replace(at_s=now_s - beat.at_s) if beat.at_s else None for beat in self._ranks.beats())
            self._link.send(Beats(beats=beats, devices=devices))
        if (end := self._ranks.end()) is not None:
            self._has_ended = True
            self._announce_departure()  # first, so that the leader knows why the ranks ended
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
        elif message.type == "stop":
            self._stop_ranks()
            self._link.send(Notice(type="stopped"))
        elif isinstance(message, BecomeLeader):
            self._become_leader(message)
        elif isinstance(message, Follow):
            self._follow_another(message)

    def _become_leader(self, message: BecomeLeader) -> None:
        if self._node is None:
            raise LinkLost("it asked a lent node to lead")
        # Before the server starts its threads, which inherit the mask: SIGTERM must reach the new supervisor.
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
        LaneShares(
            recipe_of(self._run).loader.lanes, attempt.world_size
        )  # raises `ConfigError` for more ranks than lanes
        is_ours = attempt.run_id == self._run.run_id and ranks.stop <= attempt.world_size
        is_ours &= sum(message.orders.nodes or (attempt.world_size,)) == attempt.world_size
        if not is_ours or (meets_at.scheme, meets_at.hostname) != ("tcp", self._leader_host):
            raise LinkLost(f"it asked for {ranks} of run '{attempt.run_id}' with rendezvous {message.rendezvous}")
        self._ranks = RankProcesses(self._context, self._run, message.orders, ranks, message.rendezvous)
        self._has_ended, self._reported_devices = False, ()
        if self.stop_requested:
            self._ranks.signal(signal.SIGTERM)

    def _stop_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.stop()
            self._ranks = None

    def _wait_for_leader(self) -> None:
        """Stay until the leader exits: a scheduler may end a job soon after its first task exits."""
        try:
            while True:
                self._link.receive(POLL_S)
        except LinkLost:
            return

    def _request_stop(self, *_: object) -> None:
        self.stop_requested = True
        if self._ranks is not None:
            self._ranks.signal(signal.SIGTERM)


def _ends(message: Message) -> bool:
    """Return whether the follower may exit: the run is over, or the leader dismisses it."""
    return message.type in ("finished", "dismiss")


def join_leader(run: Run, waits: Callable[[], None]) -> bool:
    """Lend this machine to a run that another machine leads; return whether SIGTERM ended it.

    Returns when the run is over or this process is asked to stop. `waits` is called once the leader knows of it.
    """
    leader = leader_address(Path(run.run_dir))
    node = Follower(run, node=None, host=leader.host, port=leader.port, clock=SystemClock(), timeout_s=JOIN_S)
    node.follow(waits)
    return node.stop_requested


def _refusal(kind: Processor, leader: str, peer: Peer) -> str | None:
    """Return why the leader, by processor and name, cannot admit a node; None if it can."""
    name = f"this node ({peer.host})"
    try:
        refuse_mixed({leader: kind, name: peer.processor})
        _refuse_other_code(name, peer, leader)
    except ConfigError as error:
        return str(error)
    return None


def _refuse_other_code(name: str, peer: Peer, leader: str) -> None:
    if is_other_code(peer.code_version, own_version := code_version()):
        raise ConfigError(
            f"{name} has assay {peer.code_version}, and {leader} has {own_version}, which may round differently: no "
            "two runs would agree. Install the same version on all nodes."
        )


def is_other_code(peer_version: str, own_version: str) -> bool:
    """Return whether two versions differ. Compares releases only if one node does not know its commit (no git)."""
    if "+" in peer_version and "+" in own_version:
        return peer_version != own_version
    return peer_version.partition("+")[0] != own_version.partition("+")[0]


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port
