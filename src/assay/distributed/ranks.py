"""The processes of an attempt: who they are, which device each has, and the groups they talk in.

Gradients travel in `outer` (ranks that hold the same weights) or in `inner` (ranks that hold a shard each of
one copy of the weights); NCCL on CUDA, gloo elsewhere. Today all ranks are in the one or in the other. Besides,
`control` (a few numbers a step; gloo) and `saving` (the checkpoint thread's; gloo), so that collectives of
different threads can never interleave.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from assay.distributed.interface import interface_to
from assay.distributed.rank_device import device_of
from assay.distributed.values import take_in_values_only


@dataclass(frozen=True)
class Ranks:
    """This process among its peers."""

    rank: int
    world_size: int
    device: torch.device
    outer: dist.ProcessGroup | None
    """None where every rank is in `inner`."""
    inner: dist.ProcessGroup | None
    """None where every rank holds all weights."""
    control: dist.ProcessGroup
    saving: dist.ProcessGroup

    @classmethod
    def join(
        cls,
        *,
        rank: int,
        world_size: int,
        rendezvous: str,
        num_threads: int,
        shards_weights: bool = False,
        timeout_s: float = 600.0,
    ) -> Self:
        """Meet the other ranks at `rendezvous`, a URL that is fresh for each attempt.

        A single rank has nothing to shard: it holds all weights, whatever `shards_weights` says.

        `file:///path` on one machine; `tcp://host:port` on several, with rank 0 on that host.
        Results of MKL and oneDNN depend on the number of threads, so each rank fixes its own.
        """
        torch.set_num_threads(num_threads)
        take_in_values_only()
        device = device_of(rank)
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = interface_to(urlsplit(rendezvous).hostname)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=rendezvous,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        everyone = dist.group.WORLD
        is_sharded = shards_weights and world_size > 1
        return cls(
            rank=rank,
            world_size=world_size,
            device=device,
            outer=None if is_sharded else everyone,
            inner=everyone if is_sharded else None,
            control=dist.new_group(backend="gloo"),
            saving=dist.new_group(backend="gloo"),
        )

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of each rank, by rank; all ranks call it together, with as many numbers each."""
        if self.world_size == 1:
            return [list(numbers)]
        sent = torch.tensor(numbers, dtype=torch.int64)
        received = sent.new_empty(self.world_size, len(sent))
        dist.all_gather(list(received), sent, group=self.control)
        return received.tolist()

    def leave(self) -> None:
        """Take leave of the peers; call it when no collective is under way."""
        dist.destroy_process_group()
