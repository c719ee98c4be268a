"""A regression with noise that the trainer's tests train, small enough to be written down a second time.

Rows are points, and weigh their tokens: as many as the row's number modulo 3, and one more. The noise shows
whether generators are seeded, a helper whether it is frozen. Of `SaysRows`, rows are prompts: each becomes the
row that the model answers.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from assay.data.loader.batch import LaneShare, MicroBatch, Ragged
from assay.inference.rollout import GenerationCancelledError
from assay.records.rollout_log import GroupRecord, RolloutRecord
from assay.training.numerics import MetricSum, combined_digest, digest_of_tensors
from assay.training.rollouts.source import RolloutContext
from assay.training.samples import LaneSamples
from assay.training.trainer.method import Loss

NUM_POINTS = 40
"""That `SaysRows` can answer."""


class NoisyRegression:
    """Points to zero."""

    metrics: tuple[str, ...] = ("error", "seldom")

    def build_model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def build_frozen_models(self) -> dict[str, nn.Module]:
        return {"offset": nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5))}

    def weight(self, micro_batch: MicroBatch) -> int:
        return micro_batch.num_tokens

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> dict[str, torch.Tensor]:
        rows = torch.tensor(micro_batch.row_ids.astype(np.float32), device=device)
        return {"points": torch.stack([rows / 10, rows.sin(), rows.cos()], dim=1)}

    def blank(self, device: torch.device) -> dict[str, torch.Tensor]:
        return {"points": torch.ones(1, 3, device=device)}

    def loss(self, model: nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        points = tensors["points"]
        error = model(points) + torch.rand(len(points), 1) - 0.0 * frozen_models["offset"](points)
        seldom = MetricSum(torch.tensor(1.0), 0.0)
        return Loss(error.square().sum(), {"error": MetricSum(error.abs().sum(), len(points)), "seldom": seldom})


class PromptRows(NoisyRegression):
    """Later updates weigh a loss by what the first one found."""

    metrics = (*NoisyRegression.metrics, "shaped_reward")
    rollout_costs: Mapping[str, float] = MappingProxyType({"decode_s": 0.5})

    def __init__(
        self, *, updates_per_rollout: int = 1, staleness: int = 0, step_statistics: tuple[str, ...] = ()
    ) -> None:
        self.updates_per_rollout = updates_per_rollout
        self.staleness = staleness
        self.step_statistics = step_statistics
        self.requested: list[dict[str, Any]] = []
        """What was arguments with each wish for answers."""
        self.checked: list[tuple[int, dict[str, float]]] = []

    def rollouts(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        frozen_models: Any,
        context: RolloutContext,
        **arguments: Any,
    ) -> list[LaneSamples]:
        context.enter_phase("generation")
        self._note_context(context, lanes=[lane.lane for lane in lanes], **arguments)
        if context.is_stopping():
            raise GenerationCancelledError
        return [self.rolled_out(model, lane, step=context.step, seed=context.seed) for lane in lanes]

    def rollout(
        self, model: nn.Module, lane: LaneShare, frozen_models: Any, context: RolloutContext, **arguments: Any
    ) -> Any:
        self._note_context(context, lanes=[lane.lane], **arguments)
        return self.sampled_tokens(model, arguments["row_id"], context.seed)

    def _note_context(self, context: RolloutContext, **arguments: Any) -> None:
        self._note(step=context.step, seed=context.seed, reward_cache=context.reward_cache, **arguments)

    def rolled_out(self, model: nn.Module, lane: LaneShare, *, step: int, seed: int) -> LaneSamples:
        """A function of weights, rows and seed."""
        prompts = [int(row) for batch in lane.micro_batches for row in batch.row_ids]
        rows = [self.sampled_tokens(model, row, seed) for row in prompts]
        rewards = MetricSum(torch.tensor(float(sum(rows)), dtype=torch.float64), len(rows))
        rollout_log = [
            GroupRecord(step, lane.lane, row, "trained", "[]", (completion_of(output),))
            for row, output in zip(prompts, rows, strict=True)
        ]
        trained = LaneShare(lane.lane, (micro_batch(rows),) if rows else ())
        return LaneSamples(trained, {"shaped_reward": rewards}, combined_digest(rows), tuple(rollout_log))

    def sampled_tokens(self, model: nn.Module, row: int, seed: int) -> int:
        """The answer to one prompt."""
        return (row + seed + digest_of_tensors(model.parameters())) % NUM_POINTS

    def normalize_advantages(self, lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
        shift = round(totals["shaped_reward"])
        moved = tuple(micro_batch([int(row) + shift for row in batch.row_ids]) for batch in lane.micro_batches)
        return LaneShare(lane.lane, moved)

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        self.checked.append((step, dict(metrics)))

    def predictions(self, model: nn.Module, tensors: Any) -> Any:
        raise AssertionError("nobody evaluates it")

    def loss(self, model: nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        found = super().loss(model, tensors, frozen_models)
        weight = 1 + tensors["first"] if "first" in tensors else 1.0
        return found._replace(sum=found.sum * weight, carried={"first": found.sum.detach()})

    def _note(self, **arguments: Any) -> None:
        is_plain = not torch.is_grad_enabled()
        self.requested.append({**arguments, "is_plain": is_plain, "is_mixed": torch.is_autocast_enabled("cpu")})


def micro_batch(rows: Sequence[int]) -> MicroBatch:
    """Tokens that are all alike."""
    lengths = np.array([row % 3 + 1 for row in rows], np.int32)
    return MicroBatch(np.array(rows, np.uint64), {"input_ids": Ragged(np.ones((len(rows), 3), np.int64), lengths)}, {})


def completion_of(row: int) -> RolloutRecord:
    """As the journal holds it."""
    return RolloutRecord(digest=row, num_tokens=1, is_cut=False, reward=float(row), scores=(float(row),), advantage=0.5)
