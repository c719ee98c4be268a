"""Stores what cannot be computed again until a commit holds it: judges' grades, and a remote engine's completions.

    judged/STEP/ROW-REWARD-ATTEMPT.json    a `JudgeScoreGroup`, put if absent by the rank that called the judge
    made/STEP/ROW-ATTEMPT.json             a `GeneratedGroup`, put by the rank that requested it
                |  a commit holds STEP
                v
    checkpoints/STEP-ATTEMPT/journal.parquet      holds scores, tokens and logprobs; the files above are deleted

A judge may grade differently the next time, so it is called once: a step that is run again, on any rank, reads the
stored grade of the same completion. After a failure, a later attempt may call the judge again, because nothing was
trained with an uncommitted failure. Completions are read if a step is run again, and by ranks that check another
rank's lane.
"""

from collections.abc import Collection, Iterator
from typing import Self

from assay.base.errors import DataError
from assay.records.commit import Commit
from assay.records.rollout_log import GeneratedGroup, GroupRecord, JudgeScore, JudgeScoreGroup
from assay.store.commit_log import GENERATED_PREFIX, JUDGE_SCORES_PREFIX, CommitLog
from assay.store.objects import ObjectStore
from assay.training.checkpoint.rollout_log import read_rollout_log

CachedGrade = tuple[int, int, JudgeScore]
"""A judge's grade of one completion, with the attempt (0: read from a commit's rollout log) and the prompt's row id."""


class RewardCache:
    """Stores and returns the grades of one run's external judges."""

    def __init__(self, store: ObjectStore, *, attempt: int, is_read_only: bool = False) -> None:
        """`attempt` writes new grades; a read-only cache only returns stored ones."""
        self.store = store
        self.attempt = attempt
        self.is_read_only = is_read_only
        self._log = CommitLog(store)
        self._rollout_logs: dict[str, list[GroupRecord]] = {}
        """Folder of a commit -> its rollout log."""

    def read_only(self) -> Self:
        """Return a read-only view, for ranks that recompute a lane of another rank."""
        return type(self)(self.store, attempt=self.attempt, is_read_only=True)

    def grades(self, step: int, row_ids: Collection[int], *, reward: int) -> list[CachedGrade]:
        """Return all stored grades by reward number `reward` for completions of these prompts, the oldest first."""
        rows, folder = set(row_ids), _folder(step)
        found = list(self._committed(step, rows, reward))
        keys = [item.key for item in self.store.list(folder)]
        for key in sorted(keys, key=lambda key: key.rpartition("-")[2]):
            row, of_reward, _ = key.removeprefix(folder).split("-")
            if int(row, 16) not in rows or int(of_reward) != reward:
                continue
            try:
                group = JudgeScoreGroup.from_json(self.store.get(key), source=f"{self.store.url}/{key}")
            except DataError:  # corrupt and not committed: the judge can be called again
                continue
            found += [(group.attempt, group.row_id, entry) for entry in group.scores]
        return found

    def keep(self, group: JudgeScoreGroup, *, reward: int) -> JudgeScoreGroup:
        """Store the grades; return what is stored, which is an earlier writer's if there is one."""
        assert not self.is_read_only, "a read-only cache calls no judge"
        key = f"{_folder(group.step)}{group.row_id:016x}-{reward:02d}-{group.attempt:04d}.json"
        if self.store.put_if_absent(key, group.to_sealed_json().encode()):
            return group
        return JudgeScoreGroup.from_json(self.store.get(key), source=f"{self.store.url}/{key}")

    def committed_groups(self, step: int, row_ids: Collection[int]) -> Iterator[GroupRecord]:
        """Yield the groups of the step in commits' rollout logs, the oldest first; used if a run went back, or
        is replayed."""
        if step > max(self._log.summary().last_steps.values(), default=0):
            return
        rows = set(row_ids)
        for commit in self._log.entries():
            if isinstance(commit, Commit) and commit.receipts_from_step < step <= commit.step:
                for group in self._rollout_log(commit):
                    if group.step == step and group.row_id in rows:
                        yield group

    def _committed(self, step: int, rows: set[int], reward: int) -> Iterator[CachedGrade]:
        for group in self.committed_groups(step, rows):
            for sample, entry in enumerate(group.completions):
                rollout, score = f"{entry.digest:016x}", entry.scores[reward]
                why = ("", "") if score is not None else (entry.failure_kind, entry.failure)
                grade = JudgeScore(sample=sample, rollout=rollout, score=score, failure_kind=why[0], failure=why[1])
                yield 0, group.row_id, grade

    def _rollout_log(self, commit: Commit) -> list[GroupRecord]:
        """Return a commit's rollout log; empty if it is corrupt, because training can ask again and the audit
        reports it."""
        if commit.folder not in self._rollout_logs:
            try:
                self._rollout_logs[commit.folder] = read_rollout_log(self.store, commit)
            except DataError:
                self._rollout_logs[commit.folder] = []
        return self._rollout_logs[commit.folder]


def _folder(step: int, prefix: str = JUDGE_SCORES_PREFIX) -> str:
    return f"{prefix}{step:08d}/"


def save_group(store: ObjectStore, group: GeneratedGroup) -> None:
    """Store a group; it is durable on return."""
    key = f"{_folder(group.step, GENERATED_PREFIX)}{group.row_id:020d}-{group.attempt:04d}.json"
    store.put(key, group.to_sealed_json().encode())


def load_groups(store: ObjectStore, step: int, row_ids: Collection[int]) -> dict[int, GeneratedGroup]:
    """Return row id -> stored group, for rows with an intact one; the newest if there are several."""
    rows, found, folder = set(row_ids), dict[int, GeneratedGroup](), _folder(step, GENERATED_PREFIX)
    for key in sorted(item.key for item in store.list(folder)):
        if int(key.removeprefix(folder).split("-")[0]) not in rows:
            continue
        try:
            group = GeneratedGroup.from_json(store.get(key), source=key)
        except DataError:  # not trained on yet, so the engine can generate it again
            continue
        found[group.row_id] = group
    return found


def delete_groups(store: ObjectStore, step: int) -> None:
    """Delete the groups of a step that must not be used."""
    for item in list(store.list(_folder(step, GENERATED_PREFIX))):
        store.delete(item.key)
