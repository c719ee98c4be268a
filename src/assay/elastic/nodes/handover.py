"""Leader handover: a leader that is asked to stop makes another node of its allocation the leader.

    leader (asked to stop, between attempts)     node 1                        node 2
       | -- BecomeLeader(other nodes) ----------> |                              |
       | <- LeaderReady(port) ------------------- |  its server listens          |
       | -- Follow(host, port) -----------------> | ---------------------------> |
       exits                                      | <------------ Hello(2) ----- |
                                                  begins the next attempt

Only a node of the allocation can lead, because it was started with the whole command; a lent node knows only the
run. If no node of the allocation stays, the run ends as if all of its nodes had been asked to stop.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.clock import Clock
from assay.elastic.nodes.connection import BecomeLeader, Follow, LeaderReady, LinkLost
from assay.elastic.nodes.server import ACCEPT_S, NodeServer, Peer, dismiss

REPLY_S = 10.0
"""Seconds a node gets to start its server before the next node is tried."""
COME_OVER_S = 30.0
"""Seconds a new leader waits for the former followers; later ones wait for the next attempt."""


class Successor(NamedTuple):
    """What a new leader needs to take over."""

    node: int
    """The new leader's number in the allocation."""
    host: str
    """Its address for the other nodes."""
    server: NodeServer
    """Its own server, which already listens."""
    others: tuple[int, ...]
    """Numbers of the allocation's nodes that will connect."""
    num_lent: int
    """Number of lent nodes that will connect."""

    def gather_peers(self, clock: Clock) -> list[Peer]:
        """Return the peers that connect within `COME_OVER_S`."""
        peers: list[Peer] = []
        deadline_s = clock.monotonic_s() + COME_OVER_S
        while len(peers) < len(self.others) + self.num_lent and clock.monotonic_s() < deadline_s:
            if (peer := self.server.next_peer(ACCEPT_S)) is not None:
                peers.append(peer)
        return peers


def transfer_leadership(peers: Mapping[int, Peer], outside: Sequence[Peer], clock: Clock) -> str | None:
    """Make one of the idle peers the leader; return its name, or None if no peer can lead.

    Returns once all peers have closed their links to this node.
    """
    for number, peer in sorted(peers.items()):
        if peer.node is None:
            continue
        others = [*(item for node, item in sorted(peers.items()) if node != number), *outside]
        if (opened := _opened(peer, others, clock)) is None:
            dismiss(peer)
            continue
        for item in (peer, *others):
            with contextlib.suppress(LinkLost):
                item.link.send(opened)
        for item in (peer, *others):
            _wait_for_the_end(item, clock)
        return f"node {number} ({peer.host})"
    return None


def _opened(peer: Peer, others: Sequence[Peer], clock: Clock) -> Follow | None:
    """Ask a peer to lead; return where the others connect, or None if it cannot or was asked to stop."""
    numbers = tuple(item.node for item in others if item.node is not None)
    deadline_s = clock.monotonic_s() + REPLY_S
    with contextlib.suppress(LinkLost):
        host = peer.link.peer_host
        peer.link.send(BecomeLeader(host=host, others=numbers, num_lent=len(others) - len(numbers)))
        while clock.monotonic_s() < deadline_s:
            message = peer.link.receive(ACCEPT_S)
            if isinstance(message, LeaderReady):
                return Follow(host=host, port=message.port)
            if message is not None and message.type == "leave":
                break
    return None


def _wait_for_the_end(peer: Peer, clock: Clock) -> None:
    """Wait until the peer closes the link: closing this end first could lose the last message."""
    deadline_s = clock.monotonic_s() + REPLY_S
    with contextlib.suppress(LinkLost):
        while clock.monotonic_s() < deadline_s:
            peer.link.receive(ACCEPT_S)
    peer.link.close()
