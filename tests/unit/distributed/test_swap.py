"""Tensors between ranks: the right ones, and each receive posted before the send beside it."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange import sum_over_ranks
from assay.distributed.exchange_plan import exchange_plan
from assay.distributed.ranks import Ranks
from assay.distributed.swap import ACK_BYTES, Transfer, all_to_all, swap
from forked_ranks import on_ranks
from network_links import forked_at, linked_nodes, missing


def posted(ranks: Ranks) -> list[list[str]]:
    """What each batch asked for, in its order."""
    group, batches = ranks.control, []
    make = dist.batch_isend_irecv

    def seen(operations):
        batches.append([operation.op.__name__ for operation in operations])
        return make(operations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", seen)
        sum_over_ranks([torch.ones(8)], exchange_plan(LaneShares(8, ranks.world_size)), group)
        all_to_all(torch.empty(ranks.world_size, 3), torch.ones(ranks.world_size, 3), group)
    return batches


@pytest.mark.parametrize("world_size", [2, 4])
def test_receives_are_posted_before_sends(world_size: int, tmp_path: Path) -> None:
    """The other way round gloo uses a link in one direction at a time, which no test on loopback can see."""
    for batches in on_ranks(world_size, posted, tmp_path):
        assert batches and all(batch == ["irecv", "isend"] for batch in batches)


SIZES = (ACK_BYTES // 4, ACK_BYTES // 4 - 1)


def to_the_next(ranks: Ranks) -> tuple[list[str], bool]:
    """A large message and a small one to the next rank: what was asked for, and whether the right ones came."""
    group, batches = ranks.control, []
    after, before = (ranks.rank + 1) % group.size(), (ranks.rank - 1) % group.size()
    make = dist.batch_isend_irecv

    def seen(operations):
        batches.append([operation.op.__name__ for operation in operations])
        return make(operations)

    receive_buffers = [torch.full((size,), -1.0) for size in SIZES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", seen)
        sent = [torch.full((size,), float(ranks.rank)) for size in SIZES]
        swap(
            [Transfer(after, tensor) for tensor in sent],
            [Transfer(before, tensor) for tensor in receive_buffers],
            group,
        )
    return batches[0], all(bool((tensor == before).all()) for tensor in receive_buffers)


@pytest.mark.parametrize("world_size", [2, 3])
def test_of_three_ranks_who_takes_a_large_message_says_so(world_size: int, tmp_path: Path) -> None:
    """Two have no third one whose messages could share their link."""
    acks = ["irecv"] if world_size == 3 else []
    for requested, is_right in on_ranks(world_size, to_the_next, tmp_path):
        assert is_right and requested == ["irecv", "irecv", *acks, "isend", "isend"]


def rows(ranks: Ranks) -> tuple[list[list[float]], list[list[float]]]:
    sent = torch.arange(2.0 * ranks.world_size).view(-1, 2) + 100 * ranks.rank
    received, expected = torch.full_like(sent, -1), torch.full_like(sent, -1)
    all_to_all(received, sent, ranks.control)
    dist.all_to_all_single(expected, sent, group=ranks.control)
    return received.tolist(), expected.tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_rounds_bring_what_the_backends_own_all_to_all_brings(world_size: int, tmp_path: Path) -> None:
    for received, expected in on_ranks(world_size, rows, tmp_path):
        assert received == expected


def unequal(ranks: Ranks) -> list[float]:
    receive_buffers = [torch.full((size,), -1.0) for size in (2, 0, 3)]
    sent = [torch.full((size,), 10.0 * size + ranks.rank) for size in (2, 0, 3)]
    peer = 1 - ranks.rank
    swap(
        [Transfer(peer, tensor) for tensor in sent],
        [Transfer(peer, tensor) for tensor in receive_buffers],
        ranks.control,
    )
    return torch.cat(receive_buffers).tolist()


def test_messages_between_two_ranks_keep_their_order_and_empty_ones_take_no_part(tmp_path: Path) -> None:
    assert on_ranks(2, unequal, tmp_path) == [[21, 21, 31, 31, 31], [20, 20, 30, 30, 30]]


@pytest.mark.slow
def test_who_sends_a_large_message_waits_until_a_slow_link_has_carried_it(requires, tmp_path: Path) -> None:
    """A megabyte at 8 Mbit/s takes a second; the kernel of who sends it would have it at once."""
    reason = missing()
    requires("netns", reason is None, f"{reason}; Debian's package iproute2, and root in a container that may")
    with linked_nodes(3, "8mbit") as nodes:

        def be_rank(rank: int) -> None:
            meeting = f"tcp://{nodes[0].address}:29555"
            ranks = Ranks.join(rank=rank, world_size=3, rendezvous=meeting, num_threads=1)
            dist.barrier(ranks.control)
            message, began_s = torch.ones(250_000), time.monotonic()
            if rank < 2:
                here = [Transfer(1 - rank, message)]
                swap(here if rank == 0 else [], here if rank == 1 else [], ranks.control)
            (tmp_path / str(rank)).write_text(str(time.monotonic() - began_s))
            ranks.leave()

        forked_at(nodes, be_rank)
    assert float((tmp_path / "0").read_text()) > 0.7
