"""Forward passes of one lane: the only place where rows, random generators and precision are combined.

The training step, its spot check, its replay and the search for bad rows all compute losses here, so they start
from the same bits.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.base.shapes import Shaped
from assay.data.dataset.columns import sequences_of
from assay.data.loader.batch import LaneShare, MicroBatch
from assay.distributed.rank_device import autocast
from assay.models.compute_copy import as_bfloat16
from assay.models.described import on_device
from assay.training.numerics import MetricSum
from assay.training.trainer.config import Precision
from assay.training.trainer.method import Loss, LossMethod, Tensors


class LaneForward:
    """Computes losses of a method with whichever model is passed in."""

    def __init__(
        self,
        method: LossMethod,
        *,
        device: torch.device,
        precision: Precision,
        seed: int,
        updates_per_step: int = 1,
        compute_copy: bool = False,
    ) -> None:
        """`updates_per_step`: optimizer updates from the samples of one step. `compute_copy`: the models that are
        passed in are bfloat16 copies (see `models.compute_copy`), so frozen models are, too."""
        self._method = method
        self.frozen_models = {
            name: on_device(model, device).eval().requires_grad_(False)
            for name, model in method.build_frozen_models().items()
        }
        """Frozen models that the loss reads, such as a reference model."""
        if compute_copy:
            for model in self.frozen_models.values():
                as_bfloat16(model)
        self._device = device
        self.autocast = nullcontext() if compute_copy else autocast(precision, device)
        self._seed = seed
        self.updates_per_step = updates_per_step
        self._carried: dict[tuple[int, int], Tensors] = {}
        """(lane, micro-batch) -> tensors that the step's first update computed for the later ones."""
        self._carries_as: tuple[int, int] | None = None
        """Key of what the next loss computes for later updates."""
        self.metrics = tuple(method.metrics)
        """Names of the metrics of losses and of samples."""
        self.lane: int | None = None
        self.micro_batch: MicroBatch | None = None
        """Lane and micro-batch of the last loss; None for a blank."""
        self.is_under_way = False
        """True while a loss is computed, also between modules."""

    def loss(self, model: nn.Module, lane: LaneShare, index: int, *, step: int, update: int = 0) -> Loss:
        """Return the loss of micro-batch `index` of a lane of training samples in step `step` (from 1).

        The generators are seeded by (seed, step, lane, index), and by `update` if a step makes several. Beyond
        the lane's last micro-batch, the loss is that of a blank whose sums and weights are zero: ranks compute
        it to keep collectives in step.
        """
        return self.loss_of_tensors(model, self.begin(lane, index, step=step, update=update))

    def begin(
        self, lane: LaneShare, index: int, *, step: int, update: int = 0
    ) -> dict[str, Shaped[Tensor, "..."]] | None:
        """Seed the generators for a pass and return its tensors on the device; None for a blank."""
        again = ("update", update) if update else ()
        seed_generators(derive_key(self._seed, "forward", step, lane.lane, index, *again))
        self._carries_as = (lane.lane, index) if self.updates_per_step > 1 and not update else None
        if index >= len(lane.micro_batches):
            self.lane = self.micro_batch = None
            return None
        self.lane, self.micro_batch = lane.lane, lane.micro_batches[index]
        carried = self._carried[lane.lane, index] if update else {}
        return {**self._tensors(self.micro_batch), **carried}

    @property
    def carries(self) -> bool:
        """True if the next loss computes tensors for later updates, which a replay of it would not store."""
        return self._carries_as is not None

    def loss_of(self, model: nn.Module, micro_batch: MicroBatch) -> Loss:
        """Return the loss of one micro-batch without seeding the generators."""
        self.micro_batch, self._carries_as = micro_batch, None
        return self.loss_of_tensors(model, self._tensors(micro_batch))

    def loss_of_tensors(self, model: nn.Module, tensors: Tensors | None) -> Loss:
        """Return the loss of the tensors that `begin` returned."""
        if tensors is None:
            with self.autocast:
                blank = self._method.loss(model, self._method.blank(self._device), self.frozen_models)
            nothing = {name: MetricSum(0.0 * metric.sum, 0.0) for name, metric in blank.metrics.items()}
            return Loss(0.0 * blank.sum, nothing)
        self.is_under_way = True
        try:
            with self.autocast:
                loss = self._method.loss(model, tensors, self.frozen_models)
        finally:
            self.is_under_way = False
        if self._carries_as is not None:
            self._carried[self._carries_as] = loss.carried
        return loss

    def _tensors(self, micro_batch: MicroBatch) -> dict[str, Shaped[Tensor, "..."]]:
        """Return a micro-batch's tensors on the device. Copies to a GPU come from pinned memory: others would make
        the host wait."""
        tensors = self._method.tensors(micro_batch, torch.device("cpu"))
        if self._device.type != "cuda":
            return dict(tensors)
        return {name: tensor.pin_memory().to(self._device, non_blocking=True) for name, tensor in tensors.items()}

    def weight_of(self, micro_batch: MicroBatch) -> int:
        return self._method.weight(micro_batch)

    def weight(self, lane: LaneShare) -> int:
        return sum(map(self._method.weight, lane.micro_batches))

    def model_flops(self, lanes: Sequence[LaneShare]) -> float | None:
        """Return the model FLOPs of one update from these lanes; None if they are unknown."""
        config, batches = self._method.config, [batch for lane in lanes for batch in lane.micro_batches]
        if (flops := config.model_flops()) is None:
            return None
        return sum(
            flops.training(
                np.concatenate([batch.ragged[name].lengths for name in sequences_of(batch.ragged)]),
                config.num_scored(batch, self.weight_of(batch)),
                num_references=config.num_references,
            )
            for batch in batches
        )


def num_backwards(lane: LaneShare) -> int:
    """Return the number of backward passes of a lane: one for each micro-batch, and at least one."""
    return max(1, len(lane.micro_batches))


def seed_generators(key: int) -> None:
    """Seed the generators like `torch.manual_seed`, a hundred times faster: only the backends in use are seeded."""
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(key)
