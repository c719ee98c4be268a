"""Whether each prompt that a run learned from is accounted for: its journal against its receipts and its rule.

receipts (step, lane, rows, digest)  \\
                                          of a step and lane: the same rows, outcomes that follow from rewards
journal  (step, lane, row, outcome)  /
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from assay.base.errors import StoreAwayError
from assay.data.loader.receipts import NO_ROWS, Receipt, explain, receipt
from assay.records.commit import Commit
from assay.records.rollout_log import LoggedGroup, PromptCounts
from assay.store.commit_log import ROLLOUT_LOG_NAME
from assay.store.objects import ObjectStore
from assay.training.checkpoint.rollout_log import read_rollout_log
from assay.training.trainer.method_config import MethodConfig


class Account(NamedTuple):
    """What the journals of a run come to."""

    prompts: PromptCounts | None
    """None where no commit has a journal."""
    problems: list[str]


def audit_rollout_log(
    store: ObjectStore,
    commits: Sequence[Commit],
    receipts: dict[tuple[int, int], Receipt],
    method: MethodConfig,
) -> Account:
    """The account of the commits' steps; `receipts`: the receipt of each step and lane."""
    counts, problems = None, list[str]()
    if all(commit.prompts is None for commit in commits):
        return Account(counts, problems)
    for commit in commits:
        if commit.is_inherited:
            continue
        prompt_counts = commit.prompts or PromptCounts()
        if commit.prompts is None or all(file.path != ROLLOUT_LOG_NAME for file in commit.files):
            problems.append(f"{commit.folder}: the commit has no journal, and others of the run have one")
            continue
        counts = prompt_counts if counts is None else counts.plus(prompt_counts)
        try:
            groups = read_rollout_log(store, commit)
        except StoreAwayError:
            raise  # it says nothing about the file
        except Exception as error:  # a changed file's bytes can fail in any way
            problems.append(
                f"what became of the prompts of steps {commit.receipts_from_step + 1} to {commit.step} is not "
                f"proved: {error}"
            )
            continue
        problems += _problems(commit, groups, receipts, method)
    return Account(counts, problems)


def _problems(
    commit: Commit,
    groups: Sequence[LoggedGroup],
    receipts: dict[tuple[int, int], Receipt],
    method: MethodConfig,
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
            named += [f"row {row} was not learned there" for row in apart.missing if apart.is_certain]
            problems.append(
                f"step {step}, lane {lane}: the journal accounts for {found.num_rows} prompts, and the receipt "
                f"is of {expected_receipt.num_rows}: {', '.join(named) or 'of others'}"
            )
        problems += method.rollout_log_problems(of_lane)
    counts = PromptCounts(**_counted(groups))
    if counts != commit.prompts:
        problems.append(f"{commit.folder}: the commit says of its prompts: {commit.prompts}; its journal: {counts}")
    return problems


def _counted(groups: Sequence[LoggedGroup]) -> dict[str, int]:
    outcomes = [group.outcome for group in groups]
    return {name: outcomes.count(name) for name in set(outcomes)}
