"""Runs that are paid by a judge who answers at random: which of its words are durable, and what is wrong with
how such a run ended.

The weights cannot be those of another run that asked the judge by itself. But rewards are journaled: a run that
nothing happens to and that is paid by the same words must say, learn and journal the same, and ask nobody.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.base.errors import StoreError
from assay.records.rollout_log import GroupRecord, JudgeScore, JudgeScoreGroup
from assay.records.run import Run
from assay.scoring.graders import grader_sha256
from assay.store.commit_log import JUDGE_SCORES_PREFIX, CommitLog, effective_commits
from assay.store.objects import ObjectStore, open_store
from assay.training.audit import audit_run
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.checkpoint.rollout_log import read_rollout_log
from assay.training.recipe import Recipe
from judging import JUDGE, MoodyJudge
from one_rank import one_rank_run, rows_of_steps, train_here
from prompt_rows import GRADER


def with_judge_rewards(judge: MoodyJudge, tree: dict[str, Any]) -> dict[str, Any]:
    """The recipe, with `judge` in the place of its grader; held-out answers are graded without one."""
    keys = {
        "rewards": [{"grader": JUDGE}],
        "held_out": [{"grader": GRADER}],
        "judge": {"url": judge.url},
        "max_reward_failures": 0.3,
    }
    return {**tree, "method": {**tree["method"], **keys}}


class DurableScores:
    """What of a judge's words is durable in a run, by the bytes of its store."""

    def __init__(self, run: Run) -> None:
        trainer, self._store_url = run.recipe["trainer"], run.store_url
        steps = enumerate(rows_of_steps(run.recipe, trainer["max_steps"]), 1)
        self._rows_of = {step: [row for lane in lanes for row in lane] for step, lanes in steps}
        self._step_of = {row: step for step, rows in self._rows_of.items() for row in rows}
        self._group_size = run.recipe["method"]["group_size"]

    def __call__(self, row: int) -> bool:
        """All answers to the prompt have a score, and are given once more; or a commit holds its step.

        What a judge would not say of an answer, the next attempt asks again. Where it is told this time, other
        weights follow, and what was kept of the steps behind is of answers that nobody gives any more.
        """
        store, step = open_store(self._store_url), self._step_of[row]
        committed = max((commit.step for commit in CommitLog(store).commits()), default=0)
        if step <= committed:
            return True
        try:
            since = self._scored_since(store, row)
            before = [
                self._scored_since(store, item)
                for earlier_step in range(committed + 1, step)
                for item in self._rows_of[earlier_step]
            ]
        except StoreError:  # deleted since it was listed: a commit holds that step
            return self(row)
        return since is not None and all(item is not None and item <= since for item in before)

    def _scored_since(self, store: ObjectStore, row: int) -> int | None:
        """The attempt from which on each answer to the prompt has a score; None while one has none."""
        keys = [item.key for item in store.list(f"{JUDGE_SCORES_PREFIX}{self._step_of[row]:08d}/{row:016x}-")]
        since: dict[int, int] = {}
        for group in sorted(
            (JudgeScoreGroup.from_json(store.get(key), source=key) for key in keys), key=lambda group: group.attempt
        ):
            for response in group.scores:
                if response.score is not None:
                    since.setdefault(response.sample, group.attempt)
        return max(since.values()) if len(since) == self._group_size else None


def what_is_wrong(run: Run, judge: MoodyJudge, folder: Path) -> list[str]:
    """With the end of a run whose words `judge` watched over by `Kept`; `folder`: for the run beside it."""
    log = CommitLog(open_store(run.store_url))
    found = [f"asked though it was kept: {question}" for question in judge.requests_of_durable]
    audit = audit_run(run, log)
    if audit.verdict != "pass":
        found += [f"audit: {problem}" for problem in (audit.verdict, *audit.problems)]
    groups, num_requests = logged_groups(log), judge.requests.total()
    background = one_rank_run(run.recipe, folder)
    _keep(groups, RewardCache(open_store(background.store_url), attempt=0), run)
    judge.is_durable = lambda row: False
    train_here(background)
    again = CommitLog(open_store(background.store_url))
    if judge.requests.total() > num_requests:
        found.append(f"{judge.requests.total() - num_requests} answers of an undisturbed run were not paid")
    if logged_groups(again) != groups:
        found.append("an undisturbed run that is paid the same has another journal")
    if again.commits()[-1].weights_digest != log.commits()[-1].weights_digest:
        found.append("an undisturbed run that is paid the same ends with other weights")
    return found


def logged_groups(log: CommitLog) -> list[GroupRecord]:
    """Of all steps that a run has learned."""
    return [group for commit in effective_commits(log.entries()) for group in read_rollout_log(log.store, commit)]


def _keep(groups: Sequence[GroupRecord], reward_cache: RewardCache, run: Run) -> None:
    [reward] = Recipe.model_validate(run.recipe).method.rewards  # type: ignore[attr-defined]
    for group in groups:
        responses = tuple(
            JudgeScore(
                sample=sample,
                rollout=f"{response.digest:016x}",
                score=response.scores[0],
                failure_kind=response.failure_kind,
                failure=response.failure,
            )
            for sample, response in enumerate(group.completions)
        )
        output = JudgeScoreGroup(
            step=group.step,
            row_id=group.row_id,
            # A score holds for every attempt, a failure for the one that met it: the run beside has but one.
            attempt=int(any(item.score is None for item in responses)),
            grader=reward.name,
            grader_sha256=grader_sha256(reward.grader),
            scores=responses,
        )
        reward_cache.keep(output, reward=0)
