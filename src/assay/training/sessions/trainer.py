"""A model of a session: passes and updates are separate calls, as the client requests them.

    forward_backward   lanes of the request --passes--> sum over lanes --+--> the gradient so far
    forward_backward   ...                                              -+
    update             the gradient so far --clip, AdamW--> weights; the gradient begins again at zero

The gradient of a request is the trainer's own sum over lanes (see `LanePasses`), so it has the same bits on any number
of ranks. Requests are added in their order, and nothing is divided by a number of tokens or datums.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Float, Float32
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.flat_lane_sum import FlatLaneSum
from assay.distributed.lane_sum import trained_parameters
from assay.distributed.ranks import Ranks
from assay.training.checkpoint.parts import MODEL, State, training_parts
from assay.training.numerics import added_in_order
from assay.training.samples import LaneSamples
from assay.training.sessions.batch import Datum, check_datums, lanes_of
from assay.training.sessions.losses import loss_settings, named_loss
from assay.training.sessions.method import SessionMethod
from assay.training.sessions.stored_state import MOMENTS, stored, stored_model, stored_moments
from assay.training.trainer.captured import LanePasses
from assay.training.trainer.config import OptimizerConfig, Precision
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.method_config import CausalMethodConfig
from assay.training.trainer.optimizer import apply_update, average_and_clip, build_optimizer
from assay.training.trainer.step import initial_model


class RequestLoss(NamedTuple):
    """The loss that a request names, with its settings."""

    name: str
    settings: Mapping[str, float | str] = {}


class PassOutput(NamedTuple):
    """The result of the passes of a request, with equal bits on each rank."""

    loss: float
    """Sum over all tokens."""
    logprobs: list[Float32[np.ndarray, "_"]]
    """Logprobs of each datum's targets, in the order of the request, before any update."""


class AdamSettings(NamedTuple):
    """AdamW of one update."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_gradient_norm: float | None
    """None: gradients are not clipped."""


class SessionTrainer:
    """Trains one model of a session. Methods are called on all ranks with the same requests."""

    def __init__(
        self,
        config: CausalMethodConfig,
        ranks: Ranks,
        *,
        seed: int,
        num_lanes: int,
        max_micro_batch_tokens: int | None,
        precision: Precision,
        num_threads: int = 1,
        base: Any = None,
    ) -> None:
        """`base`: frozen, below the model's adapters (see `frozen_base`); None: the model has weights of its own.

        `seed`: of new weights and of dropout. `num_lanes`: lanes of each request. `num_threads`: of the CPU;
        another number gives other bits."""
        self._num_threads = num_threads
        self._ranks = ranks
        self._shares = LaneShares(num_lanes, ranks.world_size)
        self._max_tokens = max_micro_batch_tokens
        shape = config.model.shape()
        if shape is None:
            raise ConfigError("method.model: its config.json does not tell its vocabulary and its context.")
        self._shape = shape
        self._method = SessionMethod(config, base)
        self.model = initial_model(self._method, seed=seed, device=ranks.device)
        self.lane_forward = LaneForward(self._method, device=ranks.device, precision=precision, seed=seed)
        self._lane_sum = FlatLaneSum(self.model, ranks, self._shares)
        self._passes = LanePasses(self.lane_forward, self._lane_sum, ranks.device)
        self._trained = trained_parameters(self.model)
        self._optimizer = build_optimizer(self.model, OptimizerConfig())
        _begin_moments(self._optimizer)
        self._parts = training_parts(self.model, self._optimizer)
        self._gradient: list[Float[Tensor, "..."]] = []
        """Sum of the requests since the last update."""

    @property
    def has_gradient(self) -> bool:
        """True if passes were made that no update has used."""
        return bool(self._gradient)

    def forward_backward(self, datums: Sequence[Datum], loss: RequestLoss, *, seq_id: int) -> PassOutput:
        """Add the gradient of a request. Raises `DataError` without an effect if the request is not valid.

        `seq_id`: number of the request, which dropout is keyed by.
        """
        samples = self._begin(datums, loss)
        sums, _ = self._passes.sum_gradients(samples, step=seq_id, update=0)
        self._add_gradient()
        return self._gathered([[lane.lane.lane, loss] for lane, loss in zip(samples, sums[:, 0].tolist(), strict=True)])

    @torch.no_grad()
    def forward(self, datums: Sequence[Datum], loss: RequestLoss, *, seq_id: int) -> PassOutput:
        """Return what `forward_backward` returns; no gradient is computed."""
        losses = []
        for samples in self._begin(datums, loss):
            share = samples.lane
            parts = [
                self.lane_forward.loss(self.model, share, index, step=seq_id).sum.double().item()
                for index in range(len(share.micro_batches))
            ]
            losses.append([share.lane, added_in_order(parts)])
        return self._gathered(losses)

    def update(self, settings: AdamSettings) -> float:
        """Update the weights with the gradient so far, which begins again; return its norm before clipping.

        Raises `DataError` if no passes were made since the last update, or if the gradient is not finite: then nothing
        is updated.
        """
        if not self._gradient:
            raise DataError("optim_step: no forward_backward since the last optim_step, so there is no gradient.")
        torch.set_num_threads(self._num_threads)
        gradients, self._gradient = self._gradient, []
        norm = average_and_clip(gradients, weight=1, max_norm=settings.max_gradient_norm)
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            parameter.grad = gradient
        for group in self._optimizer.param_groups:
            group.update(betas=(settings.beta1, settings.beta2), eps=settings.epsilon)
            group["weight_decay"] = settings.weight_decay if group["params"][0].ndim >= 2 else 0.0
        apply_update(self._optimizer, settings.learning_rate, norm.isfinite())
        if not math.isfinite(found := float(norm)):
            self._optimizer.zero_grad(set_to_none=True)
            raise DataError(f"optim_step: the gradient's norm is {found}, so no update was made.")
        return found

    def drop_gradient(self) -> None:
        """Begin the gradient again at zero."""
        self._gradient = []

    def digest(self) -> str:
        """Return the digest of weights and moments."""
        return sha256_of_bytes(self.stored())

    def stored(self, *, with_moments: bool = True) -> bytes:
        """Return the weights, with the optimizer's state, as a file."""
        return stored(self._parts[MODEL].state(), self._moments()["state"] if with_moments else None)

    def restore(self, data: bytes, *, with_moments: bool = True) -> None:
        """Restore what `stored` returned."""
        self._parts[MODEL].restore(stored_model(data, self._parts[MODEL].state()))
        if with_moments:
            state = self._moments()
            self._parts[MOMENTS].restore({**state, "state": stored_moments(data, state["state"])})

    def _moments(self) -> State:
        return self._parts[MOMENTS].state()

    def _begin(self, datums: Sequence[Datum], loss: RequestLoss) -> list[LaneSamples]:
        """Check a request, and return this rank's lanes of it."""
        named, settings = named_loss(loss.name), loss_settings(loss.name, loss.settings)
        check_datums(datums, named, self._shape)
        torch.set_num_threads(self._num_threads)
        self._method.begin(named, settings)
        self._num_targets = [len(datum.targets) for datum in datums]
        lanes = lanes_of(
            datums,
            named,
            num_lanes=self._shares.num_lanes,
            lanes=self._shares.of_rank(self._ranks.rank),
            max_tokens=self._max_tokens,
        )
        return list(map(LaneSamples, lanes))

    def _add_gradient(self) -> None:
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        if self._gradient:
            torch._foreach_add_(self._gradient, gradients)
        else:
            self._gradient = [gradient.clone() for gradient in gradients]
        self._optimizer.zero_grad(set_to_none=True)

    def _gathered(self, losses: list[list[float]]) -> PassOutput:
        """Return the output of all ranks from this rank's lines of lane and loss."""
        everyone = self._ranks.all_gather_lanes(losses, most=self._shares.most)
        of_ranks: list[dict[int, Float32[np.ndarray, "_"]]] = [{}] * self._ranks.world_size
        dist.all_gather_object(of_ranks, self._method.logprobs(), group=self._ranks.control)
        logprobs = {index: row for of_rank in of_ranks for index, row in of_rank.items()}
        return PassOutput(
            added_in_order(loss for _, loss in everyone),
            [logprobs[index][:length] for index, length in enumerate(self._num_targets)],
        )


def _begin_moments(optimizer: torch.optim.Optimizer) -> None:
    """Give each parameter its moments, as AdamW does at its first step: a checkpoint before it holds them, too."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            is_fused = bool(group["fused"])
            device = parameter.device if is_fused else torch.device("cpu")
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
