"""Commits a state of so many bytes to a store, reads it back and restores it: what that took, as JSON.

    python large_commit.py s3://bucket/run 3e9 RENDEZVOUS_FILE

Run by a test or by hand, as a process of its own, whose memory is nobody else's.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from assay.base.clock import SystemClock
from assay.distributed.ranks import Ranks
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog, first_problem
from assay.store.objects import open_store
from assay.training.checkpoint.parts import training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import LaneReceipts, Saver, weights_digest

TENSOR_BYTES = 50_000_000


class Large(nn.Module):
    """Weights that make up, with their two moments, as many bytes as are wanted."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        count = max(1, num_bytes // 3 // TENSOR_BYTES)
        tensors = [torch.rand(num_bytes // 3 // count // 4, requires_grad=True) for _ in range(count)]
        self.weights = nn.ParameterList(tensors)


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Seconds, and by how much the process grew in the meantime, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, began_s = _status("VmRSS"), time.monotonic()
    work()
    return {"seconds": time.monotonic() - began_s, "grew_bytes": _status("VmHWM") - before}


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main(url: str, num_bytes: int, rendezvous: str) -> None:
    ranks = Ranks.join(rank=0, world_size=1, rendezvous=f"file://{rendezvous}", num_threads=1)
    model = Large(num_bytes)
    log = CommitLog(open_store(url))
    log.begin_attempt(world_size=1, now_s=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for weights in model.parameters():
        weights.grad = torch.rand_like(weights)
    optimizer.step()  # now there are moments
    optimizer.zero_grad()
    parts = training_parts(model, optimizer)
    saver = Saver(parts, ranks, log, RetentionConfig(), SystemClock())
    digest = weights_digest(model.state_dict())

    def write() -> None:
        saver.begin(step=1, cursor=Cursor(), from_step=0, receipts=LaneReceipts())
        saver.wait()

    found = {"write": measured(write)}
    (commit,) = log.commits()
    problems = []
    found["read_back"] = measured(lambda: problems.append(first_problem(log.store, commit)))
    assert problems == [None]
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
            optimizer.state[weights]["exp_avg"].zero_()
    found["restore"] = measured(lambda: saver.restore(commit))
    assert weights_digest(model.state_dict()) == digest == commit.weights_digest
    assert all(optimizer.state[weights]["exp_avg"].any() for weights in model.parameters())
    saver.close()
    print(json.dumps({"num_bytes": sum(file.num_bytes for file in commit.files), **found}))


if __name__ == "__main__":
    main(sys.argv[1], int(float(sys.argv[2])), sys.argv[3])
