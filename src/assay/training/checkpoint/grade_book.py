"""What judges behind endpoints said: durable as soon as they said it, and taken from here ever after.

    judged/STEP/ROW-REWARD-ATTEMPT.json    a `JudgedGroup`, put if absent by the rank that asked
                |  a commit holds STEP
                v
    checkpoints/STEP-ATTEMPT/journal.parquet      the scores stand there; what was judged so is deleted

A judge may answer otherwise the next time, so it is asked once: a step that is made again, on whichever ranks,
takes what was said of the same answer. Where it failed it may be asked again by a later attempt, since nothing
was learned by a failure that no commit holds.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple, Self

from assay.base.errors import DataError
from assay.records.commit import Commit
from assay.records.journal import JournaledGroup, JudgedAnswer, JudgedGroup
from assay.store.commit_log import JUDGED_PREFIX, CommitLog
from assay.store.objects import ObjectStore
from assay.training.checkpoint.journal import read_journal


class JudgesWord(NamedTuple):
    """What a judge said of one answer, and to whom."""

    attempt: int
    """0: a commit's journal says it."""
    row_id: int
    answer: JudgedAnswer


class GradeBook:
    """Reads and keeps what judges say in one run."""

    def __init__(self, store: ObjectStore, *, attempt: int, is_read_only: bool = False) -> None:
        """`attempt` asks and keeps; one that is read-only does neither, and takes what there is."""
        self.store = store
        self.attempt = attempt
        self.is_read_only = is_read_only
        self._log = CommitLog(store)
        self._journals: dict[str, list[JournaledGroup]] = {}
        """By the folders of commits that were read."""

    def read_only(self) -> Self:
        """The same book for who makes a lane again beside its owner."""
        return type(self)(self.store, attempt=self.attempt, is_read_only=True)

    def said(self, step: int, row_ids: Collection[int], *, reward: int) -> list[JudgesWord]:
        """All that was said by reward number `reward` about answers to these prompts, the oldest first."""
        rows, folder = set(row_ids), _folder(step)
        found = list(self._committed(step, rows, reward))
        keys = [item.key for item in self.store.list(folder)]
        for key in sorted(keys, key=lambda key: key.rpartition("-")[2]):
            row, of_reward, _ = key.removeprefix(folder).split("-")
            if int(row, 16) not in rows or int(of_reward) != reward:
                continue
            try:
                group = JudgedGroup.from_json(self.store.get(key), source=f"{self.store.url}/{key}")
            except DataError:  # damaged, and no commit rests on it: it can be asked for again
                continue
            found += [JudgesWord(group.attempt, group.row_id, answer) for answer in group.answers]
        return found

    def keep(self, group: JudgedGroup, *, reward: int) -> JudgedGroup:
        """Make it durable; returns what is durable, if somebody was earlier."""
        assert not self.is_read_only, "who makes a lane again asks nobody"
        key = f"{_folder(group.step)}{group.row_id:016x}-{reward:02d}-{group.attempt:04d}.json"
        if self.store.put_if_absent(key, group.to_sealed_json().encode()):
            return group
        return JudgedGroup.from_json(self.store.get(key), source=f"{self.store.url}/{key}")

    def journaled(self, step: int, row_ids: Collection[int]) -> Iterator[JournaledGroup]:
        """From the journals of commits that hold the step, the oldest first: of a run that went back behind
        them, or is looked at."""
        if step > max(self._log.summary().last_steps.values(), default=0):
            return
        rows = set(row_ids)
        for commit in self._log.entries():
            if isinstance(commit, Commit) and commit.receipts_from_step < step <= commit.step:
                for group in self._journal(commit):
                    if group.step == step and group.row_id in rows:
                        yield group

    def _committed(self, step: int, rows: set[int], reward: int) -> Iterator[JudgesWord]:
        for group in self.journaled(step, rows):
            for sample, answer in enumerate(group.answers):
                rollout, score = f"{answer.digest:016x}", answer.scores[reward]
                why = ("", "") if score is not None else (answer.failure_kind, answer.failure)
                yield JudgesWord(
                    0,
                    group.row_id,
                    JudgedAnswer(
                        sample=sample, rollout=rollout, score=score, failure_kind=why[0], failure=why[1]
                    ),
                )

    def _journal(self, commit: Commit) -> list[JournaledGroup]:
        """None of one that is damaged: whoever trains can ask again, and the audit names it."""
        if commit.folder not in self._journals:
            try:
                self._journals[commit.folder] = read_journal(self.store, commit)
            except DataError:
                self._journals[commit.folder] = []
        return self._journals[commit.folder]


def _folder(step: int) -> str:
    return f"{JUDGED_PREFIX}{step:08d}/"
