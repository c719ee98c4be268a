"""Pays completions: graders, judges and reward models, asked group by group.

    answers --> each reward's scores --> weighted sum --> Graded: a reward, or why there is none

What fails is no 0: a broken grader and a bad answer must not look alike. The rollout leaves its group, its kind
of failure is a metric of the step, and above a rate the run stops. A group is judged apart from all others, so
what it is paid is a function of its prompt and completions alone; or, where a judge behind an endpoint pays,
what the run's book says that it said (`checkpoint.grade_book`).
"""

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from assay.base.digest import canonical_json
from assay.base.errors import DataError, TrainingError
from assay.base.parsing.nesting import parse_json
from assay.base.shapes import Float, Int64
from assay.base.units import tenths_text
from assay.data.dataset.columns import ITEM
from assay.data.loader.batch import MicroBatch
from assay.models.reward_network import RewardNetwork
from assay.scoring.grade import Grade, GraderRunner, Values, sample_values
from assay.scoring.graders import grader_sha256
from assay.scoring.item_failure import ItemFailure, ItemFailureKind
from assay.training.checkpoint.named_commit import CommitName
from assay.training.checkpoint.parts import MODEL, model_state, restore_model
from assay.training.checkpoint.saver import weights_digest
from assay.training.checkpoint.store_files import read_commit
from assay.training.methods.grpo.judging import JudgedGroups, judged_grades
from assay.training.methods.grpo.reward_config import (
    GraderReward,
    JudgeEndpoint,
    RunReward,
    asks_judge,
    judges_of,
    reward_model,
    tools_at,
)
from assay.training.trainer.method import Helpers, MetricSum

FAILURE_KINDS = tuple(
    kind for kind in get_args(ItemFailureKind) if kind.startswith(("invalid", "python", "formula", "reward"))
)
"""How grading without an endpoint fails."""
JUDGE_FAILURE_KINDS = tuple(kind for kind in get_args(ItemFailureKind) if kind.startswith("model_grader"))
"""How judges fail besides."""
KILLED: ItemFailureKind = "python_grader_killed"
FAILURES = "failed_grades"


class Graded(NamedTuple):
    """What came of one completion."""

    reward: float | None
    """None where a grader failed."""
    failure: ItemFailure | None
    """Exactly one of the two is there."""
    scores: tuple[float | None, ...]
    """Those of each reward by itself, without weight."""


class TooManyFailuresError(TrainingError):
    """Graders fail too often for what is left to be trusted."""


def items_of(batch: MicroBatch) -> list[dict[str, Any]]:
    """What graders read of each prompt."""
    found = []
    for row, text in zip(batch.row_ids.tolist(), batch.columns[ITEM].to_pylist(), strict=True):
        item = _parsed(text)
        if not isinstance(item, dict):
            raise DataError(
                f"row {row}: '{ITEM}' is no JSON object: {text!r:.80}. Build the dataset with 'assay data "
                "build --format prompts'."
            )
        found.append(item)
    return found


class Rewards:
    """Ready to pay. Python graders keep a process, until this is closed or gone."""

    def __init__(
        self,
        config: Sequence[GraderReward | RunReward],
        *,
        group_size: int,
        key: str = "method.rewards",
        endpoint: JudgeEndpoint = JudgeEndpoint(),  # noqa: B008
    ) -> None:
        """`key` is where the recipe has them, by which networks are called; `endpoint`: where judges answer."""
        self._config = config
        self._endpoint = endpoint
        self._group_size = group_size
        self._places = [f"{key}[{index}]" for index in range(len(config))]
        self._runners: dict[int, GraderRunner] = {}
        self._end = weakref.finalize(self, _close, self._runners)
        self._networks: dict[str, nn.Module] | None = None
        self._own = [f"reward_{each.name}" for each in config] if len(config) > 1 else []
        self._kinds = (*FAILURE_KINDS, *(JUDGE_FAILURE_KINDS if any(map(asks_judge, config)) else ()))
        self.metrics = ("reward", FAILURES, *(f"{FAILURES}_{kind}" for kind in self._kinds), *self._own)
        """Names of what `sums` gives."""
        self.last_failure = ""
        """The text of the newest failed grade on this rank."""
        self.graders = canonical_json([_version(each) for each in config])
        """Who pays, in the order of scores: name, digest, and the names of models that are asked."""

    def networks(self) -> dict[str, nn.Module]:
        """The models of reward runs, read once; for `Method.build_helpers`."""
        if self._networks is None:
            self._networks = {
                where: _committed(CommitName(each.run, each.step), where)
                for where, each in zip(self._places, self._config, strict=True)
                if isinstance(each, RunReward)
            }
        return self._networks

    def grade(
        self,
        items: Sequence[Mapping[str, Any]],
        completions: Sequence[str],
        sequences: Sequence[Int64[np.ndarray, "_"]],
        networks: Helpers,
        judged: JudgedGroups | None = None,
    ) -> list[Graded]:
        """What each answer is paid. `items` are those of its prompt, `sequences` prompt and answer in tokens;
        `group_size` of them, one after the other, are a group. Without `judged` there is no book, and judges
        are asked each time."""
        samples = [sample_values(text, item) for text, item in zip(completions, items, strict=True)]
        columns = []
        for index, (reward, where) in enumerate(zip(self._config, self._places, strict=True)):
            if isinstance(reward, RunReward):
                columns.append(self._asked(networks[where], sequences))
            elif asks_judge(reward) and judged is not None:
                columns.append(self._judged(index, reward, samples, judged))
            else:
                columns.append(self._runner(index, reward).grade(samples))
        weights = [each.weight for each in self._config]
        return [_paid(grades, weights) for grades in zip(*columns, strict=True)]

    def sums(self, graded: Sequence[Graded]) -> dict[str, MetricSum]:
        """What so many rollouts add to the step's metrics."""
        paid = [each.reward for each in graded if each.reward is not None]
        failures = [each.failure for each in graded if each.failure is not None]
        kinds = [failure.kind for failure in failures]
        self.last_failure = str(failures[-1]) if failures else self.last_failure
        found = {"reward": _sum(paid, len(paid)), FAILURES: _sum([1.0] * len(kinds), len(graded))}
        for kind in self._kinds:
            found[f"{FAILURES}_{kind}"] = _sum([1.0] * kinds.count(kind), len(graded))
        for index, name in enumerate(self._own):
            scores = [score for each in graded if (score := each.scores[index]) is not None]
            found[name] = _sum(scores, len(scores))
        return found

    def close(self) -> None:
        """End the processes of python graders; so does who forgets it, when this is no more."""
        self._end()

    def _runner(self, index: int, reward: GraderReward) -> GraderRunner:
        """Made when it is asked first: who only looks at a run needs no endpoint."""
        if index not in self._runners:
            self._runners[index] = GraderRunner(reward.grader, tools_at(self._endpoint, [reward]))
        return self._runners[index]

    def _judged(
        self, index: int, reward: GraderReward, samples: Sequence[Values], judged: JudgedGroups
    ) -> list[Grade]:
        if not judged.book.is_read_only:
            self._runner(index, reward)  # here: below are threads

        def ask(places: list[int]) -> list[Grade]:
            return self._runner(index, reward).grade([samples[place] for place in places])

        at_once = judges_of(reward, self._endpoint, self._group_size)
        return judged_grades(judged, reward, index=index, ask=ask, at_once=at_once)

    def _asked(self, network: nn.Module, sequences: Sequence[Int64[np.ndarray, "_"]]) -> list[Grade]:
        starts = range(0, len(sequences), self._group_size)
        return [
            each for start in starts for each in _asked(network, sequences[start : start + self._group_size])
        ]


def refuse_failures(metrics: Mapping[str, float], most: float, *, step: int, example: str = "") -> None:
    """Stop a run of which more than the share `most` of a step's rollouts could not be paid."""
    share = metrics.get(FAILURES, 0.0)
    if share > most:
        kinds = {
            kind: metrics.get(f"{FAILURES}_{kind}", 0.0) for kind in (*FAILURE_KINDS, *JUDGE_FAILURE_KINDS)
        }
        said = ", ".join(f"{tenths_text(part)} {kind}" for kind, part in kinds.items() if part)
        said += f"; e.g. {example:.300}" if example else ""
        cure = "Mend the grader and train a new run"
        if kinds[KILLED]:
            cure = (
                "Processes of graders were killed from outside, which says nothing of the rollouts: go on with "
                "assay train --resume, and the step is graded again. If the kernel killed them because memory "
                "ran out, start fewer ranks on the machine, or have the grader take less"
            )
        if any(kinds[kind] for kind in JUDGE_FAILURE_KINDS):
            cure = (
                "Once the judge answers again, go on with assay train --resume: it is asked about what has no "
                "reward, and about nothing else"
            )
        raise TooManyFailuresError(
            f"step {step}: {tenths_text(share)} of the rollouts got no reward ({said}), more than "
            f"method.max_reward_failures={most:g} allows. No update was made, and what is committed is intact. "
            f"{cure}; or go on with more of them missing: assay train --from RUN "
            "method.max_reward_failures=SHARE."
        )


def _close(runners: dict[int, GraderRunner]) -> None:
    for runner in runners.values():
        runner.close()


def _version(reward: GraderReward | RunReward) -> dict[str, Any]:
    if isinstance(reward, RunReward):
        return {"name": reward.name, "run": reward.run, "step": reward.step, "weight": reward.weight}
    return {"name": reward.name, "grader_sha256": grader_sha256(reward.grader), "weight": reward.weight}


def _paid(grades: Sequence[Grade], weights: Sequence[float]) -> Graded:
    scores = tuple(grade.score for grade in grades)
    failure = next((grade.failure for grade in grades if grade.failure is not None), None)
    if failure is not None:
        return Graded(None, failure, scores)
    return Graded(
        math.fsum(weight * score for weight, score in zip(weights, scores, strict=True) if score is not None),
        None,
        scores,
    )


@torch.no_grad()
def _asked(network: nn.Module, group: Sequence[Int64[np.ndarray, "_"]]) -> list[Grade]:
    """What a reward model says, in one pass, in float32."""
    device = next(network.parameters()).device
    lengths = torch.tensor([len(each) for each in group], dtype=torch.int32, device=device)
    lines = np.zeros((len(group), int(lengths.max())), np.int64)
    for line, each in zip(lines, group, strict=True):
        line[: len(each)] = each
    with torch.autocast(device.type, enabled=False):
        said: Float[Tensor, "line"] = network(torch.from_numpy(lines).to(device), lengths)
    broken = ItemFailure("reward_not_finite", "the reward model said no finite number")
    return [Grade(each) if math.isfinite(each) else Grade(None, broken) for each in said.tolist()]


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


def _parsed(text: str | None) -> object:
    try:
        return parse_json(text or "")
    except ValueError:
        return None
