"""The process groups and the device of a rank.

Gradients travel in `outer` (ranks with the same weights) or in `inner` (ranks with a shard each of one copy);
NCCL on CUDA, gloo elsewhere. Today all ranks are in one of the two. `control` (a few numbers a step; gloo) and
`saving` (the checkpoint thread's; gloo) exist so that collectives of different threads cannot interleave.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from assay.base.errors import ConfigError
from assay.distributed.rank_device import device_of
from assay.distributed.values import take_in_values_only

LOOPBACK = "lo"
_SIOCGIFADDR = 0x8915
_ADDRESS_IN_REPLY = slice(20, 24)


@dataclass(frozen=True)
class Ranks:
    """This process with its process groups."""

    rank: int
    world_size: int
    device: torch.device
    outer: dist.ProcessGroup | None
    """None if all ranks are in `inner`."""
    inner: dist.ProcessGroup | None
    """None if each rank holds all weights."""
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
        """Join the other ranks at `rendezvous`, a URL that is new for each attempt.

        `file:///path` on one machine; `tcp://host:port` on several, with rank 0 on that host. A single rank
        holds all weights, whatever `shards_weights` says. Results of MKL and oneDNN depend on the number of
        threads, so each rank fixes its own.
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

    def first(self, count: int) -> Self:
        """Return the first `count` ranks as a group of their own; all ranks must call this together.

        The other ranks have numbers beyond its world size, and must not use it.
        """
        if count >= self.world_size:
            return self
        assert self.inner is None, "these ranks shard their weights"
        members = list(range(count))
        control, saving = (dist.new_group(members, backend="gloo") for _ in range(2))
        return replace(self, world_size=count, outer=dist.new_group(members), control=control, saving=saving)

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return each rank's numbers; all ranks call it together with equally many."""
        if self.world_size == 1:
            return [list(numbers)]
        sent = torch.tensor(numbers, dtype=torch.int64)
        received = sent.new_empty(self.world_size, len(sent))
        dist.all_gather(list(received), sent, group=self.control)
        return received.tolist()

    def all_gather_lanes(self, lanes: list[list[float]], *, most: int) -> list[list[float]]:
        """Return the lines of all ranks in lane order; a line begins with the lane, and ranks have at most `most`."""
        if self.world_size == 1:
            return lanes
        # all_gather needs equal shapes: ranks with fewer lanes send lines that are filtered out below.
        no_lane = [[-1.0] * len(lanes[0])] * (most - len(lanes))
        sent = torch.tensor([*lanes, *no_lane], dtype=torch.float64)
        everyone = sent.new_empty(self.world_size, *sent.shape)
        dist.all_gather(list(everyone), sent, group=self.control)
        return sorted(line for line in everyone.flatten(0, 1).tolist() if line[0] >= 0)

    def leave(self) -> None:
        """Destroy the process groups; no collective may be in progress."""
        dist.destroy_process_group()


def interface_to(host: str | None) -> str:
    """Return the interface with the IPv4 address that packets to `host` have; the loopback one without a host.

    gloo needs its name: by default it uses the address of the machine's host name, which on many installations is
    127.0.1.1, so ranks on other nodes would connect to themselves.
    """
    if not host:
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: a datagram socket only learns its route
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address_of(probe, name) == own:
                return name
    raise ConfigError(
        f"no interface of this machine has {own}, the address from which it reaches {host}. Name the one that "
        "reaches the other nodes: GLOO_SOCKET_IFNAME=eth0, say."
    )


def _address_of(probe: socket.socket, name: str) -> str | None:
    try:
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
    except OSError:  # an interface without an IPv4 address
        return None
    return socket.inet_ntoa(reply[_ADDRESS_IN_REPLY])
