"""Tensors that change hands between ranks, both ways at once.

Receives are posted before sends. A gloo connection reads what comes in only where a receive waits for it: with
the sends first, each side's own goes out before it takes anything in, and a real link carries one direction at
a time. On loopback, where memory is the limit, the order makes no difference.

A gloo send is over when the kernel has the bytes, long before a slow link has carried them. Who came late to a
round would have its message share the link with the next ones of who came early, and all wait longer than the
bytes take: so whoever takes a large message says so, and the sender waits for that.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from assay.base.shapes import Shaped


class Transfer(NamedTuple):
    """What goes to a rank of the group, or room for what comes from it."""

    peer: int
    tensor: Shaped[Tensor, "..."]


ACK_BYTES = 65_536
"""From this size on a message is large."""


def swap(sends: Sequence[Transfer], receives: Sequence[Transfer], group: dist.ProcessGroup) -> None:
    """Send and receive; messages of two ranks arrive in their order, and an empty one is not sent."""
    sends, receives = (
        [transfer for transfer in transfers if transfer.tensor.numel()] for transfers in (sends, receives)
    )
    acks = [Transfer(send.peer, torch.empty(1)) for send in sends if _needs_ack(send, group)]
    operations = [
        dist.P2POp(operation, message.tensor, group=group, group_peer=message.peer)
        for operation, messages in ((dist.irecv, receives), (dist.irecv, acks), (dist.isend, sends))
        for message in messages
    ]
    works = dist.batch_isend_irecv(operations) if operations else []
    for index, message in enumerate(receives):
        if _needs_ack(message, group):
            works[index].wait()
            ack = dist.P2POp(dist.isend, torch.zeros(1), group=group, group_peer=message.peer)
            [works[index]] = dist.batch_isend_irecv([ack])
    for work in works:
        work.wait()


def _needs_ack(message: Transfer, group: dist.ProcessGroup) -> bool:
    """Where others may share the link; NCCL's messages are over when they have arrived."""
    num_bytes = message.tensor.numel() * message.tensor.itemsize
    return num_bytes >= ACK_BYTES and group.size() > 2 and message.tensor.device.type == "cpu"


def all_to_all(
    received: Shaped[Tensor, "rank number"], sent: Shaped[Tensor, "rank number"], group: dist.ProcessGroup
) -> None:
    """Row r of `sent` goes to rank r, whose row comes into `received`.

    On a CPU in rounds, in each of which a rank has one partner to send to and one to receive from: gloo's own
    collective sends first. NCCL's goes both ways.
    """
    if sent.device.type != "cpu":
        dist.all_to_all_single(received, sent, group=group)
        return
    rank, world_size = group.rank(), group.size()
    received[rank] = sent[rank]
    for distance in range(1, world_size):
        to, source = (rank + distance) % world_size, (rank - distance) % world_size
        swap([Transfer(to, sent[to])], [Transfer(source, received[source])], group)
