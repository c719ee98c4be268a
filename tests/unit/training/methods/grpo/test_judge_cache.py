"""Whom judges are asked about: what was said is taken, failures are tried again, and who looks asks nobody."""

import numpy as np
import pytest

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.inference.rollout import Rollout
from assay.records.commit import Commit, FileDigest
from assay.records.cursor import Cursor
from assay.records.rollout_log import GroupRecord, RolloutRecord
from assay.scoring.grade import Grade, ItemFailure
from assay.store.commit_log import ROLLOUT_LOG_NAME, CommitLog
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.checkpoint.rollout_log import rollout_log_file, rollout_log_table
from assay.training.methods.grpo.batch import RolloutGroup
from assay.training.methods.grpo.reward_config import GraderReward
from assay.training.methods.grpo.rewards import cached_grades
from judging import JUDGE

REWARD = GraderReward.model_validate({"grader": JUDGE})
SILENT = Grade(None, ItemFailure("model_grader_server_error", "away"))


@pytest.fixture
def store() -> ObjectStore:
    return open_store("memory:")


class Judge:
    """Says 0.25 of the first answer, 0.5 of the second, ...; nothing of those in `silent_about`."""

    def __init__(self, *silent_about: int) -> None:
        self.silent_about = silent_about
        self.requested: list[int] = []

    def __call__(self, positions: list[int]) -> list[Grade]:
        self.requested += positions
        return [SILENT if index in self.silent_about else Grade((index + 1) / 4) for index in positions]


def scores(reward_cache: RewardCache, judge: Judge, *digests: int) -> list[float | None]:
    """Of two answers to each of the rows 7 and 8, in step 3."""
    numbers = digests or (1, 2, 3, 4)
    groups = [
        RolloutGroup(
            row, np.zeros(1, np.int64), {}, rollouts=[completion_of(number) for number in numbers[at : at + 2]]
        )
        for row, at in ((7, 0), (8, 2))
    ]
    found = cached_grades(groups, REWARD, reward_cache, step=3, index=0, grade_indices=judge, at_once=2)
    return [grade.score for grade in found]


def completion_of(number: int) -> Rollout:
    return Rollout(np.array([number]), np.zeros(1, np.float32), "stop")


def test_what_was_said_is_taken_whoever_made_the_answer_again(store: ObjectStore) -> None:
    first, later = Judge(), Judge()
    assert scores(RewardCache(store, attempt=1), first) == [0.25, 0.5, 0.75, 1.0]
    assert scores(RewardCache(store, attempt=2), later) == [0.25, 0.5, 0.75, 1.0]
    assert (sorted(first.requested), later.requested) == ([0, 1, 2, 3], [])


def test_of_another_answer_the_judge_is_asked(store: ObjectStore) -> None:
    scores(RewardCache(store, attempt=1), Judge())
    judge = Judge()
    scores(RewardCache(store, attempt=2), judge, 1, 99, 3, 4)
    assert judge.requested == [1]


def test_a_failure_stands_in_its_attempt_and_is_asked_again_by_a_later_one(store: ObjectStore) -> None:
    scores(RewardCache(store, attempt=1), Judge(1))
    judge = Judge()
    assert scores(RewardCache(store, attempt=1), judge) == [0.25, None, 0.75, 1.0]
    assert scores(RewardCache(store, attempt=1).read_only(), judge) == [0.25, None, 0.75, 1.0]
    assert judge.requested == []
    assert scores(RewardCache(store, attempt=2), judge) == [0.25, 0.5, 0.75, 1.0]
    assert judge.requested == [1]


def test_a_word_that_was_changed_is_asked_for_again(store: ObjectStore) -> None:
    scores(RewardCache(store, attempt=1), Judge())
    first = min(item.key for item in store.list("judged/"))
    store.put(first, store.get(first).replace(b"0.25", b"0.95"))
    judge = Judge()
    assert scores(RewardCache(store, attempt=2), judge) == [0.25, 0.5, 0.75, 1.0]
    assert judge.requested == [0, 1]


def test_who_looks_asks_nobody_and_says_what_is_missing(store: ObjectStore) -> None:
    with pytest.raises(DataError, match="row 7: the run's rollout log has no grade of grader 'judge'"):
        scores(RewardCache(store, attempt=0, is_read_only=True), Judge())


def test_behind_a_commit_its_journal_has_what_was_said(store: ObjectStore) -> None:
    scores(RewardCache(store, attempt=1), Judge(1))
    log = CommitLog(store)
    log.begin_attempt(world_size=1, now_s=0.0)
    log.append(committed(store, [[0.25, None], [0.75, 1.0]]))
    log.sweep_pending(3)
    assert [*store.list("judged/")] == []
    judge = Judge()
    assert scores(RewardCache(store, attempt=0, is_read_only=True), judge) == [0.25, None, 0.75, 1.0]
    assert judge.requested == []
    assert scores(RewardCache(store, attempt=2), judge) == [0.25, 0.5, 0.75, 1.0]
    assert judge.requested == [1], "a run that went back behind the commit tries again where there is no score"


def committed(store: ObjectStore, rewards: list[list[float | None]]) -> Commit:
    """Step 3, with a journal."""
    groups = [
        GroupRecord(
            3, 0, 7 + number, "trained", "[]",
            tuple(
                RolloutRecord(completion_of(2 * number + sample + 1).digest, 1, False, score, (score,), 0.0, "unscored")
                for sample, score in enumerate(scores)
            ),
        )
        for number, scores in enumerate(rewards)
    ]  # fmt: skip
    data = rollout_log_file([rollout_log_table(groups)])
    store.put(f"checkpoints/00000003-0001/{ROLLOUT_LOG_NAME}", data)
    return Commit(
        attempt=1, world_size=1, step=3, cursor=Cursor(), committed_s=0.0, folder="checkpoints/00000003-0001",
        files=(FileDigest(path=ROLLOUT_LOG_NAME, num_bytes=len(data), sha256=sha256_of_bytes(data)),),
        weights_digest="", receipts_from_step=0, rows_trained=2,
    )  # fmt: skip
