"""Measures the cost of a message between ranks, and of an addition, on the links that gradients use.

Messages go by the exchange's `swap`, in both directions at once, in a ring of all ranks. Two sizes separate the
cost of a message from the cost of its bytes.
"""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from assay.distributed.swap import Transfer, swap

SMALL_BYTES, LARGE_BYTES = 4_096, 4_194_304
WARMUP_ROUNDS, ROUNDS = 3, 15
"""Rounds of each size: warm-up, and measured."""
SWAPPED, ADDED = "swapped {}", "added {}"
"""Names of the spans, with the bytes sent each way or added."""


def probe_links(group: dist.ProcessGroup, device: torch.device) -> Iterator[tuple[str, float, float]]:
    """Yield name, begin and end of each measured span, by the monotonic clock.

    All ranks of the group call it together while they are idle.
    """
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
                yield SWAPPED.format(num_bytes), began_s, swapped_s
                yield ADDED.format(num_bytes), swapped_s, time.monotonic()


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
