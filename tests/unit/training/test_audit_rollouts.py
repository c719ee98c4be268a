"""Commits with and without a journal: what is counted, what was never kept, and what ought to be there."""

from types import SimpleNamespace

import numpy as np
import pytest

from assay.base.digest import sha256_of_bytes
from assay.data.loader.receipts import receipt
from assay.records.commit import Commit, FileDigest
from assay.records.cursor import Cursor
from assay.records.rollout_log import GroupRecord, PromptCounts, RolloutRecord
from assay.store.commit_log import ROLLOUT_LOG_NAME
from assay.store.objects import ObjectStore, open_store
from assay.training.audit_rollouts import audit_rollout_log
from assay.training.checkpoint.rollout_log import rollout_log_file, rollout_log_table

METHOD = SimpleNamespace(rollout_log_problems=lambda groups: iter(()))
TRAINED = {(step, 0): receipt(np.array([10 * step], np.uint64)) for step in (1, 2, 3)}


def commit(store: ObjectStore, step: int, *, has_rollout_log: bool = True) -> Commit:
    """Step number `step`, in which lane 0 learned row 10 times that."""
    folder, files = f"checkpoints/{step:08d}-0001", ()
    if has_rollout_log:
        completions = (
            RolloutRecord(1, 1, False, 1.0, (1.0,), 0.5),
            RolloutRecord(2, 1, False, 0.0, (0.0,), -0.5),
        )
        data = rollout_log_file([rollout_log_table([GroupRecord(step, 0, 10 * step, "trained", "[]", completions)])])
        store.put(f"{folder}/{ROLLOUT_LOG_NAME}", data)
        files = (FileDigest(path=ROLLOUT_LOG_NAME, num_bytes=len(data), sha256=sha256_of_bytes(data)),)
    return Commit(
        attempt=1, world_size=1, step=step, cursor=Cursor(), committed_s=0.0, folder=folder, files=files,
        weights_digest="", receipts_from_step=step - 1, rows_trained=1,
        prompts=PromptCounts(trained=1) if has_rollout_log else None,
    )  # fmt: skip


def account(*has_rollout_log: bool) -> tuple[PromptCounts | None, list[str]]:
    store = open_store("memory:")
    commits = [commit(store, step, has_rollout_log=item) for step, item in enumerate(has_rollout_log, start=1)]
    return audit_rollout_log(store, commits, TRAINED, METHOD)  # type: ignore[arg-type]


def test_prompts_of_all_commits_are_added_up() -> None:
    assert account(True, True, True) == (PromptCounts(trained=3), [])


def test_a_run_whose_rows_are_no_prompts_has_no_journal() -> None:
    assert account(False, False) == (None, [])


@pytest.mark.parametrize("missing", [1, 2])
def test_a_commit_without_a_journal_is_a_problem_if_others_have_one(missing: int) -> None:
    _, problems = account(*(step != missing for step in (1, 2, 3)))
    assert problems == [
        f"checkpoints/{missing:08d}-0001: the commit has no rollout log, but others of the run have one"
    ]
