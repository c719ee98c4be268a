"""A commit that could not be written ends the run at the next step, and not at the next commit."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.base.clock import SystemClock
from assay.base.errors import StoreFullError
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog
from assay.store.faulty import FlakyStore
from assay.store.objects import open_store
from assay.training.checkpoint.parts import training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import LaneReceipts, Saver


def test_a_commit_that_finds_no_room_is_raised_by_its_step_before_the_next_is_due(ranks: Any, tmp_path: Path) -> None:
    store = FlakyStore(open_store(str(tmp_path)))
    log = CommitLog(store)
    log.begin_attempt(world_size=1, now_s=0.0)
    model = nn.Linear(3, 2)
    parts = training_parts(model, torch.optim.AdamW(model.parameters()))
    saver = Saver(parts, ranks, log, RetentionConfig(), SystemClock())
    saver.raise_failed()
    saver.begin(step=5, cursor=Cursor(), from_step=0, receipts=LaneReceipts())
    saver.wait()
    store.fail_next("full_disk", 99, lambda: None)
    saver.begin(step=10, cursor=Cursor(), from_step=5, receipts=LaneReceipts())
    with pytest.raises(StoreFullError, match="the commit of step 10 was not made"):
        for _ in range(1000):
            saver.raise_failed()
            time.sleep(0.01)
    saver.close()
    assert [commit.step for commit in log.commits()] == [5]
