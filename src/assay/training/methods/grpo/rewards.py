"""Grades completions with graders, judges and reward models, group by group.

    completions --> scores of each reward --> weighted sum --> Grade: a reward, or a failure

A failure is not a reward of 0: a broken grader and a bad completion must not look alike. The rollout leaves its group,
the kind of failure is a metric of the step, and above a rate the run stops. A group is graded apart from all others,
so its rewards are a function of its prompt and completions. External judges are called once for each completion; their
grades are stored in the run's reward cache (`checkpoint.reward_cache`) before they are used.
"""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from assay.base.digest import canonical_json
from assay.base.errors import DataError, TrainingError
from assay.base.shapes import Float
from assay.base.units import tenths_text
from assay.models.reward_network import RewardNetwork
from assay.records.rollout_log import JudgeScore, JudgeScoreGroup
from assay.scoring.grade import Grade, ItemFailure, ItemFailureKind
from assay.scoring.grader_runner import GraderRunner, Values, sample_values
from assay.scoring.graders import grader_sha256
from assay.training.checkpoint.named_commit import CommitName
from assay.training.checkpoint.parts import MODEL, model_state, restore_model
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.checkpoint.saver import weights_digest
from assay.training.checkpoint.store_files import read_commit
from assay.training.methods.grpo.batch import RolloutGroup
from assay.training.methods.grpo.reward_config import (
    GraderReward,
    JudgeEndpoint,
    RunReward,
    judge_concurrency,
    judge_tools,
    reward_model,
    uses_judge,
)
from assay.training.numerics import MetricSum
from assay.training.trainer.method import FrozenModels

FAILURE_KINDS = tuple(
    kind for kind in get_args(ItemFailureKind) if kind.startswith(("invalid", "python", "formula", "reward"))
)
"""Failures of grading without an endpoint."""
JUDGE_FAILURE_KINDS = tuple(kind for kind in get_args(ItemFailureKind) if kind.startswith("model_grader"))
"""Failures of judges."""
KILLED: ItemFailureKind = "python_grader_killed"
FAILURES = "failed_grades"


class Rewards:
    """Grades completions. Python graders keep a process until `close`, or until the object is collected."""

    def __init__(
        self,
        config: Sequence[GraderReward | RunReward],
        *,
        group_size: int,
        key: str = "method.rewards",
        endpoint: JudgeEndpoint = JudgeEndpoint(),  # noqa: B008
    ) -> None:
        """`key` is the rewards' recipe key, used to name reward models; `endpoint` is the judges'."""
        self._config = config
        self._endpoint = endpoint
        self._group_size = group_size
        self._keys = [f"{key}[{index}]" for index in range(len(config))]
        self._runners: dict[int, GraderRunner] = {}
        self._end = weakref.finalize(self, _close, self._runners)
        self._networks: dict[str, nn.Module] | None = None
        self._own = [f"reward_{reward.name}" for reward in config] if len(config) > 1 else []
        self._kinds = (*FAILURE_KINDS, *(JUDGE_FAILURE_KINDS if any(map(uses_judge, config)) else ()))
        self.metrics = ("reward", FAILURES, *(f"{FAILURES}_{kind}" for kind in self._kinds), *self._own)
        """Names of the metrics that `sums` returns."""
        self.last_failure = ""
        """Text of the last failed grade on this rank."""
        self.graders = canonical_json([_version(reward) for reward in config])
        """JSON that identifies the graders in the order of scores: name, digest and weight."""

    def networks(self) -> dict[str, nn.Module]:
        """Return the models of reward runs, loaded once; for `Method.build_frozen_models`."""
        if self._networks is None:
            self._networks = {
                where: _committed(CommitName(reward.run, reward.step), where)
                for where, reward in zip(self._keys, self._config, strict=True)
                if isinstance(reward, RunReward)
            }
        return self._networks

    def grade(
        self,
        groups: Sequence[RolloutGroup],
        texts: Sequence[str],
        networks: FrozenModels,
        *,
        step: int = 0,
        reward_cache: RewardCache | None = None,
    ) -> list[Grade]:
        """Return the grade of every rollout, group after group; `texts` are the completions that graders read.

        Grades of judges are read from `reward_cache` and stored there for optimizer step `step`. Without it, judges are
        called each time.
        """
        items = [group.item for group in groups for _ in group.rollouts]
        samples = [sample_values(text, item) for text, item in zip(texts, items, strict=True)]
        columns = []
        for index, (reward, where) in enumerate(zip(self._config, self._keys, strict=True)):
            if isinstance(reward, RunReward):
                columns.append([grade for group in groups for grade in _grade_group(networks[where], group)])
            elif uses_judge(reward) and reward_cache is not None:
                columns.append(self._grade_with_judge(index, reward, samples, groups, step, reward_cache))
            else:
                columns.append(self._runner(index, reward).grade(samples))
        return [_total_reward(grades, self._config) for grades in zip(*columns, strict=True)]

    def sums(self, graded: Sequence[Grade]) -> dict[str, MetricSum]:
        """Return what the grades add to the step's metrics."""
        rewards = [grade.score for grade in graded if grade.score is not None]
        failures = [grade.failure for grade in graded if grade.failure is not None]
        kinds = [failure.kind for failure in failures]
        self.last_failure = str(failures[-1]) if failures else self.last_failure
        found = {"reward": _sum(rewards, len(rewards)), FAILURES: _sum([1.0] * len(kinds), len(graded))}
        for kind in self._kinds:
            found[f"{FAILURES}_{kind}"] = _sum([1.0] * kinds.count(kind), len(graded))
        for reward, name in zip(self._config, self._own, strict=False):
            scores = [grade.parts[reward.name] for grade in graded if reward.name in grade.parts]
            found[name] = _sum(scores, len(scores))
        return found

    def close(self) -> None:
        """Stop the processes of Python graders."""
        self._end()

    def _runner(self, index: int, reward: GraderReward) -> GraderRunner:
        """Return the reward's runner, created on first use: a reader of a run needs no endpoint."""
        if index not in self._runners:
            self._runners[index] = GraderRunner(reward.grader, judge_tools(self._endpoint, [reward]))
        return self._runners[index]

    def _grade_with_judge(
        self,
        index: int,
        reward: GraderReward,
        samples: Sequence[Values],
        groups: Sequence[RolloutGroup],
        step: int,
        reward_cache: RewardCache,
    ) -> list[Grade]:
        if not reward_cache.is_read_only:
            self._runner(index, reward)  # here: below are threads

        def grade_indices(indices: list[int]) -> list[Grade]:
            return self._runner(index, reward).grade([samples[sample_index] for sample_index in indices])

        at_once = judge_concurrency(reward, self._endpoint, self._group_size)
        return cached_grades(
            groups, reward, reward_cache, step=step, index=index, grade_indices=grade_indices, at_once=at_once
        )


def check_failure_rate(metrics: Mapping[str, float], most: float, *, step: int, example: str = "") -> None:
    """Raise `TrainingError` if more than the share `most` of a step's rollouts have no reward."""
    share = metrics.get(FAILURES, 0.0)
    if share > most:
        kinds = {kind: metrics.get(f"{FAILURES}_{kind}", 0.0) for kind in (*FAILURE_KINDS, *JUDGE_FAILURE_KINDS)}
        by_kind = ", ".join(f"{tenths_text(part)} {kind}" for kind, part in kinds.items() if part)
        by_kind += f"; e.g. {example:.300}" if example else ""
        hint = "Fix the grader and train a new run"
        if kinds[KILLED]:
            hint = (
                "Processes of graders were killed from outside, so the rollouts may be fine: continue with "
                "assay train --resume, and the step is graded again. If the kernel killed them because memory "
                "ran out, start fewer ranks on the machine, or have the grader take less"
            )
        if any(kinds[kind] for kind in JUDGE_FAILURE_KINDS):
            hint = (
                "Once the judge responds again, continue with assay train --resume: it is called for what has no "
                "reward, and about nothing else"
            )
        raise TrainingError(
            f"step {step}: {tenths_text(share)} of the rollouts got no reward ({by_kind}), more than "
            f"method.max_reward_failures={most:g} allows. No update was made, and what is committed is intact. "
            f"{hint}; or go on with more of them missing: assay train --from RUN "
            "method.max_reward_failures=SHARE."
        )


def _close(runners: dict[int, GraderRunner]) -> None:
    for runner in runners.values():
        runner.close()


def _version(reward: GraderReward | RunReward) -> dict[str, Any]:
    if isinstance(reward, RunReward):
        return {"name": reward.name, "run": reward.run, "step": reward.step, "weight": reward.weight}
    return {"name": reward.name, "grader_sha256": grader_sha256(reward.grader), "weight": reward.weight}


def _total_reward(grades: Sequence[Grade], rewards: Sequence[GraderReward | RunReward]) -> Grade:
    scored = [(reward, grade.score) for reward, grade in zip(rewards, grades, strict=True) if grade.score is not None]
    parts = {reward.name: score for reward, score in scored}
    failure = next((grade.failure for grade in grades if grade.failure is not None), None)
    if failure is not None:
        return Grade(None, failure, parts)
    return Grade(math.fsum(reward.weight * score for reward, score in scored), None, parts)


@torch.no_grad()
def _grade_group(network: nn.Module, group: RolloutGroup) -> list[Grade]:
    """Return a reward model's grades, computed in one pass in float32."""
    device = next(network.parameters()).device
    sequences = [np.concatenate([group.prompt, rollout.tokens]) for rollout in group.rollouts]
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int32, device=device)
    lines = np.zeros((len(sequences), int(lengths.max())), np.int64)
    for line, sequence in zip(lines, sequences, strict=True):
        line[: len(sequence)] = sequence
    with torch.autocast(device.type, enabled=False):
        rewards: Float[Tensor, "line"] = network(torch.from_numpy(lines).to(device), lengths)
    broken = ItemFailure("reward_not_finite", "the reward model returned no finite number")
    return [Grade(reward) if math.isfinite(reward) else Grade(None, broken) for reward in rewards.tolist()]


def _committed(name: CommitName, where: str) -> RewardNetwork:
    named = name.checked(where)
    network = RewardNetwork(reward_model(named.run, where))
    state = {MODEL: model_state(network)}
    read_commit(state, named.store, named.commit)
    restore_model(network, state[MODEL])
    if (found := weights_digest(model_state(network))) != named.commit.weights_digest:
        raise TrainingError(
            f"{where}: commit at step {named.commit.step} of '{name.run}': its weights have digest "
            f"{found[:12]}…, "
            f"the commit says {named.commit.weights_digest[:12]}…. Was it made by another version of assay?"
        )
    return network.eval()


def _sum(values: Sequence[float], weight: int) -> MetricSum:
    return MetricSum(torch.tensor(math.fsum(values), dtype=torch.float64), float(weight))


def cached_grades(
    groups: Sequence[RolloutGroup],
    reward: GraderReward,
    reward_cache: RewardCache,
    *,
    step: int,
    index: int,
    grade_indices: Callable[[list[int]], list[Grade]],
    at_once: int,
) -> list[Grade]:
    """Return the grades of all rollouts of a step by reward number `index`, group after group.

    `grade_indices` calls the judge for the rollouts at some indices; `at_once` groups are graded concurrently.
    """
    starts = np.cumsum([0, *(len(group.rollouts) for group in groups)]).tolist()
    # A read-only cache ignores the digest of the rollout.
    is_read_only = reward_cache.is_read_only
    cached = {
        (row_id, grade.sample, "" if is_read_only else grade.rollout): grade
        for attempt, row_id, grade in reward_cache.grades(step, [group.row_id for group in groups], reward=index)
        if is_read_only or grade.score is not None or attempt == reward_cache.attempt
    }

    def grade_group(number: int) -> list[Grade]:
        row = groups[number].row_id
        names = ["" if is_read_only else f"{rollout.digest:016x}" for rollout in groups[number].rollouts]
        keys = [(row, sample, name) for sample, name in enumerate(names)]
        uncached = [sample for sample, name in enumerate(keys) if name not in cached]
        if uncached and is_read_only:
            raise DataError(
                f"step {step}, row {row}: the run's rollout log has no grade of grader "
                f"'{reward.name}', and a judge is not called twice. 'assay runs audit' lists what is missing."
            )
        if uncached:
            grades = grade_indices([starts[number] + sample for sample in uncached])
            entry = JudgeScoreGroup(
                step=step,
                row_id=row,
                attempt=reward_cache.attempt,
                grader=reward.name,
                grader_sha256=grader_sha256(reward.grader),
                scores=tuple(
                    _cache_entry(sample, keys[sample][2], grade) for sample, grade in zip(uncached, grades, strict=True)
                ),
            )
            for grade in reward_cache.keep(entry, reward=index).scores:
                cached[row, grade.sample, grade.rollout] = grade
        return [_as_grade(cached[name]) for name in keys]

    with ThreadPoolExecutor(at_once, thread_name_prefix="judging") as pool:
        return [grade for grades in pool.map(grade_group, range(len(groups))) for grade in grades]


def _cache_entry(sample: int, rollout: str, grade: Grade) -> JudgeScore:
    failure = grade.failure
    return JudgeScore(
        sample=sample,
        rollout=rollout,
        score=grade.score,
        failure_kind="" if failure is None else failure.kind,
        failure="" if failure is None else failure.text,
    )


def _as_grade(entry: JudgeScore) -> Grade:
    if entry.score is not None:
        return Grade(entry.score)
    return Grade(None, ItemFailure(cast(ItemFailureKind, entry.failure_kind), entry.failure))
