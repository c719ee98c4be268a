"""Checks that each prompt is accounted for: the rollout log against the receipts, and against the rule of outcomes.

receipts (step, lane, rows, digest)  \\
                                          for each step and lane: the same rows, outcomes that follow from rewards
rollout log  (step, lane, row, outcome) /
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from assay.base.errors import StoreAwayError
from assay.data.loader.receipts import NO_ROWS, Receipt, explain, receipt
from assay.records.commit import Commit
from assay.records.rollout_log import GroupRecord, PromptCounts
from assay.store.commit_log import ROLLOUT_LOG_NAME
from assay.store.objects import ObjectStore
from assay.training.checkpoint.rollout_log import read_rollout_log
from assay.training.trainer.method_config import MethodConfig


def audit_rollout_log(
    store: ObjectStore, commits: Sequence[Commit], receipts: dict[tuple[int, int], Receipt], method: MethodConfig
) -> tuple[PromptCounts | None, list[str]]:
    """Audit the rollout logs of the commits; `receipts`: the receipt of each step and lane.

    Returns the number of prompts, or None if no commit has a rollout log, and the problems.
    """
    counts, problems = None, list[str]()
    if all(commit.prompts is None for commit in commits):
        return counts, problems
    for commit in commits:
        if commit.is_inherited:
            continue
        prompt_counts = commit.prompts or PromptCounts()
        if commit.prompts is None or all(file.path != ROLLOUT_LOG_NAME for file in commit.files):
            problems.append(f"{commit.folder}: the commit has no rollout log, but others of the run have one")
            continue
        counts = prompt_counts if counts is None else counts.plus(prompt_counts)
        try:
            groups = read_rollout_log(store, commit)
        except StoreAwayError:
            raise  # the file may be fine
        except Exception as error:  # a changed file's bytes can fail in any way
            problems.append(
                f"the outcomes of the prompts of steps {commit.receipts_from_step + 1} to {commit.step} are not "
                f"proved: {error}"
            )
            continue
        problems += _problems(commit, groups, receipts, method)
    return counts, problems


def _problems(
    commit: Commit, groups: Sequence[GroupRecord], receipts: dict[tuple[int, int], Receipt], method: MethodConfig
) -> list[str]:
    problems = []
    by_lane = {key: list(of_lane) for key, of_lane in groupby(groups, key=lambda group: (group.step, group.lane))}
    expected = {
        key: lane_receipt for key, lane_receipt in receipts.items() if commit.receipts_from_step < key[0] <= commit.step
    }
    for step, lane in sorted(expected.keys() | by_lane.keys()):
        of_lane = by_lane.get((step, lane), [])
        rows, expected_receipt = (
            np.array([group.row_id for group in of_lane], np.uint64),
            expected.get((step, lane), NO_ROWS),
        )
        if (found := receipt(rows)) != expected_receipt:
            apart = explain(rows, expected_receipt)
            named = [f"row {row} has no entry" for row in apart.repeated]
            named += [f"row {row} was not trained there" for row in apart.missing if apart.is_certain]
            problems.append(
                f"step {step}, lane {lane}: the rollout log has {found.num_rows} prompts, but the receipt "
                f"has {expected_receipt.num_rows}: {', '.join(named) or 'others'}"
            )
        problems += method.rollout_log_problems(of_lane)
    outcomes = [group.outcome for group in groups]
    counts = PromptCounts(**{name: outcomes.count(name) for name in set(outcomes)})
    if counts != commit.prompts:
        problems.append(f"{commit.folder}: prompts in the commit: {commit.prompts}; in its rollout log: {counts}")
    return problems
