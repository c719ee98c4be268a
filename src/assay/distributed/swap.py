"""Point-to-point exchange of tensors, in both directions at once.

Receives are posted before sends. A gloo connection reads only if a receive waits for it: if sends came first,
each side would send everything before it receives anything, and a real link would be used in one direction at a
time. On loopback, where memory is the limit, the order makes no difference.

A gloo send completes when the kernel has the bytes, long before a slow link has sent them. A rank that enters a
round late would then share the link with its peers' next messages, and all would wait longer. So large messages
are acknowledged before the sender continues.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from assay.base.shapes import Shaped


class Transfer(NamedTuple):
    """A tensor to send to a rank of the group, or the memory for one to receive."""

    peer: int
    tensor: Shaped[Tensor, "..."]


ACK_BYTES = 65_536
"""Messages of at least this size are acknowledged."""


def swap(sends: Sequence[Transfer], receives: Sequence[Transfer], group: dist.ProcessGroup) -> None:
    """Send and receive; messages between two ranks arrive in order, and empty ones are not sent."""
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
    """Return whether the message is large and shares a link; NCCL's messages complete when they have arrived."""
    num_bytes = message.tensor.numel() * message.tensor.itemsize
    return num_bytes >= ACK_BYTES and group.size() > 2 and message.tensor.device.type == "cpu"


def all_to_all(
    received: Shaped[Tensor, "rank number"], sent: Shaped[Tensor, "rank number"], group: dist.ProcessGroup
) -> None:
    """Send row r of `sent` to rank r; receive its row into `received`.

    On a CPU in rounds with one partner to send to and one to receive from, because gloo's own collective sends
    first. NCCL's collective uses both directions.
    """
    if sent.device.type != "cpu":
        dist.all_to_all_single(received, sent, group=group)
        return
    rank, world_size = group.rank(), group.size()
    received[rank] = sent[rank]
    for distance in range(1, world_size):
        to, source = (rank + distance) % world_size, (rank - distance) % world_size
        swap([Transfer(to, sent[to])], [Transfer(source, received[source])], group)
