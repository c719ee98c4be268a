"""A lead that is asked to stop hands the run on: another node of its allocation leads, the others follow it.

    lead (asked to stop, its attempt is over)    node 1                       node 2
       | -- Lead(numbers of the others) --------> |                             |
       | <- Leads(port) ------------------------- |  its door is open           |
       | -- Follow(host, port) -----------------> | ----------------------------> |
       leaves                                     | <------------ Hello(2) ---- |
                                                  begins the next attempt

Only a node of the allocation can lead: it was started with the whole command, one that is lent knows the run
alone. Where none stays, nobody leads on, and the run ends as one that is asked to stop on all of its nodes.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.clock import Clock
from assay.elastic.nodes.connection import BecomeLeader, Follow, LeaderReady, Leave, LinkLost
from assay.elastic.nodes.server import ACCEPT_S, NodeServer, Peer, dismiss

REPLY_S = 10.0
"""How long a node may take to open its door; then the next one is asked."""
COME_OVER_S = 30.0
"""How long a new lead waits for those who were there; who comes later waits outside."""


class Successor(NamedTuple):
    """What a node that is to lead from now on was told."""

    node: int
    """Its number in the allocation."""
    host: str
    """As the others reach it."""
    server: NodeServer
    """Its own, which is open."""
    others: tuple[int, ...]
    """Numbers of the nodes of the allocation that come over."""
    num_lent: int
    """Other nodes that do."""

    def come_over(self, clock: Clock) -> list[Peer]:
        """Those who come in time; who leaves instead is not waited for."""
        come: list[Peer] = []
        deadline_s = clock.monotonic_s() + COME_OVER_S
        while len(come) < len(self.others) + self.num_lent and clock.monotonic_s() < deadline_s:
            if (peer := self.server.come(ACCEPT_S)) is not None:
                come.append(peer)
        return come


def transfer_leadership(peers: Mapping[int, Peer], outside: Sequence[Peer], clock: Clock) -> str | None:
    """Have one of the peers lead and the others follow it; its name, or None where none can.

    All have nothing to do. Returns once they have let go of their links.
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
    """Where a peer that is to lead takes the others in; None where it cannot, or was asked to stop."""
    numbers = tuple(item.node for item in others if item.node is not None)
    deadline_s = clock.monotonic_s() + REPLY_S
    with contextlib.suppress(LinkLost):
        host = peer.link.peer_host
        peer.link.send(BecomeLeader(host=host, others=numbers, num_lent=len(others) - len(numbers)))
        while clock.monotonic_s() < deadline_s:
            message = peer.link.receive(ACCEPT_S)
            if isinstance(message, LeaderReady):
                return Follow(host=host, port=message.port)
            if isinstance(message, Leave):
                break
    return None


def _wait_for_the_end(peer: Peer, clock: Clock) -> None:
    """What was sent last might be lost if this end were closed first."""
    deadline_s = clock.monotonic_s() + REPLY_S
    with contextlib.suppress(LinkLost):
        while clock.monotonic_s() < deadline_s:
            peer.link.receive(ACCEPT_S)
    peer.link.close()
