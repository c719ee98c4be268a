"""The leader's side of a run on several nodes, each of which has a supervisor process.

    leader: Supervisor --- NodeGroup ---+--- the leader's own ranks
            (attempts, ledger)          +--- link --- Follower --- ranks of that node
                                        +--- link --- Follower --- ranks of that node

Only the leader begins attempts, verifies commits and writes to the ledger, exactly as on one machine. A follower
forks the ranks that the leader assigns to it and reports how they ended. Any node may lead (see `node`).

    link breaks            the node's ranks count as lost; the next attempt runs on the remaining nodes
    follower gets SIGTERM  all ranks commit; the follower exits; the run continues on the others
    node joins or returns  it waits until the next attempt begins (`server`)
    leader is gone         each follower kills its ranks; one of them leads and begins the next attempt
    leader gets SIGTERM    all ranks commit; the leader exits; likewise
    all get SIGTERM        the run commits, and all nodes exit
    two nodes lead         the log's fence leaves one (`_check_leadership`); the other one follows it
"""

import contextlib
import socket
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from assay.base.clock import Clock
from assay.base.code_version import code_version
from assay.base.errors import AssayError, ConfigError, FencedError, StoreError
from assay.base.units import number_of
from assay.elastic.failures import distance_from_cause
from assay.elastic.fork_server import fork_context
from assay.elastic.nodes.connection import (
    Beats,
    Ended,
    Exit,
    LinkLost,
    Message,
    Notice,
    ProcessState,
    Signal,
    Start,
    TakeStacks,
    link_key,
)
from assay.elastic.nodes.server import MESSAGES_AT_ONCE, LeaderAddress, LeaderFile, NodeServer, Peer, dismiss, stays
from assay.elastic.processes import AttemptRanks, RankProcesses
from assay.elastic.processor import processor_here, refuse_mixed
from assay.elastic.supervisor import POLL_S
from assay.elastic.task import AttemptEnd, Orders
from assay.records.failure import Failure
from assay.records.node_environment import NodeEnvironment
from assay.records.rank_device import RankDevice
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Beat

FIRST_PORT = 20_000
NUM_PORTS = 12_000
"""Below the ports that systems hand out by themselves (Linux: from 32768)."""

GATHER_S = 300.0
"""Seconds without a further node after which a run that asked for a fixed number of ranks begins with fewer."""

QUIET_S = 3.0
"""If no further node has come for this long, the run begins with those that are present."""

COME_OVER_S = 5.0
"""The same, for the nodes of a leader that is gone."""

LOOK_S = 2.0
"""Seconds between looks at whether another node leads."""

FIRST_LENT = 1 << 20
"""Numbers of lent nodes, above any index."""

CAUSE_S = 1.0
"""Seconds to wait for the original failure: when ranks of one node fail, their peers on other nodes soon fail
too."""

STOP_S = 60.0
"""A follower that has not killed its ranks after this many seconds counts as lost."""

END_S = 10.0
"""Seconds that the other nodes get to take notice of the end of the run."""

STATE_S = 2.0
"""Seconds to wait for a follower to report the state of a rank's process."""

_NO_BEAT = Beat(0, "startup", 0.0, 0.0, 0.0)


class NodeGroup:
    """The leader's side: implements the supervisor's `Nodes` over all nodes of a run."""

    def __init__(
        self,
        run: Run,
        log: CommitLog,
        *,
        host: str,
        ranks_per_node: int,
        clock: Clock,
        node: int = 0,
        port: int = 0,
        bind: str = "",
        expected: Collection[int] | None = None,
        quiet_s: float = QUIET_S,
    ) -> None:
        """Accept nodes from now on.

        `host`: this node's address for the others; `bind`: the address to listen on, by default all; `port`: if it
        is taken, another one is used. The first attempt begins once all requested ranks fit, all `expected` nodes
        are there, or no further node has come for `quiet_s`. `expected`: None if another leader told of none.
        """
        self._run = run
        self._log = log
        self._node = node
        """Index of this node."""
        self._clock = clock
        self._context = fork_context()
        self._ranks_per_node = ranks_per_node
        self.processor = processor_here()
        self._expected = None if expected is None else frozenset(expected)
        self._quiet_s = quiet_s
        self._last_arrival_s = clock.monotonic_s()
        self._next_look_s = 0.0
        self._attempt = log.summary().attempt
        """The newest attempt that does not fence this node: its own, or the last one before it led."""
        self._has_started = False
        self._peers: dict[int, Peer] = {}
        self._leaving: set[int] = set()
        """Nodes that were asked to stop."""
        self._drained: frozenset[int] = frozenset()
        """Nodes that the cluster drains; set by another thread."""
        self._busy: set[int] = set()
        """Nodes with ranks in the current attempt. The attempt reads their messages, so `_poll_idle` must not."""
        run_dir = Path(run.run_dir)
        self._server = NodeServer(bind, port, lambda: link_key(run_dir))
        self._waiting: list[Peer] = []
        """Nodes that have connected and wait for the next attempt."""
        self._refusals: list[str] = []
        """Why nodes were refused, apart from lent ones."""
        address = LeaderAddress(host=host, port=self._server.port, ranks_per_node=ranks_per_node)
        self._file = LeaderFile(run_dir, address)

    @property
    def _name(self) -> str:
        return f"node {self._node} ({socket.gethostname()})"

    @property
    def _is_first_gathering(self) -> bool:
        """Whether no attempt has begun since the nodes were started."""
        return not self._has_started and self._expected is None

    def _waiting_peers(self) -> list[Peer]:
        """Return the nodes that wait for the next attempt. Refuses those that would compute other bits."""
        while (peer := self._server.next_peer()) is not None:
            if (refusal := self._refusal(peer)) is None:
                self._waiting.append(peer)
                continue
            # Engines end the run on a final exit code, and a run that has begun goes on without this node.
            refused = ConfigError if self._is_first_gathering else AssayError
            dismiss(peer, Exit(exit_code=refused.exit_code, reason=refusal))
            self._refusals += [refusal] if peer.node is not None else []
        self._waiting = [peer for peer in self._waiting if stays(peer)]
        return self._waiting

    def _refusal(self, peer: Peer) -> str | None:
        try:
            refuse_mixed({self._name: self.processor, str(peer): peer.hello.processor})
        except ConfigError as error:
            return str(error)
        if is_other_code(version := peer.hello.code_version, own_version := code_version()):
            return (
                f"{peer} has assay {version}, and {self._name} has {own_version}, which may round "
                "differently: no two runs would agree. Install the same version on all nodes."
            )
        return None

    def _check_leadership(self) -> None:
        """Raise `FencedError` if another node leads: it has begun a newer attempt, or this one has begun none.

        If the folder names another leader, or none, for no such reason, name this node again.
        """
        if (now_s := self._clock.monotonic_s()) < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        if (known := self._file.read()) == self._file.address:
            return
        with contextlib.suppress(StoreError):  # the next look tells
            newest = self._log.summary().attempt
            if newest > self._attempt:
                raise FencedError(f"run {self._run.run_id}: another node has begun attempt {newest} and leads.")
            if known is not None and not self._has_started:
                raise FencedError(f"run {self._run.run_id}: the node at {known.host}:{known.port} leads.")
            self._file.write()

    def other_environments(self) -> dict[str, NodeEnvironment]:
        return {peer.hello.host: peer.hello.environment for _, peer in sorted(self._peers.items())}

    def fitting(self, world_size: int) -> int:
        """Return `world_size`, or fewer if the nodes have fewer slots; 0 while more nodes are expected at once.

        Dismisses leaving nodes, admits waiting ones. Raises `ConfigError` if a node was refused before the first
        attempt, and `FencedError` if another node leads.
        """
        self._busy.clear()
        self._poll_idle()
        self._check_leadership()
        self._admit()
        if self._is_first_gathering and self._refusals:
            raise ConfigError(f"run {self._run.run_id}: {self._refusals[0]}")
        room = min(world_size, (1 + len(self._peers)) * self._ranks_per_node)
        return 0 if room < world_size and self._is_gathering() else room

    def _admit(self) -> None:
        admitted, self._waiting = self._waiting_peers(), []
        for peer in admitted:
            number = peer.node
            if number is None or number == self._node:
                number = max(FIRST_LENT, 1 + max(self._peers, default=0))
            if (former := self._peers.get(number)) is not None:
                # The broken link of a node that has returned; or a second process, and the first would come back.
                dismiss(former, Exit(reason=f"another process has come as node {number}, on {peer.hello.host}"))
            self.lose(number)
            self._peers[number] = peer
            self._last_arrival_s = self._clock.monotonic_s()

    def _is_gathering(self) -> bool:
        if self._has_started or (self._expected is not None and self._expected <= self._peers.keys()):
            return False
        return self._clock.monotonic_s() < self._last_arrival_s + self._quiet_s

    def _poll_idle(self) -> None:
        """Dismiss nodes without ranks that were asked to stop, and drop those that are gone."""
        for node in sorted(self._peers.keys() - self._busy):
            if node in self._leaving:
                self._leaving.remove(node)
                dismiss(self._peers.pop(node), Exit())
            elif not stays(self._peers[node]):
                self.lose(node)

    def room(self, world_size: int) -> int:
        """Return `world_size`, or fewer if the nodes would have fewer slots with all waiting nodes admitted."""
        self._poll_idle()
        waiting = self._waiting_peers()
        numbers = {peer.node for peer in waiting if peer.node is not None}
        lent = sum(peer.node is None for peer in waiting)
        active_nodes = len((self._peers.keys() - self._leaving) | numbers) + lent
        return min(world_size, (1 + active_nodes) * self._ranks_per_node)

    def mark_drained(self, nodes: frozenset[int]) -> None:
        """Treat nodes that the cluster drains as if they had been asked to stop. Thread-safe."""
        self._drained = nodes

    def active_nodes(self) -> frozenset[int]:
        """Return the indices of the nodes that take part, without lent ones. Thread-safe."""
        return frozenset({self._node, *(peer.node for peer in [*self._peers.values()] if peer.node is not None)})

    def leaving(self) -> list[str]:
        """Return the names of nodes that were asked to stop. Raises `FencedError` if another node leads."""
        self._check_leadership()
        self._leaving |= {node for node, peer in self._peers.items() if peer.node in self._drained}
        return self._names(self._leaving)

    def staying(self) -> list[str]:
        """Return the names of the other nodes that may lead when this one has left."""
        candidates = {node for node, peer in self._peers.items() if peer.node is not None and stays(peer)}
        return self._names(candidates - self._leaving)

    def _names(self, nodes: set[int]) -> list[str]:
        return [str(self._peers[node]) for node in sorted(nodes & self._peers.keys())]

    def hosts(self, world_size: int) -> list[str]:
        """Return the host of each rank: ranks are divided evenly over the nodes."""
        names = [socket.gethostname(), *(peer.hello.host for _, peer in sorted(self._peers.items()))]
        shares = share_out(world_size, len(names))
        return [name for name, ranks in zip(names, shares, strict=True) for _ in ranks]

    def start(self, orders: Orders) -> AttemptRanks:
        """Start each node's share of the ranks, with a rendezvous on a free port of this node."""
        nodes = [self._node, *sorted(self._peers)]
        shares = dict(zip(nodes, share_out(orders.attempt.world_size, len(nodes)), strict=True))
        self._busy = {node for node, ranks in shares.items() if ranks}
        sizes = tuple(len(ranks) for ranks in shares.values() if ranks)
        orders = orders.model_copy(update={"nodes": sizes})
        self._attempt, self._has_started = orders.attempt.attempt, True
        port = _free_port()
        candidates = tuple(sorted(self.active_nodes() - {self._node}))
        remote = [
            _RemoteRanks(orders, port, candidates, node, self._peers[node], shares[node], self, self._clock)
            for node in nodes[1:]
            if shares[node]
        ]
        local = RankProcesses(
            self._context, self._run, orders, shares[self._node], f"tcp://{self._file.address.host}:{port}"
        )
        return _GroupRanks(local, remote, self._clock)

    def lose(self, node: int) -> None:
        """Drop a node that is gone."""
        self._leaving.discard(node)
        if node in self._peers:
            self._peers.pop(node).link.close()

    def leaves(self, node: int) -> None:
        """Note that a node was asked to stop."""
        self._leaving.add(node)

    def end(self, exit_code: int, reason: str = "") -> None:
        """Tell all nodes that there are no more attempts, and with which code to exit.

        Waits until they have closed their links: closing this end first could lose the message.
        """
        self._admit()
        for node, peer in list(self._peers.items()):
            try:
                peer.link.send(Exit(exit_code=exit_code, reason=reason))
            except LinkLost:
                self.lose(node)
        deadline_s = self._clock.monotonic_s() + END_S
        for peer in self._peers.values():
            with contextlib.suppress(LinkLost):
                while self._clock.monotonic_s() < deadline_s:
                    peer.link.receive(POLL_S)

    def close(self) -> None:
        """Lead no longer: the nodes that are left notice it by the end of their links."""
        self._file.remove()
        self._server.close()
        self._admit()
        for peer in self._peers.values():
            peer.link.close()


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
        rendezvous_port: int,
        candidates: tuple[int, ...],
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
        self._peer = peer
        self._link = peer.link
        self.host = peer.hello.host
        self.beats = [_NO_BEAT] * len(ranks)
        self.devices = [RankDevice()] * len(ranks)
        self.process_state: str | None = None
        self._group = group
        self.ranks = ranks
        self.ended: AttemptEnd | None = None
        self.is_stopped = False
        self.send(
            Start(
                orders=orders,
                first_rank=ranks.start,
                num_ranks=len(ranks),
                rendezvous_port=rendezvous_port,
                nodes=candidates,
            )
        )

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
                text=f"{self._peer.name} was lost with {named}: the link to its supervisor broke ({error})",
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
        """Return the heartbeats of all ranks; those of other nodes are up to a second old."""
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


def is_other_code(peer_version: str, own_version: str) -> bool:
    """Return whether two versions differ. Compares releases only if one node does not know its commit (no git)."""
    if "+" in peer_version and "+" in own_version:
        return peer_version != own_version
    return peer_version.partition("+")[0] != own_version.partition("+")[0]


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port
