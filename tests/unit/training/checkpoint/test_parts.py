"""What a commit brings back, part by part."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.base.clock import SystemClock
from assay.distributed.ranks import Ranks
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.checkpoint.parts import StatefulPart, training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import LaneReceipts, Saver


class Rollouts:
    """A part as a method might bring: tensors and plain values, nested."""

    def __init__(self, tokens: torch.Tensor, policy: str) -> None:
        self.tokens, self.policy = tokens, policy

    def state(self) -> dict[str, Any]:
        return {"tokens": {"first": self.tokens}, "policy": self.policy}

    def restore(self, state: dict[str, Any]) -> None:
        self.tokens, self.policy = state["tokens"]["first"], state["policy"]


def trained(seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    """A model with moments."""
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def saver_of(parts: dict[str, StatefulPart], ranks: Ranks, log: CommitLog) -> Saver:
    return Saver(parts, ranks, log, RetentionConfig(), SystemClock())


def test_every_named_part_comes_back_as_it_was_committed(ranks: Ranks, tmp_path: Path) -> None:
    log = CommitLog(open_store(str(tmp_path)))
    log.begin_attempt(world_size=1, now_s=0.0)
    model, optimizer = trained(seed=1)
    rollouts = Rollouts(torch.arange(5), "after step 3")
    saver = saver_of({**training_parts(model, optimizer), "rollouts": rollouts}, ranks, log)
    saver.begin(step=4, cursor=Cursor(), from_step=0, receipts=LaneReceipts())
    rollouts.tokens += 100  # a commit is a copy of the moment at which it was begun
    saver.close()

    other, others_optimizer = trained(seed=2)
    others_rollouts = Rollouts(torch.zeros(5, dtype=torch.int64), "")
    again = saver_of({**training_parts(other, others_optimizer), "rollouts": others_rollouts}, ranks, log)
    again.restore(log.commits()[-1])
    again.close()
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    for own, reference in zip(optimizer.state.values(), others_optimizer.state.values(), strict=True):
        assert all(torch.equal(own[name], reference[name]) for name in ("step", "exp_avg", "exp_avg_sq"))
    assert (others_rollouts.tokens.tolist(), others_rollouts.policy) == ([0, 1, 2, 3, 4], "after step 3")
