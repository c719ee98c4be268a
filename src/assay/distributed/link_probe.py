"""What a message between two ranks takes, and what adding takes: measured on the links that gradients travel.

Messages go by the same `swap` as an exchange's, both ways at once, in a ring of all ranks; of two sizes, so
that what each message costs is told from what its bytes cost.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from assay.distributed.swap import Transfer, swap

SMALL_BYTES, LARGE_BYTES = 4_096, 4_194_304
WARMUP_ROUNDS, ROUNDS = 3, 15
"""Turns of each size: those that are made before it counts, and those that count."""
SWAPPED, ADDED = "swapped {}", "added {}"
"""The names of the spans, with the bytes that went each way or were added."""


class ProbedSpan(NamedTuple):
    """A turn, between two moments of the monotonic clock."""

    name: str
    began_s: float
    ended_s: float


def probe_links(group: dist.ProcessGroup, device: torch.device) -> Iterator[ProbedSpan]:
    """All ranks of the group call it together, when nothing else is under way."""
    rank, world_size = group.rank(), group.size()
    for num_bytes in (SMALL_BYTES, LARGE_BYTES):
        sent = torch.ones(num_bytes // 4, device=device)
        received = torch.empty_like(sent)
        sends = [Transfer((rank + 1) % world_size, sent)]
        receives = [Transfer((rank - 1) % world_size, received)]
        for round_index in range(WARMUP_ROUNDS + ROUNDS):
            began_s = time.monotonic()
            swap(sends, receives, group)
            _wait_for(device)
            swapped_s = time.monotonic()
            received.add_(sent)
            _wait_for(device)
            if round_index >= WARMUP_ROUNDS:
                yield ProbedSpan(SWAPPED.format(num_bytes), began_s, swapped_s)
                yield ProbedSpan(ADDED.format(num_bytes), swapped_s, time.monotonic())


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
